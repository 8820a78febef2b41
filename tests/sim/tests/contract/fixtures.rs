//! A small fleet for claims: clusters, nodes, faults, what spokes say.

use gpuheal_hub::link::hello::{Hello, Journal, Seen};
use gpuheal_proto::{
    command::{Command, Step, Target, Times},
    fault::{Fault, FaultClass, GpuRef, NodeRef, Onset, Witness},
    ids::{ClusterId, CommandId, FaultKey, GpuSlot, IncidentId, NodeName, NodeUid, ReplicaId, StreamId, uuid_v7},
    link::v1::{self, cluster_state::Body},
    time::Timestamp,
};

/// Heals at once, and no number stands in the way of a claim about something else.
pub(crate) const HEAL: &str = "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata: {name: contract}\nspec:\n  mode: heal\n  cooldown: 10m\n  \
    recovery: {soak: 10m}\n  budgets:\n    fleet: {percent: 50}\n    cluster: {percent: 50}\n  breaker: {percent: 100, nodesMin: 1000}\n";

pub(crate) fn c1() -> ClusterId {
    ClusterId::parse("c1").unwrap()
}

pub(crate) fn hello(replica: &str, streams: &[&str]) -> Hello {
    Hello {
        cluster: c1(),
        kube_system_uid: "uid-of-c1".into(),
        replica: ReplicaId::parse(replica).unwrap(),
        boot_id: "b".into(),
        version: "1".into(),
        caps: vec![],
        journals: streams.iter().map(|stream| Journal { stream: StreamId::parse(stream).unwrap(), upto: 0 }).collect(),
        journal_new: false,
        seen: Seen::default(),
        lease_transitions: Some(1),
        wall: None,
    }
}

pub(crate) fn node(n: u32) -> v1::NodeState {
    let gpu = |bus: u32| v1::GpuRef { slot: format!("0000:{bus:02x}:00"), uuid: format!("GPU-{n}-{bus}"), model: "H100".into() };
    v1::NodeState {
        name: format!("n{n}"),
        uid: format!("uid-{n}"),
        boot_id: "boot-1".into(),
        created_unix_ms: 1_700_000_000_000,
        gpus: vec![gpu(0x5d), gpu(0x5e)],
        capacity_gpus: 2,
        allocatable_gpus: 2,
        ready: v1::Readiness::Ready.into(),
        ..Default::default()
    }
}

pub(crate) fn marked(n: u32, plan_revision: u64) -> v1::NodeState {
    let mark = v1::Mark { labelled: true, tainted: true, ..v1::Mark::default() };
    v1::NodeState { mark: Some(mark), plan_revision, ..node(n) }
}

pub(crate) fn snapshot(nodes: Vec<v1::NodeState>) -> Body {
    Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes, ..v1::SnapshotPart::default() })
}

pub(crate) fn fault(n: u32, code: &str, onset: Onset, witness: Witness, observed_ms: i64) -> Fault {
    let node = NodeRef {
        name: NodeName::parse(&format!("n{n}")).unwrap(),
        uid: NodeUid::parse(&format!("uid-{n}")).unwrap(),
        boot_id: "boot-1".into(),
    };
    let gpu = GpuRef { slot: GpuSlot::normalise("0000:5d:00"), uuid: None, model: "H100".into() };
    let mut fault = Fault {
        key: FaultKey::derive(&c1(), &node.uid, None, "", ""),
        node,
        gpu: Some(gpu),
        class: FaultClass::Xid,
        code: code.into(),
        onset,
        witness,
        observed_at: Timestamp::from_unix_ms(observed_ms),
        value: 79.0,
        threshold: 0.0,
        count: 1,
        source: "contract".into(),
        detail: String::new(),
        workload: String::new(),
    };
    fault.key = fault.derived_key(&c1());
    fault
}

/// Xid 79 by a decoded kernel line: stands alone, P0.
pub(crate) fn xid79(n: u32, observed_ms: i64) -> Fault {
    fault(n, "79", Onset::Edge, Witness::KernelLine, observed_ms)
}

/// The mark of a node, as a database had issued it that has lost it since.
pub(crate) fn lost(n: u32, number: u64, plan_rev: u64, now: Timestamp) -> Command {
    let id = |what: u8| uuid_v7(now, &[what + u8::try_from(number).unwrap(); 32]);
    let after = |minutes: u64| now.after(std::time::Duration::from_secs(minutes * 60));
    let fault = xid79(n, 100);
    Command {
        id: CommandId::from_uuid(id(1)),
        idempotency_key: format!("lost-{number}"),
        audience: c1(),
        key_epoch: 1,
        hub_term: 1,
        cmd_seq: number,
        plan_rev,
        times: Times { created: now, deliver_by: after(4), start_by: after(5), finish_by: after(10), expires: after(15) },
        incident: IncidentId::from_uuid(id(100)),
        level: "P0".into(),
        reason: "xid 79".into(),
        policy_revision: 1,
        policy_digest: "d".into(),
        target: Target { node: fault.node, gpu: None },
        fault_keys: vec![fault.key],
        ignore_cooldown: false,
        others: Default::default(),
        steps: vec![Step::Mark { label: true, taint: true, cordon: false }],
    }
}

pub(crate) fn batch(stream: &str, first_seq: u64, faults: &[Fault]) -> v1::FaultBatch {
    v1::FaultBatch { stream_id: stream.into(), first_seq, faults: faults.iter().map(Into::into).collect() }
}

pub(crate) fn evidence(fault: &Fault, state: v1::EvidenceState) -> v1::Evidence {
    v1::Evidence { fault_key: fault.key.to_string(), state: state.into(), count: 1, ..v1::Evidence::default() }
}

pub(crate) fn status(seq: u64, state: v1::CommandState) -> v1::CommandStatus {
    v1::CommandStatus {
        status_seq: seq,
        state: state.into(),
        lease_transitions: 1,
        reason: "so it was".into(),
        ..Default::default()
    }
}

pub(crate) fn done(seq: u64, steps: &[&str]) -> v1::CommandStatus {
    let step = |name: &&str| v1::StepStatus { name: (*name).into(), state: v1::StepState::Done.into(), ..Default::default() };
    let field = v1::UndoField {
        kind: v1::UndoKind::Label.into(),
        key: "gpu-selfhealing.io/status".into(),
        after: "\"faulty\"".into(),
        resource_version: "1".into(),
        ..Default::default()
    };
    v1::CommandStatus {
        steps: steps.iter().map(step).collect(),
        undo: Some(v1::UndoRecord { fields: vec![field] }),
        ..status(seq, v1::CommandState::Succeeded)
    }
}
