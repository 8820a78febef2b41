//! Attaching, being taken over, and what the next session starts from.

use std::time::Duration;

use gpuheal_hub::link::Seen;
use gpuheal_proto::{
    fault::{FaultClass, NodeRef},
    ids::{FaultKey, NodeName, NodeUid},
    link::v1::{self, Heartbeat, RejectCode, attach_request::Message as Up, attach_response::Message},
};

use crate::{
    hub::{Hub, cluster, now},
    replica::{PATIENCE, Replica, hello},
};

async fn goaway(replica: &mut Replica) -> String {
    let goaway = replica.next_of(|message| if let Message::Goaway(goaway) = message { Some(goaway.reason) } else { None });
    goaway.await.expect("a goaway before the stream ends")
}

pub(crate) fn fault(id: &str) -> v1::Fault {
    let (name, uid) = (NodeName::parse("node-1").unwrap(), NodeUid::parse("node-uid-1").unwrap());
    let key = FaultKey::derive(&cluster(id), &uid, None, FaultClass::Driver.as_str(), "probe");
    v1::Fault {
        fault_key: key.to_string(),
        node: Some((&NodeRef { name, uid, boot_id: "b".into() }).into()),
        class: v1::FaultClass::Driver.into(),
        code: "probe".into(),
        onset: v1::Onset::Edge.into(),
        witness: v1::Witness::NodeCondition.into(),
        observed_unix_ms: now().unix_ms(),
        source: "test".into(),
        ..v1::Fault::default()
    }
}

#[tokio::test]
async fn a_replica_that_attaches_again_takes_over_from_its_own_older_session() {
    let hub = Hub::start_with_database().await;
    let (mut first, welcome) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!((welcome.session_generation, welcome.hub_term), (1, 1));
    assert!(welcome.server_time_unix_ms > 0 && welcome.credit > 0);
    let (_second, welcome) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.session_generation, 2);
    assert_eq!(goaway(&mut first).await, "attached again");
    assert!(first.next().await.is_none(), "its stream is over");
}

#[tokio::test]
async fn a_hub_that_stops_sends_its_spokes_away_and_notes_that_they_left() {
    let hub = Hub::start_with_database().await;
    let (mut replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let pool = hub.pool.clone();
    drop(hub);
    assert_eq!(goaway(&mut replica).await, "the hub is stopping");
    assert!(replica.next().await.is_none(), "its stream is over");
    let noted = async {
        loop {
            let open: i64 =
                sqlx::query_scalar("SELECT count(*) FROM sessions WHERE detached_at IS NULL").fetch_one(&pool).await.unwrap();
            if open == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, noted).await.expect("the session is noted as over");
}

#[tokio::test]
async fn another_kube_system_uid_under_the_same_id_is_a_foreigner() {
    let hub = Hub::start_with_database().await;
    let _first = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let clone = v1::Hello { kube_system_uid: "another".into(), ..hello("alpha", "r1", None) };
    let reject = Replica::attach(&hub, clone).await.err().expect("a reject");
    assert_eq!(reject.code(), RejectCode::Foreign);
    let sessions: i64 = sqlx::query_scalar("SELECT count(*) FROM sessions").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(sessions, 1, "the clone left no session");
}

#[tokio::test]
async fn the_next_session_resumes_after_what_was_acked() {
    let hub = Hub::start_with_database().await;
    let (mut replica, welcome) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.resume[0].from_seq, 1);
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("alpha"), fault("alpha")] };
    replica.send(Up::FaultBatch(batch)).await;
    let ack = replica.next_of(|message| if let Message::FaultAck(ack) = message { Some(ack) } else { None }).await.unwrap();
    assert_eq!(ack.persisted_upto, 2);
    let (_again, welcome) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.resume[0].from_seq, 3);
}

#[tokio::test]
async fn a_batch_over_its_limit_ends_the_session_and_nothing_of_it_is_kept() {
    let hub = Hub::start_with_database().await;
    let (mut replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("alpha"); 257] };
    replica.send(Up::FaultBatch(batch)).await;
    assert!(goaway(&mut replica).await.contains("over its limit"));
    let faults: i64 = sqlx::query_scalar("SELECT count(*) FROM faults").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(faults, 0);
}

