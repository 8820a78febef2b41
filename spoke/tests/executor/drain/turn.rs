//! What changes between the plan of a drain and a pod's turn: the cluster's ceiling, the pod's own word, its storage.

use gpuheal_proto::link::v1::{CommandState, CommandStatus};
use serde_json::{Value, json};

use super::{blocked, held_drain, in_state};
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::{World, owner},
};

testkube::claims![
    a_namespace_that_the_ceiling_takes_away_mid_drain_is_left_alone,
    a_pod_that_is_protected_mid_drain_stays,
    a_pod_that_asks_mid_drain_to_be_let_finish_is,
    a_grace_that_the_ceiling_shortens_mid_drain_is_the_one_that_is_asked_for,
    a_namespace_that_takes_its_word_on_storage_back_mid_drain_is_obeyed,
    a_volume_that_gets_stuck_mid_drain_keeps_its_pod,
    the_last_ready_replica_waits_for_another_to_be_ready,
    a_pod_with_storage_that_a_budget_holds_does_not_have_all_attachments_listed_at_each_retry,
];

/// `guarded-1` may go now, and was left where it is all the same: how its drain ends.
async fn guarded_stays(w: &World, mut spoke: Spoke, id: gpuheal_proto::ids::CommandId, why: &str) -> CommandStatus {
    let asked = w.wire.evictions().len();
    w.free_budget().await;
    let end = spoke.ended(id).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    assert_eq!(in_state(&end, "guarded-1", "skipped").as_deref(), Some(why), "{}", end.reason);
    assert!(end.reason.contains("not drained: 0 of 0 pods gone"), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
    assert!(w.wire.evictions().len() <= asked + 1, "at most the one that was under way");
    end
}

async fn a_namespace_that_the_ceiling_takes_away_mid_drain_is_left_alone(w: World) {
    w.guarded_pod().await;
    let spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    spoke.configured(&w, "ceiling: {namespaces: [other]}").await;
    let why = format!("the cluster's ceiling does not allow namespace {}", w.ns);
    guarded_stays(&w, spoke, command.id, &why).await;
}

async fn a_pod_that_is_protected_mid_drain_stays(w: World) {
    w.guarded_pod().await;
    let spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    w.change_pod("guarded-1", json!({"metadata": {"labels": {"gpu-selfhealing.io/evict": "never"}}})).await;
    guarded_stays(&w, spoke, command.id, "label gpu-selfhealing.io/evict: never").await;
}

async fn a_pod_that_asks_mid_drain_to_be_let_finish_is(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    let word = |word: Value| json!({"metadata": {"labels": {"gpu-selfhealing.io/evict": word}}});
    w.change_pod("guarded-1", word(json!("after-completion"))).await;
    let waits = |status: &CommandStatus| in_state(status, "guarded-1", "waiting for its completion").is_some();
    spoke.told("that it is waited for", waits).await;
    let asked = w.wire.evictions().len();
    w.free_budget().await;
    // By then it would have been asked for once more.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert_eq!(w.wire.evictions().len(), asked);
    w.change_pod("guarded-1", word(Value::Null)).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

async fn a_grace_that_the_ceiling_shortens_mid_drain_is_the_one_that_is_asked_for(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    let grace = || w.wire.evictions().last().unwrap().body["deleteOptions"]["gracePeriodSeconds"].clone();
    assert_eq!(grace(), 30);
    spoke.configured(&w, "ceiling: {graceMax: 3s}").await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(grace(), 3);
}

/// A drain that a budget holds at `guarded-1`, before the turn of `db-0`.
async fn held_before_storage(w: &World, spoke: &Spoke) -> gpuheal_proto::command::Command {
    w.allow_stateful_eviction().await;
    w.stateful_pod("db-0", "n1").await;
    w.stateful_pod("db-1", "n2").await;
    w.guarded_pod().await;
    held_drain(w, spoke).await
}

/// `guarded-1` goes, and `db-0` stays for this reason.
async fn storage_stays(w: &World, mut spoke: Spoke, id: gpuheal_proto::ids::CommandId, why: &str) {
    w.free_budget().await;
    let end = spoke.ended(id).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    assert!(end.reason.contains("1 of 1 pods gone"), "{}", end.reason);
    assert_eq!(in_state(&end, "db-0", "skipped").as_deref(), Some(why), "{}", end.reason);
    assert!(w.evictions().await.iter().all(|entry| entry.name == "guarded-1"));
}

async fn a_namespace_that_takes_its_word_on_storage_back_mid_drain_is_obeyed(w: World) {
    let spoke = Spoke::leading(&w, "a", "").await;
    let command = held_before_storage(&w, &spoke).await;
    w.forbid_stateful_eviction().await;
    let why = format!("has storage, and namespace {} does not allow stateful eviction", w.ns);
    storage_stays(&w, spoke, command.id, &why).await;
}

async fn a_volume_that_gets_stuck_mid_drain_keeps_its_pod(w: World) {
    let spoke = Spoke::leading(&w, "a", "").await;
    let command = held_before_storage(&w, &spoke).await;
    w.attachment("db-0", "n1", json!({"attached": true, "detachError": {"message": "device busy"}})).await;
    let why = format!("volume {}-db-0 cannot be detached from node {}: device busy", w.ns, w.name("n1"));
    storage_stays(&w, spoke, command.id, &why).await;
}

async fn the_last_ready_replica_waits_for_another_to_be_ready(w: World) {
    w.allow_stateful_eviction().await;
    // An owner of its own: the claims share an API server.
    let mut owners = owner("StatefulSet", "db");
    owners[0]["uid"] = json!(format!("uid-{}", w.ns));
    let of_owner = json!({"metadata": {"ownerReferences": owners}});
    w.stateful_pod_with("db-0", "n1", of_owner.clone()).await;
    w.stateful_pod_with("db-1", "n1", of_owner.clone()).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    let running = spoke.told("that the second waits", |status| blocked(status, "db-1").is_some()).await;
    assert_eq!(blocked(&running, "db-1").as_deref(), Some("the only ready replica of StatefulSet db"));
    w.gone("db-0").await;
    assert!(w.pod("db-1").await.is_some());
    assert!(w.evictions().await.iter().all(|entry| entry.name == "db-0"));
    w.stateful_pod_with("db-2", "n2", of_owner).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("db-1").await;
}

async fn a_pod_with_storage_that_a_budget_holds_does_not_have_all_attachments_listed_at_each_retry(w: World) {
    w.allow_stateful_eviction().await;
    w.budget("guarded", "guarded").await;
    w.stateful_pod_with("db-0", "n1", json!({"metadata": {"labels": {"app": "guarded"}}})).await;
    w.stateful_pod("db-1", "n2").await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    // After one, two and four seconds at most.
    testkube::settled::is_true("it was asked for four times", || async { w.wire.evictions().len() >= 4 }).await;
    let lists = w.wire.sent().iter().filter(|sent| sent.path.ends_with("/volumeattachments")).count();
    // For the plan, when its turn came, and once more where this took longer than ten seconds.
    assert!((2..=3).contains(&lists), "{lists} lists");
    w.stateful_pod_with("db-2", "n3", json!({"metadata": {"labels": {"app": "guarded"}}})).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}
