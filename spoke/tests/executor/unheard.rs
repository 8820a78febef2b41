//! Watches that say nothing. While that of the ConfigMap does, nobody knows whether the cluster's owner says stop: what harms is
//! held back, and a release is not.

use std::time::Duration;

use gpuheal_proto::link::v1::{CommandState, RefusalCode};
use gpuheal_spoke::{
    clock,
    watch::{CONFIG, DRAINED_PODS, HEAL_ACTIONS, STALE_AFTER},
};
use testkube::settled;

use crate::{
    hub::{drain, mark, release, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    a_drain_under_way_evicts_nobody_while_the_stop_switch_is_not_heard_and_goes_on_once_it_is,
    a_stop_switch_that_is_not_heard_keeps_new_commands_that_harm_away_and_no_release,
    the_watches_of_records_and_of_a_drains_pods_have_an_age_and_the_latter_only_while_it_goes_on,
];

impl Spoke {
    /// Its watch of the ConfigMap falls silent, and has been for so long that a claim cannot wait.
    fn is_deaf(&self, w: &World) {
        w.wire.stall_config(true);
        self.heard.note(CONFIG, clock::boottime().saturating_sub(STALE_AFTER + Duration::from_secs(5)));
    }
}

async fn a_drain_under_way_evicts_nobody_while_the_stop_switch_is_not_heard_and_goes_on_once_it_is(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    spoke.is_deaf(&w);
    w.free_budget().await;
    // What was on its way when the watch fell silent may still be answered.
    w.lease_looked_at("a").await;
    let asked = w.wire.evictions().len();
    // The pauses in between are half a second, one and two at least.
    w.lease_looked_at("a").await;
    w.lease_looked_at("a").await;
    assert_eq!(w.wire.evictions().len(), asked, "it asked while nobody knew whether the owner says stop");
    assert!(w.pod("guarded-1").await.is_some());
    // What comes through ends the silence: an owner who writes, or the next bookmark.
    w.wire.stall_config(false);
    w.configure("").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

async fn a_stop_switch_that_is_not_heard_keeps_new_commands_that_harm_away_and_no_release(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let marked = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    assert_eq!(marked.state(), CommandState::Succeeded, "{}", marked.reason);
    spoke.is_deaf(&w);
    let command = w.command("n2", 2, vec![mark()]).await;
    let told = spoke.carry_out(&command).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::NotNow, RefusalCode::Busy));
    assert!(told.reason.starts_with("the ConfigMap that may say stop was last heard 95s ago"), "{}", told.reason);
    assert!(w.action(command.id).await.is_none(), "not now leaves no trace");
    let end = spoke.carry_out(&w.command("n1", 3, vec![release(marked.undo)]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "a release waits for nothing: {}", end.reason);
}

async fn the_watches_of_records_and_of_a_drains_pods_have_an_age_and_the_latter_only_while_it_goes_on(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    assert!(spoke.heard.age(HEAL_ACTIONS).is_some_and(|age| age < STALE_AFTER));
    assert_eq!(spoke.heard.age(DRAINED_PODS), None);
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    assert!(spoke.heard.age(DRAINED_PODS).is_some_and(|age| age < STALE_AFTER));
    assert_eq!(spoke.heard.stale(), []);
    w.free_budget().await;
    spoke.ended(command.id).await;
    assert_eq!(spoke.heard.age(DRAINED_PODS), None, "a drain that is over watches nothing");
}
