//! The course of a drain: who goes, in which order, past which refusals, and what ends it.

use std::time::Duration;

use gpuheal_proto::{
    command::{DeadlineOutcome, Step},
    link::v1::{CommandState, RefusalCode},
};
use gpuheal_spoke::ports::Standing;
use serde_json::json;
use testkube::settled;
use tokio::time::Instant;

use super::{blocked, held_drain};
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::{World, owner},
};

testkube::claims![
    only_gpu_pods_go_and_stateless_ones_before_stateful_ones,
    a_stateful_pod_whose_namespace_says_nothing_stays_and_the_node_is_not_called_drained,
    each_eviction_is_bound_to_the_uid_and_carries_the_pods_grace,
    a_budget_is_kept_its_pod_waits_and_is_named_and_others_go_on,
    each_pod_has_its_own_events_of_what_was_done_to_it_or_why_not_once_whoever_takes_the_drain_up,
    past_its_deadline_a_drain_stops_and_says_what_is_left,
    a_lost_answer_is_looked_up_and_the_pod_is_not_evicted_twice,
    a_pod_under_two_budgets_waits_for_a_person_who_is_told_which_and_others_go_on,
    an_overloaded_api_server_is_given_its_time_and_the_pod_goes_all_the_same,
    a_watch_that_is_cut_mid_drain_is_opened_again_and_what_went_meanwhile_is_seen,
    a_store_that_was_compacted_mid_drain_is_listed_anew_and_what_went_meanwhile_is_seen,
    a_drain_stops_as_soon_as_the_fault_is_gone,
    the_clusters_stop_switch_ends_a_drain_that_a_budget_holds,
    a_person_who_takes_the_mark_away_is_obeyed,
];

async fn only_gpu_pods_go_and_stateless_ones_before_stateful_ones(w: World) {
    w.allow_stateful_eviction().await;
    w.stateful_pod("db-0", "n1").await;
    w.stateful_pod("db-1", "n1").await;
    w.stateful_pod("db-2", "n2").await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.gpu_pod("web-2", "n1", json!({})).await;
    w.gpu_pod("other-node", "n2", json!({})).await;
    w.cpu_pod("cpu", "n1").await;
    w.gpu_pod("daemon", "n1", json!({"metadata": {"ownerReferences": owner("DaemonSet", "daemon")}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let evictions = w.evictions().await;
    let mut order: Vec<_> = evictions.iter().filter(|entry| entry.code == 201).map(|entry| entry.name.as_str()).collect();
    order[..2].sort_unstable();
    assert_eq!(order, ["web-1", "web-2", "db-0", "db-1"]);
    for stays in ["other-node", "cpu", "daemon"] {
        assert!(w.pod(stays).await.is_some(), "{stays}");
    }
    // Asked so, a server refuses a body with a field that it does not know: none was.
    assert!(evictions.iter().all(|entry| entry.uri.contains("fieldValidation=Strict")), "{evictions:?}");
}

async fn a_stateful_pod_whose_namespace_says_nothing_stays_and_the_node_is_not_called_drained(w: World) {
    w.stateful_pod("db-0", "n1").await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains(&format!("namespace {} does not allow stateful eviction", w.ns)), "{}", end.reason);
    assert_eq!(w.evictions().await, []);
}

async fn each_eviction_is_bound_to_the_uid_and_carries_the_pods_grace(w: World) {
    let pod = w.gpu_pod("web-1", "n1", json!({"spec": {"terminationGracePeriodSeconds": 5}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.evictions().await.len(), 1, "one call per pod");
    let options = w.wire.evictions()[0].body["deleteOptions"].clone();
    assert_eq!(options["preconditions"]["uid"], pod["metadata"]["uid"]);
    assert_eq!(options["gracePeriodSeconds"], 5);
}

async fn a_budget_is_kept_its_pod_waits_and_is_named_and_others_go_on(w: World) {
    w.guarded_pod().await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    let running = spoke.told("that it is blocked", |status| blocked(status, "guarded-1").is_some()).await;
    assert_eq!(running.state(), CommandState::Started);
    let reason = blocked(&running, "guarded-1").unwrap();
    assert!(reason.contains("guarded"), "{reason}");
    w.gone("web-1").await;
    assert!(w.pod("guarded-1").await.is_some());
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

async fn each_pod_has_its_own_events_of_what_was_done_to_it_or_why_not_once_whoever_takes_the_drain_up(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.gpu_pod("kept-1", "n1", json!({"metadata": {"labels": {"gpu-selfhealing.io/evict": "never"}}})).await;
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    let event = |what: &str, pod: &str, kind: &str| (what.to_owned(), pod.to_owned(), kind.to_owned());
    let so_far = [event("blocked", "guarded-1", "Warning"), event("evict", "web-1", "Normal"), event("stays", "kept-1", "Warning")];
    settled::is_true("each is told", || async { w.pod_events().await == so_far }).await;
    w.gone("web-1").await;
    w.kill_and_free(spoke).await;
    spoke = Spoke::start(&w, "b", "").await;
    w.free_budget().await;
    spoke.ended(command.id).await;
    w.told_all(&command).await;
    let mut at_last = so_far.to_vec();
    at_last.insert(1, event("evict", "guarded-1", "Normal"));
    assert_eq!(w.pod_events().await, at_last);
}

async fn past_its_deadline_a_drain_stops_and_says_what_is_left(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let Step::Drain(mut words) = drain() else { unreachable!() };
    words.deadline = Duration::from_secs(1);
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), Step::Drain(words.clone())]).await).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains(&format!("{}/guarded-1", w.ns)), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
    // A plan by itself may not pass the budget; where a person asked for it, the pod goes by a delete bound to its UID.
    words.on_deadline = DeadlineOutcome::BypassPdb;
    words.allow_pdb_bypass = true;
    let end = spoke.carry_out(&w.command("n1", 2, vec![Step::Drain(words.clone())]).await).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::OverCeiling), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
    let mut by_hand = w.command("n1", 3, vec![Step::Drain(words)]).await;
    by_hand.level = "manual".into();
    let end = spoke.carry_out(&by_hand).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
    // It leaves its traces: in the record, in what the hub is told, and in an Event.
    assert!(end.steps[0].pods[0].past_budget, "{end:?}");
    let action = w.action(by_hand.id).await.unwrap();
    assert_eq!(action["status"]["steps"][0]["pods"][0]["pastBudget"], true, "{action}");
    let told = |event: &serde_json::Value| {
        event["action"] == "past-budget" && event["message"].as_str().unwrap().contains("guarded-1 is deleted past")
    };
    settled::is_true("it is told", || async { w.events().await.iter().any(told) }).await;
}

