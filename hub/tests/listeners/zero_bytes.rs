//! Zero bytes, which Postgres holds in no text: in every text of every message that a spoke may send, none of them ends its
//! session or is lost without a word.

use gpuheal_hub::{decide, policy_file, store::policy::policy_apply};
use gpuheal_proto::link::v1::{self, attach_request::Message as Up, attach_response::Message, cluster_state::Body};
use sqlx::AssertSqlSafe;

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello, xid79},
};

const HEAL: &str = "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata: {name: test}\nspec:\n  mode: heal\n";

async fn text(hub: &Hub, query: &str) -> String {
    let row: Option<Option<String>> =
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT ({query})::text"))).fetch_optional(&hub.pool).await.unwrap();
    row.flatten().unwrap_or_default()
}

async fn until(hub: &Hub, query: &str, want: &str) {
    let seen = async {
        while text(hub, query).await != want {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "{query} never was {want}: {}", text(hub, query).await);
}

fn node(n: u32) -> v1::NodeState {
    v1::NodeState {
        name: format!("n{n}"),
        uid: format!("uid-{n}"),
        boot_id: "boot".into(),
        created_unix_ms: 1_700_000_000_000,
        capacity_gpus: 1,
        allocatable_gpus: 1,
        ready: v1::Readiness::Ready.into(),
        ..Default::default()
    }
}

/// With a zero byte in every text but its name and UID, and moments that no calendar has.
fn broken(n: u32) -> v1::NodeState {
    let z = || "a\0b".to_owned();
    v1::NodeState {
        boot_id: z(),
        created_unix_ms: i64::MAX,
        labels: [(z(), z())].into(),
        gpus: vec![
            v1::GpuRef { slot: "0000:5d:00".into(), uuid: "GPU-1".into(), model: z() },
            v1::GpuRef { slot: z(), uuid: z(), model: z() },
        ],
        unschedulable_by: z(),
        mark: Some(v1::Mark { incident_id: z(), last_process_unix_ms: i64::MAX, ..Default::default() }),
        foreign_markers: vec![z()],
        gpu_pods: vec![v1::PodSummary { namespace: z(), name: z(), uid: z(), owner: z(), gpus: 1 }],
        ..node(n)
    }
}

fn snapshot(seq: u64, nodes: Vec<v1::NodeState>) -> Up {
    let z = || "a\0b".to_owned();
    let config = Some(v1::ClusterConfig { resource_version: z(), yaml: z(), errors: vec![z()] });
    let sources = vec![v1::SourceState { source: z(), node: z(), last_seen_unix_ms: 7, state: "stale".into(), reason: z() }];
    let body = Some(Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes, config, sources }));
    Up::ClusterState(v1::ClusterState {
        lease_transitions: 2,
        seq,
        as_of_unix_ms: i64::MIN,
        told_upto_unix_ms: i64::MAX,
        all_told_term: 1,
        body,
    })
}

fn fault(detail: &str) -> v1::Fault {
    v1::Fault { detail: detail.into(), ..xid79(None) }
}

async fn attached(hub: &Hub) -> Replica {
    let hello = v1::Hello {
        kube_system_uid: "u\0id".into(),
        boot_id: "bo\0ot".into(),
        version: "0\0".into(),
        caps: vec!["c\0".into()],
        open_commands: vec!["\0".into()],
        ..hello("alpha", "r0", Some(2))
    };
    Replica::attach(hub, hello).await.unwrap_or_else(|reject| panic!("{reject:?}")).0
}

async fn assert_never_ended(hub: &Hub) {
    assert_eq!(text(hub, "SELECT session_generation || ' ' || (detached_at IS NULL) FROM sessions").await, "1 true");
}

#[tokio::test]
async fn a_clusters_state_is_taken_and_a_node_that_cannot_be_read_is_set_aside_and_takes_nobody_away() {
    let hub = Hub::start_with_database().await;
    let replica = attached(&hub).await;
    assert_eq!(text(&hub, "SELECT boot_id FROM sessions").await, "bo\u{fffd}ot");
    replica.send(snapshot(1, vec![broken(1), node(2), node(3)])).await;
    until(&hub, "SELECT count(*) FROM nodes WHERE gone_at IS NULL", "3").await;
    let mended = "SELECT boot_id || ' ' || labels || ' ' || (gpu_pods->0->>'name') || ' ' || foreign_markers[1] FROM nodes WHERE node_name = 'n1'";
    assert_eq!(text(&hub, mended).await, "a\u{fffd}b {\"a\u{fffd}b\": \"a\u{fffd}b\"} a\u{fffd}b a\u{fffd}b");
    let named = v1::NodeState { name: "n\0".into(), ..node(2) };
    replica.send(snapshot(2, vec![broken(1), named, v1::NodeState { uid: "\0".into(), ..node(3) }])).await;
    until(&hub, "SELECT body::jsonb->>'count' FROM audit_entries WHERE kind = 'nodes_unreadable'", "2").await;
    assert_eq!(text(&hub, "SELECT count(*) FROM nodes WHERE gone_at IS NULL").await, "3", "nobody is gone by it");
    let delta = v1::StateDelta { gone_uids: vec!["uid-3\0".into(), "uid-2".into()], ..Default::default() };
    let body = Some(Body::Delta(delta));
    replica
        .send(Up::ClusterState(v1::ClusterState {
            lease_transitions: 2,
            seq: 3,
            as_of_unix_ms: 1,
            told_upto_unix_ms: 0,
            all_told_term: 0,
            body,
        }))
        .await;
    until(&hub, "SELECT string_agg(node_name, ' ' ORDER BY node_name) FROM nodes WHERE gone_at IS NULL", "n1 n3").await;
    assert_never_ended(&hub).await;
}

