//! Commands that a restored database does not know, shown by their cluster as they were signed.

use std::sync::Arc;

use gpuheal_hub::{ingest::Ingest, settle::settle, sign::Signer};
use gpuheal_proto::link::v1;
use tokio_util::sync::CancellationToken;

use super::world::{HEAL, World, batch, cluster, marked, node, signer, xid79};

/// What is left in the cluster of a command that was issued before the restore.
struct Left {
    world: World,
    signer: Arc<Signer>,
    command_id: String,
    incident_id: String,
    envelope: Vec<u8>,
}

impl Left {
    /// A command for node `n`, issued by a database that is gone, and the database as it was before.
    async fn of_node(n: u32) -> Self {
        let (gone, c1, signer) = (World::healing(10).await, cluster("c1"), Arc::new(signer()));
        let (ingest, _stage) =
            Ingest::start_judging(gone.pool.clone(), gone.wake.clone(), Some(signer.clone()), CancellationToken::new());
        ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, n)])).await.unwrap();
        let envelope: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&gone.pool).await.unwrap();
        let command_id = gone.text("SELECT command_id FROM commands").await;
        let incident_id = gone.text("SELECT incident_id FROM commands").await;
        Self { world: World::healing(10).await, signer, command_id, incident_id, envelope }
    }

    fn status(&self, seq: u64, state: v1::CommandState) -> v1::CommandStatus {
        v1::CommandStatus {
            command_id: self.command_id.clone(),
            status_seq: seq,
            state: state.into(),
            lease_transitions: 1,
            envelope: self.envelope.clone().into(),
            ..Default::default()
        }
    }

    async fn told(&self, status: v1::CommandStatus) {
        assert!(self.acked(status).await);
    }

    /// Whether the spoke is told that it need not say so again.
    async fn acked(&self, status: v1::CommandStatus) -> bool {
        settle(&self.world.pool, &cluster("c1"), status, Some(&self.signer)).await.unwrap().is_some()
    }

    async fn commands(&self) -> Vec<String> {
        self.world.lines("SELECT action || ' ' || state || ' ' || cmd_seq || ' ' || plan_rev FROM commands ORDER BY cmd_seq").await
    }
}

/// Failure table, row 18.
#[tokio::test]
async fn a_command_under_way_that_the_database_lost_is_taken_over_as_it_was_signed() {
    let left = Left::of_node(1).await;
    left.told(left.status(2, v1::CommandState::Started)).await;
    assert_eq!(left.commands().await, ["evict STARTED 1 1"]);
    let world = &left.world;
    assert_eq!(world.text("SELECT incident_id || ' ' || state FROM incidents").await, format!("{} draining", left.incident_id));
    let same: bool =
        sqlx::query_scalar("SELECT envelope = $1 FROM commands").bind(&left.envelope).fetch_one(&world.pool).await.unwrap();
    assert!(same);
    assert_eq!(world.count("audit_entries WHERE kind = 'command_adopted'").await, 1);
    let out = "SELECT (SELECT count(*) FROM holds) || ' ' || (SELECT sum(out) FROM budgets)";
    assert_eq!(world.text(out).await, "1 2", "out at once, in its cluster and in the fleet: another node may be judged first");
    world.decide().await;
    assert_eq!(world.text(out).await, "1 2", "and counted once");
    left.told(left.status(3, v1::CommandState::Succeeded)).await;
    world.snapshot(&cluster("c1"), (0..10).map(|n| if n == 1 { marked(1, &left.incident_id, 1) } else { node(n) }).collect()).await;
    world.decide().await;
    assert_eq!(left.commands().await, ["evict SUCCEEDED 1 1"], "and nothing is commanded twice");
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["validating"]);
}

/// Failure table, row 18: a command that was only received shows no mark, and a leader may die between its snapshot and the rest.
#[tokio::test]
async fn a_cluster_is_taken_over_once_its_leader_says_that_all_was_told_and_not_by_its_snapshot_alone() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.run("UPDATE hub_state SET hub_term = hub_term + 1, raised_at = clock_timestamp()").await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let taken_over = "SELECT COALESCE(taken_over_term = hub_term(), false) FROM clusters";
    world.shown(&c1, false, (0..10).map(node).collect()).await;
    world.decide().await;
    let harm = "SELECT action FROM commands WHERE action <> 'notify'";
    assert_eq!((world.text(taken_over).await.as_str(), world.lines(harm).await.len()), ("false", 0));
    world.nothing_new(&c1, true).await;
    assert_eq!(world.text(taken_over).await, "true");
    assert!(world.decide().await > 0, "what waited for it is judged at once");
    assert_eq!(world.lines(harm).await, ["evict"]);
}

