//! PodDisruptionBudgets: counts the healthy, and says how many may go.

use chrono::{DateTime, Duration, Utc};
use serde_json::{Map, Value, json};

use super::pods;
use crate::obj;
use crate::selector::LabelSelector;
use crate::store::{ObjKey, Store};

/// An eviction that is not confirmed by then is forgotten, as by the real controller.
const CONFIRM_WITHIN: Duration = Duration::minutes(2);

pub(super) fn reconcile(store: &Store, key: &ObjKey) -> Option<DateTime<Utc>> {
    let budget = store.load(super::BUDGETS, key)?.bare();
    let selector = LabelSelector::of_object(&budget["spec"]["selector"]).ok()?;
    let matching = store.values(super::PODS, |pod, stored| pod.namespace == key.namespace && selector.matches(stored));
    let counted: Vec<&Value> = matching.iter().filter(|pod| !obj::pod_finished(pod)).collect();
    let now = store.clock.now();
    let (disrupted, again) = still_disrupted(&budget, &matching, now);
    let healthy = |pod: &&&Value| obj::pod_ready(pod) && !obj::terminating(pod) && !disrupted.contains_key(obj::name(pod));
    let current = i64::try_from(counted.iter().filter(healthy).count()).unwrap_or(i64::MAX);
    let (expected, desired) = wanted(store, &budget, &counted);
    let allowed = if expected == 0 { 0 } else { (current - desired).max(0) };
    let mut status = json!({
        "currentHealthy": current, "desiredHealthy": desired, "expectedPods": expected, "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"]["generation"],
    });
    if !disrupted.is_empty() {
        status["disruptedPods"] = Value::Object(disrupted);
    }
    let stamp = store.clock.stamp();
    let written = store.edit(super::BUDGETS, &key.namespace, &key.name, |budget| {
        let conditions = budget["status"]["conditions"].clone();
        budget["status"] = status;
        if !conditions.is_null() {
            budget["status"]["conditions"] = conditions;
        }
        let (answer, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
        let generation = budget["metadata"]["generation"].clone();
        obj::set_condition(budget, json!({ "type": "DisruptionAllowed", "status": answer, "reason": reason, "message": "", "observedGeneration": generation }), &stamp);
    });
    super::settle(written, "write a status");
    again
}

/// Evictions whose pods are still there and do not end yet; and when the first of them is forgotten.
fn still_disrupted(budget: &Value, matching: &[Value], now: DateTime<Utc>) -> (Map<String, Value>, Option<DateTime<Utc>>) {
    let mut kept = Map::new();
    let mut again: Option<DateTime<Utc>> = None;
    for (pod, since) in budget.pointer("/status/disruptedPods").and_then(Value::as_object).into_iter().flatten() {
        let Some(found) = matching.iter().find(|found| obj::name(found) == pod) else { continue };
        let until =
            DateTime::parse_from_rfc3339(since.as_str().unwrap_or_default()).map_or(now, |since| since.to_utc() + CONFIRM_WITHIN);
        if obj::terminating(found) || until <= now {
            continue;
        }
        kept.insert(pod.clone(), since.clone());
        again = Some(again.map_or(until, |again| again.min(until)));
    }
    (kept, again)
}

/// (pods expected, healthy ones desired)
fn wanted(store: &Store, budget: &Value, counted: &[&Value]) -> (i64, i64) {
    let there = i64::try_from(counted.len()).unwrap_or(i64::MAX);
    let spec = &budget["spec"];
    if let Some(most) = spec.get("maxUnavailable") {
        let expected = scale(store, counted);
        return (expected, (expected - pods::share(most, expected, true).unwrap_or(0)).max(0));
    }
    match &spec["minAvailable"] {
        Value::String(percent) => {
            let expected = scale(store, counted);
            (expected, pods::share(&json!(percent), expected, true).unwrap_or(0))
        }
        number => (there, number.as_i64().unwrap_or(1)),
    }
}

/// How many pods the owners of these pods want altogether; a pod without owner counts itself.
fn scale(store: &Store, counted: &[&Value]) -> i64 {
    let mut owners: std::collections::BTreeMap<&str, i64> = std::collections::BTreeMap::new();
    for pod in counted {
        let Some(owner) = obj::controller(pod) else {
            *owners.entry(obj::uid(pod)).or_default() += 1;
            continue;
        };
        let storage = match obj::text(owner, "/kind") {
            "ReplicaSet" => super::REPLICASETS,
            "StatefulSet" => super::STATEFULSETS,
            _ => continue,
        };
        let found = store.load(storage, &ObjKey::new(obj::namespace(pod), obj::text(owner, "/name"))).map(|stored| stored.bare());
        owners.insert(obj::text(owner, "/uid"), found.and_then(|found| obj::int(&found, "/spec/replicas")).unwrap_or(0));
    }
    owners.values().sum()
}
