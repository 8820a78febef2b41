//! The life of a pod: grace, preconditions, finalizers, and who brings it back.

use serde_json::{Value, json};
use testkube::{kubelet, raw, settled};

use crate::world::{World, text};

testkube::claims![
    deletion_sets_a_timestamp_and_grace_and_keeps_the_pod_until_its_end,
    deletion_without_grace_removes_at_once,
    deletion_with_another_uid_is_409_and_the_pod_stays,
    deletion_of_an_unbound_pod_needs_no_grace,
    a_second_deletion_can_shorten_the_grace,
    a_hanging_pod_stays_with_its_deletion_timestamp,
    a_finalizer_keeps_a_deleted_pod,
    a_stateful_pod_comes_back_under_its_name_with_a_new_uid,
    a_deployment_brings_another_pod_under_another_name,
    a_stateful_pod_has_a_bound_claim,
    a_daemon_pod_runs_on_every_node_of_its_selector,
    a_pod_that_never_gets_ready_runs_all_the_same,
    a_dead_kubelet_ends_no_pod_until_its_machine_is_rebooted,
];

async fn deletion_sets_a_timestamp_and_grace_and_keeps_the_pod_until_its_end(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][kubelet::EXIT_AFTER_MS] = json!("700");
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(20);
    let pod = w.running_pod(manifest).await;
    let answer = raw::delete(&w.client, &w.pod_path(&pod), None).await.expect(200);
    assert_eq!(answer.json["metadata"]["deletionGracePeriodSeconds"], 20);
    assert!(!text(&answer.json, "/metadata/deletionTimestamp").is_empty());
    // That it stood on with its deletion timestamp is told by the watch: by now it may be gone.
    assert_eq!(w.told_to_go(&pod).await["metadata"]["deletionGracePeriodSeconds"], 20);
    w.is_gone(&pod).await;
}

async fn deletion_without_grace_removes_at_once(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    raw::delete(&w.client, &w.pod_path(&pod), Some(&json!({ "gracePeriodSeconds": 0 }))).await.expect(200);
    raw::get(&w.client, &w.pod_path(&pod)).await.expect(404);
}

async fn deletion_with_another_uid_is_409_and_the_pod_stays(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let options = json!({ "preconditions": { "uid": "another" } });
    let answer = raw::delete(&w.client, &w.pod_path(&pod), Some(&options)).await.expect(409);
    assert_eq!(answer.reason(), "Conflict");
    assert!(w.stands(&pod).await);
}

async fn deletion_of_an_unbound_pod_needs_no_grace(w: World) {
    let manifest = w.pool.pod("a", 1);
    w.create(std::slice::from_ref(&manifest)).await;
    raw::delete(&w.client, &w.pod_path(&manifest), None).await.expect(200);
    raw::get(&w.client, &w.pod_path(&manifest)).await.expect(404);
}

async fn a_second_deletion_can_shorten_the_grace(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][kubelet::EXIT_AFTER_MS] = json!("600000");
    manifest["spec"]["terminationGracePeriodSeconds"] = json!(600);
    let pod = w.running_pod(manifest).await;
    raw::delete(&w.client, &w.pod_path(&pod), None).await.expect(200);
    let answer = raw::delete(&w.client, &w.pod_path(&pod), Some(&json!({ "gracePeriodSeconds": 1 }))).await.expect(200);
    assert_eq!(answer.json["metadata"]["deletionGracePeriodSeconds"], 1);
    w.is_gone(&pod).await;
}

async fn a_hanging_pod_stays_with_its_deletion_timestamp(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][kubelet::HANG] = json!("true");
    let pod = w.running_pod(manifest).await;
    raw::delete(&w.client, &w.pod_path(&pod), Some(&json!({ "gracePeriodSeconds": 1 }))).await.expect(200);
    // Longer than its grace of 1 s: another pod lives and dies beside it meanwhile, by its own clock.
    let mut witness = w.pool.pod("witness", 1);
    witness["metadata"]["annotations"][kubelet::EXIT_AFTER_MS] = json!("1500");
    let witness = w.running_pod(witness).await;
    raw::delete(&w.client, &w.pod_path(&witness), None).await.expect(200);
    w.is_gone(&witness).await;
    let still = w.get(&w.pod_path(&pod)).await;
    assert!(!text(&still, "/metadata/deletionTimestamp").is_empty());
}

