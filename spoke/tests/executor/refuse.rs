//! Refusals: what each leaves behind, and that nothing else is written.

use std::time::Duration;

use bytes::Bytes;
use gpuheal_proto::{
    ids::ClusterId,
    link::v1::{CommandState, RefusalCode},
};
use gpuheal_spoke::{clock, ports::Down};
use gpuheal_spoke_core::verify::fingerprint;

use crate::harness::{Cluster, Spoke, cancel, command, eventually, forged, mark, marks, release, signed};

async fn untouched(cluster: &Cluster, node: &str) {
    assert_eq!(marks(&cluster.node(node)), (false, 0, false));
    assert!(cluster.sim.recorder().writes_to("nodes").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_bytes_are_told_by_their_hash_and_leave_no_trace() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let bytes = forged(&command);
    let sha256 = fingerprint(&bytes);
    spoke.send(bytes).await;
    let told = spoke.told("the refusal", |status| status.envelope_sha256 == sha256).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::Refused, RefusalCode::BadSignature));
    assert!(told.command_id.is_empty(), "its id cannot be believed");
    assert!(cluster.action(command.id).is_none());
    untouched(&cluster, "n1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_for_another_cluster_is_refused_with_a_tombstone() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let mut command = command(&cluster, "n1", 1, vec![mark()]);
    command.audience = ClusterId::parse("c2").unwrap();
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::WrongAudience));
    let tombstone = cluster.action(command.id).unwrap()["spec"].clone();
    for (field, want) in
        [("node", "n1"), ("fault", "xid 79"), ("level", "P0"), ("action", "mark"), ("reason", &command.reason), ("holder", "a")]
    {
        assert_eq!(tombstone[field], want, "{field} of {tombstone}");
    }
    assert_eq!(tombstone["commandSeq"], 0, "another cluster's numbers do not count here");
    untouched(&cluster, "n1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_command_is_refused_for_ever_by_its_tombstone() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let mut command = command(&cluster, "n1", 1, vec![mark()]);
    command.times.created = command.times.created.before(Duration::from_secs(3600));
    command.times.deliver_by = command.times.created;
    command.times.start_by = command.times.created;
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::Expired));
    assert_eq!(spoke.carry_out(&command).await.refusal(), RefusalCode::Expired, "the same answer again");
    untouched(&cluster, "n1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_uncertain_clock_says_not_now_and_leaves_no_trace() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    spoke.clock.set(clock::wall(), Duration::from_secs(61));
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let told = spoke.carry_out(&command).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::NotNow, RefusalCode::ClockUncertain));
    assert!(cluster.action(command.id).is_none());
    spoke.clock.set(clock::wall(), Duration::from_millis(2));
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Succeeded, "the same bytes may come again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ceiling_counts_and_says_its_numbers() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "ceiling: {nodesOut: 1}").await;
    spoke.carry_out(&command(&cluster, "n1", 1, vec![mark()])).await;
    eventually("the watch shows the mark", || async { marks(&cluster.node("n1")).0 }).await;
    let second = command(&cluster, "n2", 1, vec![mark()]);
    let end = spoke.carry_out(&second).await;
    assert_eq!(end.refusal(), RefusalCode::OverCeiling);
    assert_eq!(end.reason, "1 of 4 GPU nodes are out, the ceiling allows 1");
    assert_eq!(marks(&cluster.node("n2")), (false, 0, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_commands_at_once_do_not_share_the_last_place_under_a_ceiling() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "ceiling: {nodesOut: 1}").await;
    let (first, second) = (command(&cluster, "n1", 1, vec![mark()]), command(&cluster, "n2", 1, vec![mark()]));
    spoke.send(signed(&first)).await;
    spoke.send(signed(&second)).await;
    let ids = [first.id.to_string(), second.id.to_string()];
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let end = spoke
            .told("an end", |s| ids.contains(&s.command_id) && !matches!(s.state(), CommandState::Received | CommandState::Started))
            .await;
        ends.push(end.state());
    }
    ends.sort_by_key(|state| *state as i32);
    assert_eq!(ends, [CommandState::Succeeded, CommandState::Refused]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lower_plan_revision_is_superseded() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    spoke.carry_out(&command(&cluster, "n1", 5, vec![mark()])).await;
    spoke.carry_out(&command(&cluster, "n1", 6, vec![release(None)])).await;
    let late = spoke.carry_out(&command(&cluster, "n1", 5, vec![mark()])).await;
    assert_eq!(late.refusal(), RefusalCode::Superseded);
    assert_eq!(marks(&cluster.node("n1")), (false, 0, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_machine_under_the_nodes_name_is_left_alone() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    cluster.sim.store().replace_node("n1").unwrap();
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.refusal(), RefusalCode::NodeGone, "{}", end.reason);
    untouched(&cluster, "n1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_overtakes_its_command_leaves_a_tombstone_that_answers_for_it() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    spoke.down.send(Down::Cancel(Bytes::from(cancel(command.id)))).await.unwrap();
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Cancelled);
    assert_eq!(spoke.carry_out(&command).await.state(), CommandState::Cancelled);
    untouched(&cluster, "n1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_hub_term_is_refused_also_by_the_next_leader() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let mut newer = command(&cluster, "n1", 1, vec![mark()]);
    newer.hub_term = 9;
    spoke.carry_out(&newer).await;
    let fence = cluster.sim.store().get("configmaps", "gpu-selfhealing", "gpu-selfhealing-fence").unwrap();
    assert_eq!(fence["data"]["hubTerm"], "9");
    spoke.kill();
    let mut next = Spoke::start(&cluster, "b", "").await;
    let stale = command(&cluster, "n2", 1, vec![mark()]);
    let mut end = next.carry_out(&stale).await;
    while end.state() == CommandState::NotNow {
        tokio::time::sleep(Duration::from_millis(50)).await;
        end = next.carry_out(&stale).await;
    }
    assert_eq!(end.refusal(), RefusalCode::StaleHubTerm);
}
