//! Evictions: each answer that the executor must tell apart.

use serde_json::{Value, json};
use testkube::raw;

use crate::world::{World, text};

testkube::claims![
    eviction_without_a_budget_is_201_and_the_pod_goes,
    eviction_within_its_budget_is_201_and_counts_at_once,
    eviction_over_its_budget_is_429_with_the_cause_and_without_retry_after,
    eviction_under_two_budgets_is_500_and_the_pod_stays,
    eviction_with_another_uid_is_409_and_the_pod_stays,
    eviction_with_its_uid_is_201,
    eviction_whose_options_bear_the_wrong_key_evicts_although_the_uid_differs,
    eviction_whose_options_bear_the_wrong_key_is_refused_when_validation_is_strict,
    eviction_of_a_pending_pod_asks_no_budget,
    eviction_of_a_finished_pod_asks_no_budget,
    eviction_of_a_pod_that_is_going_already_asks_no_budget,
    eviction_of_an_unready_pod_is_allowed_when_enough_are_healthy,
    eviction_of_an_unready_pod_is_429_when_too_few_are_healthy,
    eviction_of_an_unready_pod_is_always_allowed_when_the_budget_says_so,
    eviction_of_a_missing_pod_is_404,
    eviction_whose_body_names_another_pod_is_400,
    eviction_as_a_dry_run_changes_nothing,
    eviction_takes_the_dry_run_of_its_query_over_into_its_options,
    eviction_whose_dry_runs_differ_is_500,
    eviction_can_shorten_the_grace,
    eviction_asks_only_budgets_of_its_namespace_and_selector,
    evictions_race_for_the_last_allowed_disruption_and_one_wins,
    eviction_under_a_budget_of_percent_counts_rounded_up,
    eviction_under_a_budget_with_an_empty_selector_is_429,
    eviction_under_a_budget_without_a_selector_is_allowed,
    eviction_in_a_terminating_namespace_is_403_with_its_cause,
    eviction_with_an_old_resource_version_is_409_and_the_pod_stays,
];

async fn eviction_without_a_budget_is_201_and_the_pod_goes(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let answer = w.evict(&pod, "", json!({})).await.expect(201);
    assert_eq!(answer.json["kind"], "Status");
    assert_eq!(answer.json["status"], "Success");
    w.is_gone(&pod).await;
}

async fn eviction_within_its_budget_is_201_and_counts_at_once(w: World) {
    let _machines = w.nodes(2, 8).await;
    let pods = irreplaceable(&w).await;
    w.evict(&pods[0], "", json!({})).await.expect(201);
    // The second attempt may come before the disruption controller has seen the first.
    w.evict(&pods[1], "", json!({})).await.expect(429);
}

/// Four pods of four GPUs, one of which may go. They fill two nodes of eight, and those that go hang:
/// no replacement can become ready.
async fn irreplaceable(w: &World) -> Vec<Value> {
    let mut manifest = w.pool.deployment("infer", 4, 4);
    manifest["spec"]["template"]["metadata"]["annotations"][testkube::kubelet::HANG] = json!("true");
    w.create(&[manifest, w.pool.pdb("infer", "infer", 3)]).await;
    let pods = w.ready_pods("infer", 4).await;
    w.pdb_allows("infer", 1).await;
    pods
}

async fn eviction_over_its_budget_is_429_with_the_cause_and_without_retry_after(w: World) {
    let _machines = w.nodes(2, 8).await;
    let pods = w.guarded_deployment("infer", 2, 2).await;
    let answer = w.evict(&pods[0], "", json!({})).await.expect(429);
    assert_eq!(answer.reason(), "TooManyRequests");
    assert_eq!(answer.causes(), ["DisruptionBudget"]);
    assert!(answer.headers.get("retry-after").is_none(), "{:?}", answer.headers);
    assert!(answer.json["details"]["retryAfterSeconds"].is_null(), "{}", answer.text);
    assert!(answer.message().contains("disruption budget"), "{}", answer.message());
    let cause = text(&answer.json, "/details/causes/0/message");
    assert!(cause.contains("infer") && cause.contains("needs 2") && cause.contains("has 2"), "{cause}");
    assert!(w.stands(&pods[0]).await);
}

async fn eviction_under_two_budgets_is_500_and_the_pod_stays(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pods = w.guarded_deployment("infer", 1, 0).await;
    w.create(&[w.pool.pdb("second", "infer", 0)]).await;
    w.pdb_allows("second", 1).await;
    let answer = w.evict(&pods[0], "", json!({})).await.expect(500);
    assert!(answer.message().contains("more than one PodDisruptionBudget"), "{}", answer.text);
    assert!(!answer.text.contains("second"), "the answer names no budget: {}", answer.text);
    assert!(w.stands(&pods[0]).await);
}

async fn eviction_with_another_uid_is_409_and_the_pod_stays(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let answer = w.evict(&pod, "?fieldValidation=Strict", other_uid("deleteOptions")).await.expect(409);
    assert_eq!(answer.reason(), "Conflict");
    assert!(w.stands(&pod).await);
}

