//! `pods/eviction` and `pods/binding`, branch by branch as the real handler goes.
//! Note the order: the budget is decremented before the delete preconditions are looked at, as on the real server.

use serde_json::{Value, json};

use super::{DeleteOptions, Part, WriteOptions, create::namespace_terminating, delete, update};
use crate::obj;
use crate::registry::ResourceKind;
use crate::selector::LabelSelector;
use crate::status::ApiError;
use crate::store::{ObjKey, Txn};

/// More unconfirmed evictions than this, and the handler refuses to add one.
const DISRUPTED_PODS_MAX: usize = 2_000;
const STILL_PROCESSED_RETRY_SECONDS: u32 = 10;
const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
const TOO_MANY_BUDGETS: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
const BUDGETS: &str = "poddisruptionbudgets.policy";

/// A decoded eviction request.
#[derive(Debug, Clone)]
pub(crate) struct Eviction {
    pub(crate) pod: ObjKey,
    pub(crate) options: DeleteOptions,
}

enum Guard {
    None,
    /// The pod must not have changed meanwhile; the budget that let it pass.
    Version {
        budget: Option<String>,
    },
}

pub(crate) fn evict(txn: &mut Txn<'_>, pods: &ResourceKind, eviction: &Eviction, write: &WriteOptions) -> Result<(), ApiError> {
    let key = &eviction.pod;
    namespace_open(txn, pods, key)?;
    let pod = txn.get(&pods.storage, key).ok_or_else(|| ApiError::not_found(pods, &key.name))?.value(pods);
    if past_budgets(&pod) {
        let mut options = eviction.options.clone();
        let pending = obj::text(&pod, "/status/phase") == "Pending" && !obj::terminating(&pod);
        if pending && options.resource_version.is_none() {
            options.resource_version = Some(obj::resource_version(&pod).to_owned());
        }
        return delete(txn, pods, key, &options).map(drop);
    }
    match check_budget(txn, &pod, write)? {
        Guard::None => condition_and_delete(txn, pods, pod, &eviction.options, write),
        Guard::Version { budget } => {
            let mut options = eviction.options.clone();
            options.resource_version.get_or_insert_with(|| obj::resource_version(&pod).to_owned());
            let asked = eviction.options.resource_version.is_some();
            condition_and_delete(txn, pods, pod, &options, write).map_err(|error| match budget {
                Some(budget) if error.code == 409 && !asked => still_processed(&budget),
                _ => error,
            })
        }
    }
}

/// Evicting what does not run, or already ends, disrupts nothing.
fn past_budgets(pod: &Value) -> bool {
    obj::pod_finished(pod) || obj::text(pod, "/status/phase") == "Pending" || obj::terminating(pod)
}

fn namespace_open(txn: &Txn<'_>, pods: &ResourceKind, key: &ObjKey) -> Result<(), ApiError> {
    let namespace = txn.get("namespaces", &ObjKey::new("", &key.namespace));
    match namespace {
        Some(stored) if obj::text(&stored.bare(), "/status/phase") == "Terminating" => {
            Err(namespace_terminating(pods, &key.namespace, &key.name))
        }
        _ => Ok(()),
    }
}

fn check_budget(txn: &mut Txn<'_>, pod: &Value, write: &WriteOptions) -> Result<Guard, ApiError> {
    let kind = txn.registry().find("policy", "v1", "poddisruptionbudgets").expect("the built-in table has budgets");
    let mut matching = budgets_of(txn, pod, &kind);
    let Some(budget) = matching.pop() else { return Ok(Guard::None) };
    if !matching.is_empty() {
        return Err(ApiError::new(500, "", TOO_MANY_BUDGETS));
    }
    if !obj::pod_ready(pod) && unhealthy_may_go(&budget) {
        return Ok(Guard::Version { budget: Some(obj::name(&budget).to_owned()) });
    }
    decrement(txn, &kind, budget, obj::name(pod), write)?;
    Ok(Guard::None)
}

fn budgets_of(txn: &Txn<'_>, pod: &Value, kind: &ResourceKind) -> Vec<Value> {
    if obj::entries(pod, "/metadata/labels").next().is_none() {
        return Vec::new();
    }
    let here = txn.table(BUDGETS).filter(|(key, _)| &*key.namespace == obj::namespace(pod)).map(|(_, stored)| stored.value(kind));
    here.filter(|budget| LabelSelector::of_object(&budget["spec"]["selector"]).is_ok_and(|selector| selector.matches_object(pod)))
        .collect()
}

