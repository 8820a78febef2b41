//! Pure: what spokes did to a cluster over the whole run, read from its API server's record of writes, and what of it must
//! not have been. Times are milliseconds since the API server's start.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::kubernetes::{ANNOTATION_PLAN_REVISION, LEASE, TAINT_FAULTY};
use kubesim::Record;
use serde_json::Value;

/// A request that was under way while its sender was stopped arrives once it goes on: so long after is not a new one.
const IN_FLIGHT_MS: u64 = 1_500;
/// The record's clock and the database's are one machine's; reading both takes a moment.
const CLOCKS_APART_MS: u64 = 1_000;

/// When a replica was stopped (SIGSTOP) and went on.
#[derive(Clone, Debug)]
pub struct Pause {
    /// The replica's name.
    pub replica: String,
    /// It went on then.
    pub until_ms: u64,
}

/// What Postgres says about the command behind a node's plan revision.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// No first effect after it.
    pub start_by_ms: u64,
    /// No effect after it.
    pub finish_by_ms: u64,
}

/// An eviction was done whether or not its answer arrived; 0 is a lost answer.
fn evicted(record: &Record) -> Option<&str> {
    let granted = record.resource == "pods" && record.subresource == "eviction" && matches!(record.code, 200 | 201 | 0);
    granted.then(|| record.body.as_ref()?.pointer("/deleteOptions/preconditions/uid")?.as_str()).flatten()
}

fn node_patched(record: &Record) -> bool {
    record.resource == "nodes" && record.subresource.is_empty() && record.verb == "patch" && record.code == 200
}

