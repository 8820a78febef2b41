//! Everything that one decision may look at: one node's whole story, read by the hub in one transaction. All times are
//! the hub's own receive times (the database's clock); what a spoke's clock said is never in here.

use std::collections::BTreeMap;

use gpuheal_proto::{
    command::{CommandState, Refusal, Undo},
    fault::{FaultClass, GpuRef, NodeRef, Onset, Witness},
    ids::{ClusterId, CommandId, FaultKey, IncidentId},
    time::Timestamp,
    words::{Action, Level},
    workload::Workload,
};
use serde::{Deserialize, Serialize};

use crate::{budget::RateState, cooldown::Cooldown, incident::IncidentState, policy::Narrowing};

/// One node's whole story.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The cluster it is in.
    pub cluster: Cluster,
    /// The node itself.
    pub node: Node,
    /// Faults of this node that are known and not over; settled ones too, since they may corroborate.
    pub faults: Vec<KnownFault>,
    /// The one open incident, if there is one.
    pub incident: Option<Incident>,
    /// Every command of that incident, oldest first.
    pub commands: Vec<KnownCommand>,
    /// The node's cooldown row.
    pub cooldown: Option<Cooldown>,
    /// When the first command of each other incident that quarantined this node was made, inside the policy's window: one that
    /// drains its GPUs one after the other is one attempt.
    pub attempts: Vec<Timestamp>,
    /// What a person asks for right now.
    pub request: Option<Request>,
}

/// What the decision must know of the cluster and the fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Which one.
    pub id: ClusterId,
    /// GPU nodes in it: the budget's denominator.
    pub gpu_nodes: u32,
    /// Nodes out: marked by us, or commanded and not heard of. This node counts when it holds.
    pub out: u32,
    /// GPU nodes of the whole fleet.
    pub fleet_gpu_nodes: u32,
    /// Nodes out in the whole fleet.
    pub fleet_out: u32,
    /// Of those, nodes that may be out in clusters that are not taken over under the database's epoch yet.
    pub fleet_adopting: u32,
    /// The cluster's rate.
    pub rate: RateState,
    /// The fleet's rate.
    pub fleet_rate: RateState,
    /// The cluster owner's own settings, if the ConfigMap has any.
    pub narrowing: Option<Narrowing>,
    /// How much can be believed of what is seen.
    pub observer: Observer,
    /// Why the whole fleet is stopped, if it is.
    pub fleet_stop: Option<String>,
    /// Nodes of this cluster (this one too) with a fault above P2 that began inside the breaker's window.
    pub newly_suspect: u32,
}

impl Cluster {
    /// All that it has is known under the database's epoch.
    #[must_use]
    pub const fn taken_over(&self) -> bool {
        self.observer.state_at.is_some()
    }
}

/// Whether the cluster's own eyes can be believed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observer {
    /// Which moment the state of the cluster describes; `None`: the cluster is not taken over under the database's epoch.
    pub state_at: Option<Timestamp>,
    /// All that its sources showed up to this moment is known here. Nothing while no spoke could say so.
    pub told_upto: Option<Timestamp>,
}

/// What the kubelet says through the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// Ready.
    Ready,
    /// Not ready.
    NotReady,
    /// Nobody knows.
    Unknown,
}

/// The node as the cluster last showed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Name, UID, boot id.
    pub reference: NodeRef,
    /// Labels that policy scopes by.
    pub labels: BTreeMap<String, String>,
    /// GPUs whose rows are there now.
    pub gpus: Vec<GpuRef>,
    /// GPUs that the node has by its own capacity: the inventory.
    pub capacity_gpus: u32,
    /// GPUs that may be handed out.
    pub allocatable_gpus: u32,
    /// The kubelet's word.
    pub ready: Ready,
    /// Cordoned, by whomever.
    pub unschedulable: bool,
    /// Field manager that last wrote `spec.unschedulable`; empty when unknown.
    pub unschedulable_by: String,
    /// What of ours is on the node.
    pub mark: Option<Mark>,
    /// The plan revision in the node's annotation, 0 when there is none.
    pub plan_revision: u64,
    /// The highest plan revision that the hub ever gave out for this node.
    pub plan_rev_floor: u64,
    /// Its owner keeps us off.
    pub opted_out: bool,
    /// Somebody else is at work on it.
    pub foreign_markers: Vec<String>,
    /// When the Node object was made, as the cluster says.
    pub created_at: Timestamp,
    /// The moment that this view describes, confirmed by every later state that does not speak of the node;
    /// [`Timestamp::EPOCH`]: never seen.
    pub seen_at: Timestamp,
    /// When a command of ours that writes to the node last moved; [`Timestamp::EPOCH`]: never, or the node bears no mark.
    pub written_at: Timestamp,
    /// Its object was seen deleted. A failed read is never that.
    pub gone: bool,
}