async fn a_lost_answer_is_looked_up_and_the_pod_is_not_evicted_twice(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.lose_answer_to_eviction();
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.evictions().await.len(), 1);
}

async fn a_pod_under_two_budgets_waits_for_a_person_who_is_told_which_and_others_go_on(w: World) {
    w.budget("first", "twice").await;
    w.budget("second", "twice").await;
    w.budget("other", "other").await;
    w.gpu_pod("twice-1", "n1", json!({"metadata": {"labels": {"app": "twice"}}})).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    let running = spoke.told("that it is blocked", |status| blocked(status, "twice-1").is_some()).await;
    let reason = blocked(&running, "twice-1").unwrap();
    assert!(reason.contains("(first, second)"), "{reason}");
    w.gone("web-1").await;
    assert!(w.pod("twice-1").await.is_some());
    w.remove_budget("second").await;
    let mended = Instant::now();
    // The other lets nobody go: its one pod is all that it has.
    w.gpu_pod("twice-2", "n2", json!({"metadata": {"labels": {"app": "twice"}}})).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    // It is asked for again every 30 s; then it has its grace, and a second after a budget that has not counted the other yet.
    assert!(mended.elapsed() < Duration::from_secs(45), "{:?}", mended.elapsed());
    w.gone("twice-1").await;
}

async fn an_overloaded_api_server_is_given_its_time_and_the_pod_goes_all_the_same(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    w.throttle_eviction();
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let taken = w.evictions().await.iter().filter(|entry| entry.code == 201).count();
    assert_eq!((taken, end.steps[1].pods[0].eviction_calls), (1, 2), "asked twice, taken once");
}

async fn a_watch_that_is_cut_mid_drain_is_opened_again_and_what_went_meanwhile_is_seen(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    w.cut_pod_watches();
    w.delete_now("guarded-1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains("1 of 1 pods gone"), "{}", end.reason);
}

/// Only kubesim forgets on demand: there the watch is asked for from a version that is gone, and answered 410.
async fn a_store_that_was_compacted_mid_drain_is_listed_anew_and_what_went_meanwhile_is_seen(w: World) {
    let Some(sim) = w.cluster.as_sim() else { return };
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    let of_node = format!("spec.nodeName%3D{}", w.name("n1"));
    let lists = || {
        let all = sim.recorder().requests();
        all.iter().filter(|seen| seen.verb == "list" && seen.path.contains(&of_node)).count()
    };
    let before = lists();
    let stall = sim.faults().stall_watches("pods");
    w.delete_now("guarded-1").await;
    sim.store().compact();
    sim.faults().drop_watches("pods");
    sim.faults().remove(stall);
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains("1 of 1 pods gone"), "{}", end.reason);
    assert!(lists() > before, "by a list: the event itself is gone");
}

async fn a_drain_stops_as_soon_as_the_fault_is_gone(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    *spoke.faults.0.lock().unwrap() = Standing::Cleared;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled);
    assert!(end.reason.contains("cleared by their own source"), "{}", end.reason);
}

async fn the_clusters_stop_switch_ends_a_drain_that_a_budget_holds(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    spoke.configured(&w, "ceiling: {stop: true}").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::Stopped), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
}

async fn a_person_who_takes_the_mark_away_is_obeyed(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    w.change_node("n1", json!({"spec": {"taints": null}})).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled);
    assert!(end.reason.contains("overridden by a person"), "{}", end.reason);
}
