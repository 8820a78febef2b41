//! `pods/eviction`, row by row of the contract.

use std::time::Duration;

use kubesim::{Fault, Then, When, build};
use serde_json::{Value, json};

use crate::client::{budget, lively, pod, still, until};

const GOES: u16 = 201;

#[tokio::test]
async fn a_name_that_differs_from_the_path_is_a_400() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({ "metadata": { "name": "q" } })).await;
    assert_eq!((reply.code, reply.reason()), (400, "BadRequest"));
}

#[tokio::test]
async fn dry_runs_that_differ_in_query_and_body_are_a_500() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict_with("p", "?dryRun=All", json!({ "deleteOptions": { "dryRun": ["All", "All"] } })).await;
    assert_eq!(reply.code, 500);
}

#[tokio::test]
async fn what_does_not_run_goes_past_any_budget() {
    for phase in ["Pending", "Succeeded", "Failed"] {
        let (sim, client) = still().await;
        budget(sim.store(), "b", json!({}));
        pod(sim.store(), "p", phase, false);
        assert_eq!(client.evict("p", json!({})).await.code, GOES, "{phase}");
        let before = sim.store().get("pdb", "ml", "b");
        assert!(before.is_none(), "a short name is no resource");
        assert_eq!(sim.store().get("poddisruptionbudgets", "ml", "b").unwrap()["status"]["disruptedPods"], Value::Null);
    }
}

#[tokio::test]
async fn a_pod_that_ends_already_goes_past_any_budget() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({}));
    pod(sim.store(), "p", "Running", true);
    sim.store().delete("pods", "ml", "p").unwrap();
    assert_eq!(client.evict("p", json!({})).await.code, GOES);
}

#[tokio::test]
async fn an_unready_pod_goes_without_decrement_while_the_budget_is_healthy() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({ "currentHealthy": 1, "desiredHealthy": 1 }));
    pod(sim.store(), "p", "Running", false);
    assert_eq!(client.evict("p", json!({})).await.code, GOES);
    let after = sim.store().get("poddisruptionbudgets", "ml", "b").unwrap();
    assert_eq!(after["status"]["disruptedPods"], Value::Null);
}

#[tokio::test]
async fn an_unready_pod_of_an_unhealthy_budget_goes_only_if_the_budget_always_allows_it() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({ "currentHealthy": 0, "desiredHealthy": 1 }));
    pod(sim.store(), "p", "Running", false);
    assert_eq!(client.evict("p", json!({})).await.code, 429);
    sim.store()
        .patch_merge("poddisruptionbudgets", "ml", "b", &json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } }))
        .unwrap();
    assert_eq!(client.evict("p", json!({})).await.code, GOES);
}

#[tokio::test]
async fn a_budget_that_the_controller_has_not_seen_asks_to_come_back_in_ten_seconds() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({ "observedGeneration": 0, "disruptionsAllowed": 1 }));
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.causes(), reply.retry_after.as_deref()), (429, vec!["DisruptionBudget"], Some("10")));
}

#[tokio::test]
async fn an_exhausted_budget_refuses_without_retry_after_and_tells_its_numbers() {
    let (sim, client) = still().await;
    budget(sim.store(), "keep", json!({ "currentHealthy": 3, "desiredHealthy": 3 }));
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.causes(), reply.retry_after.as_deref()), (429, vec!["DisruptionBudget"], None));
    assert_eq!(reply.message(), "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(
        reply.body["details"]["causes"][0]["message"],
        "The disruption budget keep needs 3 healthy pods and has 3 currently"
    );
}

#[tokio::test]
async fn a_broken_budget_is_a_403() {
    let disrupted: serde_json::Map<String, Value> = (0..2_001).map(|n| (format!("p{n}"), json!("2026-01-01T00:00:00Z"))).collect();
    for status in [json!({ "disruptionsAllowed": -1 }), json!({ "disruptionsAllowed": 1, "disruptedPods": disrupted })] {
        let (sim, client) = still().await;
        budget(sim.store(), "b", status);
        pod(sim.store(), "p", "Running", true);
        let reply = client.evict("p", json!({})).await;
        assert_eq!((reply.code, reply.reason()), (403, "Forbidden"));
    }
}

