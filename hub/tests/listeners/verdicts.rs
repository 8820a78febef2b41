//! What a leader is told of decisions about its faults.

use gpuheal_hub::{decide, link::Verdicts, policy_file, store::policy::policy_apply};
use gpuheal_proto::link::v1::{self, attach_request::Message as Up, attach_response::Message};

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello, inventory_kept, xid79},
};

const HEAL: &str = "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata: {name: test}\nspec:\n  mode: heal\n";

fn inventory() -> Up {
    let node = v1::NodeState {
        name: "n1".into(),
        uid: "uid-1".into(),
        boot_id: "boot".into(),
        created_unix_ms: 1_700_000_000_000,
        gpus: vec![v1::GpuRef { slot: "0000:5d:00".into(), uuid: "GPU-1".into(), model: "NVIDIA H100".into() }],
        capacity_gpus: 1,
        allocatable_gpus: 1,
        ready: v1::Readiness::Ready.into(),
        ..Default::default()
    };
    let part = v1::SnapshotPart { part: 1, parts: 1, nodes: vec![node], config: None, sources: vec![] };
    let as_of_unix_ms = gpuheal_hub::clock::now().unix_ms();
    let body = Some(v1::cluster_state::Body::Snapshot(part));
    Up::ClusterState(v1::ClusterState {
        lease_transitions: 2,
        seq: 1,
        as_of_unix_ms,
        told_upto_unix_ms: as_of_unix_ms,
        all_told_term: 1,
        body,
    })
}

fn faults() -> (String, Up) {
    let fault = xid79(Some(v1::GpuRef { slot: "0000:5d:00".into(), uuid: String::new(), model: "NVIDIA H100".into() }));
    let key = fault.fault_key.clone();
    (key, Up::FaultBatch(v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault] }))
}

async fn next(verdicts: &mut Verdicts, replica: &mut Replica) -> v1::Verdict {
    let told = async {
        while verdicts.round().await.unwrap() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("a verdict");
    replica.next_of(|message| if let Message::Verdict(verdict) = message { Some(verdict) } else { None }).await.unwrap()
}

#[tokio::test]
async fn a_leader_is_told_once_what_became_of_its_fault() {
    let hub = Hub::start_with_database().await;
    let (mut leader, _) = Replica::attach(&hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}"));
    let mut verdicts = Verdicts::new(hub.pool.clone(), hub.registry.clone());
    assert_eq!(verdicts.round().await.unwrap(), 0);
    let (key, batch) = faults();
    leader.send(inventory()).await;
    inventory_kept(&hub).await;
    leader.send(batch).await;
    leader.next_of(|message| matches!(message, Message::FaultAck(ref ack) if ack.persisted_upto == 1).then_some(())).await.unwrap();
    decide::step(&hub.pool, &hub.wake).await.unwrap();
    let told = next(&mut verdicts, &mut leader).await;
    assert_eq!((told.node.as_str(), told.fault_key.as_str(), told.outcome.as_str()), ("n1", key.as_str(), "recorded"));
    assert!(told.reason.contains("observe"), "the mode is why: {}", told.reason);
    let policy = policy_file::check(HEAL).unwrap();
    policy_apply(&hub.pool, HEAL, &policy.digest, "test", "").await.unwrap();
    decide::step(&hub.pool, &hub.wake).await.unwrap();
    assert_eq!(next(&mut verdicts, &mut leader).await.outcome, "acted");
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(verdicts.round().await.unwrap(), 0, "nothing is told twice");
}
