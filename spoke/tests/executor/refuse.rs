//! Refusals: what each leaves behind, and that nothing else is written.

use std::time::Duration;

use bytes::Bytes;
use gpuheal_proto::{
    command::Command,
    ids::ClusterId,
    link::v1::{CommandState, CommandStatus, RefusalCode},
};
use gpuheal_spoke::{clock, ports::Down};
use gpuheal_spoke_core::verify::fingerprint;
use serde_json::json;
use testkube::settled;

use crate::{
    hub::{cancel, drain, forged, mark, release, signed},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    forged_bytes_are_told_by_their_hash_and_leave_no_trace,
    a_command_for_another_cluster_is_refused_with_a_tombstone,
    an_expired_command_is_refused_for_ever_by_its_tombstone,
    an_uncertain_clock_says_not_now_and_leaves_no_trace,
    the_ceiling_counts_and_says_its_numbers,
    a_refusal_that_could_not_be_written_is_asked_for_again,
    two_commands_at_once_do_not_share_the_last_place_under_a_ceiling,
    of_two_commands_of_one_plan_revision_on_one_node_the_second_is_superseded,
    a_lower_plan_revision_is_superseded,
    another_machine_under_the_nodes_name_is_left_alone,
    a_cancel_that_overtakes_its_command_leaves_a_tombstone_that_answers_for_it,
    an_older_hub_term_is_refused_also_by_the_next_leader,
    a_node_that_a_newer_plan_has_passed_is_not_written,
    a_command_whose_record_was_lost_is_not_run_again,
    a_cancel_in_the_middle_of_a_drain_stops_it,
    a_cancel_that_comes_after_the_end_changes_nothing_and_the_end_is_told_again,
    a_cancel_that_the_api_server_did_not_take_is_carried_out_all_the_same,
    a_cancel_that_comes_before_its_replica_leads_is_carried_out_when_it_does,
];

async fn untouched(w: &World, node: &str) {
    assert_eq!(marks(&w.node(node).await), (false, 0, false));
    assert_eq!(w.writes_to("nodes").await, []);
}

async fn forged_bytes_are_told_by_their_hash_and_leave_no_trace(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let bytes = forged(&command);
    let sha256 = fingerprint(&bytes);
    spoke.send(bytes).await;
    let told = spoke.told("the refusal", |status| status.envelope_sha256 == sha256).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::Refused, RefusalCode::BadSignature));
    assert!(told.command_id.is_empty(), "its id cannot be believed");
    assert!(w.action(command.id).await.is_none());
    untouched(&w, "n1").await;
}

async fn a_command_for_another_cluster_is_refused_with_a_tombstone(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut command = w.command("n1", 1, vec![mark()]).await;
    command.audience = ClusterId::parse("c2").unwrap();
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::WrongAudience));
    let tombstone = w.action(command.id).await.unwrap()["spec"].clone();
    let node = w.name("n1");
    for (field, want) in
        [("node", &*node), ("fault", "xid 79"), ("level", "P0"), ("action", "mark"), ("reason", &command.reason), ("holder", "a")]
    {
        assert_eq!(tombstone[field], want, "{field} of {tombstone}");
    }
    assert_eq!(tombstone["commandSeq"], 0, "another cluster's numbers do not count here");
    untouched(&w, "n1").await;
}

/// Failure table, row 17.
async fn an_expired_command_is_refused_for_ever_by_its_tombstone(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut command = w.command("n1", 1, vec![mark()]).await;
    command.times.created = command.times.created.before(Duration::from_secs(3600));
    command.times.deliver_by = command.times.created;
    command.times.start_by = command.times.created;
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::Expired));
    assert_eq!(spoke.carry_out(&command).await.refusal(), RefusalCode::Expired, "the same answer again");
    untouched(&w, "n1").await;
}

/// Failure table, row 22.
async fn an_uncertain_clock_says_not_now_and_leaves_no_trace(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.clock.set(clock::wall(), Duration::from_secs(61));
    let command = w.command("n1", 1, vec![mark()]).await;
    let told = spoke.carry_out(&command).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::NotNow, RefusalCode::ClockUncertain));
    assert!(w.action(command.id).await.is_none());
    spoke.welcome();
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Succeeded, "the same bytes may come again");
}

async fn the_ceiling_counts_and_says_its_numbers(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {nodesOut: 1}").await;
    spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    spoke.sees(&w, "n1").await;
    let end = spoke.carry_out(&w.command("n2", 1, vec![mark()]).await).await;
    assert_eq!(end.refusal(), RefusalCode::OverCeiling);
    assert_eq!(end.reason, "1 of 4 GPU nodes are out, the ceiling allows 1");
    assert_eq!(marks(&w.node("n2").await), (false, 0, false));
}

/// Without its tombstone nobody could answer for it later, and without a word of ours the hub would say EXPIRED of a command that its
/// cluster had refused.
async fn a_refusal_that_could_not_be_written_is_asked_for_again(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {nodesOut: 0}").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    w.throttle_intent();
    let told = spoke.carry_out(&command).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::NotNow, RefusalCode::Busy));
    assert!(told.reason.contains("refusal could not be written"), "{}", told.reason);
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.refusal(), RefusalCode::OverCeiling);
    assert!(w.action(command.id).await.is_some());
}

