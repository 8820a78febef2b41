//! A session that is over has no say: whatever kind of message it still sends, and whatever numbers it claims to have seen.

use gpuheal_hub::{
    decide::process_from_spoke,
    identity::denied::{Certificate, Serial},
    ingest::Origin,
    link::hello::{Hello, Seen},
    settle::settle,
    store::{
        self,
        decommission::{Outcome, decommission},
        revocation::{Revoke, revoke},
        session::{Attached, session_attach, settings_ack},
    },
};
use gpuheal_proto::{
    ids::{ClusterId, ReplicaId},
    link::v1,
    time::Timestamp,
};

use super::world::{World, cluster, node, xid79};

pub(crate) fn hello(cluster: &ClusterId) -> Hello {
    Hello {
        cluster: cluster.clone(),
        kube_system_uid: "uid".into(),
        replica: ReplicaId::parse("r0").unwrap(),
        boot_id: "b".into(),
        version: "1".into(),
        caps: Vec::new(),
        journals: Vec::new(),
        journal_new: false,
        seen: Seen::default(),
        lease_transitions: Some(1),
        wall: None,
    }
}

pub(crate) async fn attach(world: &World, hello: &Hello) -> (Attached, Origin) {
    let mut tx = world.pool.begin().await.unwrap();
    let certificate = Certificate { serial: Serial::from_bytes(&[7]), not_before: Timestamp::EPOCH };
    let attached = session_attach(&mut tx, hello, &certificate, "hub-0").await.unwrap().unwrap();
    tx.commit().await.unwrap();
    let session = Some((hello.replica.clone(), attached.generation));
    (attached, Origin { cluster: hello.cluster.clone(), session })
}

fn evict(id: &str) -> v1::Process {
    v1::Process {
        request_id: id.into(),
        node: "n1".into(),
        action: v1::ProcessAction::Evict.into(),
        reason: "by hand".into(),
        caller: "webhook".into(),
        ..Default::default()
    }
}

/// Failure table, row 19a.
#[tokio::test]
async fn a_request_by_hand_over_a_session_that_is_over_commands_nothing() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let (_, old) = attach(&world, &hello(&c1)).await;
    let (_, new) = attach(&world, &hello(&c1)).await;
    let refused = process_from_spoke(&world.pool, old, evict("a")).await.unwrap_err();
    assert!(refused.to_string().contains("was taken over"), "{refused}");
    assert_eq!((world.count("commands").await, world.count("audit_entries WHERE kind LIKE 'request%'").await), (0, 0));
    let taken = process_from_spoke(&world.pool, new, evict("a")).await.unwrap();
    assert_eq!(taken.outcome(), v1::ProcessOutcome::Accepted, "{taken:?}");
}

#[tokio::test]
async fn a_revoked_session_clears_no_fault_and_takes_no_node_away() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let (_, from) = attach(&world, &hello(&c1)).await;
    let cleared =
        v1::Evidence { fault_key: xid79(&c1, 1).key.to_string(), state: v1::EvidenceState::Clear.into(), ..Default::default() };
    let cleared = v1::EvidenceBatch { items: vec![cleared] };
    revoke(&world.pool, &c1, &Revoke::AllUntilNow, "user/operator", "a stolen key").await.unwrap();
    assert!(world.ingest.evidence(from.clone(), cleared.clone()).await.is_err());
    let part = v1::SnapshotPart { part: 1, parts: 1, nodes: (0..2).map(node).collect(), config: None, sources: vec![] };
    let state = v1::ClusterState {
        lease_transitions: 9,
        seq: 9,
        as_of_unix_ms: world.now().await.unix_ms(),
        told_upto_unix_ms: 0,
        all_told_term: 0,
        body: Some(v1::cluster_state::Body::Snapshot(part)),
    };
    assert!(world.ingest.state(from.clone(), state).await.is_err());
    let status = v1::CommandStatus { envelope_sha256: "ab".repeat(32), ..Default::default() };
    assert!(settle(&world.pool, from, status, None).await.is_err());
    assert_eq!(world.lines("SELECT evidence FROM faults").await, ["seen"]);
    assert_eq!((world.count("nodes WHERE gone_at IS NULL").await, world.count("reports").await), (10, 0));
    world.ingest.evidence(c1, cleared).await.unwrap();
    assert_eq!(world.lines("SELECT evidence FROM faults").await, ["clear"]);
}

