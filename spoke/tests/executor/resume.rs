//! Crashes: what the next leader makes of what it finds.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::Command,
    ids::CommandId,
    link::v1::{CommandState, CommandStatus, RefusalCode, StepState},
};
use gpuheal_spoke::healaction::{HealAction, new_spec};
use gpuheal_spoke::ports::{Attachment, Down};
use kubesim::build;
use serde_json::json;
use testkube::settled;

use crate::{
    hub::{drain, mark, release, signed},
    replica::{Spoke, election},
    world::{World, marks},
};

testkube::claims![
    an_intent_that_was_left_behind_is_taken_up_by_the_next_leader,
    an_intent_that_appears_later_is_adopted,
    a_leader_killed_mid_drain_is_followed_and_no_pod_is_evicted_twice,
    a_crash_between_patch_and_record_marks_once_and_keeps_whose_cordon_it_was,
    what_a_person_took_away_while_nobody_led_is_not_set_again_by_the_next,
    a_mark_that_was_written_in_time_and_not_recorded_is_no_refusal,
    an_outcome_is_told_again_at_a_new_session_until_it_is_acked,
    what_was_acked_is_told_again_to_a_hub_whose_term_has_risen_or_that_asks,
    what_the_hub_asks_for_by_name_is_told_by_the_leader_acked_or_not,
    what_the_old_leader_could_not_report_is_told_by_the_next,
    a_command_whose_intent_was_not_taken_is_asked_for_again,
    a_drain_that_is_taken_up_keeps_the_first_leaders_pods_in_its_record,
    an_intent_whose_time_is_over_is_ended_by_the_next_leader_and_never_begun,
    what_was_begun_is_finished_while_the_hub_is_away_and_told_when_it_is_back,
    a_leader_whose_lease_was_taken_mid_drain_asks_for_nothing_more,
    an_api_server_that_is_away_for_longer_than_the_lease_mid_drain_costs_the_leader_and_no_pod_twice,
    a_patch_that_lands_after_all_was_done_and_released_changes_nothing,
];

/// Failure table, row 10.
/// Nobody takes up what left no trace: without a word of ours the hub would wait until the command's time is over.
async fn a_command_whose_intent_was_not_taken_is_asked_for_again(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    w.throttle_intent();
    spoke.send(signed(&command)).await;
    let id = command.id.to_string();
    let told = spoke.told("that it was not begun", |s| s.command_id == id && s.state() == CommandState::NotNow).await;
    assert!(told.reason.contains("HealAction could not be created"), "{}", told.reason);
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Succeeded);
}

fn started(command: &Command) -> impl Fn(&CommandStatus) -> bool + use<> {
    let id = command.id.to_string();
    move |status| status.command_id == id && status.state() == CommandState::Started
}

/// Failure table, row 11.
async fn an_intent_that_was_left_behind_is_taken_up_by_the_next_leader(w: World) {
    let command = w.command("n1", 1, vec![mark()]).await;
    let spec = new_spec(&command, &signed(&command), "dead", 1);
    w.leave_action(&HealAction::named(&command.id.to_string(), &w.home, spec)).await;
    let mut spoke = Spoke::start(&w, "a", "").await;
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Succeeded);
    assert_eq!(marks(&w.node("n1").await), (true, 1, true));
}

/// Failure table, row 39.
async fn an_intent_that_appears_later_is_adopted(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let spec = new_spec(&command, &signed(&command), "late", 0);
    w.leave_action(&HealAction::named(&command.id.to_string(), &w.home, spec)).await;
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Succeeded);
}