async fn eviction_with_its_uid_is_201(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let options = json!({ "deleteOptions": { "preconditions": { "uid": pod["metadata"]["uid"] } } });
    w.evict(&pod, "?fieldValidation=Strict", options).await.expect(201);
    w.is_gone(&pod).await;
}

async fn eviction_whose_options_bear_the_wrong_key_evicts_although_the_uid_differs(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    w.evict(&pod, "", other_uid("delete_options")).await.expect(201);
    w.is_gone(&pod).await;
}

async fn eviction_whose_options_bear_the_wrong_key_is_refused_when_validation_is_strict(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let answer = w.evict(&pod, "?fieldValidation=Strict", other_uid("delete_options")).await.expect(400);
    assert!(answer.message().contains("delete_options"), "{}", answer.message());
    assert!(w.stands(&pod).await);
}

fn other_uid(key: &str) -> Value {
    json!({ key: { "preconditions": { "uid": "another" } } })
}

/// A budget that can never be kept, over `app=<app>`.
async fn impossible_budget(w: &World, app: &str) {
    w.create(&[w.pool.pdb("impossible", app, 100)]).await;
    w.pdb_allows("impossible", 0).await;
}

async fn eviction_of_a_pending_pod_asks_no_budget(w: World) {
    let manifest = w.pool.pod("a", 1);
    w.create(std::slice::from_ref(&manifest)).await;
    impossible_budget(&w, "a").await;
    w.evict(&manifest, "", json!({})).await.expect(201);
    raw::get(&w.client, &w.pod_path(&manifest)).await.expect(404);
}

async fn eviction_of_a_finished_pod_asks_no_budget(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    impossible_budget(&w, "a").await;
    let done = json!({ "status": { "phase": "Succeeded" } });
    w.merge_patch(&format!("{}/status", w.pod_path(&pod)), done).await.expect(200);
    w.evict(&pod, "", json!({})).await.expect(201);
}

async fn eviction_of_a_pod_that_is_going_already_asks_no_budget(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][testkube::kubelet::HANG] = json!("true");
    let pod = w.running_pod(manifest).await;
    impossible_budget(&w, "a").await;
    raw::delete(&w.client, &w.pod_path(&pod), None).await.expect(200);
    w.evict(&pod, "", json!({})).await.expect(201);
}

async fn make_unready(w: &World, pod: &Value) {
    let mut conditions = pod["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().into_iter().flatten() {
        if condition["type"] == "Ready" {
            condition["status"] = json!("False");
        }
    }
    let patch = json!({ "status": { "conditions": conditions } });
    w.merge_patch(&format!("{}/status", w.pod_path(pod)), patch).await.expect(200);
}

async fn eviction_of_an_unready_pod_is_allowed_when_enough_are_healthy(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pods = w.guarded_deployment("infer", 3, 2).await;
    make_unready(&w, &pods[0]).await;
    w.pdb_status("infer", |status| status["currentHealthy"] == 2 && status["disruptionsAllowed"] == 0).await;
    w.evict(&pods[0], "", json!({})).await.expect(201);
    w.evict(&pods[1], "", json!({})).await;
    w.is_gone(&pods[0]).await;
}

async fn eviction_of_an_unready_pod_is_429_when_too_few_are_healthy(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pods = w.guarded_deployment("infer", 2, 2).await;
    make_unready(&w, &pods[0]).await;
    w.pdb_status("infer", |status| status["currentHealthy"] == 1).await;
    assert_eq!(w.evict(&pods[0], "", json!({})).await.expect(429).causes(), ["DisruptionBudget"]);
}

async fn eviction_of_an_unready_pod_is_always_allowed_when_the_budget_says_so(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut budget = w.pool.pdb("infer", "infer", 2);
    budget["spec"]["unhealthyPodEvictionPolicy"] = json!("AlwaysAllow");
    w.create(&[w.pool.deployment("infer", 2, 1), budget]).await;
    let pods = w.ready_pods("infer", 2).await;
    w.pdb_status("infer", |status| status["currentHealthy"] == 2).await;
    make_unready(&w, &pods[0]).await;
    w.pdb_status("infer", |status| status["currentHealthy"] == 1).await;
    w.evict(&pods[0], "", json!({})).await.expect(201);
}

async fn eviction_of_a_missing_pod_is_404(w: World) {
    let absent = json!({ "metadata": { "name": "absent" } });
    assert_eq!(w.evict(&absent, "", json!({})).await.expect(404).reason(), "NotFound");
}

async fn eviction_whose_body_names_another_pod_is_400(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let body = w.eviction(&json!({ "metadata": { "name": "b" } }), json!({}));
    raw::post(&w.client, &format!("{}/eviction", w.pod_path(&pod)), &body).await.expect(400);
    assert!(w.stands(&pod).await);
}