async fn a_finalizer_keeps_a_deleted_pod(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["finalizers"] = json!(["example.com/held"]);
    let pod = w.running_pod(manifest).await;
    raw::delete(&w.client, &w.pod_path(&pod), Some(&json!({ "gracePeriodSeconds": 0 }))).await.expect(200);
    assert!(!text(&w.get(&w.pod_path(&pod)).await, "/metadata/deletionTimestamp").is_empty());
    w.merge_patch(&w.pod_path(&pod), json!({ "metadata": { "finalizers": null } })).await.expect(200);
    w.is_gone(&pod).await;
}

async fn a_stateful_pod_comes_back_under_its_name_with_a_new_uid(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&w.pool.stateful_set("train", 1)).await;
    let before = w.ready_pods("train", 1).await.remove(0);
    assert_eq!(before["metadata"]["name"], "train-0");
    raw::delete(&w.client, &w.pod_path(&before), None).await.expect(200);
    w.is_gone(&before).await;
    let after = w.ready_pods("train", 1).await.remove(0);
    assert_eq!(after["metadata"]["name"], "train-0");
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(owner(&after), Some("StatefulSet"));
}

async fn a_deployment_brings_another_pod_under_another_name(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&[w.pool.deployment("infer", 1, 1)]).await;
    let before = w.ready_pods("infer", 1).await.remove(0);
    raw::delete(&w.client, &w.pod_path(&before), None).await.expect(200);
    w.is_gone(&before).await;
    let after = w.ready_pods("infer", 1).await.remove(0);
    assert_ne!(after["metadata"]["name"], before["metadata"]["name"]);
    assert_eq!(owner(&after), Some("ReplicaSet"));
}

async fn a_stateful_pod_has_a_bound_claim(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.create(&w.pool.stateful_set("train", 1)).await;
    w.ready_pods("train", 1).await;
    let claim = w.get(&w.core("persistentvolumeclaims/data-train-0")).await;
    assert_eq!(claim["status"]["phase"], "Bound");
}

async fn a_daemon_pod_runs_on_every_node_of_its_selector(w: World) {
    let machines = w.nodes(2, 8).await;
    w.create(&[w.pool.daemon_set("agent")]).await;
    let pods = w.ready_pods("agent", 2).await;
    assert!(pods.iter().all(|pod| owner(pod) == Some("DaemonSet")));
    assert_ne!(pods[0]["spec"]["nodeName"], pods[1]["spec"]["nodeName"]);
    drop(machines);
    let path = w.apis("apps/v1", "daemonsets/agent");
    settled::is_true("the DaemonSet counts them", || async { w.get(&path).await["status"]["numberReady"] == 2 }).await;
}

async fn a_pod_that_never_gets_ready_runs_all_the_same(w: World) {
    let _machines = w.nodes(1, 8).await;
    let mut manifest = w.pool.pod("a", 1);
    manifest["metadata"]["annotations"][kubelet::READY] = json!("false");
    manifest["metadata"]["annotations"][kubelet::POD_IP] = json!("127.0.0.9");
    w.create(std::slice::from_ref(&manifest)).await;
    let path = w.pod_path(&manifest);
    settled::is_true("the pod runs", || async { w.get(&path).await["status"]["phase"] == "Running" }).await;
    let pod = w.get(&path).await;
    assert!(!crate::world::is_ready(&pod));
    assert_eq!(pod["status"]["podIP"], "127.0.0.9");
}

async fn a_dead_kubelet_ends_no_pod_until_its_machine_is_rebooted(w: World) {
    let machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let node = text(&pod, "/spec/nodeName");
    machines.die(node).await.expect("the cluster takes it");
    raw::delete(&w.client, &w.pod_path(&pod), None).await.expect(200);
    assert!(!text(&w.get(&w.pod_path(&pod)).await, "/metadata/deletionTimestamp").is_empty());
    machines.reboot(node).await.expect("the cluster takes it");
    w.is_gone(&pod).await;
}

fn owner(pod: &Value) -> Option<&str> {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().find(|owner| owner["controller"] == true)?["kind"].as_str()
}