/// Failure table, row 12.
async fn a_leader_killed_mid_drain_is_followed_and_no_pod_is_evicted_twice(w: World) {
    // The first pod hangs in its termination, the second is held by its budget.
    w.gpu_pod("slow", "n1", json!({"metadata": {"annotations": {build::HANG: "true"}}})).await;
    w.guarded_pod().await;
    let first = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    first.send(signed(&command)).await;
    settled::is_true("both were asked for", || async { w.wire.evictions().len() >= 2 }).await;
    // Its Lease runs out by itself.
    first.kill();
    let mut second = Spoke::start(&w, "b", "").await;
    second.told("that it is taken up", started(&command)).await;
    w.delete_now("slow").await;
    w.free_budget().await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let evictions = w.evictions().await;
    let accepted = |name: &str| evictions.iter().filter(|entry| entry.name == name && entry.code == 201).count();
    assert_eq!((accepted("slow"), accepted("guarded-1")), (1, 1));
    assert_eq!(w.writes_to("nodes").await.len(), 1, "marked once");
}

/// Failure table, rows 12 and 14.
async fn a_crash_between_patch_and_record_marks_once_and_keeps_whose_cordon_it_was(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    spoke.carry_out(&command).await;
    w.told_all(&command).await;
    let undo = w.action(command.id).await.unwrap()["spec"]["undo"].clone();
    w.kill_and_free(spoke).await;
    // As if the last status had never been written.
    w.forget_status(command.id).await;
    let mut next = Spoke::start(&w, "b", "").await;
    let end = next.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.writes_to("nodes").await.len(), 1);
    let told: Vec<_> = end.undo.unwrap().fields.iter().map(|field| field.before.clone()).collect();
    let was: Vec<_> =
        undo.as_array().unwrap().iter().map(|field| field["before"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(told, was, "the cordon is still known to be ours");
}

/// Failure table, rows 12 and 14.
async fn what_a_person_took_away_while_nobody_led_is_not_set_again_by_the_next(w: World) {
    let mut first = Spoke::leading(&w, "a", "").await;
    let taken = [
        ("n1", json!({"metadata": {"labels": {"gpu-selfhealing.io/status": null}}}), (false, 1, true), "the label"),
        ("n2", json!({"spec": {"taints": null}}), (true, 0, true), "the taint"),
        ("n3", json!({"spec": {"unschedulable": null}}), (true, 1, false), "the cordon"),
    ];
    let mut commands = Vec::new();
    for (node, ..) in &taken {
        let command = w.command(node, 1, vec![mark()]).await;
        first.carry_out(&command).await;
        w.told_all(&command).await;
        commands.push(command);
    }
    w.kill_and_free(first).await;
    for ((node, patch, ..), command) in taken.iter().zip(&commands) {
        // As if the leader had died between the patch and its record.
        w.forget_status(command.id).await;
        w.change_node(node, patch.clone()).await;
    }
    let mut next = Spoke::start(&w, "b", "").await;
    let mut ends = BTreeMap::new();
    while ends.len() < commands.len() {
        let end = next.told("an end", |status| status.state() == CommandState::Cancelled).await;
        ends.insert(end.command_id.clone(), end);
    }
    for ((node, _, left, what), command) in taken.iter().zip(&commands) {
        let end = &ends[&command.id.to_string()];
        assert!(end.reason.contains("overridden by a person") && end.reason.contains(what), "{node}: {}", end.reason);
        assert_eq!(end.steps[0].state(), StepState::Done, "{node}: what is left of it is still to be undone");
        assert_eq!(marks(&w.node(node).await), *left, "{node}");
    }
    assert_eq!(w.writes_to("nodes").await.len(), taken.len(), "each was marked once");
}

async fn a_mark_that_was_written_in_time_and_not_recorded_is_no_refusal(w: World) {
    let mut command = w.command("n1", 1, vec![mark()]).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.carry_out(&command).await;
    w.told_all(&command).await;
    w.kill_and_free(spoke).await;
    // The same record, as it was before the mark was written down, of a command whose first effect was due long ago.
    w.lose_actions().await;
    let past = command.times.created.before(Duration::from_secs(3600));
    (command.times.created, command.times.deliver_by, command.times.start_by) = (past, past, past);
    let spec = new_spec(&command, &signed(&command), "dead", 1);
    w.leave_action(&HealAction::named(&command.id.to_string(), &w.home, spec)).await;
    let mut next = Spoke::start(&w, "b", "").await;
    let end = next.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

/// Failure table, row 15.
async fn an_outcome_is_told_again_at_a_new_session_until_it_is_acked(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let told = spoke.carry_out(&command).await;
    spoke.attachment.send_replace(Attachment { generation: Some(2), hub_term: 1, ..Attachment::default() });
    let again = spoke.ended(command.id).await;
    assert_eq!((again.status_seq, again.state()), (told.status_seq, told.state()));
    spoke.ack(&again).await;
    settled::is_true("Hello would tell its number", || async { spoke.seen.borrow().cmd_seq == 1 }).await;
}

/// Failure table, row 18.
async fn what_the_hub_asks_for_by_name_is_told_by_the_leader_acked_or_not(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let ends = [
        spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await,
        spoke.carry_out(&w.command("n2", 1, vec![mark()]).await).await,
    ];
    for end in &ends {
        spoke.ack(end).await;
    }
    let unknown = w.command("n3", 1, vec![mark()]).await.id.to_string();
    let mut standby = Spoke::start(&w, "b", "").await;
    for asked in [&spoke, &standby] {
        asked.down.send(Down::Tell(vec![unknown.clone(), ends[1].command_id.clone()])).await.unwrap();
    }
    let again = spoke.told("what was asked for", |_| true).await;
    let told = |end: &CommandStatus| (end.command_id.clone(), end.status_seq, end.state);
    assert_eq!(told(&again), told(&ends[1]));
    // Nothing else was told before this: neither what is not on record, nor what was not asked for.
    let next = spoke.carry_out(&w.command("n3", 2, vec![mark()]).await).await;
    assert_eq!(next.state(), CommandState::Succeeded);
    // Who does not lead keeps it until it does.
    spoke.kill();
    let later = standby.told("what was asked for before it led", |status| status.command_id == ends[1].command_id).await;
    assert_eq!(told(&later), told(&ends[1]));
}

/// Failure table, row 18.
async fn what_was_acked_is_told_again_to_a_hub_whose_term_has_risen_or_that_asks(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    // The mark's record is held until its release is acked, the release's is let go at once.
    let first = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    let second = spoke.carry_out(&w.command("n1", 2, vec![release(None)]).await).await;
    for end in [&first, &second] {
        spoke.ack(end).await;
    }
    settled::is_true("both are let go", || async {
        let mut held = false;
        for end in [&first, &second] {
            let action = w.action(CommandId::parse(&end.command_id).unwrap()).await.unwrap();
            held |= action["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        }
        !held
    })
    .await;
    let third = spoke.carry_out(&w.command("n2", 1, vec![mark()]).await).await;
    // A new session of the same database is told only what it has not acked; then it was restored; then it asks.
    let attachments = [
        (Attachment { generation: Some(2), hub_term: 1, ..Attachment::default() }, vec![&third]),
        (Attachment { generation: Some(3), hub_term: 2, ..Attachment::default() }, vec![&third, &first, &second]),
        (Attachment { generation: Some(3), hub_term: 2, asked_term: 2, ..Attachment::default() }, vec![&third, &first, &second]),
    ];
    for (attachment, expected) in attachments {
        spoke.attachment.send_replace(attachment);
        let mut told = Vec::new();
        while told.len() < expected.len() {
            let again = spoke.told("an outcome again", |_| true).await;
            let again = (again.command_id, again.status_seq, again.state);
            // What is held and not acked may be told once more before the rest comes.
            if !told.contains(&again) {
                told.push(again);
            }
        }
        let expected: Vec<_> = expected.iter().map(|end| (end.command_id.clone(), end.status_seq, end.state)).collect();
        assert_eq!(told, expected, "{attachment:?}");
    }
}

async fn what_the_old_leader_could_not_report_is_told_by_the_next(w: World) {
    let mut first = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let told = first.carry_out(&command).await;
    w.kill_and_free(first).await;
    let mut second = Spoke::start(&w, "b", "").await;
    let again = second.ended(command.id).await;
    assert_eq!((again.status_seq, again.state()), (told.status_seq, told.state()));
    assert_eq!(w.writes_to("nodes").await.len(), 1);
}

async fn a_drain_that_is_taken_up_keeps_the_first_leaders_pods_in_its_record(w: World) {
    for pod in ["web-1", "web-2"] {
        w.gpu_pod(pod, "n1", json!({})).await;
    }
    w.guarded_pod().await;
    let first = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    first.send(signed(&command)).await;
    settled::is_true("two are gone, the third is held", || async {
        w.wire.evictions().len() >= 3 && w.pod("web-1").await.is_none() && w.pod("web-2").await.is_none()
    })
    .await;
    let planned = w.action(command.id).await.unwrap()["spec"]["pods"].as_array().unwrap().len();
    assert_eq!(planned, 3, "the plan was there before the first eviction");
    // Before any progress was written: what the intent says is all that the next leader has.
    w.kill_and_free(first).await;
    w.forget_status(command.id).await;
    let mut second = Spoke::start(&w, "b", "").await;
    second.told("that it is taken up", started(&command)).await;
    w.free_budget().await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains("3 of 3 pods gone"), "{}", end.reason);
    let names: Vec<_> = end.steps[1].pods.iter().map(|pod| (pod.name.as_str(), pod.state.as_str())).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|(_, state)| *state == "gone"), "{names:?}");
}

/// Failure table, row 11.
async fn an_intent_whose_time_is_over_is_ended_by_the_next_leader_and_never_begun(w: World) {
    let mut command = w.command("n1", 1, vec![mark()]).await;
    command.times.created = command.times.created.before(Duration::from_secs(3600));
    command.times.deliver_by = command.times.created;
    command.times.start_by = command.times.created;
    let spec = new_spec(&command, &signed(&command), "dead", 1);
    w.leave_action(&HealAction::named(&command.id.to_string(), &w.home, spec)).await;
    let mut spoke = Spoke::start(&w, "a", "").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::Expired), "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
    assert_eq!(w.writes_to("nodes").await, []);
}

