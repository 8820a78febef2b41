//! Journals that are gone with their replicas' disks: told once as gaps, never while they may come back by themselves, and taken
//! back when they do.

use gpuheal_hub::{
    link::{
        gone::sweep,
        hello::{Hello, Journal},
    },
    store::{
        journal::{journal_close, journals_told},
        session::session_detach,
    },
};
use gpuheal_proto::ids::{ClusterId, ReplicaId, StreamId};

use super::{
    owning::{attach, hello},
    world::{World, batch, cluster, xid79},
};

fn journal(stream: &str, upto: u64) -> Journal {
    Journal { stream: StreamId::parse(stream).unwrap(), upto }
}

fn of(cluster: &ClusterId, replica: &str, journals: &[(&str, u64)]) -> Hello {
    let journals = journals.iter().map(|(stream, upto)| journal(stream, *upto)).collect();
    Hello { replica: ReplicaId::parse(replica).unwrap(), journals, ..hello(cluster) }
}

/// A cluster of which r0 has told of five records under s0, and two of them are here.
async fn two_of_five() -> (World, ClusterId, u64) {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    let (attached, from) = attach(&world, &of(&c1, "r0", &[("s0", 4)])).await;
    world.ingest.submit(from, batch("s0", 1, &[xid79(&c1, 1), xid79(&c1, 2)])).await.unwrap();
    journals_told(&mut world.pool.acquire().await.unwrap(), &[(c1.clone(), journal("s0", 5))]).await.unwrap();
    (world, c1, attached.generation)
}

impl World {
    /// As if all that is known were so much older; who is attached goes on living.
    async fn minutes_later(&self, minutes: u32) {
        let by = format!("interval '{minutes} minutes'");
        self.run(&format!(
            "UPDATE sessions SET attached_at = attached_at - {by}, detached_at = detached_at - {by}, \
             seen_at = CASE WHEN detached_at IS NULL THEN seen_at ELSE seen_at - {by} END"
        ))
        .await;
        self.run(&format!("UPDATE journals SET named_at = named_at - {by}")).await;
    }

    async fn leaves(&self, cluster: &ClusterId, replica: &str, generation: u64) {
        let replica = ReplicaId::parse(replica).unwrap();
        session_detach(&mut self.pool.acquire().await.unwrap(), cluster, &replica, generation).await.unwrap();
    }

    async fn told(&self) -> Vec<String> {
        self.lines("SELECT format('%s %s-%s', stream_id, from_seq, COALESCE(to_seq::text, '')) FROM gaps ORDER BY 1").await
    }
}

/// Failure table, row 24.
#[tokio::test]
async fn a_journal_that_is_gone_with_its_replica_is_told_once_as_a_gap() {
    let (world, c1, generation) = two_of_five().await;
    world.leaves(&c1, "r0", generation).await;
    attach(&world, &of(&c1, "r1", &[("s1", 0)])).await;
    world.minutes_later(9).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0, "it may come back yet");
    world.minutes_later(2).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1);
    assert_eq!(world.told().await, ["s0 3-"], "nobody knows its end");
    let reason = world.text("SELECT reason FROM gaps").await;
    assert!(
        reason.contains("replica r0 has not been seen since 20") && reason.contains("3 records, 3 to 5, never came"),
        "{reason}"
    );
    world.minutes_later(60).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0);
    assert_eq!(world.count("audit_entries WHERE kind = 'journal_vanished' AND subject = 'journal/s0'").await, 1);
}

