//! What the server refuses to store: names, labels, taints, events in the wrong namespace, custom schemas.
//! Pure. A copy of what this project's clients can run into, not of every rule.

mod meta;
mod schema;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::obj;
use crate::registry::{ResourceKind, View};
use crate::status::{ApiError, Cause};

pub(super) use meta::name;

/// Checks an object that is about to be stored; a custom one also loses what its schema does not know, and gains what that
/// gives to absent fields.
pub(super) fn object(kind: &ResourceKind, old: Option<&Value>, new: &mut Value, strict: bool) -> Result<(), ApiError> {
    let mut causes = meta::labels(new);
    match &*kind.storage {
        "nodes" => taints(new, &mut causes),
        "pods" => pod(old, new, &mut causes),
        "events" => event(kind, new, &mut causes),
        "deployments.apps" | "replicasets.apps" | "statefulsets.apps" | "daemonsets.apps" => workload(old, new, &mut causes),
        _ => {}
    }
    if let Some(custom) = &kind.custom
        && let Some(schema) = &custom.schema
    {
        let unknown = schema::prune(schema, new);
        if strict && !unknown.is_empty() {
            let list: Vec<String> = unknown.iter().map(|field| format!("unknown field \"{field}\"")).collect();
            return Err(ApiError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
                kind.kind,
                kind.version,
                kind.kind,
                list.join(", ")
            )));
        }
        schema::fill(schema, new);
        schema::check(schema, new, "", &mut causes);
    }
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid(kind, obj::name(new), &causes)) }
}

fn taints(node: &Value, causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, taint) in obj::list(node, "/spec/taints").iter().enumerate() {
        let (key, effect) = (obj::text(taint, "/key"), obj::text(taint, "/effect"));
        let field = format!("spec.taints[{index}]");
        if key.is_empty() {
            causes.push(Cause::required(format!("{field}.key"), ""));
        }
        if effect.is_empty() {
            causes.push(Cause::required(format!("{field}.effect"), ""));
        } else if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            causes.push(Cause::unsupported(
                format!("{field}.effect"),
                format!("\"{effect}\""),
                "\"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ));
        }
        if !seen.insert((key.to_owned(), effect.to_owned())) {
            causes.push(Cause::duplicate(field, taint));
        }
    }
}

fn pod(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    if obj::list(new, "/spec/containers").is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let Some(old) = old else { return };
    let bound = obj::text(old, "/spec/nodeName");
    if !bound.is_empty() && bound != obj::text(new, "/spec/nodeName") {
        causes.push(Cause::forbidden("spec", "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"));
    }
}

/// An Event about something without a namespace lives in `default`.
fn event(kind: &ResourceKind, event: &Value, causes: &mut Vec<Cause>) {
    let about = if kind.view == View::EventsV1 { "regarding" } else { "involvedObject" };
    let theirs = obj::text(event, &format!("/{about}/namespace"));
    let ours = obj::namespace(event);
    let fits = if theirs.is_empty() { matches!(ours, "" | "default") } else { theirs == ours };
    if !fits {
        causes.push(Cause::invalid(format!("{about}.namespace"), format!("\"{theirs}\""), "does not match event.namespace"));
    }
    if kind.view == View::EventsV1 {
        for field in ["reportingController", "reportingInstance", "action", "reason", "eventTime"] {
            if obj::text(event, &format!("/{field}")).is_empty() {
                causes.push(Cause::required(field, ""));
            }
        }
    }
}

fn workload(old: Option<&Value>, new: &Value, causes: &mut Vec<Cause>) {
    let selector = &new["spec"]["selector"];
    if selector.is_null() {
        causes.push(Cause::required("spec.selector", ""));
        return;
    }
    if let Ok(parsed) = crate::selector::LabelSelector::of_object(selector)
        && !parsed.matches_object(&new["spec"]["template"])
    {
        causes.push(Cause::invalid(
            "spec.template.metadata.labels",
            &new["spec"]["template"]["metadata"]["labels"],
            "`selector` does not match template `labels`",
        ));
    }
    if old.is_some_and(|old| old["spec"]["selector"] != *selector) {
        causes.push(Cause::invalid("spec.selector", selector, "field is immutable"));
    }
}