/// Failure table, row 20.
async fn what_was_begun_is_finished_while_the_hub_is_away_and_told_when_it_is_back(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    spoke.attachment.send_replace(Attachment { generation: None, hub_term: 1, ..Attachment::default() });
    w.free_budget().await;
    settled::is_true("it is done and on record", || async {
        w.action(command.id).await.is_some_and(|action| action["status"]["state"] == "SUCCEEDED")
    })
    .await;
    spoke.attachment.send_replace(Attachment { generation: Some(2), hub_term: 1, ..Attachment::default() });
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Succeeded);
    w.gone("guarded-1").await;
}

/// Failure table, row 16.
async fn a_leader_whose_lease_was_taken_mid_drain_asks_for_nothing_more(w: World) {
    w.guarded_pod().await;
    let first = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    first.send(signed(&command)).await;
    let asked = |replica: &str| w.wire.evictions().iter().filter(|sent| sent.replica == replica).count();
    settled::is_true("the budget refuses", || async { asked("a") > 0 }).await;
    w.give_lease_to("nobody").await;
    tokio::time::timeout(settled::BOUND, first.elector.ended()).await.unwrap();
    let before = asked("a");
    // It lives, and its command is as unfinished as before. Nobody goes on with it yet, whose record would stop it.
    let mut second = Spoke::start(&w, "b", "").await;
    for _ in 0..3 {
        w.lease_looked_at("b").await;
    }
    assert!(asked("a") <= before + 1, "at most the one request that was under way");
    w.give_lease_to("").await;
    settled::is_true("the next leader asks in its place", || async { asked("b") > 0 }).await;
    w.free_budget().await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(asked("a") <= before + 1, "at most the one request that was under way");
    drop(first);
}