#[tokio::test]
async fn what_a_session_that_is_over_says_of_settings_is_not_noted() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    let replica = hello(&c1).replica;
    let (old, _) = attach(&world, &hello(&c1)).await;
    let (new, _) = attach(&world, &hello(&c1)).await;
    let mut conn = world.pool.acquire().await.unwrap();
    assert!(!settings_ack(&mut conn, &c1, (&replica, old.generation), 9, &[]).await.unwrap());
    assert_eq!(world.count("clusters WHERE settings_version = 9").await, 0);
    assert!(settings_ack(&mut conn, &c1, (&replica, new.generation), 9, &[]).await.unwrap());
    assert_eq!(world.count("clusters WHERE settings_version = 9").await, 1);
}

#[tokio::test]
async fn a_cluster_whose_hub_and_spoke_died_together_is_not_attached_for_ever() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    attach(&world, &hello(&c1)).await;
    let gone = async || decommission(&world.pool, &c1, "user/operator", "the region is closed", false).await.unwrap();
    assert_eq!(gone().await, Outcome::Attached);
    world.run("UPDATE sessions SET seen_at = seen_at - interval '2 minutes'").await;
    assert!(matches!(gone().await, Outcome::Done { sessions: 1, .. }), "nobody noted its end, and nobody has seen it since");
}

#[tokio::test]
async fn a_hello_of_what_no_hub_gave_out_leaves_the_fleets_epoch_where_it_was() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let (first, _) = attach(&world, &hello(&c1)).await;
    let certificate = Certificate { serial: Serial::from_bytes(&[7]), not_before: Timestamp::EPOCH };
    for (term, command) in [(i64::MAX.unsigned_abs() - 1, 0), (u64::MAX, 0), (0, u64::MAX)] {
        let claims = Hello { seen: Seen { term, cmd_seq: command, ..Seen::default() }, ..hello(&c1) };
        let mut tx = world.pool.begin().await.unwrap();
        let refused = session_attach(&mut tx, &claims, &certificate, "hub-0").await.unwrap().unwrap_err();
        tx.commit().await.unwrap();
        assert!(matches!(refused, store::session::Refused::Implausible { .. }), "{refused:?}");
    }
    assert_eq!(world.text("SELECT hub_term FROM hub_state").await, "1");
    assert_eq!(world.count("command_counters WHERE cmd_seq > 0").await, 0);
    let (again, _) = attach(&world, &hello(&c1)).await;
    assert_eq!(again.generation, first.generation + 1, "and nobody was taken over by it");
}

/// Failure table, row 18: whoever waits for its cluster's row while the epoch rises is told the epoch that has risen.
#[tokio::test]
async fn a_session_that_attaches_while_the_epoch_rises_is_asked_under_the_one_that_it_is_told() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let mut first = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM clusters FOR UPDATE").execute(&mut *first).await.unwrap();
    let hello = hello(&c1);
    let (attached, ()) = tokio::join!(attach(&world, &hello), async {
        let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO clusters%' AND datname = current_database()";
        while world.count(waits).await == 0 {}
        sqlx::query("UPDATE hub_state SET hub_term = hub_term + 1").execute(&mut *first).await.unwrap();
        first.commit().await.unwrap();
    });
    assert_eq!((attached.0.hub_term, attached.0.taken_over), (2, false));
}

/// Failure table, row 18.
#[tokio::test]
async fn a_hello_that_knows_more_raises_the_epoch_above_it_and_its_cluster_is_asked_for_all_that_it_has() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let (known, _) = attach(&world, &hello(&c1)).await;
    assert_eq!((known.hub_term, known.taken_over), (1, true));
    let later = Hello { seen: Seen { term: 7, ..Seen::default() }, ..hello(&c1) };
    for time in ["the first time", "and once only"] {
        let (attached, _) = attach(&world, &later).await;
        assert_eq!((attached.hub_term, attached.taken_over), (8, false), "{time}");
    }
    world.snapshot(&c1, (0..10).map(node).collect()).await;
    let (taken_over, _) = attach(&world, &Hello { seen: Seen { term: 8, ..Seen::default() }, ..hello(&c1) }).await;
    assert_eq!((taken_over.hub_term, taken_over.taken_over), (8, true));
    // A command of the present epoch that this database never issued.
    let commanded = Hello { seen: Seen { term: 8, cmd_seq: 40, ..Seen::default() }, ..hello(&c1) };
    let (attached, _) = attach(&world, &commanded).await;
    assert_eq!((attached.hub_term, attached.taken_over), (9, false));
    assert_eq!(world.text("SELECT cmd_seq FROM command_counters WHERE cluster_id = 'c1'").await, "40", "the next one is 41");
    // Of an epoch in which it was welcomed, and nothing was commanded.
    let welcomed = Hello { seen: Seen { term: 9, term_heard: 11, ..Seen::default() }, ..hello(&c1) };
    let (attached, _) = attach(&world, &welcomed).await;
    assert_eq!((attached.hub_term, attached.taken_over), (12, false), "11 was in force once");
}