fn unhealthy_may_go(budget: &Value) -> bool {
    let always = obj::text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
    let desired = obj::int(budget, "/status/desiredHealthy").unwrap_or(0);
    let current = obj::int(budget, "/status/currentHealthy").unwrap_or(0);
    always || (current >= desired && desired > 0)
}

fn decrement(txn: &mut Txn<'_>, kind: &ResourceKind, mut budget: Value, pod: &str, write: &WriteOptions) -> Result<(), ApiError> {
    let name = obj::name(&budget).to_owned();
    let number = |pointer: &str| obj::int(&budget, pointer).unwrap_or(0);
    if number("/status/observedGeneration") < number("/metadata/generation") {
        return Err(still_processed(&name));
    }
    let allowed = number("/status/disruptionsAllowed");
    if allowed < 0 {
        return Err(ApiError::forbidden(&singular(kind), &name, "pdb disruptions allowed is negative"));
    }
    let disrupted = budget.pointer("/status/disruptedPods").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    if disrupted > DISRUPTED_PODS_MAX {
        return Err(ApiError::forbidden(
            &singular(kind),
            &name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        let cause = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("/status/desiredHealthy"),
            number("/status/currentHealthy")
        );
        return Err(refused_by_budget(&cause, None));
    }
    let now = txn.clock.stamp();
    budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
    obj::child(&mut budget["status"], "disruptedPods").insert(pod.to_owned(), json!(now));
    update(txn, kind, budget, Part::Status, write).map(drop)
}

/// The handler names the resource in the singular here.
fn singular(kind: &ResourceKind) -> ResourceKind {
    ResourceKind { plural: "poddisruptionbudget".into(), ..kind.clone() }
}

fn still_processed(budget: &str) -> ApiError {
    let cause = format!("The disruption budget {budget} is still being processed by the server.");
    refused_by_budget(&cause, Some(STILL_PROCESSED_RETRY_SECONDS))
}

/// 429 that a disruption budget caused, as opposed to throttling.
pub(crate) fn refused_by_budget(cause: &str, retry_after: Option<u32>) -> ApiError {
    let details = json!({ "causes": [{ "reason": "DisruptionBudget", "message": cause }] });
    ApiError::too_many_requests(WOULD_VIOLATE, retry_after).with_details(details)
}

fn condition_and_delete(
    txn: &mut Txn<'_>,
    pods: &ResourceKind,
    mut pod: Value,
    options: &DeleteOptions,
    write: &WriteOptions,
) -> Result<(), ApiError> {
    let key = ObjKey::of(&pod);
    let mut options = options.clone();
    preconditions(pods, &pod, &options)?;
    if !txn.dry_run {
        let now = txn.clock.stamp();
        let condition = json!({ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting" });
        obj::set_condition(&mut pod, condition, &now);
        let marked = update(txn, pods, pod, Part::Status, write)?;
        if options.resource_version.is_some() {
            options.resource_version = Some(marked.rv.to_string());
        }
    }
    delete(txn, pods, &key, &options).map(drop)
}

fn preconditions(pods: &ResourceKind, pod: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != obj::uid(pod)) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            obj::uid(pod)
        );
        return Err(ApiError::conflict(pods, obj::name(pod), &why));
    }
    if let Some(version) = options.resource_version.as_deref().filter(|version| *version != obj::resource_version(pod)) {
        let why = format!(
            "the resourceVersion in the precondition ({version}) does not match the resourceVersion in record ({}). The object might have been modified",
            obj::resource_version(pod)
        );
        return Err(ApiError::conflict(pods, obj::name(pod), &why));
    }
    Ok(())
}

/// `pods/binding`: a pod is bound once.
pub(crate) fn bind(txn: &mut Txn<'_>, pods: &ResourceKind, key: &ObjKey, node: &str, write: &WriteOptions) -> Result<(), ApiError> {
    let mut pod = txn.get(&pods.storage, key).ok_or_else(|| ApiError::not_found(pods, &key.name))?.value(pods);
    if obj::terminating(&pod) {
        return Err(ApiError::conflict(
            pods,
            &key.name,
            &format!("pod {} is being deleted, cannot be assigned to a host", key.name),
        ));
    }
    let bound = obj::text(&pod, "/spec/nodeName");
    if !bound.is_empty() {
        return Err(ApiError::conflict(pods, &key.name, &format!("pod {} is already assigned to node \"{bound}\"", key.name)));
    }
    let now = txn.clock.stamp();
    obj::child(&mut pod, "spec").insert("nodeName".into(), json!(node));
    obj::set_condition(&mut pod, json!({ "type": "PodScheduled", "status": "True" }), &now);
    update(txn, pods, pod, Part::All, write).map(drop)
}