async fn eviction_as_a_dry_run_changes_nothing(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pods = w.guarded_deployment("infer", 2, 1).await;
    let in_body = json!({ "deleteOptions": { "dryRun": ["All"] } });
    w.evict(&pods[0], "", in_body.clone()).await.expect(201);
    w.evict(&pods[0], "?dryRun=All", in_body).await.expect(201);
    assert!(w.stands(&pods[0]).await);
    w.pdb_allows("infer", 1).await;
}

async fn eviction_takes_the_dry_run_of_its_query_over_into_its_options(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    w.evict(&pod, "?dryRun=All", json!({ "deleteOptions": { "gracePeriodSeconds": 1 } })).await.expect(201);
    assert!(w.stands(&pod).await);
}

/// `All` is the only word there is, so they can differ only in how often they say it. The handler's error
/// has no status of its own, hence 500 and not 400.
async fn eviction_whose_dry_runs_differ_is_500(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    w.evict(&pod, "?dryRun=All", json!({ "deleteOptions": { "dryRun": ["All", "All"] } })).await.expect(500);
    assert!(w.stands(&pod).await);
}

async fn eviction_can_shorten_the_grace(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][testkube::kubelet::EXIT_AFTER_MS] = json!("600000");
    let pod = w.running_pod(manifest).await;
    w.evict(&pod, "", json!({ "deleteOptions": { "gracePeriodSeconds": 1 } })).await.expect(201);
    assert_eq!(w.told_to_go(&pod).await["metadata"]["deletionGracePeriodSeconds"], 1);
    w.is_gone(&pod).await;
}

async fn eviction_asks_only_budgets_of_its_namespace_and_selector(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    impossible_budget(&w, "b").await;
    w.evict(&pod, "", json!({})).await.expect(201);
}

async fn evictions_race_for_the_last_allowed_disruption_and_one_wins(w: World) {
    let _machines = w.nodes(2, 8).await;
    let pods = irreplaceable(&w).await;
    let attempts = pods.iter().map(|pod| w.evict(pod, "", json!({})));
    let codes: Vec<u16> = futures::future::join_all(attempts).await.iter().map(|answer| answer.code).collect();
    assert_eq!(codes.iter().filter(|code| **code == 201).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 429).count(), 3, "{codes:?}");
}

/// At most 50 % of three may go: that is two, since Kubernetes rounds up, and the third is refused.
async fn eviction_under_a_budget_of_percent_counts_rounded_up(w: World) {
    let _machines = w.nodes(3, 8).await;
    let mut manifest = w.pool.deployment("infer", 3, 8);
    manifest["spec"]["template"]["metadata"]["annotations"][testkube::kubelet::HANG] = json!("true");
    let mut budget = w.pool.pdb("infer", "infer", 0);
    budget["spec"] = json!({ "maxUnavailable": "50%", "selector": { "matchLabels": { "app": "infer" } } });
    w.create(&[manifest, budget]).await;
    let pods = w.ready_pods("infer", 3).await;
    w.pdb_allows("infer", 2).await;
    w.evict(&pods[0], "", json!({})).await.expect(201);
    w.evict(&pods[1], "", json!({})).await.expect(201);
    w.evict(&pods[2], "", json!({})).await.expect(429);
}

/// An empty selector covers every pod of the namespace, for the controller and for the eviction alike.
async fn eviction_under_a_budget_with_an_empty_selector_is_429(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let mut budget = w.pool.pdb("all", "a", 100);
    budget["spec"]["selector"] = json!({});
    w.create(&[budget]).await;
    w.pdb_status("all", |status| status["currentHealthy"] == 1).await;
    assert_eq!(w.evict(&pod, "", json!({})).await.expect(429).causes(), ["DisruptionBudget"]);
}

/// No selector at all covers none.
async fn eviction_under_a_budget_without_a_selector_is_allowed(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let mut budget = w.pool.pdb("none", "a", 100);
    budget["spec"] = json!({ "minAvailable": 100 });
    w.create(&[budget]).await;
    w.pdb_status("none", |status| status["currentHealthy"] == 0).await;
    w.evict(&pod, "", json!({})).await.expect(201);
}

async fn eviction_in_a_terminating_namespace_is_403_with_its_cause(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["finalizers"] = json!(["example.com/held"]);
    let pod = w.running_pod(manifest).await;
    raw::delete(&w.client, &format!("/api/v1/namespaces/{}", w.ns()), None).await.expect(200);
    let answer = w.evict(&pod, "", json!({})).await.expect(403);
    assert_eq!(answer.causes(), ["NamespaceTerminating"]);
    w.merge_patch(&w.pod_path(&pod), json!({ "metadata": { "finalizers": null } })).await.expect(200);
}

async fn eviction_with_an_old_resource_version_is_409_and_the_pod_stays(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    w.merge_patch(&w.pod_path(&pod), json!({ "metadata": { "labels": { "changed": "yes" } } })).await.expect(200);
    let old = json!({ "deleteOptions": { "preconditions": { "resourceVersion": pod["metadata"]["resourceVersion"] } } });
    w.evict(&pod, "", old).await.expect(409);
    assert!(w.stands(&pod).await);
}
