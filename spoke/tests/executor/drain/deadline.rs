//! What a drain does at its deadline. That it stops by default, and passes a budget where a person allowed it, is in
//! [`super::course`].

use std::time::Duration;

use gpuheal_proto::{
    command::{DeadlineOutcome, Step},
    link::v1::CommandState,
};
use kubesim::build;
use serde_json::json;
use testkube::settled;

use super::blocked;
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    at_the_deadline_what_was_let_finish_is_evicted_within_its_budget_and_never_deleted,
    a_drain_whose_policy_is_to_wait_goes_on_past_its_deadline,
    a_pod_that_is_on_its_way_out_at_the_deadline_has_its_grace,
    a_pod_that_a_finalizer_holds_is_not_deleted_past_its_budget,
    a_pod_whose_turn_came_only_past_the_deadline_is_evicted_and_not_deleted,
    a_pod_that_is_let_finish_holds_up_none_with_storage,
];

fn at_deadline(outcome: DeadlineOutcome) -> Step {
    let Step::Drain(mut words) = drain() else { unreachable!() };
    words.deadline = Duration::from_secs(1);
    words.allow_pdb_bypass = outcome == DeadlineOutcome::BypassPdb;
    words.on_deadline = outcome;
    Step::Drain(words)
}

async fn at_the_deadline_what_was_let_finish_is_evicted_within_its_budget_and_never_deleted(w: World) {
    w.budget("guarded", "guarded").await;
    let labels = json!({"app": "guarded", "gpu-selfhealing.io/evict": "after-completion"});
    w.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": labels}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    // Budgets may be passed for all the others.
    let mut command = w.command("n1", 1, vec![mark(), at_deadline(DeadlineOutcome::BypassPdb)]).await;
    command.level = "manual".into();
    spoke.send(signed(&command)).await;
    let running = spoke.told("that its budget refuses", |status| blocked(status, "guarded-1").is_some()).await;
    assert!(blocked(&running, "guarded-1").unwrap().contains("guarded"));
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
    let writes = w.writes_to("pods").await;
    assert!(writes.iter().all(|entry| entry.subresource == "eviction"), "{writes:?}");
}

async fn a_drain_whose_policy_is_to_wait_goes_on_past_its_deadline(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), at_deadline(DeadlineOutcome::Wait)]).await;
    spoke.send(signed(&command)).await;
    // The pauses in between are half a second, one, two and four at least.
    settled::is_true("it asks long past its deadline", || async { w.wire.evictions().len() >= 5 }).await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

async fn a_pod_that_is_on_its_way_out_at_the_deadline_has_its_grace(w: World) {
    // Its containers need all of their grace, which ends long after the deadline.
    let slow = json!({"metadata": {"annotations": {build::HANG: "true"}}, "spec": {"terminationGracePeriodSeconds": 5}});
    w.gpu_pod("web-1", "n1", slow).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), at_deadline(DeadlineOutcome::Stop)]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("it is asked for", || async { !w.wire.evictions().is_empty() }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    w.delete_now("web-1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

async fn a_pod_that_a_finalizer_holds_is_not_deleted_past_its_budget(w: World) {
    w.budget("guarded", "guarded").await;
    let held = json!({"metadata": {"labels": {"app": "guarded"}, "finalizers": ["team.example/hold"]}});
    w.gpu_pod("guarded-1", "n1", held).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut command = w.command("n1", 1, vec![mark(), at_deadline(DeadlineOutcome::BypassPdb)]).await;
    command.level = "manual".into();
    // The deadline moves once, to what is left of the command's own time.
    let within = |secs| command.times.created.after(Duration::from_secs(secs));
    (command.times.deliver_by, command.times.start_by, command.times.finish_by) = (within(5), within(5), within(8));
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Failed, "{}", end.reason);
    let pod = w.pod("guarded-1").await.expect("it stays");
    assert!(pod["metadata"]["deletionTimestamp"].is_null());
    let writes = w.writes_to("pods").await;
    assert!(!writes.is_empty() && writes.iter().all(|entry| entry.subresource == "eviction"), "{writes:?}");
    w.change_pod("guarded-1", json!({"metadata": {"finalizers": null}})).await;
}

async fn a_pod_whose_turn_came_only_past_the_deadline_is_evicted_and_not_deleted(w: World) {
    w.allow_stateful_eviction().await;
    // One of the two may go at any time.
    w.budget("db", "db").await;
    w.stateful_pod("db-0", "n1").await;
    w.stateful_pod("db-1", "n2").await;
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut command = w.command("n1", 1, vec![mark(), at_deadline(DeadlineOutcome::BypassPdb)]).await;
    command.level = "manual".into();
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    for gone in ["guarded-1", "db-0"] {
        w.gone(gone).await;
    }
    let ours = w.writes_to("pods").await.into_iter().filter(|entry| entry.code < 300);
    let went: Vec<_> = ours.map(|entry| (entry.name, entry.subresource)).collect();
    let call = |pod: &str, how: &str| (pod.to_owned(), how.to_owned());
    assert_eq!(went, [call("guarded-1", ""), call("db-0", "eviction")]);
    let past: Vec<_> = end.steps.iter().flat_map(|step| &step.pods).filter(|pod| pod.past_budget).map(|pod| &pod.name).collect();
    assert_eq!(past, ["guarded-1"]);
}

async fn a_pod_that_is_let_finish_holds_up_none_with_storage(w: World) {
    w.allow_stateful_eviction().await;
    w.stateful_pod("db-0", "n1").await;
    w.stateful_pod("db-1", "n2").await;
    w.gpu_pod("train-1", "n1", json!({"metadata": {"labels": {"gpu-selfhealing.io/evict": "after-completion"}}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    // Long before its deadline.
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    w.gone("db-0").await;
    assert!(w.pod("train-1").await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()));
    w.delete_now("train-1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(w.evictions().await.iter().all(|entry| entry.name == "db-0"));
}
