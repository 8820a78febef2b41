//! Findings about what guards a node besides RBAC: our own policies, which must be whole, and what may change a node on its
//! way after we have written it, which the policies would then take for ours.

use serde_json::Value;

use super::{seen, some};
use crate::{
    doctor::{
        Finding, Level,
        facts::{Facts, Mutator, Server},
    },
    rights::{Grant, Sheet},
};

/// ValidatingAdmissionPolicy.
pub(super) const POLICIES_SINCE: (u32, u32) = (1, 30);
/// What the API server fills in itself, besides what is empty: none of it makes a rule look at less.
const FILLED_IN: [(&str, &str); 2] = [("matchPolicy", "Equivalent"), ("scope", "*")];

pub(super) fn findings(facts: &Facts, server: &Server) -> Vec<Finding> {
    let mut all = Vec::new();
    if facts.mode >= Grant::Mark && server.number >= POLICIES_SINCE {
        policies(facts, &mut all);
        mutators(facts, &mut all);
    }
    all
}

/// Who may change nodes or workloads is held to its own fields by a policy, which must be there before the right is. One that
/// looks at fewer requests, or asks for less, is no guard, whatever else of it is as it ships.
fn policies(facts: &Facts, all: &mut Vec<Finding>) {
    const CHECK: &str = "admission";
    let Some(there) = seen(CHECK, &facts.policies, all) else { return };
    let next = Sheet::Admission.apply(&facts.namespace);
    let ours = Sheet::Admission.objects(&facts.namespace);
    let same = |ours: &Value, there: &Value| ours["kind"] == there["kind"] && ours["metadata"]["name"] == there["metadata"]["name"];
    let before = all.len();
    for ours in &ours {
        let name = ours["metadata"]["name"].as_str().unwrap_or_default();
        let kind = ours["kind"].as_str().unwrap_or_default();
        let found = match there.iter().find(|there| same(ours, there)) {
            None => Some(format!("{kind} is missing")),
            Some(there) => differs(&there["spec"], &ours["spec"], "spec")
                .map(|place| format!("{kind} is not the one of this spoke: {place} is another")),
        };
        all.extend(found.map(|found| Finding::new(Level::Problem, CHECK, name, found, &next)));
    }
    if all.len() == before {
        all.push(Finding::new(Level::Ok, CHECK, "", "the policies hold the spoke to its own fields".to_owned(), ""));
    }
}

/// Where `theirs` asks for more, less or something else than `ours`; nothing where it only has what the API server fills in.
fn differs(theirs: &Value, ours: &Value, place: &str) -> Option<String> {
    let here = || Some(place.to_owned());
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let mut asked = ours.iter().filter(|(key, ours)| theirs.contains_key(*key) || !ours.is_null());
            let of_ours = asked.find_map(|(key, ours)| {
                let place = format!("{place}.{key}");
                theirs.get(key).map_or(Some(place.clone()), |theirs| differs(theirs, ours, &place))
            });
            let added = || theirs.iter().find(|(key, value)| !ours.contains_key(*key) && !idle(key, value));
            of_ours.or_else(|| added().map(|(key, _)| format!("{place}.{key}")))
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            let mut pairs = theirs.iter().zip(ours).enumerate();
            pairs.find_map(|(at, (theirs, ours))| differs(theirs, ours, &format!("{place}[{at}]")))
        }
        (theirs, ours) if theirs == ours => None,
        _ => here(),
    }
}

/// Says nothing: nobody, nothing and any are the same to a rule.
fn idle(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.iter().all(|(key, value)| idle(key, value)),
        Value::String(text) => FILLED_IN.contains(&(key, text)),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Our patch is looked at as they leave it: what they add to it is refused with it.
fn mutators(facts: &Facts, all: &mut Vec<Finding>) {
    const CHECK: &str = "mutating";
    let Some(there) = seen(CHECK, &facts.mutators, all) else { return };
    let names = |conditional: bool| -> Vec<&str> {
        there.iter().filter(|one| one.conditional == conditional).map(|Mutator { name, .. }| name.as_str()).collect()
    };
    let (always, sometimes) = (names(false), names(true));
    let next = "leave the spoke's account out by a matchCondition on request.userInfo.username, or nodes out of its rules: where it changes \
                more than is ours the policies refuse the mark (403), and with it the quarantine";
    if !always.is_empty() {
        let found = format!("nodes may be changed as we write them, by {}", some(&always));
        all.push(Finding::new(Level::Warning, CHECK, "", found, next));
    }
    if !sometimes.is_empty() {
        let found = format!("some nodes, or in some requests, may be changed as we write them, by {}", some(&sometimes));
        all.push(Finding::new(Level::Note, CHECK, "", found, next));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_api_server_fills_in_is_no_difference_and_whatever_narrows_or_loosens_is_named() {
        let ours = json!({"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"resources": ["nodes"]}]}});
        let with = |pointer: &str, key: &str, value: Value| {
            let mut theirs = ours.clone();
            theirs.pointer_mut(pointer).unwrap()[key] = value;
            differs(&theirs, &ours, "spec")
        };
        let filled = [
            ("/matchConstraints", "matchPolicy", json!("Equivalent")),
            ("/matchConstraints", "namespaceSelector", json!({})),
            ("/matchConstraints", "excludeResourceRules", json!([])),
            ("/matchConstraints/resourceRules/0", "scope", json!("*")),
            ("", "paramKind", Value::Null),
            ("", "matchResources", json!({"matchPolicy": "Equivalent", "objectSelector": {}})),
        ];
        for (pointer, key, value) in filled {
            assert_eq!(with(pointer, key, value), None, "{key}");
        }
        let other = [
            ("/matchConstraints", "matchPolicy", json!("Exact"), "spec.matchConstraints.matchPolicy"),
            ("/matchConstraints", "objectSelector", json!({"matchLabels": {"a": "b"}}), "spec.matchConstraints.objectSelector"),
            ("/matchConstraints", "excludeResourceRules", json!([{}]), "spec.matchConstraints.excludeResourceRules"),
            (
                "/matchConstraints/resourceRules/0",
                "resources",
                json!(["pods"]),
                "spec.matchConstraints.resourceRules[0].resources[0]",
            ),
            (
                "/matchConstraints/resourceRules/0",
                "resourceNames",
                json!(["n1"]),
                "spec.matchConstraints.resourceRules[0].resourceNames",
            ),
            ("", "failurePolicy", json!("Ignore"), "spec.failurePolicy"),
            ("", "matchResources", json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}), "spec.matchResources"),
        ];
        for (pointer, key, value, place) in other {
            assert_eq!(with(pointer, key, value).as_deref(), Some(place), "{key}");
        }
    }
}
