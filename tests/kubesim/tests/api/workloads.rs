//! Controllers, scheduler and kubelets: what the demo and the tests count on to happen by itself.

use kubesim::{KubeSim, build};
use serde_json::{Value, json};

use crate::client::{lively, until};

fn running(sim: &KubeSim) -> Vec<Value> {
    let pods = sim.store().list("pods");
    pods.into_iter().filter(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()).collect()
}

fn uids(pods: &[Value]) -> Vec<Value> {
    pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect()
}

#[tokio::test]
async fn a_quarantine_keeps_replacements_off_the_node() {
    let (sim, _client) = lively().await;
    for node in ["a", "b"] {
        sim.store().create(build::gpu_node(node, 8, "H100")).unwrap();
    }
    sim.store().create(build::deployment("ml", "infer", 2, 4, &[("app", "infer")])).unwrap();
    until("both run", || running(&sim).len() == 2).await;
    let taint = json!({ "spec": { "taints": [{ "key": "gpu-selfhealing.io/faulty", "value": "true", "effect": "NoSchedule" }] } });
    sim.store().patch_merge("nodes", "", "a", &taint).unwrap();
    for pod in running(&sim).iter().filter(|pod| pod["spec"]["nodeName"] == "a") {
        sim.store().delete("pods", "ml", pod["metadata"]["name"].as_str().unwrap()).unwrap();
    }
    until("both run elsewhere", || running(&sim).len() == 2 && running(&sim).iter().all(|pod| pod["spec"]["nodeName"] == "b"))
        .await;
}

#[tokio::test]
async fn a_pod_without_room_stays_pending_and_says_so() {
    let (sim, _client) = lively().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().create(build::gpu_pod("ml", "big", "", 16, &[])).unwrap();
    let reason = || sim.store().get("pods", "ml", "big").unwrap()["status"]["conditions"][0]["reason"].clone();
    until("refused", || reason() == "Unschedulable").await;
    sim.store().create(build::gpu_node("b", 16, "GB300")).unwrap();
    until("runs", || running(&sim).len() == 1).await;
}

#[tokio::test]
async fn a_stateful_pod_comes_back_under_its_name_with_another_uid() {
    let (sim, _client) = lively().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().create(build::statefulset("ml", "db", 2, 1, &[("app", "db")])).unwrap();
    until("both run", || running(&sim).len() == 2).await;
    assert_eq!(sim.store().list("persistentvolumeclaims").iter().filter(|claim| claim["status"]["phase"] == "Bound").count(), 2);
    let before = uids(&running(&sim));
    sim.store().delete("pods", "ml", "db-0").unwrap();
    until("back", || running(&sim).len() == 2 && uids(&running(&sim)) != before).await;
    let names: Vec<Value> = running(&sim).iter().map(|pod| pod["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["db-0", "db-1"]);
}

#[tokio::test]
async fn a_daemon_comes_back_on_a_cordoned_node() {
    let (sim, _client) = lively().await;
    let mut node = build::gpu_node("a", 8, "H100");
    node["spec"]["unschedulable"] = json!(true);
    sim.store().create(node).unwrap();
    sim.store().create(build::daemonset("gpu", "dcgm", &[("app", "nvidia-dcgm-exporter")])).unwrap();
    until("runs", || running(&sim).len() == 1).await;
    let before = uids(&running(&sim));
    sim.store().delete("pods", "gpu", running(&sim)[0]["metadata"]["name"].as_str().unwrap()).unwrap();
    until("back", || running(&sim).len() == 1 && uids(&running(&sim)) != before).await;
}

#[tokio::test]
async fn nothing_starts_or_ends_under_a_dead_kubelet() {
    let (sim, _client) = lively().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().create(build::gpu_pod("ml", "p", "a", 1, &[])).unwrap();
    until("runs", || running(&sim).len() == 1).await;
    let kubelet = |state: Value| {
        sim.store().patch_merge("nodes", "", "a", &json!({ "metadata": { "annotations": { build::KUBELET: state } } })).unwrap()
    };
    kubelet(json!("dead"));
    sim.store().delete("pods", "ml", "p").unwrap();
    sim.clock().advance(std::time::Duration::from_secs(3_600));
    sim.store().create(build::deployment("ml", "other", 1, 0, &[("app", "other")])).unwrap();
    until("the controllers have passed by", || sim.store().list("pods").len() == 2).await;
    assert!(sim.store().get("pods", "ml", "p").is_some());
    kubelet(Value::Null);
    until("is gone", || sim.store().get("pods", "ml", "p").is_none()).await;
}

#[tokio::test]
async fn dependents_go_with_their_owner() {
    let (sim, client) = lively().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().create(build::deployment("ml", "d", 2, 1, &[("app", "d")])).unwrap();
    until("run", || running(&sim).len() == 2).await;
    for policy in ["Background", "Foreground"] {
        client.delete("/apis/apps/v1/namespaces/ml/deployments/d", &json!({ "propagationPolicy": policy })).await;
        until("all gone", || {
            sim.store().list("pods").is_empty()
                && sim.store().list("replicasets").is_empty()
                && sim.store().list("deployments").is_empty()
        })
        .await;
        sim.store().create(build::deployment("ml", "d", 2, 1, &[("app", "d")])).unwrap();
        until("run again", || running(&sim).len() == 2).await;
    }
}

#[tokio::test]
async fn a_restart_replaces_every_pod_once() {
    let (sim, client) = lively().await;
    sim.store().create(build::gpu_node("a", 16, "H100")).unwrap();
    sim.store().create(build::deployment("ml", "d", 3, 1, &[("app", "d")])).unwrap();
    until("run", || running(&sim).len() == 3).await;
    let before = uids(&running(&sim));
    let restart =
        json!({ "spec": { "template": { "metadata": { "annotations": { "gpu-selfhealing.io/restarted-by": "command-1" } } } } });
    for _ in 0..2 {
        assert_eq!(client.patch("/apis/apps/v1/namespaces/ml/deployments/d", "strategic-merge-patch", &restart).await.code, 200);
    }
    until("all new", || running(&sim).len() == 3 && uids(&running(&sim)).iter().all(|uid| !before.contains(uid))).await;
    until("old sets are empty", || {
        sim.store().list("replicasets").iter().filter(|set| set["status"]["replicas"] == 3).count() == 1
    })
    .await;
    assert_eq!(sim.store().list("replicasets").len(), 2);
}

#[tokio::test]
async fn pods_of_a_lost_node_are_forgotten_and_replaced() {
    let (sim, _client) = lively().await;
    for node in ["a", "b"] {
        sim.store().create(build::gpu_node(node, 8, "H100")).unwrap();
    }
    sim.store().create(build::deployment("ml", "d", 2, 4, &[("app", "d")])).unwrap();
    until("run", || running(&sim).len() == 2).await;
    sim.store().delete_now("nodes", "", "a").unwrap();
    assert_eq!(running(&sim).len(), 2, "the pods' objects outlive the node's");
    let elsewhere = || running(&sim).len() == 2 && running(&sim).iter().all(|pod| pod["spec"]["nodeName"] == "b");
    // The collector counts from when it saw the node go, so time passes until it has.
    until("run on the other", || {
        sim.clock().advance(std::time::Duration::from_secs(41));
        elsewhere()
    })
    .await;
}
