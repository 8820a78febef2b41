//! Pods that come to a node while it is drained.

use gpuheal_proto::{command::Command, link::v1::CommandState};
use serde_json::json;
use testkube::settled;

use super::held_drain;
use crate::{
    hub::{drain, mark, release},
    replica::Spoke,
    world::{World, owner},
};

testkube::claims![
    an_owner_whose_pods_keep_coming_back_is_named_and_they_are_left_alone,
    who_takes_a_drain_up_leaves_alone_what_came_after_it_began,
    what_three_commands_have_evicted_from_a_node_is_left_alone_and_named_until_it_is_released,
];

async fn evicted(w: &World) -> Vec<String> {
    let mut names: Vec<_> = w.evictions().await.into_iter().map(|entry| entry.name).collect();
    names.dedup();
    names
}

async fn an_owner_whose_pods_keep_coming_back_is_named_and_they_are_left_alone(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    // Of the same owner, past the scheduler and so past the taint; each is seen Pending, Running and Ready.
    for name in ["back-1", "back-2", "back-3"] {
        w.gpu_pod(name, "n1", json!({})).await;
    }
    let words = format!("3 new pods of CloneSet {}/web came to this node", w.ns);
    settled::is_true("an Event names the owner", || async {
        w.events().await.iter().any(|event| event["message"].as_str().is_some_and(|message| message.contains(&words)))
    })
    .await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains(&format!("CloneSet {}/web keeps coming back to it", w.ns)), "{}", end.reason);
    assert_eq!(evicted(&w).await, ["guarded-1"]);
    for name in ["back-1", "back-2", "back-3"] {
        assert!(w.pod(name).await.is_some(), "{name}");
    }
}

async fn who_takes_a_drain_up_leaves_alone_what_came_after_it_began(w: World) {
    w.guarded_pod().await;
    let spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    w.gpu_pod("back-1", "n1", json!({})).await;
    settled::is_true("it is recorded", || async {
        w.action(command.id).await.is_some_and(|action| action["status"].to_string().contains("back-1"))
    })
    .await;
    w.kill_and_free(spoke).await;
    let mut second = Spoke::leading(&w, "b", "").await;
    w.free_budget().await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains(&format!("1 new pod of CloneSet {}/web", w.ns)), "{}", end.reason);
    assert_eq!(evicted(&w).await, ["guarded-1"]);
    assert!(w.pod("back-1").await.is_some());
}

async fn what_three_commands_have_evicted_from_a_node_is_left_alone_and_named_until_it_is_released(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut undo = None;
    for plan_rev in 1..=3 {
        // Past the scheduler, and so past the taint.
        w.gpu_pod("web-1", "n1", json!({})).await;
        spoke.sees(&w, "n1").await;
        let end = spoke.carry_out(&w.command("n1", plan_rev, vec![mark(), drain()]).await).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
        undo = end.undo;
        w.gone("web-1").await;
    }
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.gpu_pod("db-1", "n1", json!({"metadata": {"ownerReferences": owner("CloneSet", "db")}})).await;
    let end = spoke.carry_out(&w.command("n1", 4, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    let words = format!("3 commands have evicted pods of CloneSet {}/web from this node since it was last released", w.ns);
    assert!(end.reason.contains(&words), "{}", end.reason);
    settled::is_true("an Event names the owner", || async {
        w.events().await.iter().any(|event| event["message"].as_str().is_some_and(|message| message.contains(&words)))
    })
    .await;
    assert!(w.pod("web-1").await.unwrap()["metadata"]["deletionTimestamp"].is_null(), "it stays");
    assert_eq!(w.evictions().await.iter().filter(|entry| entry.name == "db-1").count(), 1, "others go");

    // Who waives the cooldown by hand tries once more.
    let by_hand = Command { ignore_cooldown: true, ..w.command("n1", 5, vec![mark(), drain()]).await };
    let end = spoke.carry_out(&by_hand).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("web-1").await;
    spoke.carry_out(&w.command("n1", 6, vec![release(undo)]).await).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    spoke.sees(&w, "n1").await;
    let end = spoke.carry_out(&w.command("n1", 7, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "a release lets its workloads come back: {}", end.reason);
}
