//! Pods that were evicted and do not go.

use std::time::Duration;

use gpuheal_proto::{
    command::{Command, Step},
    link::v1::{CommandState, CommandStatus},
};
use kubesim::build;
use serde_json::{Value, json};
use testkube::raw;

use super::in_state;
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    a_finalizer_that_holds_a_pod_is_named_with_who_set_it,
    a_kubelet_that_is_not_ready_is_waited_for_and_one_that_is_silent_is_not,
    volumes_that_a_silent_node_keeps_are_named_and_one_that_cannot_follow_keeps_its_pod,
];

/// Sends a drain of `n1`, whose `web-1` hangs, and waits until `web-1` should have been gone for half a minute.
async fn overdue(w: &World, spoke: &mut Spoke) -> (Command, CommandStatus, String) {
    let Step::Drain(mut words) = drain() else { unreachable!() };
    words.grace_max = Duration::from_secs(600);
    let command = w.command("n1", 1, vec![mark(), Step::Drain(words)]).await;
    spoke.send(signed(&command)).await;
    let late = |status: &CommandStatus| in_state(status, "web-1", "evicting").filter(|why| !why.is_empty());
    let status = spoke.told("that it does not go", |status| late(status).is_some()).await;
    let why = late(&status).unwrap();
    (command, status, why)
}

async fn a_finalizer_that_holds_a_pod_is_named_with_who_set_it(w: World) {
    w.gpu_pod("web-1", "n1", json!({"spec": {"terminationGracePeriodSeconds": 1}})).await;
    let person = w.admin.clone();
    let set = async |finalizers: Value| {
        let path = format!("/api/v1/namespaces/{}/pods/web-1?fieldManager=team-operator", w.ns);
        raw::patch(&person, &path, raw::MERGE_PATCH, &json!({"metadata": {"finalizers": finalizers}})).await.expect(200);
    };
    set(json!(["team.example/hold"])).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "its containers hold no GPU any more: {}", end.reason);
    let held = "finished; its object is held by finalizer team.example/hold (set by team-operator)";
    assert_eq!(in_state(&end, "web-1", "gone").as_deref(), Some(held));
    assert_eq!(w.pod("web-1").await.unwrap()["metadata"]["finalizers"], json!(["team.example/hold"]), "never stripped");
    set(Value::Null).await;
}

async fn a_kubelet_that_is_not_ready_is_waited_for_and_one_that_is_silent_is_not(w: World) {
    let hangs =
        |grace: u32| json!({"metadata": {"annotations": {build::HANG: "true"}}, "spec": {"terminationGracePeriodSeconds": grace}});
    w.gpu_pod("web-1", "n1", hangs(1)).await;
    // Long enough that nobody here waits for its end.
    w.gpu_pod("web-2", "n1", hangs(600)).await;
    let person = w.admin.clone();
    let ready = async |word: &str| {
        let path = format!("/api/v1/nodes/{}/status", w.name("n1"));
        let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": word, "reason": "x", "message": "x"}]}});
        raw::patch(&person, &path, raw::STRATEGIC_MERGE_PATCH, &conditions).await.expect(200);
    };
    ready("False").await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.sees(&w, "n1").await;
    let (command, status, why) = overdue(&w, &mut spoke).await;
    assert_eq!(status.state(), CommandState::Started, "{}", status.reason);
    assert!(why.starts_with("still terminating"), "{why}");
    ready("Unknown").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Failed);
    for told in ["not drained: 0 of 2 pods gone", "/web-1: still terminating", "/web-2: still terminating"] {
        assert!(end.reason.contains(told), "{told}: {}", end.reason);
    }
}

async fn volumes_that_a_silent_node_keeps_are_named_and_one_that_cannot_follow_keeps_its_pod(w: World) {
    w.allow_stateful_eviction().await;
    let hangs = json!({"metadata": {"annotations": {build::HANG: "true"}}, "spec": {"terminationGracePeriodSeconds": 1}});
    w.stateful_pod_with("db-0", "n1", hangs).await;
    w.stateful_pod("db-1", "n1").await;
    // A third of them, so that neither is the only ready one.
    w.stateful_pod("db-2", "n2").await;
    w.attachment("db-0", "n1", json!({"attached": true})).await;
    // An attacher that could not detach it from where it was before.
    let broken = w.attachment("db-1", "n2", json!({"attached": true, "detachError": {"message": "device busy"}})).await;
    let person = w.admin.clone();
    let path = format!("/api/v1/nodes/{}/status", w.name("n1"));
    let silent = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "x", "message": "x"}]}});
    raw::patch(&person, &path, raw::STRATEGIC_MERGE_PATCH, &silent).await.expect(200);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.sees(&w, "n1").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed);
    let why = |volume: &str, words: &str| format!("{}-{volume}{words}", w.ns);
    let stays = format!("volume {}", why("db-1", &format!(" cannot be detached from node {}: device busy", w.name("n2"))));
    assert!(end.reason.contains(&stays), "{}", end.reason);
    assert!(end.reason.contains(&format!("still attached to it: {}; once the machine", why("db-0", ""))), "{}", end.reason);
    assert!(w.evictions().await.iter().all(|entry| entry.name == "db-0"));

    w.merge(&format!("{broken}/status"), &json!({"status": {"detachError": null}})).await;
    w.delete_now("db-0").await;
    w.gone("db-0").await;
    let end = spoke.carry_out(&w.command("n1", 2, vec![drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.evictions().await.iter().filter(|entry| entry.name == "db-1").count(), 1, "{}", end.reason);
}