#[tokio::test]
async fn evidence_settings_gaps_requests_and_faults_are_answered_or_kept() {
    let hub = Hub::start_with_database().await;
    let mut replica = attached(&hub).await;
    let item = v1::Evidence { fault_key: "\0".into(), state: v1::EvidenceState::Seen.into(), ..Default::default() };
    replica.send(Up::Evidence(v1::EvidenceBatch { items: vec![item] })).await;
    replica.send(Up::SettingsAck(v1::SettingsAck { version: 1, errors: vec!["e\0".into()] })).await;
    until(&hub, "SELECT settings_errors->>0 FROM clusters", "e\u{fffd}").await;

    let (stream_id, counts_by_class) = ("stream-of-r0".to_owned(), [("x\0".to_owned(), 2)].into());
    let gap = v1::Gap { stream_id: stream_id.clone(), from_seq: 1, to_seq: 2, reason: "full\0".into(), counts_by_class };
    replica.send(Up::Gap(gap)).await;
    replica.send(Up::FaultBatch(v1::FaultBatch { stream_id, first_seq: 3, faults: vec![fault("d\0"), fault("")] })).await;
    let acked = |message| if let Message::FaultAck(ack) = message { (ack.persisted_upto == 4).then_some(()) } else { None };
    replica.next_of(acked).await.expect("both are acked");
    assert_eq!(text(&hub, "SELECT reason || ' ' || counts_by_class FROM gaps").await, "full\u{fffd} {\"x\u{fffd}\": 2}");
    assert_eq!(text(&hub, "SELECT (SELECT count(*) FROM poison) || ' ' || (SELECT count(*) FROM faults)").await, "1 1");

    let request = v1::Process {
        request_id: "r\0a".into(),
        node: "n\0a".into(),
        action: v1::ProcessAction::Mark.into(),
        reason: "\0".into(),
        caller: "\0".into(),
        ..Default::default()
    };
    replica.send(Up::Process(request)).await;
    let answer =
        replica.next_of(|message| if let Message::ProcessResult(result) = message { Some(result) } else { None }).await.unwrap();
    assert_eq!((answer.request_id.as_str(), answer.outcome()), ("r\0a", v1::ProcessOutcome::Invalid));
    assert!(answer.reason.contains("request_id") && answer.reason.contains("zero byte"), "{}", answer.reason);
    assert_never_ended(&hub).await;
}

#[tokio::test]
async fn a_status_of_a_command_is_settled_with_its_steps_and_undo() {
    let hub = Hub::start_with_database().await;
    let mut replica = attached(&hub).await;
    policy_apply(&hub.pool, HEAL, &policy_file::check(HEAL).unwrap().digest, "test", "").await.unwrap();
    let body = Some(Body::Snapshot(v1::SnapshotPart {
        part: 1,
        parts: 1,
        nodes: (1..30).map(node).collect(),
        config: None,
        sources: vec![],
    }));
    let as_of_unix_ms = gpuheal_hub::clock::now().unix_ms();
    replica
        .send(Up::ClusterState(v1::ClusterState {
            lease_transitions: 2,
            seq: 1,
            as_of_unix_ms,
            told_upto_unix_ms: 0,
            all_told_term: 1,
            body,
        }))
        .await;
    until(&hub, "SELECT count(*) FROM nodes", "29").await;
    replica.send(Up::FaultBatch(v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("")] })).await;
    replica.next_of(|message| matches!(message, Message::FaultAck(_)).then_some(())).await.unwrap();
    decide::step(&hub.pool, &hub.wake).await.unwrap();
    let dispatched = "UPDATE commands SET state = 'DISPATCHED', envelope = 'x', envelope_sha256 = repeat('a', 64), key_id = 'k', key_epoch = 1, \
                      signed_at = clock_timestamp(), sent_at = clock_timestamp()";
    assert_eq!(sqlx::query(dispatched).execute(&hub.pool).await.unwrap().rows_affected(), 1);

    let z = || "a\0b".to_owned();
    let pod =
        v1::PodStatus { namespace: z(), name: z(), uid: z(), state: z(), reason: z(), eviction_calls: 1, ..Default::default() };
    let step = v1::StepStatus { name: z(), state: v1::StepState::Done.into(), message: z(), pods: vec![pod], ..Default::default() };
    let field = v1::UndoField { kind: v1::UndoKind::Label.into(), key: z(), before: z(), after: z(), resource_version: z() };
    let status = v1::CommandStatus {
        command_id: text(&hub, "SELECT command_id FROM commands").await,
        status_seq: 1,
        state: v1::CommandState::Failed.into(),
        reason: z(),
        steps: vec![step],
        undo: Some(v1::UndoRecord { fields: vec![field] }),
        at_unix_ms: i64::MIN,
        ..Default::default()
    };
    let strange = v1::CommandStatus { command_id: "c\0".into(), envelope_sha256: z(), reason: z(), ..Default::default() };
    for status in [status, strange] {
        replica.send(Up::CommandStatus(status)).await;
        replica.next_of(|message| matches!(message, Message::StatusAck(_)).then_some(())).await.expect("an ack");
    }
    let settled = "SELECT state || ' ' || result_reason || ' ' || (steps->0->'pods'->0->>'name') || ' ' || (undo->'fields'->0->>'key') FROM commands";
    assert_eq!(text(&hub, settled).await, "FAILED a\u{fffd}b a\u{fffd}b a\u{fffd}b");
    assert_eq!(text(&hub, "SELECT count(*) FROM reports").await, "2");
    assert_never_ended(&hub).await;
}
