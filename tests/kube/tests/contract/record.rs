//! The record of requests: that both clusters tell the same story of the same requests. Counts per healed
//! node and every "no write happened" rest on it.

use serde_json::json;
use testkube::cluster::Mark;
use testkube::{AuditEntry, raw};

use crate::world::World;

testkube::claims![
    an_eviction_is_recorded_as_a_creation_with_its_answer,
    a_refused_write_is_recorded_as_a_write,
    reads_reviews_and_dry_runs_are_no_writes,
    a_watch_is_one_request,
    each_request_bears_its_askers_name,
    what_was_asked_before_the_mark_is_not_told,
];

/// What this claim's own client has asked since.
async fn ours(w: &World, mark: Mark) -> Vec<AuditEntry> {
    let agent = w.agent.clone();
    w.cluster.requests_since(mark).await.into_iter().filter(|entry| entry.user_agent == agent).collect()
}

fn told(entries: &[AuditEntry]) -> Vec<(&str, &str, &str, &str, u16)> {
    entries.iter().map(|entry| (&*entry.verb, &*entry.resource, &*entry.subresource, &*entry.name, entry.code)).collect()
}

async fn an_eviction_is_recorded_as_a_creation_with_its_answer(w: World) {
    let absent = json!({ "metadata": { "name": "absent" } });
    let mark = w.cluster.mark().await;
    w.evict(&absent, "", json!({})).await.expect(404);
    let seen = ours(&w, mark).await;
    assert_eq!(told(&seen), [("create", "pods", "eviction", "absent", 404)]);
    assert_eq!(seen[0].namespace, w.ns());
}

async fn a_refused_write_is_recorded_as_a_write(w: World) {
    let mark = w.cluster.mark().await;
    w.merge_patch("/api/v1/nodes/absent", json!({ "spec": { "unschedulable": true } })).await.expect(404);
    let seen = ours(&w, mark).await;
    assert_eq!(told(&seen), [("patch", "nodes", "", "absent", 404)]);
    assert!(seen[0].is_write());
}

async fn reads_reviews_and_dry_runs_are_no_writes(w: World) {
    let mark = w.cluster.mark().await;
    w.get(&w.core("pods")).await;
    let review = json!({ "spec": { "resourceAttributes": { "verb": "get", "resource": "nodes" } } });
    raw::post(&w.client, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.expect(201);
    let body = json!({ "metadata": { "name": "a" } });
    raw::post(&w.client, &format!("{}?dryRun=All", w.core("configmaps")), &body).await.expect(201);
    let seen = ours(&w, mark).await;
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(!seen.iter().any(AuditEntry::is_write), "{seen:?}");
}

async fn a_watch_is_one_request(w: World) {
    let mark = w.cluster.mark().await;
    raw::watch(&w.client, &format!("{}?watch=true&timeoutSeconds=1", w.core("pods")), |_| false).await;
    let seen = ours(&w, mark).await;
    assert_eq!(told(&seen), [("watch", "pods", "", "", 200)]);
    assert!(seen[0].is_watch());
}

async fn each_request_bears_its_askers_name(w: World) {
    let account = w.cluster.service_account(&w.client, w.ns(), "spoke").await;
    let client = testkube::connect::connect(&account, "contract-as-spoke").await.expect("a client");
    let mark = w.cluster.mark().await;
    raw::get(&client, "/version").await.expect(200);
    let seen = w.cluster.requests_since(mark).await;
    let asked = seen.iter().find(|entry| entry.user_agent == "contract-as-spoke").expect("it was recorded");
    assert_eq!(asked.user, format!("system:serviceaccount:{}:spoke", w.ns()));
}

async fn what_was_asked_before_the_mark_is_not_told(w: World) {
    w.get(&w.core("pods")).await;
    let mark = w.cluster.mark().await;
    assert_eq!(ours(&w, mark).await, []);
}