#[tokio::test]
async fn what_was_closed_and_is_whole_here_is_no_gap_and_what_was_closed_too_early_is_one_with_an_end() {
    let (world, c1, generation) = two_of_five().await;
    let close = async |replica: &str, generation, journal: Journal| {
        let owner = (&c1, &ReplicaId::parse(replica).unwrap(), generation);
        journal_close(&mut world.pool.acquire().await.unwrap(), owner, &journal).await.unwrap();
    };
    close("r0", generation + 1, journal("s0", 9)).await;
    assert_eq!(
        world.lines("SELECT format('%s %s', told_upto, ended) FROM journals").await,
        ["5 f"],
        "of a session that is not its own"
    );
    close("r0", generation, journal("s0", 5)).await;
    world.leaves(&c1, "r0", generation).await;
    let (whole, _) = attach(&world, &of(&c1, "r1", &[("s1", 0)])).await;
    close("r1", whole.generation, journal("s1", 0)).await;
    world.leaves(&c1, "r1", whole.generation).await;
    attach(&world, &of(&c1, "r2", &[("s2", 0)])).await;
    world.minutes_later(11).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1);
    assert_eq!(world.told().await, ["s0 3-5"]);
    let reason = world.text("SELECT reason FROM gaps").await;
    assert!(reason.ends_with("3 records, 3 to 5, never came"), "{reason}");
}

#[tokio::test]
async fn a_journal_that_comes_back_goes_on_where_it_was_and_is_missing_no_more() {
    let (world, c1, generation) = two_of_five().await;
    world.leaves(&c1, "r0", generation).await;
    attach(&world, &of(&c1, "r1", &[("s1", 0)])).await;
    world.minutes_later(11).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1);
    let (back, from) = attach(&world, &of(&c1, "r0", &[("s0", 5)])).await;
    assert_eq!(back.acked, [("s0".to_owned(), 2)]);
    assert_eq!(world.told().await, [""; 0]);
    assert_eq!(world.count("audit_entries WHERE kind = 'journal_returned'").await, 1);
    let ack = world.ingest.submit(from, batch("s0", 3, &[xid79(&c1, 0), xid79(&c1, 0), xid79(&c1, 0)])).await.unwrap();
    assert_eq!(ack.persisted_upto, 5);
    world.leaves(&c1, "r0", back.generation).await;
    world.minutes_later(11).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1, "and may go again");
    assert_eq!(world.told().await, ["s0 6-"]);
    let reason = world.text("SELECT reason FROM gaps").await;
    assert!(reason.contains("was not closed, so what was found after record 5, if anything, never came"), "{reason}");
}

#[tokio::test]
async fn a_replica_that_comes_again_with_an_empty_disk_is_told_at_once_and_one_that_let_go_of_what_is_acked_is_not() {
    let (world, c1, _) = two_of_five().await;
    let (again, from) = attach(&world, &of(&c1, "r0", &[("s0", 5), ("s1", 0)])).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0, "it holds it still");
    world.ingest.submit(from, batch("s0", 3, &[xid79(&c1, 0), xid79(&c1, 0), xid79(&c1, 0)])).await.unwrap();
    // Found its journals, and needs neither the one that is acked nor the one that was empty.
    let (found, _) = attach(&world, &of(&c1, "r0", &[("s2", 0)])).await;
    assert_eq!((again.generation + 1, sweep(&world.pool).await.unwrap()), (found.generation, 0));
    let new = Hello { journal_new: true, ..of(&c1, "r0", &[("s3", 0)]) };
    attach(&world, &new).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1);
    assert_eq!(world.told().await, ["s2 1-"]);
    assert!(world.text("SELECT reason FROM gaps").await.starts_with("replica r0 came again without this journal"));
}

#[tokio::test]
async fn while_a_cluster_or_the_hub_is_away_no_journal_is_taken_for_gone() {
    let (world, c1, generation) = two_of_five().await;
    let (other, _) = attach(&world, &of(&c1, "r1", &[("s1", 0)])).await;
    world.leaves(&c1, "r0", generation).await;
    world.leaves(&c1, "r1", other.generation).await;
    world.minutes_later(600).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0, "nobody of it is here");
    attach(&world, &of(&c1, "r1", &[("s1", 0)])).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0, "one is back, and the other may be on its way");
    attach(&world, &of(&cluster("c2"), "r9", &[("s9", 0)])).await;
    world.run("UPDATE sessions SET attached_at = attached_at - interval '1 hour' WHERE cluster_id = 'c2'").await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 0, "another cluster's replica says nothing of it");
}