#[tokio::test]
async fn two_budgets_over_one_pod_are_a_500_without_reason() {
    let (sim, client) = still().await;
    budget(sim.store(), "a", json!({ "disruptionsAllowed": 1 }));
    budget(sim.store(), "b", json!({ "disruptionsAllowed": 1 }));
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.reason()), (500, ""));
    assert_eq!(reply.message(), "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.");
}

#[tokio::test]
async fn an_empty_selector_covers_every_pod_and_a_missing_one_none() {
    for (selector, code) in [(json!({}), 429), (Value::Null, GOES)] {
        let (sim, client) = still().await;
        budget(sim.store(), "b", json!({}));
        sim.store().edit("poddisruptionbudgets", "ml", "b", |budget| budget["spec"]["selector"] = selector.clone()).unwrap();
        pod(sim.store(), "p", "Running", true);
        assert_eq!(client.evict("p", json!({})).await.code, code, "{selector}");
    }
}

#[tokio::test]
async fn lost_races_for_the_budget_are_a_504() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    sim.faults().add(Fault::once(When::verb("create", "pods/eviction"), Then::BudgetConflict));
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.reason(), reply.retry_after.as_deref()), (504, "Timeout", Some("10")));
    assert_eq!(client.evict("p", json!({})).await.code, GOES);
}

#[tokio::test]
async fn a_wrong_uid_is_a_409_and_the_budget_has_paid_already() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({ "disruptionsAllowed": 1 }));
    pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({ "deleteOptions": { "preconditions": { "uid": "of-another" } } })).await;
    assert_eq!((reply.code, reply.reason()), (409, "Conflict"));
    let budget = sim.store().get("poddisruptionbudgets", "ml", "b").unwrap();
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    assert!(budget["status"]["disruptedPods"]["p"].is_string());
    assert!(sim.store().get("pods", "ml", "p").is_some());
}

#[tokio::test]
async fn the_right_uid_goes_and_a_wrong_resource_version_does_not() {
    let (sim, client) = still().await;
    let pod = pod(sim.store(), "p", "Running", true);
    let reply = client.evict("p", json!({ "deleteOptions": { "preconditions": { "resourceVersion": "1" } } })).await;
    assert_eq!(reply.code, 409);
    let options = json!({ "deleteOptions": { "preconditions": { "uid": pod["metadata"]["uid"] } } });
    assert_eq!(client.evict("p", options).await.code, GOES);
}

#[tokio::test]
async fn a_terminating_namespace_is_a_403_with_its_cause() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    sim.store().edit("pods", "ml", "p", |pod| pod["metadata"]["finalizers"] = json!(["example.com/hold"])).unwrap();
    client.delete("/api/v1/namespaces/ml", &json!({})).await;
    let reply = client.evict("p", json!({})).await;
    assert_eq!((reply.code, reply.causes()), (403, vec!["NamespaceTerminating"]));
}

#[tokio::test]
async fn a_missing_pod_is_a_404() {
    let (_sim, client) = still().await;
    assert_eq!(client.evict("p", json!({})).await.code, 404);
}

#[tokio::test]
async fn an_unknown_field_is_refused_when_strict_and_else_ignored_but_recorded() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let body = json!({ "delete_options": { "preconditions": { "uid": "of-another" } } });
    let reply = client.evict_with("p", "?fieldValidation=Strict", body.clone()).await;
    assert_eq!(reply.code, 400);
    assert!(reply.message().contains("strict decoding error: unknown field \"delete_options\""), "{}", reply.message());
    assert_eq!(client.evict("p", body).await.code, GOES);
    let last = sim.recorder().writes_to("pods/eviction").pop().unwrap();
    assert_eq!((last.ignored_fields, last.code), (vec!["delete_options".to_owned()], 201));
}

#[tokio::test]
async fn a_dry_run_changes_nothing_and_still_answers_as_the_real_thing_would() {
    let (sim, client) = still().await;
    budget(sim.store(), "b", json!({ "disruptionsAllowed": 1 }));
    pod(sim.store(), "p", "Running", true);
    let version = sim.store().version();
    assert_eq!(client.evict("p", json!({ "deleteOptions": { "dryRun": ["All"] } })).await.code, GOES);
    assert_eq!(client.evict_with("p", "?dryRun=All", json!({})).await.code, GOES);
    assert_eq!(sim.store().version(), version);
    assert!(sim.recorder().writes().is_empty());
}