#[tokio::test]
async fn a_fault_that_comes_again_after_a_lost_command_was_taken_over_commands_nothing_more() {
    let (left, c1) = (Left::of_node(1).await, cluster("c1"));
    left.told(left.status(2, v1::CommandState::Started)).await;
    left.world.faults(&c1, &[xid79(&c1, 1)]).await;
    left.world.decide().await;
    assert_eq!(left.commands().await, ["evict STARTED 1 1"]);
}

#[tokio::test]
async fn a_lost_command_joins_the_incident_that_was_opened_meanwhile() {
    let left = Left::of_node(1).await;
    let shown = || (0..10).map(|n| if n == 1 { marked(1, &left.incident_id, 1) } else { node(n) }).collect();
    // By the plan revision the database knows that commits are lost, and asks for all.
    left.world.snapshot(&cluster("c1"), shown()).await;
    left.world.snapshot(&cluster("c1"), shown()).await;
    left.world.decide().await;
    assert_eq!(left.world.lines("SELECT state FROM incidents").await, ["validating"], "the mark was taken over");
    left.told(left.status(3, v1::CommandState::Succeeded)).await;
    left.world.decide().await;
    assert_eq!(left.commands().await, ["evict SUCCEEDED 1 1"]);
    assert_eq!(left.world.lines("SELECT state || ' ' || decision_no FROM incidents").await.len(), 1);
    assert_eq!(left.world.count("holds").await, 1);
}

#[tokio::test]
async fn a_lost_command_leaves_an_incident_where_a_later_plan_has_brought_it() {
    let left = Left::of_node(1).await;
    let shown = || (0..10).map(|n| if n == 1 { marked(1, &left.incident_id, 1) } else { node(n) }).collect();
    // By the plan revision the database knows that commits are lost, and asks for all.
    left.world.snapshot(&cluster("c1"), shown()).await;
    left.world.snapshot(&cluster("c1"), shown()).await;
    left.world.decide().await;
    left.world.run("UPDATE nodes SET plan_rev_issued = 2 WHERE node_uid = 'uid-1'").await;
    left.world.run("UPDATE incidents SET state = 'releasing'").await;
    left.told(left.status(3, v1::CommandState::Succeeded)).await;
    assert_eq!(left.commands().await, ["evict SUCCEEDED 1 1"]);
    assert_eq!(left.world.lines("SELECT state FROM incidents").await, ["releasing"], "the release was shown first");
}

#[tokio::test]
async fn what_was_done_and_undone_before_is_not_taken_over() {
    let left = Left::of_node(1).await;
    left.told(left.status(3, v1::CommandState::Succeeded)).await;
    assert_eq!((left.world.count("commands").await, left.world.count("incidents").await), (0, 0));
    assert_eq!(left.world.text("SELECT effect FROM reports").await, "unknown_command");
}

#[tokio::test]
async fn bytes_that_this_hubs_key_did_not_sign_or_of_another_command_are_not_taken_over() {
    let left = Left::of_node(1).await;
    let started = left.status(2, v1::CommandState::Started);
    let mut altered = left.envelope.clone();
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    left.told(v1::CommandStatus { envelope: altered.into(), ..started.clone() }).await;
    left.told(v1::CommandStatus { envelope: vec![0xff; 70_000].into(), ..started.clone() }).await;
    left.told(v1::CommandStatus { command_id: uuid::Uuid::now_v7().to_string(), ..started.clone() }).await;
    let stranger = signer();
    settle(&left.world.pool, &cluster("c1"), started.clone(), Some(&stranger)).await.unwrap();
    settle(&left.world.pool, &cluster("c2"), started, Some(&left.signer)).await.unwrap();
    assert_eq!((left.world.count("commands").await, left.world.count("incidents").await), (0, 0));
}