/// Failure table, row 38.
async fn a_patch_that_lands_after_all_was_done_and_released_changes_nothing(w: World) {
    let first = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    w.wire.hold_node_patches("a");
    first.send(signed(&command)).await;
    settled::is_true("its patch is on the way", || async { w.wire.holding() > 0 }).await;
    w.kill_and_free(first).await;
    let mut second = Spoke::start(&w, "b", "").await;
    assert_eq!(second.ended(command.id).await.state(), CommandState::Succeeded);
    assert_eq!(second.carry_out(&w.command("n1", 2, vec![release(None)]).await).await.state(), CommandState::Succeeded);
    w.wire.let_go();
    let late = || {
        let sent = w.wire.sent();
        sent.into_iter()
            .filter(|sent| sent.replica == "a" && sent.method == "PATCH" && sent.path.contains("/nodes/"))
            .collect::<Vec<_>>()
    };
    settled::is_true("it lands", || async { late().len() >= w.wire.holding() }).await;
    for patch in late() {
        assert!(matches!(patch.code, Some(409 | 422)), "{patch:?}");
    }
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

/// For both replicas, and for longer than the Lease lasts: one pod is on its way out, the other held by its budget.
async fn an_api_server_that_is_away_for_longer_than_the_lease_mid_drain_costs_the_leader_and_no_pod_twice(w: World) {
    let hangs = json!({"metadata": {"annotations": {build::HANG: "true"}}, "spec": {"terminationGracePeriodSeconds": 600}});
    w.gpu_pod("slow-1", "n1", hangs).await;
    w.guarded_pod().await;
    let leader = Spoke::leading(&w, "a", "").await;
    let other = Spoke::start(&w, "b", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    leader.send(signed(&command)).await;
    settled::is_true("one goes and the other may not", || async {
        let asked = w.wire.evictions();
        let told = |pod: &str, code| asked.iter().any(|sent| sent.path.contains(pod) && sent.code == Some(code));
        told("/slow-1/", 201) && told("/guarded-1/", 429)
    })
    .await;
    let lease = election(&w, "a").duration;
    w.wire.away(true);
    let why = tokio::time::timeout(settled::BOUND, leader.elector.ended()).await.unwrap();
    assert!(why.contains("was not renewed within"), "{why}");
    // As the program does then.
    leader.kill();
    let asked = w.wire.evictions().len();
    tokio::time::sleep(lease + Duration::from_secs(1)).await;
    assert_eq!(other.elector.margin(), None, "who cannot see the Lease stands by");
    w.wire.away(false);
    let again = Spoke::start(&w, "c", "").await;
    let taken = |sent: &&crate::wire::Sent| sent.replica != "a" && sent.path.contains("/guarded-1/");
    settled::is_true("the drain is taken up", || async { w.wire.evictions()[asked..].iter().any(|sent| taken(&sent)) }).await;
    w.free_budget().await;
    w.delete_now("slow-1").await;
    settled::is_true("it has ended", || async {
        w.action(command.id).await.is_some_and(|action| action["status"]["state"] == "SUCCEEDED")
    })
    .await;
    let mut accepted = BTreeMap::new();
    for sent in w.wire.evictions().into_iter().filter(|sent| sent.code == Some(201)) {
        *accepted.entry(sent.body["deleteOptions"]["preconditions"]["uid"].to_string()).or_insert(0) += 1;
    }
    assert_eq!(accepted.values().copied().collect::<Vec<i32>>(), [1, 1], "{accepted:?}");
    let acted: std::collections::BTreeSet<_> = w.wire.evictions()[asked..].iter().map(|sent| sent.replica.clone()).collect();
    assert_eq!(acted.len(), 1, "one of the two leads: {acted:?}");
    drop((again, other));
}