async fn two_commands_at_once_do_not_share_the_last_place_under_a_ceiling(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {nodesOut: 1}").await;
    let two = [w.command("n1", 1, vec![mark()]).await, w.command("n2", 1, vec![mark()]).await];
    assert_eq!(ends_of(&mut spoke, &two).await.map(|end| end.state()), [CommandState::Succeeded, CommandState::Refused]);
}

async fn of_two_commands_of_one_plan_revision_on_one_node_the_second_is_superseded(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let two = [w.command("n1", 1, vec![mark()]).await, w.command("n1", 1, vec![mark()]).await];
    let [done, refused] = ends_of(&mut spoke, &two).await;
    assert_eq!((done.state(), refused.refusal()), (CommandState::Succeeded, RefusalCode::Superseded), "{}", refused.reason);
    assert_eq!(w.writes_to("nodes").await.len(), 1);
}

/// Sends two commands without a pause; the end of the first that ended well, then the other's.
async fn ends_of(spoke: &mut Spoke, two: &[Command; 2]) -> [CommandStatus; 2] {
    for command in two {
        spoke.send(signed(command)).await;
    }
    let ids = two.each_ref().map(|command| command.id.to_string());
    let end =
        |s: &CommandStatus| ids.contains(&s.command_id) && !matches!(s.state(), CommandState::Received | CommandState::Started);
    let first = spoke.told("an end", end).await;
    let second = spoke.told("the other end", |s| end(s) && s.command_id != first.command_id).await;
    if first.state() == CommandState::Succeeded { [first, second] } else { [second, first] }
}

async fn a_lower_plan_revision_is_superseded(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.carry_out(&w.command("n1", 5, vec![mark()]).await).await;
    spoke.carry_out(&w.command("n1", 6, vec![release(None)]).await).await;
    let late = spoke.carry_out(&w.command("n1", 5, vec![mark()]).await).await;
    assert_eq!(late.refusal(), RefusalCode::Superseded);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

/// Failure table, row 26.
async fn another_machine_under_the_nodes_name_is_left_alone(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    w.replace_node("n1").await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.refusal(), RefusalCode::NodeGone, "{}", end.reason);
    untouched(&w, "n1").await;
}

/// Failure table, row 28.
async fn a_cancel_that_overtakes_its_command_leaves_a_tombstone_that_answers_for_it(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Cancelled);
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Cancelled);
    untouched(&w, "n1").await;
}

/// Failure table, rows 19b and 25.
async fn an_older_hub_term_is_refused_also_by_the_next_leader(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut newer = w.command("n1", 1, vec![mark()]).await;
    newer.hub_term = 9;
    spoke.carry_out(&newer).await;
    w.kill_and_free(spoke).await;
    // No record of the newer command tells the next leader of its term.
    w.lose_actions().await;
    let mut next = Spoke::start(&w, "b", "").await;
    let stale = w.command("n2", 1, vec![mark()]).await;
    let end = next.decided(&stale, RefusalCode::StaleHubTerm).await;
    assert_eq!(end.refusal(), RefusalCode::StaleHubTerm, "{}", end.reason);
    assert_eq!(marks(&w.node("n2").await), (false, 0, false));
    assert_eq!(w.fence().await["data"]["hubTerm"], "9");
}

/// Failure table, row 38.
async fn a_node_that_a_newer_plan_has_passed_is_not_written(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    // Behind the watch's back: what is planned is of before.
    w.stall_node_watches();
    w.change_node("n1", json!({"metadata": {"annotations": {"gpu-selfhealing.io/plan-revision": "9"}}})).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::Superseded), "{}", end.reason);
    let answers: Vec<_> = w.writes_to("nodes").await.iter().map(|entry| entry.code).collect();
    assert_eq!(answers, [409]);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

/// Failure table, row 25.
async fn a_command_whose_record_was_lost_is_not_run_again(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Succeeded);
    assert_eq!(spoke.carry_out(&w.command("n1", 2, vec![release(None)]).await).await.state(), CommandState::Succeeded);
    w.kill_and_free(spoke).await;
    w.lose_actions().await;
    let mut next = Spoke::start(&w, "b", "").await;
    let end = next.decided(&command, RefusalCode::Superseded).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::Superseded), "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

/// Failure table, row 28.
async fn a_cancel_in_the_middle_of_a_drain_stops_it(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled, "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Cancelled, "and its bytes begin nothing any more");
}

/// Failure table, row 28.
async fn a_cancel_that_comes_after_the_end_changes_nothing_and_the_end_is_told_again(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let told = spoke.carry_out(&command).await;
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    let again = spoke.carry_out(&command).await;
    assert_eq!((again.state(), again.status_seq), (CommandState::Succeeded, told.status_seq));
    assert_eq!(marks(&w.node("n1").await), (true, 1, true));
}

/// Failure table, row 28.
async fn a_cancel_that_the_api_server_did_not_take_is_carried_out_all_the_same(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    w.throttle_intent();
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Cancelled);
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Cancelled);
    untouched(&w, "n1").await;
}

/// Failure table, row 28.
async fn a_cancel_that_comes_before_its_replica_leads_is_carried_out_when_it_does(w: World) {
    let mut spoke = Spoke::start(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Cancelled);
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Cancelled);
    untouched(&w, "n1").await;
}
