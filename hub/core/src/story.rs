//! Stories for tests: a healthy cluster and node, and faults to put on it.

use gpuheal_proto::{
    command::{CommandState, Undo},
    fault::{FaultClass, GpuRef, NodeRef, Onset, Witness},
    ids::{ClusterId, CommandId, FaultKey, GpuSlot, GpuUuid, IncidentId, NodeName, NodeUid, uuid_v7},
    time::Timestamp,
    words::{Action, Level, Mode},
};

use crate::{
    budget::RateState,
    incident::IncidentState,
    policy::{Policy, Settings},
    snapshot::*,
};

pub(crate) fn at(secs: i64) -> Timestamp {
    Timestamp::from_unix_ms(1_764_000_000_000 + secs * 1000)
}

/// The moment of most tests; the node is a day old by then.
pub(crate) fn now() -> Timestamp {
    at(0)
}

pub(crate) fn slot(bus: u8) -> GpuSlot {
    GpuSlot::normalise(&format!("0000:{bus:02x}:00")).unwrap()
}

pub(crate) fn gpu(bus: u8) -> GpuRef {
    GpuRef { slot: Some(slot(bus)), uuid: GpuUuid::parse(&format!("GPU-{bus:02x}")).ok(), model: "NVIDIA H100 80GB HBM3".into() }
}

pub(crate) fn cluster_id() -> ClusterId {
    ClusterId::parse("c1").unwrap()
}

pub(crate) fn uid() -> NodeUid {
    NodeUid::parse("uid-1").unwrap()
}

pub(crate) fn seen(kind: Witness, onset: Onset) -> Seen {
    Seen {
        kind,
        onset,
        first_at: at(-5),
        last_at: at(-1),
        count: 1,
        value: 0.0,
        threshold: 0.0,
        source: "test".into(),
        detail: String::new(),
    }
}

pub(crate) fn fault_on(gpu: Option<GpuRef>, class: FaultClass, code: &str, kind: Witness, onset: Onset) -> KnownFault {
    let place = gpu.as_ref().and_then(GpuRef::place);
    let key = FaultKey::derive(&cluster_id(), &uid(), place.as_ref(), class.as_str(), code);
    KnownFault {
        key,
        gpu,
        class,
        code: code.into(),
        episode: 1,
        first_at: at(-5),
        last_at: at(-1),
        count: 1,
        witnesses: vec![seen(kind, onset)],
        evidence: Evidence { state: EvidenceState::Seen, since: at(-5) },
        workload: String::new(),
        settled: None,
    }
}

pub(crate) fn fault(class: FaultClass, code: &str, kind: Witness, onset: Onset) -> KnownFault {
    fault_on(Some(gpu(0x5d)), class, code, kind, onset)
}

pub(crate) fn xid79() -> KnownFault {
    fault(FaultClass::Xid, "79", Witness::KernelLine, Onset::Edge)
}

pub(crate) fn policy(mode: Mode) -> Policy {
    Policy {
        name: "fleet".into(),
        revision: 1,
        digest: "d".into(),
        settings: Settings { mode, ..Settings::default() },
        rules: Default::default(),
    }
}

pub(crate) fn snapshot(faults: Vec<KnownFault>) -> Snapshot {
    let full = |milli_tokens| RateState { milli_tokens, at: at(-60) };
    Snapshot {
        cluster: Cluster {
            id: cluster_id(),
            gpu_nodes: 20,
            out: 0,
            fleet_gpu_nodes: 100,
            fleet_out: 0,
            fleet_adopting: 0,
            rate: full(2000),
            fleet_rate: full(10_000),
            narrowing: None,
            observer: Observer { state_at: Some(at(-2)), told_upto: Some(at(-2)) },
            fleet_stop: None,
            newly_suspect: 1,
        },
        node: Node {
            gpus: vec![gpu(0x5d), gpu(0x5e)],
            capacity_gpus: 2,
            allocatable_gpus: 2,
            ready: Ready::Ready,
            created_at: at(-86_400),
            seen_at: at(-2),
            ..Node::never_shown(NodeRef { name: NodeName::parse("n1").unwrap(), uid: uid(), boot_id: "b1".into() })
        },
        faults,
        incident: None,
        commands: vec![],
        cooldown: None,
        attempts: vec![],
        request: None,
    }
}

/// Somebody asks, and waives nothing.
pub(crate) fn request(action: Action) -> Request {
    Request {
        id: "r".into(),
        action,
        reason: "because".into(),
        caller: "someone".into(),
        ignore_cooldown: false,
        workloads: vec![],
        past_budgets: false,
    }
}

pub(crate) fn incident_id(n: u8) -> IncidentId {
    IncidentId::from_uuid(uuid_v7(at(-60), &[n; 32]))
}

pub(crate) fn incident(state: IncidentState, faults: &[KnownFault]) -> Incident {
    Incident {
        id: incident_id(1),
        state,
        level: Level::P0,
        manual: false,
        opened_at: at(-60),
        state_at: at(-60),
        decision_no: 1,
        policy_revision: 1,
        fault_keys: faults.iter().map(|fault| fault.key).collect(),
        asked_keys: faults.iter().map(|fault| fault.key).collect(),
        held: true,
        undo: Undo::default(),
        reason: String::new(),
    }
}

pub(crate) fn command(action: Action, steps: &[&str], state: CommandState) -> KnownCommand {
    KnownCommand {
        id: CommandId::from_uuid(uuid_v7(at(-60), &[9; 32])),
        action,
        steps: steps.iter().map(|&step| step.to_owned()).collect(),
        gpu: None,
        cordons: false,
        state,
        steps_done: if state == CommandState::Succeeded { steps.iter().map(|&step| step.to_owned()).collect() } else { vec![] },
        refusal: None,
        outcome: String::new(),
        plan_rev: 1,
        decision_no: 1,
        level: Level::P0,
        created_at: at(-60),
        start_by: at(240),
        finish_by: at(2400),
        state_at: at(-50),
    }
}

/// A node that is marked and drained by us for these faults, as the cluster shows it too.
pub(crate) fn quarantined(faults: Vec<KnownFault>) -> Snapshot {
    let incident = Incident { level: Level::P0, ..incident(IncidentState::Validating, &faults) };
    let id = incident.id.to_string();
    let mut snapshot = snapshot(faults);
    snapshot.incident = Some(incident);
    snapshot.commands = vec![command(Action::Evict, &["notify", "mark", "drain"], CommandState::Succeeded)];
    snapshot.node.mark = Some(Mark { labelled: true, tainted: true, cordoned_by_us: false, incident: id });
    snapshot.node.plan_revision = 1;
    snapshot.node.plan_rev_floor = 1;
    snapshot.cluster.out = 1;
    snapshot.cluster.fleet_out = 1;
    snapshot
}
