//! What goes wrong on purpose, and that the recorder tells it.

use std::time::{Duration, Instant};

use kubesim::{Fault, Then, User, When, build};
use serde_json::json;

use crate::client::{Client, pod, still};

const NODE: &str = "/api/v1/nodes/gpu-1";

#[tokio::test]
async fn an_unknown_token_is_a_401_and_health_needs_none() {
    let (sim, _client) = still().await;
    let stranger = Client::new(&sim, "wrong");
    assert_eq!(stranger.get("/api/v1/nodes").await.code, 401);
    let http = Client::new(&sim, sim.admin_token());
    assert_eq!(http.get("/readyz").await.body, "ok");
}

#[tokio::test]
async fn rbac_refuses_one_verb_to_one_user_and_a_review_knows_it_before() {
    let (sim, admin) = still().await;
    sim.store().create(build::gpu_node("gpu-1", 8, "H100")).unwrap();
    sim.add_token("t", User::named("system:serviceaccount:gpu-selfhealing:spoke"));
    let spoke = Client::new(&sim, "t");
    sim.faults().deny("patch", "nodes", Some("system:serviceaccount:gpu-selfhealing:spoke"));
    let patch = json!({ "spec": { "unschedulable": true } });
    let reply = spoke.patch(NODE, "merge-patch", &patch).await;
    assert_eq!((reply.code, reply.reason()), (403, "Forbidden"));
    assert!(
        reply.message().contains("cannot patch resource \"nodes\" in API group \"\" at the cluster scope"),
        "{}",
        reply.message()
    );
    let review = |verb: &str| json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": { "resourceAttributes": { "verb": verb, "resource": "nodes" } } });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(spoke.post(path, &review("patch")).await.body["status"]["allowed"], false);
    assert_eq!(spoke.post(path, &review("get")).await.body["status"]["allowed"], true);
    assert_eq!(admin.patch(NODE, "merge-patch", &patch).await.code, 200);
    assert!(sim.recorder().writes().iter().all(|record| record.resource == "nodes"), "a review is no write");
}

#[tokio::test]
async fn throttling_and_budget_refusals_differ_by_their_cause() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let evictions = || When::verb("create", "pods/eviction");
    sim.faults().add(Fault::once(evictions(), Then::Throttle { retry_after: Some(7) }));
    sim.faults().add(Fault::once(evictions(), Then::BudgetRefusal { retry_after: None }));
    sim.faults().add(Fault::once(evictions(), Then::AdmissionDenial { code: 418, message: "virtual machine moves".into() }));
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.causes(), reply.retry_after.as_deref()), (429, vec![], Some("7")));
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.causes(), reply.retry_after.as_deref()), (429, vec!["DisruptionBudget"], None));
    assert_eq!(client.evict("p", json!({})).await.code, 418);
    assert_eq!(client.evict("p", json!({})).await.code, 201);
}

#[tokio::test]
async fn a_lost_answer_is_done_and_a_lost_request_is_not() {
    let (sim, client) = still().await;
    sim.store().create(build::gpu_node("gpu-1", 8, "H100")).unwrap();
    let patch = |value: &str| json!({ "metadata": { "labels": { "state": value } } });
    let state = || sim.store().get("nodes", "", "gpu-1").unwrap()["metadata"]["labels"]["state"].clone();
    let send = |value: &str| {
        let body = patch(value);
        let client = &client;
        async move { client.try_call("PATCH", NODE, "application/merge-patch+json", Some(&body)).await }
    };
    sim.faults().add(Fault::once(When::verb("patch", "nodes"), Then::CutBefore));
    assert!(send("before").await.is_err());
    assert!(state().is_null());
    sim.faults().lose_answer("patch", "nodes");
    assert!(send("after").await.is_err());
    assert_eq!(state(), "after");
    let codes: Vec<u16> = sim.recorder().writes_to("nodes").iter().map(|record| record.code).collect();
    assert_eq!(codes, [0, 0]);
}

#[tokio::test]
async fn slow_bodies_and_refusals_of_the_server_come_as_asked() {
    let (sim, client) = still().await;
    sim.faults().add(Fault::once(When::verb("list", "nodes"), Then::SlowBody { ms: 10, bytes: 16 }));
    let start = Instant::now();
    assert_eq!(client.get("/api/v1/nodes").await.body["kind"], "NodeList");
    assert!(start.elapsed() >= Duration::from_millis(50));
    for code in [500, 503, 504] {
        sim.faults().add(Fault::once(
            When::verb("list", "nodes"),
            Then::Status { code, reason: "X".into(), message: "m".into(), retry_after: None },
        ));
        assert_eq!(client.get("/api/v1/nodes").await.code, code);
    }
}

#[tokio::test]
async fn the_date_header_can_be_wrong() {
    let (sim, client) = still().await;
    let before = client.get("/version").await.date;
    sim.faults().set_clock_skew(-86_400 * 400);
    let after = client.get("/version").await.date;
    assert_ne!(before[12..16], after[12..16], "{before} {after}");
}

#[tokio::test]
async fn the_recorder_tells_who_wrote_what_and_since_when() {
    let (sim, client) = still().await;
    sim.store().create(build::gpu_node("gpu-1", 8, "H100")).unwrap();
    client.get(NODE).await;
    assert!(sim.recorder().writes().is_empty(), "neither reads nor direct helpers are writes");
    let mark = sim.recorder().mark();
    client.patch(NODE, "merge-patch", &json!({ "spec": { "unschedulable": true } })).await;
    let record = sim.recorder().requests_since(mark).pop().unwrap();
    assert_eq!((record.verb.as_str(), record.name.as_str(), record.code), ("patch", "gpu-1", 200));
    assert_eq!((record.user_agent.as_str(), record.user.as_str()), ("claims/1", "kubernetes-admin"));
    assert_eq!(record.body.unwrap()["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn faults_and_records_are_reached_over_http_by_the_admin_only() {
    let (sim, client) = still().await;
    let fault = json!({ "when": { "verb": "list", "resource": "nodes" }, "then": { "kind": "status", "code": 503 }, "times": 1 });
    let id = client.post("/kubesim/v1/faults", &fault).await.body["id"].clone();
    assert_eq!(client.get("/kubesim/v1/faults").await.body["items"][0]["id"], id);
    assert_eq!(client.get("/api/v1/nodes").await.code, 503);
    let requests = client.get("/kubesim/v1/requests?resource=nodes").await.body;
    assert_eq!((&requests["items"][0]["code"], &requests["items"][0]["userAgent"]), (&json!(503), &json!("claims/1")));
    sim.add_token("t", User::named("somebody"));
    assert_eq!(Client::new(&sim, "t").get("/kubesim/v1/requests").await.code, 403);
}