#[tokio::test]
async fn a_lost_command_whose_number_was_given_out_again_is_kept_as_a_report_alone() {
    let (left, c1) = (Left::of_node(1).await, cluster("c1"));
    left.world.faults(&c1, &[xid79(&c1, 2)]).await;
    left.world.decide().await;
    assert_eq!(left.commands().await, ["evict PROPOSED 1 1"], "the same number, for another node");
    left.told(left.status(2, v1::CommandState::Started)).await;
    assert_eq!(left.commands().await, ["evict PROPOSED 1 1"]);
    assert_eq!(left.world.count("incidents WHERE node_uid = 'uid-1'").await, 0, "nothing of the attempt is left");
    assert_eq!(left.world.count("holds WHERE node_uid = 'uid-1'").await, 0);
    assert_eq!(left.world.text("SELECT effect FROM reports").await, "unknown_command");
}

/// Failure table, row 18: by the nodes of before the restore the mark that it set is not there.
#[tokio::test]
async fn an_outcome_that_comes_before_its_clusters_nodes_is_left_to_be_told_again() {
    let (left, c1) = (Left::of_node(1).await, cluster("c1"));
    let world = &left.world;
    world.run("UPDATE hub_state SET hub_term = hub_term + 1").await;
    assert!(!left.acked(left.status(3, v1::CommandState::Succeeded)).await);
    assert_eq!((world.count("commands").await, world.count("reports").await), (0, 0));
    let shown = (0..10).map(|n| if n == 1 { marked(1, &left.incident_id, 1) } else { node(n) });
    world.shown(&c1, false, shown.collect()).await;
    left.told(left.status(3, v1::CommandState::Succeeded)).await;
    assert_eq!(left.commands().await, ["evict SUCCEEDED 1 1"]);
}

/// Failure table, row 18: one that was on its way without its bytes when all was asked for, and an ack of before that comes after.
#[tokio::test]
async fn a_status_without_its_bytes_is_no_word_of_a_lost_command_and_an_ack_says_of_which_epoch_it_is() {
    let (left, c1) = (Left::of_node(1).await, cluster("c1"));
    let world = &left.world;
    let bare = || v1::CommandStatus { envelope: Vec::new().into(), ..left.status(2, v1::CommandState::Started) };
    world.run("UPDATE hub_state SET hub_term = hub_term + 1").await;
    world.shown(&c1, false, (0..10).map(node).collect()).await;
    assert!(!left.acked(bare()).await, "it comes again with them");
    let ack = settle(&world.pool, &c1, left.status(2, v1::CommandState::Started), Some(&left.signer)).await.unwrap();
    assert_eq!(ack.map(|ack| ack.hub_term), Some(2));
    assert_eq!(left.commands().await, ["evict STARTED 1 1"]);
    assert!(left.acked(bare()).await, "it is known now");
}

/// Failure table, row 18: an Event would go with the plan revision that the lost command has.
#[tokio::test]
async fn nobody_is_told_of_a_fault_before_its_cluster_is_taken_over_and_then_a_lost_command_has_its_place() {
    let (left, c1) = (Left::of_node(1).await, cluster("c1"));
    let world = &left.world;
    world.policy(&HEAL.replace("mode: heal", "mode: notify")).await;
    world.run("UPDATE hub_state SET hub_term = hub_term + 1").await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(left.commands().await, Vec::<String>::new());
    world.shown(&c1, false, (0..10).map(node).collect()).await;
    world.decide().await;
    left.told(left.status(2, v1::CommandState::Started)).await;
    assert_eq!(left.commands().await, ["evict STARTED 1 1"]);
    world.nothing_new(&c1, true).await;
    world.faults(&c1, &[xid79(&c1, 2)]).await;
    world.decide().await;
    assert_eq!(left.commands().await, ["evict STARTED 1 1", "notify PROPOSED 2 1"]);
}

/// Failure table, row 18.
#[tokio::test]
async fn a_cluster_that_told_all_under_an_older_epoch_is_not_taken_over_whatever_the_clock_says() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    // A server that was promoted may be behind the one before it.
    world.run("UPDATE hub_state SET hub_term = hub_term + 1, raised_at = clock_timestamp() - interval '1 hour'").await;
    let taken_over = "SELECT COALESCE(taken_over_term = hub_term(), false) FROM clusters";
    world.told_under(&c1, 1).await;
    assert_eq!(world.text(taken_over).await, "false", "its snapshot is of before, and so is its word");
    world.shown(&c1, false, (0..10).map(node).collect()).await;
    world.told_under(&c1, 1).await;
    assert_eq!(world.text(taken_over).await, "false");
    world.told_under(&c1, 2).await;
    assert_eq!(world.text(taken_over).await, "true");
}