impl Node {
    /// A node that faults speak of and no state of its cluster has shown.
    #[must_use]
    pub fn never_shown(reference: NodeRef) -> Self {
        Self {
            reference,
            labels: BTreeMap::new(),
            gpus: Vec::new(),
            capacity_gpus: 0,
            allocatable_gpus: 0,
            ready: Ready::Unknown,
            unschedulable: false,
            unschedulable_by: String::new(),
            mark: None,
            plan_revision: 0,
            plan_rev_floor: 0,
            opted_out: false,
            foreign_markers: Vec::new(),
            created_at: Timestamp::EPOCH,
            seen_at: Timestamp::EPOCH,
            written_at: Timestamp::EPOCH,
            gone: false,
        }
    }
}

/// What of ours is on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Our label.
    pub labelled: bool,
    /// Our taint.
    pub tainted: bool,
    /// A cordon that we set.
    pub cordoned_by_us: bool,
    /// The incident that the node's annotation names; empty when it names none.
    pub incident: String,
}

/// A fault with everybody who saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownFault {
    /// Identity.
    pub key: FaultKey,
    /// Which GPU; `None`: the whole node, or nobody said.
    pub gpu: Option<GpuRef>,
    /// Kind.
    pub class: FaultClass,
    /// Code within the kind.
    pub code: String,
    /// Counted up by ingest when an edge arrives for a fault that was settled or clear.
    pub episode: u32,
    /// First sight in this episode.
    pub first_at: Timestamp,
    /// Last sight.
    pub last_at: Timestamp,
    /// Highest count within the window that anybody reported.
    pub count: u32,
    /// Who saw it.
    pub witnesses: Vec<Seen>,
    /// How it stands now by its own source.
    pub evidence: Evidence,
    /// `namespace/pod` that used the GPU, or empty.
    pub workload: String,
    /// What an earlier, closed incident made of this episode.
    pub settled: Option<Settled>,
}

/// One kind of witness of a fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Kind.
    pub kind: Witness,
    /// Edge once any sight was an edge.
    pub onset: Onset,
    /// First sight.
    pub first_at: Timestamp,
    /// Last sight.
    pub last_at: Timestamp,
    /// Highest count within the window.
    pub count: u32,
    /// The last reading.
    pub value: f64,
    /// The threshold it passed.
    pub threshold: f64,
    /// The observer by name.
    pub source: String,
    /// What the source said.
    pub detail: String,
}

/// How a fault stands by its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceState {
    /// The source is fresh and shows it.
    Seen,
    /// The source is fresh and shows it no longer.
    Clear,
    /// The source is silent: neither.
    Stale,
}

/// The evidence and since when it stands so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// How it stands.
    pub state: EvidenceState,
    /// Since when.
    pub since: Timestamp,
}

/// What a closed incident made of a fault's episode: it opens nothing again unless it became worse than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Up to which level. A person's word settles up to P0.
    pub level: Level,
}

/// The open incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// Which.
    pub id: IncidentId,
    /// Where it stands.
    pub state: IncidentState,
    /// The worst level so far.
    pub level: Level,
    /// A person asked for it; no fault did.
    pub manual: bool,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// Since when it is in `state`.
    pub state_at: Timestamp,
    /// Decisions taken so far; the next one is this plus 1.
    pub decision_no: u32,
    /// The policy that spoke last.
    pub policy_revision: u64,
    /// The faults it holds.
    pub fault_keys: Vec<FaultKey>,
    /// Those of them that have asked for an eviction in a decision before: a person has been called for them, or a drain made.
    pub asked_keys: Vec<FaultKey>,
    /// It holds a place in the budgets.
    pub held: bool,
    /// Merged record of what we changed on the node.
    pub undo: Undo,
    /// The stored reason: words only, never judged by.
    pub reason: String,
}

/// A command of the open incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KnownCommand {
    /// Which.
    pub id: CommandId,
    /// What for.
    pub action: Action,
    /// The names of its steps, in order.
    pub steps: Vec<String>,
    /// The GPU whose users alone it drains; `None`: all of the node's.
    pub gpu: Option<GpuRef>,
    /// Its Mark step cordons too.
    pub cordons: bool,
    /// Where it stands.
    pub state: CommandState,
    /// Names of the steps that were done.
    pub steps_done: Vec<String>,
    /// Why it was refused.
    pub refusal: Option<Refusal>,
    /// What its last report said.
    pub outcome: String,
    /// Its plan revision.
    pub plan_rev: u64,
    /// The decision it came from.
    pub decision_no: u32,
    /// The level it was decided at.
    pub level: Level,
    /// When it was made.
    pub created_at: Timestamp,
    /// No first effect after it.
    pub start_by: Timestamp,
    /// No step after it.
    pub finish_by: Timestamp,
    /// When its present state was stored.
    pub state_at: Timestamp,
}

/// What a person asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The caller's idempotency key.
    pub id: String,
    /// What is asked.
    pub action: Action,
    /// Why.
    pub reason: String,
    /// Who.
    pub caller: String,
    /// An explicit waiver of the cooldown.
    pub ignore_cooldown: bool,
    /// What a restart is of, at most [`gpuheal_proto::limits::WORKLOADS_MAX`].
    #[serde(default)]
    pub workloads: Vec<Workload>,
    /// An eviction may pass budgets at its deadline.
    #[serde(default)]
    pub past_budgets: bool,
}