#[tokio::test]
async fn an_evicted_pod_is_marked_as_disrupted_and_ends_after_its_grace_at_the_latest() {
    let (sim, client) = lively().await;
    sim.store().create(build::gpu_node("node-1", 8, "H100")).unwrap();
    let mut slow = build::gpu_pod("ml", "slow", "node-1", 1, &[]);
    slow["metadata"]["annotations"] = json!({ build::EXIT_AFTER_MS: "3600000" });
    sim.store().create(slow).unwrap();
    until("runs", || sim.store().get("pods", "ml", "slow").unwrap()["status"]["phase"] == "Running").await;
    assert_eq!(client.evict("slow", json!({ "deleteOptions": { "gracePeriodSeconds": 600 } })).await.code, GOES);
    let ending = sim.store().get("pods", "ml", "slow").unwrap();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 600);
    let conditions = ending["status"]["conditions"].as_array().unwrap().clone();
    assert!(
        conditions
            .iter()
            .any(|condition| condition["type"] == "DisruptionTarget" && condition["reason"] == "EvictionByEvictionAPI")
    );
    sim.clock().advance(Duration::from_secs(601));
    until("is gone", || sim.store().get("pods", "ml", "slow").is_none()).await;
}

#[tokio::test]
async fn a_pod_that_hangs_outlives_its_grace_until_it_is_forced() {
    let (sim, client) = lively().await;
    sim.store().create(build::gpu_node("node-1", 8, "H100")).unwrap();
    for (name, annotation) in [("hung", build::HANG), ("obeys", "example.com/none")] {
        let mut pod = build::gpu_pod("ml", name, "node-1", 1, &[]);
        pod["metadata"]["annotations"] = json!({ annotation: "true" });
        sim.store().create(pod).unwrap();
        until("runs", || sim.store().get("pods", "ml", name).unwrap()["status"]["phase"] == "Running").await;
        assert_eq!(client.evict(name, json!({ "deleteOptions": { "gracePeriodSeconds": 1 } })).await.code, GOES);
    }
    sim.clock().advance(Duration::from_secs(60));
    until("the obedient one is gone", || sim.store().get("pods", "ml", "obeys").is_none()).await;
    assert!(sim.store().get("pods", "ml", "hung").is_some());
    client.delete("/api/v1/namespaces/ml/pods/hung", &json!({ "gracePeriodSeconds": 0 })).await;
    assert!(sim.store().get("pods", "ml", "hung").is_none());
}

#[tokio::test]
async fn budgets_follow_their_pods() {
    let (sim, client) = lively().await;
    for node in ["node-1", "node-2"] {
        sim.store().create(build::gpu_node(node, 8, "H100")).unwrap();
    }
    sim.store().create(build::deployment("ml", "infer", 4, 2, &[("app", "infer")])).unwrap();
    sim.store().create(build::pdb("ml", "infer", 3, &[("app", "infer")])).unwrap();
    let allowed = || sim.store().get("poddisruptionbudgets", "ml", "infer").unwrap()["status"]["disruptionsAllowed"].clone();
    until("one may go", || allowed() == 1).await;
    let pods = sim.store().list("pods");
    let name = |index: usize| pods[index]["metadata"]["name"].as_str().unwrap();
    sim.store().edit("nodes", "", "node-2", |node| node["spec"]["unschedulable"] = json!(true)).unwrap();
    sim.store().edit("nodes", "", "node-1", |node| node["spec"]["unschedulable"] = json!(true)).unwrap();
    assert_eq!(client.evict(name(0), json!({})).await.code, GOES);
    until("no more may go", || allowed() == 0).await;
    assert_eq!(client.evict(name(1), json!({})).await.code, 429);
    sim.store().edit("nodes", "", "node-2", |node| node["spec"]["unschedulable"] = json!(false)).unwrap();
    until("the replacement runs", || allowed() == 1).await;
}
