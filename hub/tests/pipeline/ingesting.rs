//! Faults into Postgres: at least once on the wire, once in effect.

use gpuheal_hub::{
    ingest::{Error, Origin},
    store::stream::{Advance, streams_advance, streams_lock},
};
use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    ids::{FaultKey, ReplicaId, StreamId},
    link::v1,
};

use super::world::{World, batch, cluster, fault, node, xid79};

#[tokio::test]
async fn the_same_fault_a_thousand_times_is_one_row_and_asks_for_one_judgement() {
    let (world, c1) = (World::new().await, cluster("c1"));
    for _ in 0..4 {
        world.faults(&c1, &vec![xid79(&c1, 1); 250]).await;
    }
    assert_eq!(world.count("faults").await, 1);
    let asked = world.text("SELECT asked_at FROM judgements").await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    assert_eq!(world.text("SELECT asked_at FROM judgements").await, asked, "a repeat asks for nothing");
}

/// Failure table, row 4.
#[tokio::test]
async fn a_batch_that_comes_again_is_dropped_and_acked_again() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let first = world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 1), xid79(&c1, 2)])).await.unwrap();
    assert_eq!(first.persisted_upto, 2);
    let audited = world.count("audit_entries").await;
    let again = world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 1), xid79(&c1, 2)])).await.unwrap();
    assert_eq!(again.persisted_upto, 2);
    assert_eq!((world.count("faults").await, world.count("audit_entries").await), (2, audited));
    let overlapping = world.ingest.submit(c1.clone(), batch("s1", 2, &[xid79(&c1, 2), xid79(&c1, 3)])).await.unwrap();
    assert_eq!((overlapping.persisted_upto, world.count("faults").await), (3, 3));
}

#[tokio::test]
async fn a_batch_with_a_hole_before_it_is_answered_with_the_resume_point() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 1)])).await.unwrap();
    let ack = world.ingest.submit(c1.clone(), batch("s1", 5, &[xid79(&c1, 2)])).await.unwrap();
    assert_eq!((ack.persisted_upto, ack.resume, world.count("faults").await), (1, true, 1));
    let gap = v1::Gap {
        stream_id: "s1".into(),
        from_seq: 2,
        to_seq: 4,
        reason: "journal full".into(),
        counts_by_class: [("xid".into(), 3)].into(),
    };
    assert_eq!(world.ingest.gap(c1.clone(), gap).await.unwrap().persisted_upto, 4);
    let ack = world.ingest.submit(c1.clone(), batch("s1", 5, &[xid79(&c1, 2)])).await.unwrap();
    assert_eq!((ack.persisted_upto, world.count("faults").await, world.count("gaps").await), (5, 2, 1));
    assert!(!ack.resume);
}

#[tokio::test]
async fn a_spoke_speaks_for_its_own_cluster_alone() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let ack = world.faults(&c1, &[xid79(&cluster("c2"), 1), xid79(&c1, 2)]).await;
    assert_eq!(ack.persisted_upto, 2, "poison blocks nothing");
    assert_eq!((world.count("faults").await, world.count("poison").await), (1, 1));
    assert!(world.text("SELECT error FROM poison").await.contains("not the one that it has in cluster c1"));
}

#[tokio::test]
async fn a_record_of_a_later_version_is_kept_raw_and_acked() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let mut odd = v1::Fault::from(&xid79(&c1, 1));
    odd.class = 99;
    let sent = v1::FaultBatch { stream_id: "s1".into(), first_seq: 1, faults: vec![odd, (&xid79(&c1, 2)).into()] };
    assert_eq!(world.ingest.submit(c1.clone(), sent).await.unwrap().persisted_upto, 2);
    assert_eq!((world.count("faults").await, world.count("poison").await), (1, 1));
}

#[tokio::test]
async fn witnesses_of_both_replicas_meet_in_one_fault() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let gauge = fault(&c1, 1, FaultClass::Xid, "79", Onset::Edge, Witness::ExporterGauge);
    let alert = fault(&c1, 1, FaultClass::Xid, "79", Onset::Edge, Witness::Alert);
    let twins = (0..16).map(|n| {
        let one = if n % 2 == 0 { gauge.clone() } else { alert.clone() };
        let (world, c1) = (&world, &c1);
        async move { world.faults(c1, &[one]).await }
    });
    futures::future::join_all(twins).await;
    assert_eq!(world.count("faults").await, 1);
    assert_eq!(
        world.text("SELECT string_agg(k, ' ' ORDER BY k) FROM faults, jsonb_object_keys(witnesses) k").await,
        "alert exporter_gauge"
    );
}