fn ops(record: &Record) -> &[Value] {
    record.body.as_ref().and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether a patch of a node puts our taint there (true), takes it away (false), or does neither.
fn marks(record: &Record) -> Option<bool> {
    let op = ops(record).iter().find(|op| op["path"] == "/spec/taints")?;
    let taints = op["value"].as_array().map_or(&[][..], Vec::as_slice);
    Some(op["op"] != "remove" && taints.iter().any(|taint| taint["key"] == TAINT_FAULTY))
}

/// UID of the node and plan revision that a patch of ours carries.
fn stamp(record: &Record) -> Option<(String, u64)> {
    let uid = ops(record).iter().find(|op| op["path"] == "/metadata/uid")?["value"].as_str()?.to_owned();
    let key = format!("/metadata/annotations/{}", ANNOTATION_PLAN_REVISION.replace('/', "~1"));
    let direct = ops(record).iter().find(|op| op["path"] == key.as_str()).and_then(|op| op["value"].as_str());
    let whole = || ops(record).iter().find(|op| op["path"] == "/metadata/annotations")?["value"][ANNOTATION_PLAN_REVISION].as_str();
    Some((uid, direct.or_else(whole)?.parse().ok()?))
}

/// Pods, by UID, for which more than one eviction was granted.
#[must_use]
pub fn evicted_twice(records: &[Record]) -> Vec<String> {
    let mut granted: BTreeMap<&str, Vec<&Record>> = BTreeMap::new();
    for record in records {
        if let Some(uid) = evicted(record) {
            granted.entry(uid).or_default().push(record);
        }
    }
    let told = |(uid, records): (&str, Vec<&Record>)| {
        let by: Vec<String> = records.iter().map(|r| format!("{} at {} ms ({})", r.user, r.at_ms, r.code)).collect();
        format!("pod {uid} ({}/{}): {}", records[0].namespace, records[0].name, by.join(", "))
    };
    granted.into_iter().filter(|(_, records)| records.len() > 1).map(told).collect()
}

/// UIDs of the pods whose eviction was granted.
#[must_use]
pub fn evicted_uids(records: &[Record]) -> BTreeSet<&str> {
    records.iter().filter_map(evicted).collect()
}

/// UIDs of the pods that a spoke deleted past their budgets, once for each delete that was granted.
#[must_use]
pub fn deleted_uids(records: &[Record]) -> Vec<&str> {
    let granted = |record: &&Record| {
        let pod = record.resource == "pods" && record.subresource.is_empty() && record.verb == "delete";
        pod && record.user_agent.starts_with("gpuheal-spoke") && matches!(record.code, 200 | 202 | 0)
    };
    records.iter().filter(granted).filter_map(|record| record.body.as_ref()?.pointer("/preconditions/uid")?.as_str()).collect()
}

/// How many evictions were granted.
#[must_use]
pub fn evictions(records: &[Record]) -> usize {
    records.iter().filter(|record| evicted(record).is_some()).count()
}

/// The most nodes that carried our taint at once.
#[must_use]
pub fn most_marked(records: &[Record]) -> usize {
    let mut marked = BTreeSet::new();
    let mut most = 0;
    for record in records.iter().filter(|record| node_patched(record)) {
        match marks(record) {
            Some(true) => drop(marked.insert(record.name.as_str())),
            Some(false) => drop(marked.remove(record.name.as_str())),
            None => {}
        }
        most = most.max(marked.len());
    }
    most
}

/// How often each node came to be marked: from absent to present.
#[must_use]
pub fn times_marked(records: &[Record]) -> BTreeMap<&str, usize> {
    let mut marked: BTreeMap<&str, bool> = BTreeMap::new();
    let mut times = BTreeMap::new();
    for record in records.iter().filter(|record| node_patched(record)) {
        let Some(now) = marks(record) else { continue };
        if marked.insert(record.name.as_str(), now) != Some(true) && now {
            *times.entry(record.name.as_str()).or_default() += 1;
        }
    }
    times
}

/// What was done by somebody who did not hold the Lease at that moment, but for what was under way when its sender was
/// stopped.
#[must_use]
pub fn without_the_lease(records: &[Record], pauses: &[Pause], replicas: &[String]) -> Vec<String> {
    let mut lease: Option<(String, u64)> = None;
    let mut found = vec![];
    for record in records {
        if record.resource == "leases" && record.name == LEASE && matches!(record.code, 200 | 201) {
            let spec = record.body.as_ref().map_or(&Value::Null, |body| &body["spec"]);
            let lasts_ms = spec["leaseDurationSeconds"].as_u64().unwrap_or(0) * 1000;
            lease = spec["holderIdentity"].as_str().map(|holder| (holder.to_owned(), record.at_ms + lasts_ms));
            continue;
        }
        if !replicas.contains(&record.user) || !(node_patched(record) || evicted(record).is_some() && record.code != 0) {
            continue;
        }
        let held = lease.as_ref().is_some_and(|(holder, until)| *holder == record.user && record.at_ms <= *until);
        let in_flight = pauses
            .iter()
            .any(|pause| pause.replica == record.user && (pause.until_ms..=pause.until_ms + IN_FLIGHT_MS).contains(&record.at_ms));
        if !held && !in_flight {
            let lease = lease.as_ref().map_or("nobody's".to_owned(), |(holder, until)| format!("{holder}'s until {until} ms"));
            found.push(format!(
                "{} wrote {} {} at {} ms, the Lease was {lease}",
                record.user,
                record.target(),
                record.name,
                record.at_ms
            ));
        }
    }
    found
}

/// Patches of nodes that came too late by their command's deadlines, and those under a plan revision that nobody issued.
#[must_use]
pub fn out_of_time(records: &[Record], started_ms: u64, deadlines: &BTreeMap<(String, u64), Deadlines>) -> Vec<String> {
    let mut begun = BTreeSet::new();
    let mut found = vec![];
    for record in records.iter().filter(|record| node_patched(record) && record.user_agent.starts_with("gpuheal-spoke")) {
        let Some(key) = stamp(record) else { continue };
        let at = started_ms + record.at_ms;
        match deadlines.get(&key) {
            None => found.push(format!("{} was written under plan revision {}, which Postgres does not know", record.name, key.1)),
            Some(by) => {
                if begun.insert(key.clone()) && at > by.start_by_ms + CLOCKS_APART_MS {
                    found.push(format!(
                        "{} was first written {} ms after start_by (plan {})",
                        record.name,
                        at - by.start_by_ms,
                        key.1
                    ));
                }
                if at > by.finish_by_ms + CLOCKS_APART_MS {
                    found.push(format!("{} was written {} ms after finish_by (plan {})", record.name, at - by.finish_by_ms, key.1));
                }
            }
        }
    }
    found
}

/// Evictions that were granted after their command's `finish_by`, which `finish_by_ms` has by the pod's UID. Of a pod that several commands
/// dealt with, the last one's counts.
#[must_use]
pub fn evicted_late(records: &[Record], started_ms: u64, finish_by_ms: &BTreeMap<String, u64>) -> Vec<String> {
    let late = |record: &Record| {
        let (at, by) = (started_ms + record.at_ms, *finish_by_ms.get(evicted(record)?)?);
        let late = at.checked_sub(by + CLOCKS_APART_MS + 1)?;
        Some(format!("{} was evicted {} ms after finish_by", record.name, late + CLOCKS_APART_MS + 1))
    };
    records.iter().filter_map(late).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(at_ms: u64, user: &str, resource: &str, name: &str, body: Value) -> Record {
        Record {
            seq: 0,
            at_ms,
            method: String::new(),
            path: String::new(),
            verb: "patch".into(),
            group: String::new(),
            resource: resource.into(),
            subresource: String::new(),
            namespace: String::new(),
            name: name.into(),
            user_agent: "gpuheal-spoke/1".into(),
            user: user.into(),
            content_type: String::new(),
            body: Some(body),
            ignored_fields: vec![],
            dry_run: false,
            code: 200,
        }
    }

    fn mark(at_ms: u64, user: &str, node: &str, plan: u64) -> Record {
        let body = json!([
            {"op": "test", "path": "/metadata/uid", "value": format!("uid-{node}")},
            {"op": "add", "path": "/spec/taints", "value": [{"key": TAINT_FAULTY, "value": "true", "effect": "NoSchedule"}]},
            {"op": "add", "path": format!("/metadata/annotations/{}", ANNOTATION_PLAN_REVISION.replace('/', "~1")), "value": plan.to_string()},
        ]);
        record(at_ms, user, "nodes", node, body)
    }

    fn lease(at_ms: u64, user: &str) -> Record {
        record(at_ms, user, "leases", LEASE, json!({"spec": {"holderIdentity": user, "leaseDurationSeconds": 8}}))
    }

    fn eviction(code: u16) -> Record {
        let body = json!({"deleteOptions": {"preconditions": {"uid": "u1"}}});
        Record { subresource: "eviction".into(), code, ..record(5, "a", "pods", "p", body) }
    }

    #[test]
    fn an_eviction_counts_also_when_its_answer_was_lost_and_not_when_it_was_refused() {
        assert!(evicted_twice(&[eviction(429), eviction(201), eviction(409)]).is_empty());
        assert_eq!(evicted_twice(&[eviction(0), eviction(201)]).len(), 1);
    }

    #[test]
    fn an_eviction_after_finish_by_is_found_and_one_in_time_or_refused_is_not() {
        let late = |finish_by_ms, code| evicted_late(&[eviction(code)], 10_000, &BTreeMap::from([("u1".to_owned(), finish_by_ms)]));
        assert_eq!(late(10_000, 201), Vec::<String>::new(), "5 ms after it: the clocks are read at two moments");
        assert_eq!(late(9_000, 201), ["p was evicted 1005 ms after finish_by"]);
        assert_eq!(late(9_000, 0).len(), 1, "its answer was lost");
        assert!(late(9_000, 429).is_empty() && evicted_late(&[eviction(201)], 10_000, &BTreeMap::new()).is_empty());
    }

    #[test]
    fn the_most_marked_at_once_counts_releases() {
        let release = record(3, "a", "nodes", "n1", json!([{"op": "remove", "path": "/spec/taints"}]));
        let records = [mark(1, "a", "n1", 1), release, mark(4, "a", "n2", 1), mark(5, "a", "n1", 2), mark(6, "a", "n1", 2)];
        assert_eq!(most_marked(&records), 2);
        assert_eq!(times_marked(&records), BTreeMap::from([("n1", 2), ("n2", 1)]));
    }

    #[test]
    fn who_writes_without_the_lease_is_found_but_for_what_was_under_way_when_it_was_stopped() {
        let replicas = ["a".to_owned(), "b".to_owned()];
        let pauses = [Pause { replica: "a".into(), until_ms: 20_000 }];
        let found = |records: &[Record]| without_the_lease(records, &pauses, &replicas).len();
        assert_eq!(found(&[lease(0, "a"), mark(7_999, "a", "n", 1)]), 0);
        assert_eq!(found(&[lease(0, "a"), mark(8_001, "a", "n", 1)]), 1, "it had run out");
        assert_eq!(found(&[lease(0, "b"), mark(1, "a", "n", 1)]), 1, "it was another's");
        assert_eq!(found(&[lease(19_000, "b"), mark(20_100, "a", "n", 1)]), 0, "it had been sent before the stop");
        assert_eq!(found(&[lease(19_000, "b"), mark(22_000, "a", "n", 1)]), 1);
        assert_eq!(found(&[mark(1, "a person", "n", 1)]), 0);
    }

    #[test]
    fn a_first_write_after_start_by_and_any_after_finish_by_is_found() {
        let deadlines = BTreeMap::from([(("uid-n".to_owned(), 1), Deadlines { start_by_ms: 10_000, finish_by_ms: 50_000 })]);
        let found = |records: &[Record]| out_of_time(records, 0, &deadlines).len();
        assert_eq!(found(&[mark(9_000, "a", "n", 1), mark(40_000, "a", "n", 1)]), 0);
        assert_eq!(found(&[mark(12_000, "a", "n", 1)]), 1);
        assert_eq!(found(&[mark(9_000, "a", "n", 1), mark(60_000, "a", "n", 1)]), 1);
        assert_eq!(found(&[mark(9_000, "a", "n", 2)]), 1, "nobody issued it");
    }
}