/// What is known of each journal: how far it was told of, and whether that was its end.
async fn journals(hub: &Hub) -> Vec<String> {
    let query =
        "SELECT format('%s %s %s', stream_id, told_upto, CASE WHEN ended THEN 'ended' ELSE 'written' END) FROM journals ORDER BY 1";
    sqlx::query_scalar(query).fetch_all(&hub.pool).await.unwrap()
}

async fn journals_are(hub: &Hub, wanted: &[&str]) {
    let there = async {
        while journals(hub).await != wanted {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let there = tokio::time::timeout(PATIENCE, there).await;
    assert!(there.is_ok(), "{:?} instead of {wanted:?}", journals(hub).await);
}

#[tokio::test]
async fn how_far_journals_go_is_known_from_the_hello_from_heartbeats_and_from_the_last_word() {
    let hub = Hub::start_with_database().await;
    let head = |stream: &str, next_seq| v1::JournalHead { stream_id: stream.into(), next_seq };
    let hello = v1::Hello { journals: vec![head("old", 8), head("new", 1)], ..hello("alpha", "r0", None) };
    let (mut replica, _) = Replica::attach(&hub, hello.clone()).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(journals(&hub).await, ["new 0 written", "old 7 ended"]);
    let beat = |next_seq, closing| Heartbeat { n: 1, head: Some(head("new", next_seq)), closing, ..Heartbeat::default() };
    replica.send(Up::Heartbeat(beat(4, false))).await;
    let seen = Seen { pool: hub.pool.clone(), registry: hub.registry.clone() };
    let noted = async {
        while journals(&hub).await[0] != "new 3 written" {
            seen.round().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, noted).await.expect("noted in bulk");
    // One that ends without a last word leaves what it said last.
    replica.send(Up::Heartbeat(beat(5, false))).await;
    let batch = v1::FaultBatch { stream_id: "new".into(), first_seq: 1, faults: vec![fault("alpha")] };
    replica.send(Up::FaultBatch(batch)).await;
    replica.next_of(|message| matches!(message, Message::FaultAck(_)).then_some(())).await.expect("what came before was read");
    drop(replica);
    journals_are(&hub, &["new 4 written", "old 7 ended"]).await;
    (replica, _) = Replica::attach(&hub, hello).await.unwrap_or_else(|r| panic!("{r:?}"));
    replica.send(Up::Heartbeat(beat(6, true))).await;
    assert_eq!(goaway(&mut replica).await, "its journal is closed", "it may go now");
    assert_eq!(journals(&hub).await, ["new 5 ended", "old 7 ended"]);
}

#[tokio::test]
async fn a_session_that_another_hub_took_over_ends_at_the_next_sign_of_life() {
    let hub = Hub::start_with_database().await;
    let (mut replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let seen = Seen { pool: hub.pool.clone(), registry: hub.registry.clone() };
    seen.round().await.unwrap();
    sqlx::query("UPDATE sessions SET session_generation = session_generation + 1, hub_id = 'other'")
        .execute(&hub.pool)
        .await
        .unwrap();
    seen.round().await.unwrap();
    assert!(goaway(&mut replica).await.contains("another hub"));
}

#[tokio::test]
async fn a_cluster_that_has_seen_a_later_database_raises_the_term() {
    let hub = Hub::start_with_database().await;
    let seen = v1::Hello { hub_term_seen: 7, cmd_seq_seen: 40, ..hello("alpha", "r0", None) };
    let (mut replica, welcome) = Replica::attach(&hub, seen.clone()).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.hub_term, 8);
    let resync = replica.next_of(|message| if let Message::Resync(resync) = message { Some(resync) } else { None }).await.unwrap();
    assert_eq!(resync.all_under_term, 8);
    let (_again, welcome) = Replica::attach(&hub, seen).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.hub_term, 8, "once is enough");
}

#[tokio::test]
async fn leadership_is_what_the_last_heartbeat_proved() {
    let hub = Hub::start_with_database().await;
    let (replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert!(hub.registry.leading().is_empty());
    for lease in [Some(3), None] {
        replica.send(Up::Heartbeat(Heartbeat { n: 1, lease_transitions: lease, ..Heartbeat::default() })).await;
        let shown = async {
            loop {
                let row: Option<i64> =
                    sqlx::query_scalar("SELECT lease_transitions FROM sessions").fetch_one(&hub.pool).await.unwrap();
                if row == lease.map(u64::cast_signed) && hub.registry.leading().len() == usize::from(lease.is_some()) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, shown).await.expect("the proof is noted");
    }
}

/// Failure table, row 37.
#[tokio::test]
async fn a_fault_that_the_standby_alone_was_told_of_is_kept_and_the_leaders_own_sight_of_it_adds_none() {
    let hub = Hub::start_with_database().await;
    let (mut leader, _) = Replica::attach(&hub, hello("alpha", "r0", Some(3))).await.unwrap_or_else(|r| panic!("{r:?}"));
    let (mut standby, _) = Replica::attach(&hub, hello("alpha", "r1", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    for (replica, stream) in [(&mut standby, "stream-of-r1"), (&mut leader, "stream-of-r0")] {
        let batch = v1::FaultBatch { stream_id: stream.into(), first_seq: 1, faults: vec![fault("alpha")] };
        replica.send(Up::FaultBatch(batch)).await;
        let ack = replica.next_of(|message| if let Message::FaultAck(ack) = message { Some(ack) } else { None }).await;
        let ack = ack.unwrap_or_else(|| panic!("the session of {stream} ended"));
        assert_eq!((ack.stream_id.as_str(), ack.persisted_upto), (stream, 1));
        let faults: i64 = sqlx::query_scalar("SELECT count(*) FROM faults").fetch_one(&hub.pool).await.unwrap();
        assert_eq!(faults, 1);
    }
}

#[tokio::test]
async fn a_fault_is_acked_while_a_status_before_it_waits() {
    let hub = Hub::start_with_database().await;
    let (mut replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    // Of one that is not, a command that is not known here is told again.
    sqlx::query("UPDATE clusters SET taken_over_term = hub_term()").execute(&hub.pool).await.unwrap();
    let mut lock = hub.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE reports IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let id = "01a228f9-c6a9-746f-9531-0bdf008d80d5";
    let status =
        v1::CommandStatus { command_id: id.into(), status_seq: 1, state: v1::CommandState::Received.into(), ..Default::default() };
    replica.send(Up::CommandStatus(status)).await;
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("alpha")] };
    replica.send(Up::FaultBatch(batch)).await;
    let answer = |message| match message {
        Message::FaultAck(ack) => Some(ack.persisted_upto),
        Message::StatusAck(_) => Some(0),
        _ => None,
    };
    assert_eq!(replica.next_of(answer).await, Some(1), "the fault's ack does not wait for the status");
    lock.rollback().await.unwrap();
    assert_eq!(replica.next_of(answer).await, Some(0), "the status is acked once it is kept");
}

/// Failure table, row 18.
#[tokio::test]
async fn a_proof_that_was_checked_before_the_epoch_rose_and_is_kept_after_it_makes_no_leader() {
    let hub = Hub::start_with_database().await;
    let (mut replica, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    // What a beat says is checked; its commit waits until the epoch has risen and the session was asked under it.
    for statement in [
        "CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER waits AFTER UPDATE OF lease_transitions ON sessions DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW WHEN (NEW.lease_transitions IS NOT NULL) EXECUTE FUNCTION waits()",
    ] {
        sqlx::query(statement).execute(&hub.pool).await.unwrap();
    }
    let mut holds = hub.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(4711)").execute(&mut *holds).await.unwrap();
    let beat = || Up::Heartbeat(v1::Heartbeat { lease_transitions: Some(5), ..v1::Heartbeat::default() });
    replica.send(beat()).await;
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while sqlx::query_scalar::<_, i64>(waits).fetch_one(&hub.pool).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    sqlx::query("UPDATE hub_state SET hub_term = hub_term + 1").execute(&hub.pool).await.unwrap();
    let asked = |message| matches!(&message, Message::Resync(resync) if resync.all_under_term == 2).then_some(());
    replica.next_of(asked).await.expect("it is asked for all that it has");
    holds.commit().await.unwrap();
    // Whatever was on its way before the answer to this has been taken.
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("alpha")] };
    let kept = "SELECT count(*) FROM sessions WHERE lease_transitions = 5";
    while sqlx::query_scalar::<_, i64>(kept).fetch_one(&hub.pool).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    replica.send(Up::FaultBatch(batch)).await;
    let acked = |message| matches!(message, Message::FaultAck(_)).then_some(());
    replica.next_of(acked).await.expect("the session goes on");
    assert!(hub.registry.leading().is_empty(), "its numbers of now were not shown yet");
    replica.send(beat()).await;
    while hub.registry.leading().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
