//! Releasing: what goes and what stays.

use gpuheal_proto::link::v1::CommandState;
use serde_json::json;

use crate::harness::{Cluster, Spoke, command, eventually, mark, marks, release};

#[tokio::test(flavor = "multi_thread")]
async fn a_release_takes_off_what_is_ours_and_leaves_a_persons_cordon() {
    let cluster = Cluster::start().await;
    cluster.sim.store().patch_merge("nodes", "", "n1", &json!({"spec": {"unschedulable": true}})).unwrap();
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let first = command(&cluster, "n1", 1, vec![mark()]);
    let marked = spoke.carry_out(&first).await;
    assert_eq!(marks(&cluster.node("n1")), (true, 1, true));
    eventually("the mark's last Event is posted", || async {
        cluster.sim.store().list("events").iter().any(|event| event["involvedObject"]["name"] == first.id.to_string())
    })
    .await;
    let from = cluster.sim.recorder().mark();
    let end = spoke.carry_out(&command(&cluster, "n1", 2, vec![release(marked.undo)])).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(marks(&cluster.node("n1")), (false, 0, true), "the cordon was there before us");
    assert_eq!(cluster.node("n1")["metadata"]["annotations"]["gpu-selfhealing.io/plan-revision"], "2", "the fence stays");
    eventually("its Event", || async {
        cluster
            .sim
            .store()
            .list("events")
            .iter()
            .any(|event| event["message"].as_str().is_some_and(|text| text.starts_with("released")))
    })
    .await;
    let requests: Vec<_> = cluster.requests_since(from).iter().map(|r| format!("{} {}", r.verb, r.target())).collect();
    assert!(requests.len() <= 5, "{requests:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn our_own_cordon_goes_and_without_a_record_from_the_hub_the_clusters_own_is_used() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "ceiling: {nodesOut: 1}").await;
    spoke.carry_out(&command(&cluster, "n1", 1, vec![mark()])).await;
    spoke
        .config
        .send_replace(gpuheal_spoke::ports::LocalConfig { resource_version: "2".into(), yaml: "ceiling: {stop: true}".into() });
    let end = spoke.carry_out(&command(&cluster, "n1", 2, vec![release(None)])).await;
    assert_eq!(end.state(), CommandState::Succeeded, "a release waits for no ceiling: {}", end.reason);
    assert_eq!(marks(&cluster.node("n1")), (false, 0, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_mark_is_kept_until_its_release_is_acked() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let first = command(&cluster, "n1", 1, vec![mark()]);
    let marked = spoke.carry_out(&first).await;
    spoke.ack(&marked).await;
    let second = command(&cluster, "n1", 2, vec![release(marked.undo)]);
    let released = spoke.carry_out(&second).await;
    let held = |id| cluster.action(id).unwrap()["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    assert!(held(first.id), "a node may come back from repair after weeks");
    assert!(held(second.id), "its outcome has not reached the hub");
    spoke.ack(&released).await;
    eventually("both are let go", || async { !held(first.id) && !held(second.id) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_leaves_an_event_on_the_node_and_on_its_healaction_and_is_about_the_incidents_fault() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let marked = spoke.carry_out(&command(&cluster, "n1", 1, vec![mark()])).await;
    let mut back = command(&cluster, "n1", 2, vec![release(marked.undo)]);
    back.reason = "clear for 15 min".into();
    let end = spoke.carry_out(&back).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let id = back.id.to_string();
    let told = |kind: &str, namespace: &str| {
        let all = cluster.sim.store().list("events");
        let ours = all.iter().filter(|event| event["message"].as_str().is_some_and(|text| text.contains(&id)));
        ours.filter(|event| event["involvedObject"]["kind"] == kind && event["metadata"]["namespace"] == namespace).count()
    };
    eventually("both Events", || async { told("Node", "default") == 1 && told("HealAction", "gpu-selfhealing") == 1 }).await;
    assert_eq!(cluster.action(back.id).unwrap()["spec"]["fault"], "xid 79");
}
