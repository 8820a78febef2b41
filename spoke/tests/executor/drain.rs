//! Draining: who goes, in which order, past which refusals.

use std::time::Duration;

use gpuheal_proto::{
    command::{DeadlineOutcome, Step},
    link::v1::{CommandState, RefusalCode},
};
use gpuheal_spoke::ports::{LocalConfig, Standing};
use kubesim::build;
use serde_json::{Value, json};

use crate::harness::{Cluster, Spoke, command, drain, eventually, mark, signed};

fn evicted(cluster: &Cluster) -> Vec<String> {
    cluster.evictions().iter().filter(|record| record.code == 201).map(|record| record.name.clone()).collect()
}

fn stateful(cluster: &Cluster, name: &str) -> Value {
    let claim = format!("data-{name}");
    cluster.create(json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "ml", "name": claim},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}));
    cluster.sim.store().patch_merge("persistentvolumeclaims", "ml", &claim, &json!({"status": {"phase": "Bound"}})).unwrap();
    let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "ss-db", "controller": true}]);
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    cluster.gpu_pod(
        name,
        "n1",
        json!({"metadata": {"labels": {"app": "db"}, "ownerReferences": owner}, "spec": {"volumes": volumes}}),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn only_gpu_pods_go_and_stateless_ones_before_stateful_ones() {
    let cluster = Cluster::start().await;
    cluster
        .sim
        .store()
        .patch_merge("namespaces", "", "ml", &json!({"metadata": {"labels": {"gpu-selfhealing.io/stateful-eviction": "allowed"}}}))
        .unwrap();
    stateful(&cluster, "db-0");
    stateful(&cluster, "db-1");
    cluster.gpu_pod("web-1", "n1", json!({}));
    cluster.gpu_pod("web-2", "n1", json!({}));
    cluster.gpu_pod("other-node", "n2", json!({}));
    cluster.create(build::cpu_pod("ml", "cpu", "n1", &[]));
    let daemon = json!([{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "ds", "controller": true}]);
    cluster.gpu_pod("daemon", "n1", json!({"metadata": {"ownerReferences": daemon}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let end = spoke.carry_out(&command(&cluster, "n1", 1, vec![mark(), drain()])).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let mut order = evicted(&cluster);
    order[..2].sort();
    assert_eq!(order, ["web-1", "web-2", "db-0", "db-1"]);
    for stays in ["other-node", "cpu", "daemon"] {
        assert!(cluster.pod(stays).is_some(), "{stays}");
    }
    assert!(cluster.evictions().iter().all(|record| record.ignored_fields.is_empty()), "no field of ours is unknown to the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_pod_whose_namespace_says_nothing_stays_and_the_node_is_not_called_drained() {
    let cluster = Cluster::start().await;
    stateful(&cluster, "db-0");
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let end = spoke.carry_out(&command(&cluster, "n1", 1, vec![mark(), drain()])).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains("namespace ml does not allow stateful eviction"), "{}", end.reason);
    assert!(cluster.evictions().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_eviction_is_bound_to_the_uid_and_carries_the_pods_grace() {
    let cluster = Cluster::start().await;
    let pod = cluster.gpu_pod("web-1", "n1", json!({"spec": {"terminationGracePeriodSeconds": 5}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    spoke.carry_out(&command(&cluster, "n1", 1, vec![drain()])).await;
    let evictions = cluster.evictions();
    assert_eq!(evictions.len(), 1, "one call per pod");
    let options = &evictions[0].body.as_ref().unwrap()["deleteOptions"];
    assert_eq!(options["preconditions"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(options["gracePeriodSeconds"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_kept_its_pod_waits_and_is_named_and_others_go_on() {
    let cluster = Cluster::start().await;
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    cluster.gpu_pod("web-1", "n1", json!({}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    spoke.send(signed(&command)).await;
    let id = command.id.to_string();
    let running = spoke.told("progress", |status| status.command_id == id && status.state() == CommandState::Started).await;
    let pods = &running.steps[1].pods;
    let blocked = pods.iter().find(|pod| pod.name == "guarded-1").unwrap();
    assert_eq!(blocked.state, "blocked", "{pods:?}");
    assert!(blocked.reason.contains("guarded"), "{}", blocked.reason);
    assert!(cluster.pod("guarded-1").is_some());
    assert!(cluster.pod("web-1").is_none());
    // Its budget is freed: a second healthy pod elsewhere.
    cluster.gpu_pod("guarded-2", "n2", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(cluster.pod("guarded-1").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn past_its_deadline_a_drain_stops_and_says_what_is_left() {
    let cluster = Cluster::start().await;
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let Step::Drain(mut words) = drain() else { unreachable!() };
    words.deadline = Duration::from_secs(1);
    let end = spoke.carry_out(&command(&cluster, "n1", 1, vec![Step::Drain(words.clone())])).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains("ml/guarded-1"), "{}", end.reason);
    assert!(cluster.pod("guarded-1").is_some());
    // A plan by itself may not pass the budget; where a person asked for it, the pod goes by a delete bound to its UID.
    words.on_deadline = DeadlineOutcome::BypassPdb;
    words.allow_pdb_bypass = true;
    let end = spoke.carry_out(&command(&cluster, "n1", 2, vec![Step::Drain(words.clone())])).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::OverCeiling), "{}", end.reason);
    assert!(cluster.pod("guarded-1").is_some());
    let mut by_hand = command(&cluster, "n1", 3, vec![Step::Drain(words)]);
    by_hand.level = "manual".into();
    let end = spoke.carry_out(&by_hand).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(cluster.pod("guarded-1").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_looked_up_and_the_pod_is_not_evicted_twice() {
    let cluster = Cluster::start().await;
    cluster.gpu_pod("web-1", "n1", json!({}));
    cluster.sim.faults().lose_answer("create", "pods/eviction");
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let end = spoke.carry_out(&command(&cluster, "n1", 1, vec![drain()])).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(cluster.evictions().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_stops_as_soon_as_the_fault_is_gone() {
    let cluster = Cluster::start().await;
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    spoke.send(signed(&command)).await;
    eventually("the budget refuses", || async { !cluster.evictions().is_empty() }).await;
    *spoke.faults.0.lock().unwrap() = Standing::Cleared;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled);
    assert!(end.reason.contains("cleared by their own source"), "{}", end.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clusters_stop_switch_ends_a_drain_within_a_second() {
    let cluster = Cluster::start().await;
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    spoke.send(signed(&command)).await;
    eventually("the budget refuses", || async { !cluster.evictions().is_empty() }).await;
    let from = std::time::Instant::now();
    spoke.config.send_replace(LocalConfig { resource_version: "2".into(), yaml: "ceiling: {stop: true}".into() });
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled);
    assert!(from.elapsed() < Duration::from_secs(1), "{:?}", from.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_takes_the_mark_away_is_obeyed() {
    let cluster = Cluster::start().await;
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    spoke.send(signed(&command)).await;
    eventually("the budget refuses", || async { !cluster.evictions().is_empty() }).await;
    cluster.sim.store().patch_merge("nodes", "", "n1", &json!({"spec": {"taints": null}})).unwrap();
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled);
    assert!(end.reason.contains("overridden by a person"), "{}", end.reason);
}