#[tokio::test]
async fn a_plan_revision_that_no_hub_gave_out_sets_its_node_aside_and_raises_nothing() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    let mut nodes: Vec<_> = (0..3).map(node).collect();
    nodes[1].plan_revision = u64::MAX;
    nodes[2].plan_revision = i64::MAX.unsigned_abs();
    world.snapshot(&c1, nodes).await;
    assert_eq!(world.text("SELECT hub_term FROM hub_state").await, "1");
    assert_eq!(world.text("SELECT max(plan_rev_issued) FROM nodes").await, "0");
    let why = world.text("SELECT body FROM audit_entries WHERE kind = 'nodes_unreadable'").await;
    assert!(why.contains("was never given out"), "{why}");
    assert_eq!(world.count("nodes WHERE gone_at IS NULL").await, 3);
}

#[tokio::test]
async fn numbers_of_a_journal_that_no_journal_has_are_refused_and_the_stream_stays_where_it_is() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    for to_seq in [u64::MAX, i64::MAX.unsigned_abs()] {
        let gap = v1::Gap { stream_id: "s".into(), from_seq: 1, to_seq, ..Default::default() };
        assert!(world.ingest.gap(c1.clone(), gap).await.is_err());
    }
    let faults = |first| super::world::batch("s", first, &[xid79(&c1, 1)]);
    assert!(world.ingest.submit(c1.clone(), faults(u64::MAX)).await.is_err());
    assert_eq!(world.ingest.submit(c1.clone(), faults(1)).await.unwrap().persisted_upto, 1);
}

#[tokio::test]
async fn an_undo_record_that_cannot_be_read_is_audited_and_left_to_the_spoke() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.dispatch().await;
    let undo = v1::UndoRecord { fields: vec![v1::UndoField { kind: 99, ..Default::default() }] };
    let status = v1::CommandStatus {
        command_id: world.text("SELECT command_id FROM commands").await,
        status_seq: 2,
        state: v1::CommandState::Succeeded.into(),
        undo: Some(undo),
        ..Default::default()
    };
    for time in ["first", "again"] {
        let ack = settle(&world.pool, &c1, status.clone(), None).await.unwrap().unwrap();
        assert!(!ack.undo_kept, "{time}: only the spoke knows how it was before");
    }
    assert_eq!(world.text("SELECT state FROM commands").await, "SUCCEEDED");
    let told = world.text("SELECT body FROM audit_entries WHERE kind = 'command_reported'").await;
    assert!(told.contains("\"undo_unreadable\": true") || told.contains("\"undo_unreadable\":true"), "{told}");
}

/// Failure table, row 18.
#[tokio::test]
async fn several_replicas_that_have_seen_one_loss_and_attach_at_once_raise_the_epoch_once() {
    let (world, c1, c2) = (World::healing(10).await, cluster("c1"), cluster("c2"));
    let later = |cluster| Hello { seen: Seen { term: 7, ..Seen::default() }, ..hello(cluster) };
    let mut holds = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM hub_state FOR UPDATE").execute(&mut *holds).await.unwrap();
    let (one, two) = (later(&c1), later(&c2));
    let (one, two, ()) = tokio::join!(attach(&world, &one), attach(&world, &two), async {
        let wait =
            "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE hub_state%' AND datname = current_database()";
        while world.count(wait).await < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        holds.commit().await.unwrap();
    });
    assert_eq!((one.0.hub_term, two.0.hub_term), (8, 8));
    assert_eq!([one.0.term_raised, two.0.term_raised].iter().filter(|raised| **raised).count(), 1);
}
