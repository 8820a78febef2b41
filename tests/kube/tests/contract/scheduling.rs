//! Scheduling: that our taint and a cordon really keep new pods off, and budgets keep up with replacements.

use serde_json::{Value, json};
use testkube::settled;

use crate::world::{World, is_ready, text};

testkube::claims![
    our_taint_sends_the_replacement_to_another_node,
    our_taint_leaves_running_pods_where_they_are,
    a_cordon_keeps_new_pods_off,
    a_pod_stays_pending_while_every_node_is_tainted_and_runs_after_the_release,
    a_budget_allows_again_once_the_replacement_is_ready,
    gpus_of_a_node_are_not_given_twice,
    a_new_node_loses_its_not_ready_taint,
    a_replaced_node_has_another_uid_under_the_same_name,
    a_rebooted_node_keeps_its_uid_and_has_another_boot_id,
    a_pool_with_one_of_each_workload_becomes_ready_on_one_node,
];

fn our_taint() -> Value {
    json!({ "spec": { "taints": [{ "key": "gpu-selfhealing.io/faulty", "value": "true", "effect": "NoSchedule" }] } })
}

async fn our_taint_sends_the_replacement_to_another_node(w: World) {
    let _machines = w.nodes(2, 8).await;
    let pods = w.guarded_deployment("infer", 1, 0).await;
    let faulty = text(&pods[0], "/spec/nodeName");
    w.merge_patch(&format!("/api/v1/nodes/{faulty}"), our_taint()).await.expect(200);
    w.evict(&pods[0], "", json!({})).await.expect(201);
    w.is_gone(&pods[0]).await;
    let after = w.ready_pods("infer", 1).await.remove(0);
    assert_ne!(text(&after, "/spec/nodeName"), faulty);
}

async fn our_taint_leaves_running_pods_where_they_are(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&[w.pool.daemon_set("agent")]).await;
    let agent = w.ready_pods("agent", 1).await.remove(0);
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    w.merge_patch(&w.node_path(1), our_taint()).await.expect(200);
    // A pod that waits has been considered after the taint, so those that run have been left alone.
    w.create(&[w.pool.pod("late", 1)]).await;
    is_unschedulable(&w, "late").await;
    assert!(w.stands(&pod).await && w.stands(&agent).await);
}

async fn is_unschedulable(w: &World, name: &str) {
    let path = w.core(&format!("pods/{name}"));
    settled::is_true("the scheduler finds no node for the pod", || async {
        let pod = w.get(&path).await;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| text(condition, "/reason") == "Unschedulable")
    })
    .await;
}

async fn a_cordon_keeps_new_pods_off(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.merge_patch(&w.node_path(1), json!({ "spec": { "unschedulable": true } })).await.expect(200);
    w.create(&[w.pool.pod("a", 1)]).await;
    is_unschedulable(&w, "a").await;
}

async fn a_pod_stays_pending_while_every_node_is_tainted_and_runs_after_the_release(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.merge_patch(&w.node_path(1), our_taint()).await.expect(200);
    w.create(&[w.pool.pod("a", 1)]).await;
    is_unschedulable(&w, "a").await;
    w.merge_patch(&w.node_path(1), json!({ "spec": { "taints": null } })).await.expect(200);
    let path = w.core("pods/a");
    settled::is_true("the pod runs once the node is released", || async { is_ready(&w.get(&path).await) }).await;
}

async fn a_budget_allows_again_once_the_replacement_is_ready(w: World) {
    let _machines = w.nodes(3, 8).await;
    let pods = w.guarded_deployment("infer", 4, 3).await;
    w.evict(&pods[0], "", json!({})).await.expect(201);
    w.is_gone(&pods[0]).await;
    w.pdb_status("infer", |status| status["disruptionsAllowed"] == 1 && status["currentHealthy"] == 4).await;
    w.evict(&pods[1], "", json!({})).await.expect(201);
    w.is_gone(&pods[1]).await;
}

async fn gpus_of_a_node_are_not_given_twice(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.running_pod(w.pool.pod("a", 6)).await;
    w.create(&[w.pool.pod("b", 3)]).await;
    is_unschedulable(&w, "b").await;
}

async fn a_new_node_loses_its_not_ready_taint(w: World) {
    let _machines = w.nodes(1, 8).await;
    let node = w.get(&w.node_path(1)).await;
    assert!(node["spec"]["taints"].is_null(), "{}", node["spec"]);
}

async fn a_replaced_node_has_another_uid_under_the_same_name(w: World) {
    let machines = w.nodes(1, 8).await;
    let before = w.get(&w.node_path(1)).await;
    machines.replace_node(text(&before, "/metadata/name")).await.expect("the cluster takes it");
    let after = w.get(&w.node_path(1)).await;
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_ne!(after["status"]["nodeInfo"]["machineID"], before["status"]["nodeInfo"]["machineID"]);
}

async fn a_rebooted_node_keeps_its_uid_and_has_another_boot_id(w: World) {
    let machines = w.nodes(1, 8).await;
    let before = w.get(&w.node_path(1)).await;
    machines.reboot(text(&before, "/metadata/name")).await.expect("the cluster takes it");
    let after = w.get(&w.node_path(1)).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["nodeInfo"]["machineID"], before["status"]["nodeInfo"]["machineID"]);
    assert_ne!(after["status"]["nodeInfo"]["bootID"], before["status"]["nodeInfo"]["bootID"]);
}

async fn a_pool_with_one_of_each_workload_becomes_ready_on_one_node(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&w.pool.one_of_each()).await;
    for (app, count) in [("infer", 3), ("train", 1), ("agent", 1), ("cpu-only", 1)] {
        w.ready_pods(app, count).await;
    }
    w.pdb_allows("infer", 1).await;
}