/// Failure table, row 37.
#[tokio::test]
async fn two_hubs_that_take_the_same_fault_at_once_store_it_once() {
    let (one, c1) = (World::new().await, cluster("c1"));
    let other = World::over(one.pool.clone());
    let takes = (0..32).map(|n| {
        let (hub, c1) = (if n % 2 == 0 { &one } else { &other }, &c1);
        async move { hub.faults(c1, &[xid79(c1, n % 4), xid79(c1, 4 + n % 3)]).await }
    });
    assert!(futures::future::join_all(takes).await.iter().all(|ack| ack.persisted_upto == 2));
    assert_eq!(one.count("faults").await, 7);
}

#[tokio::test]
async fn a_session_that_was_taken_over_commits_nothing_and_takes_nobody_with_it() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world
        .run("INSERT INTO sessions (cluster_id, replica_id, session_generation, boot_id, hub_id) VALUES ('c1', 'r1', 2, 'b', 'h')")
        .await;
    let from = |generation| Origin { cluster: c1.clone(), session: Some((ReplicaId::parse("r1").unwrap(), generation)) };
    let (old, fresh) = tokio::join!(
        world.ingest.submit(from(1), batch("s1", 1, &[xid79(&c1, 1)])),
        world.ingest.submit(from(2), batch("s2", 1, &[xid79(&c1, 2)])),
    );
    assert!(matches!(old, Err(Error::Store(gpuheal_hub::store::Error::TakenOver { generation: 1, .. }))));
    assert_eq!((fresh.unwrap().persisted_upto, world.count("faults").await), (1, 1));
}

#[tokio::test]
async fn one_spokes_trouble_is_not_anothers() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.run("ALTER TABLE faults ADD CONSTRAINT faults_test CHECK (node_uid <> 'uid-7')").await;
    let (bad, good) = tokio::join!(
        world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 7)])),
        world.ingest.submit(c1.clone(), batch("s2", 1, &[xid79(&c1, 1)])),
    );
    assert!(bad.is_err());
    assert_eq!(good.unwrap().persisted_upto, 1);
}

#[tokio::test]
async fn a_failed_audit_append_fails_the_whole_commit() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.run("ALTER TABLE audit_entries ADD CONSTRAINT audit_entries_test CHECK (kind <> 'faults_ingested')").await;
    assert!(world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 1)])).await.is_err());
    assert_eq!((world.count("faults").await, world.count("judgements").await, world.count("streams").await), (0, 0, 0));
}

#[tokio::test]
async fn evidence_moves_the_latest_episode_and_asks_when_it_turns() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    let item = |state: v1::EvidenceState| v1::Evidence {
        fault_key: xid79(&c1, 1).key.to_string(),
        state: state.into(),
        count: 1,
        ..Default::default()
    };
    let stranger = v1::Evidence {
        fault_key: FaultKey::derive(&c1, &xid79(&c1, 1).node.uid, None, "x", "y").to_string(),
        ..item(v1::EvidenceState::Clear)
    };
    let items = vec![item(v1::EvidenceState::Clear), stranger, v1::Evidence { state: 77, ..item(v1::EvidenceState::Seen) }];
    world.ingest.evidence(c1.clone(), v1::EvidenceBatch { items }).await.unwrap();
    assert_eq!(world.text("SELECT evidence FROM faults").await, "clear");
    assert_eq!(world.count("judgements WHERE due_at <= clock_timestamp()").await, 1);
}

#[tokio::test]
async fn a_whole_snapshot_says_what_is_gone_and_a_part_of_one_does_not() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.snapshot(&c1, (0..3).map(node).collect()).await;
    let part = v1::SnapshotPart { part: 1, parts: 2, nodes: vec![node(0)], config: None, sources: vec![] };
    world.state(&c1, v1::cluster_state::Body::Snapshot(part)).await;
    assert_eq!(world.count("nodes WHERE gone_at IS NULL").await, 3);
    let part = v1::SnapshotPart { part: 2, parts: 2, nodes: vec![node(1)], config: None, sources: vec![] };
    world.state(&c1, v1::cluster_state::Body::Snapshot(part)).await;
    assert_eq!(world.lines("SELECT node_name FROM nodes WHERE gone_at IS NOT NULL").await, ["n2"]);
}

#[tokio::test]
async fn another_machine_under_an_old_name_inherits_nothing() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.snapshot(&c1, vec![node(0)]).await;
    let successor = v1::NodeState { uid: "uid-new".into(), ..node(0) };
    let delta = v1::StateDelta { changed: vec![successor], ..Default::default() };
    world.state(&c1, v1::cluster_state::Body::Delta(delta)).await;
    assert_eq!(world.lines("SELECT node_uid FROM nodes WHERE gone_at IS NULL").await, ["uid-new"]);
    assert_eq!(world.lines("SELECT node_uid FROM nodes WHERE gone_at IS NOT NULL").await, ["uid-0"]);
}

