//! The owner's ConfigMap through the watch that ships: what it says counts as soon as it is heard, and what it has said is lifted
//! by no deletion.

use std::time::Duration;

use gpuheal_proto::link::v1::{CommandState, CommandStatus, RefusalCode};
use gpuheal_spoke::ports::Lost;
use serde_json::json;
use testkube::settled;

use crate::{
    hub::{drain, mark, release, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    a_config_map_that_is_deleted_or_loses_its_key_lifts_no_stop_and_an_empty_document_does,
    a_config_map_that_is_deleted_mid_drain_keeps_its_ceiling_for_the_pods_whose_turn_comes,
    a_replica_that_starts_after_the_config_map_was_deleted_does_nothing_but_releases,
    nothing_is_written_to_the_cluster_after_a_stop_mid_drain_was_heard,
];

/// How a mark of this node ends.
async fn mark_of(w: &World, spoke: &mut Spoke, node: &str, plan_rev: u64) -> CommandStatus {
    let command = w.command(node, plan_rev, vec![mark()]).await;
    spoke.carry_out(&command).await
}

async fn a_config_map_that_is_deleted_or_loses_its_key_lifts_no_stop_and_an_empty_document_does(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.configured(&w, "ceiling: {stop: true}").await;
    let before = w.wire.touched().len();
    w.delete_config().await;
    spoke.hears("that it is gone", |config| config.lost == Some(Lost::Object)).await;
    let end = mark_of(&w, &mut spoke, "n1", 1).await;
    assert_eq!(end.refusal(), RefusalCode::Stopped, "{}", end.reason);
    w.write_config(json!({"config.yml": ""})).await;
    spoke.hears("that it has another key", |config| config.lost == Some(Lost::Key)).await;
    let end = mark_of(&w, &mut spoke, "n1", 2).await;
    assert_eq!(end.refusal(), RefusalCode::Stopped, "{}", end.reason);
    assert_eq!(w.wire.touched().len(), before);
    spoke.configured(&w, "").await;
    let end = mark_of(&w, &mut spoke, "n1", 3).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

async fn a_config_map_that_is_deleted_mid_drain_keeps_its_ceiling_for_the_pods_whose_turn_comes(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {graceMax: 3s}").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    w.delete_config().await;
    spoke.hears("that it is gone", |config| config.lost == Some(Lost::Object)).await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let graces = w.wire.evictions().into_iter().map(|sent| sent.body["deleteOptions"]["gracePeriodSeconds"].clone());
    assert!(graces.into_iter().all(|grace| grace == 3), "the pod's own is 30 s");
}

async fn a_replica_that_starts_after_the_config_map_was_deleted_does_nothing_but_releases(w: World) {
    let mut first = Spoke::leading(&w, "a", "ceiling: {nodesOut: 3}").await;
    let marked = mark_of(&w, &mut first, "n1", 1).await;
    assert_eq!(marked.state(), CommandState::Succeeded, "{}", marked.reason);
    settled::is_true("it is noted", || async { w.fence().await["data"]["ceilingSeen"] == "true" }).await;
    w.kill_and_free(first).await;
    w.delete_config().await;
    let mut second = Spoke::leading(&w, "b", "").await;
    assert_eq!(second.config.borrow().lost, Some(Lost::ObjectUnread));
    let end = mark_of(&w, &mut second, "n2", 2).await;
    assert_eq!(end.refusal(), RefusalCode::OverCeiling, "{}", end.reason);
    let end = second.carry_out(&w.command("n1", 3, vec![release(marked.undo)]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    second.configured(&w, "").await;
    let end = mark_of(&w, &mut second, "n2", 4).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

async fn nothing_is_written_to_the_cluster_after_a_stop_mid_drain_was_heard(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    spoke.configured(&w, "ceiling: {stop: true}").await;
    let heard = w.wire.touched().len();
    // The one that may have been under way when it was heard is refused by the budget like those before.
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::Stopped), "{}", end.reason);
    let ended = w.wire.touched().len();
    assert!(ended <= heard + 1, "{:#?}", &w.wire.touched()[heard..]);
    w.free_budget().await;
    let other = w.command("n2", 2, vec![mark(), drain()]).await;
    assert_eq!(spoke.carry_out(&other).await.refusal(), RefusalCode::Stopped);
    // The longest pause before a budget would be asked again by now.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(w.wire.touched().len(), ended, "{:#?}", &w.wire.touched()[ended..]);
    assert!(w.pod("guarded-1").await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()));
}