#[tokio::test]
async fn a_state_of_an_older_leader_is_passed_over() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let state = |lease, seq, nodes| v1::ClusterState {
        lease_transitions: lease,
        seq,
        as_of_unix_ms: 0,
        told_upto_unix_ms: 0,
        all_told_term: 0,
        body: Some(v1::cluster_state::Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes, config: None, sources: vec![] })),
    };
    world.ingest.state(c1.clone(), state(2, 1, vec![node(0), node(1)])).await.unwrap();
    world.ingest.state(c1.clone(), state(1, 9, vec![node(0)])).await.unwrap();
    assert_eq!(world.count("nodes WHERE gone_at IS NULL").await, 2);
}

/// Failure table, row 18.
#[tokio::test]
async fn a_plan_revision_that_was_never_given_out_raises_the_term_and_is_taken_over() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    assert_eq!(world.text("SELECT hub_term FROM hub_state").await, "1");
    let ahead = v1::NodeState { plan_revision: 7, ..node(1) };
    let delta = || v1::cluster_state::Body::Delta(v1::StateDelta { changed: vec![ahead.clone()], ..Default::default() });
    world.state(&c1, delta()).await;
    world.state(&c1, delta()).await;
    assert_eq!(world.text("SELECT hub_term FROM hub_state").await, "2", "once");
    assert_eq!(world.count("audit_entries WHERE kind = 'term_raised'").await, 1);
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(
        world.count("commands WHERE action <> 'notify'").await,
        0,
        "nothing is done before the cluster has shown all that it has"
    );
    world.snapshot(&c1, vec![node(0), ahead.clone(), node(2)]).await;
    world.run("UPDATE judgements SET due_at = clock_timestamp() WHERE node_uid = 'uid-1'").await;
    world.decide().await;
    assert_eq!(world.lines("SELECT hub_term::text FROM commands WHERE action <> 'notify' AND plan_rev > 7").await, ["2"]);
}

/// Failure table, row 18.
#[tokio::test]
async fn several_clusters_whose_states_show_one_loss_at_once_raise_the_epoch_once() {
    let world = World::healing(3).await;
    let clusters = ["c1", "c2", "c3"].map(cluster);
    for cluster in &clusters[1..] {
        world.snapshot(cluster, vec![node(0)]).await;
    }
    let ahead = || vec![v1::NodeState { plan_revision: 7, ..node(0) }];
    // Whoever holds the epoch lets all of them read it before the first may raise it.
    let mut holds = world.pool.begin().await.unwrap();
    sqlx::query("SELECT FROM hub_state FOR UPDATE").execute(&mut *holds).await.unwrap();
    let [one, two, three] = &clusters;
    tokio::join!(world.snapshot(one, ahead()), world.snapshot(two, ahead()), world.snapshot(three, ahead()), async {
        let wait =
            "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE hub_state%' AND datname = current_database()";
        while world.count(wait).await < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        holds.commit().await.unwrap();
    });
    assert_eq!(world.text("SELECT hub_term FROM hub_state").await, "2", "one loss");
    assert_eq!(world.count("audit_entries WHERE kind = 'term_raised'").await, 1);
    assert_eq!(world.count("nodes WHERE plan_rev_issued = 7").await, 3, "and what each shows is taken over");
}

/// Failure table, row 4.
#[tokio::test]
async fn a_second_commit_of_a_stream_waits_for_the_first_and_begins_where_that_ended() {
    let world = World::healing(1).await;
    let (c1, stream) = (cluster("c1"), StreamId::parse("s1").unwrap());
    world.ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 0)])).await.unwrap();
    let of = [(c1.clone(), stream.clone())];
    let mut first = world.pool.begin().await.unwrap();
    assert_eq!(streams_lock(&mut first, &of).await.unwrap().0, [1]);
    let second = async {
        let mut second = world.pool.begin().await.unwrap();
        streams_lock(&mut second, &of).await.unwrap().0
    };
    let moves = async {
        let waits =
            "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM streams%' AND datname = current_database()";
        while world.count(waits).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        streams_advance(&mut first, &[Advance { cluster: &c1, stream: &stream, from: 1, to: 5 }]).await.unwrap();
        first.commit().await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        upto = second => assert_eq!(upto, [5]),
        () = moves => {}
    }
}
