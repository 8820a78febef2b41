//! Rows as the hub's tables have them, in the types that hub/core speaks.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_hub::settle::StepReport;
use gpuheal_hub_core::{
    admit::Witnesses,
    budget::RateState,
    cooldown::Cooldown,
    decide::PlannedCommand,
    incident::IncidentState,
    snapshot::{Evidence, KnownFault, Mark, Ready, Settled},
};
use gpuheal_proto::{
    command::{CommandState, Undo},
    fault::{GpuRef, NodeRef, Onset},
    ids::{CommandId, FaultKey, IncidentId, NodeUid, ReplicaId, StreamId},
    link::v1,
    time::Timestamp,
    words::Level,
};

/// Everything of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Epoch in which it was first seen.
    pub(super) first_term: u64,
    pub(super) kube_system_uid: Option<String>,
    pub(super) quarantined: bool,
    pub(super) state_lease: u64,
    pub(super) state_seq: u64,
    /// The moment that its last state describes.
    pub state_as_of: Option<Timestamp>,
    /// All that its sources showed up to then is known.
    pub told_upto: Option<Timestamp>,
    /// Epoch in which its last whole snapshot came.
    pub(super) snapshot_term: Option<u64>,
    /// Epoch under which all that the cluster has was last known to be here.
    pub(super) taken_over_term: Option<u64>,
    pub(super) config_yaml: String,
    /// Parts of a snapshot that has begun.
    pub(super) parts: Vec<v1::SnapshotPart>,
    pub(super) sessions: BTreeMap<ReplicaId, Session>,
    /// How far each journal is committed.
    pub streams: BTreeMap<StreamId, u64>,
    pub(super) poison: u64,
    pub(super) gaps: u64,
    /// Nodes by UID.
    pub nodes: BTreeMap<NodeUid, Node>,
    /// When each node is judged next.
    pub judgements: BTreeMap<NodeUid, Option<Timestamp>>,
    /// Episodes of each key, the latest last.
    pub faults: BTreeMap<FaultKey, Vec<Fault>>,
    /// Incidents by id.
    pub incidents: BTreeMap<IncidentId, Incident>,
    /// Commands by id.
    pub commands: BTreeMap<CommandId, Command>,
    /// Who counts as out, and for which incident.
    pub holds: BTreeMap<NodeUid, IncidentId>,
    pub(super) out: u32,
    pub(super) rate: Option<RateState>,
    pub(super) cooldowns: BTreeMap<NodeUid, Cooldown>,
    pub(super) cmd_seq: u64,
    /// Reports without a reason that refuse something: subject and code.
    pub mute: Vec<String>,
    pub(super) strangers: BTreeSet<String>,
}

impl Cluster {
    /// The open incident of a node.
    #[must_use]
    pub fn open_incident(&self, node: &NodeUid) -> Option<&Incident> {
        self.incidents.values().find(|incident| incident.closed_at.is_none() && incident.node.uid == *node)
    }

    /// The highest number that a command here has.
    #[must_use]
    pub const fn last_number(&self) -> u64 {
        self.cmd_seq
    }

    /// GPU nodes that are there.
    #[must_use]
    pub fn gpu_nodes(&self) -> u32 {
        let there = self.nodes.values().filter(|node| node.gone_at.is_none() && node.capacity_gpus > 0).count();
        u32::try_from(there).unwrap_or(u32::MAX)
    }
}

/// A replica's session.
#[derive(Clone, Debug)]
pub struct Session {
    /// Raised at each attach.
    pub generation: u64,
    /// Its proof of leadership.
    pub lease_transitions: Option<u64>,
    pub(super) attached_at: Timestamp,
    pub(super) leads_since: Option<Timestamp>,
    /// When it was last noted to live.
    pub(super) seen_at: Timestamp,
    pub(super) boots: Vec<(String, Timestamp)>,
    /// It ended.
    pub detached: bool,
}

impl Session {
    pub(super) const fn new(now: Timestamp) -> Self {
        Self {
            generation: 0,
            lease_transitions: None,
            attached_at: now,
            leads_since: None,
            seen_at: now,
            boots: Vec::new(),
            detached: false,
        }
    }
}

/// A node as its cluster's leader last showed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name, UID, boot id.
    pub reference: NodeRef,
    pub(super) created_at: Timestamp,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) gpus: Vec<GpuRef>,
    pub(super) capacity_gpus: u32,
    pub(super) allocatable_gpus: u32,
    pub(super) ready: Ready,
    pub(super) unschedulable: bool,
    pub(super) unschedulable_by: String,
    /// What of ours is on it.
    pub mark: Mark,
    pub(super) plan_revision: u64,
    pub(super) plan_rev_issued: u64,
    pub(super) opted_out: bool,
    pub(super) foreign_markers: Vec<String>,
    pub(super) state_as_of: Timestamp,
    /// When it was seen deleted.
    pub gone_at: Option<Timestamp>,
}

/// One episode.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The episode as decisions see it, witnesses apart.
    pub known: KnownFault,
    pub(super) node: NodeRef,
    pub(super) onset: Onset,
    pub(super) value: f64,
    pub(super) witnesses: Witnesses,
    pub(super) observed_at: Timestamp,
    pub(super) evidence_at: Timestamp,
    pub(super) asked_at: Option<Timestamp>,
}

impl Fault {
    /// The node it is on.
    #[must_use]
    pub const fn node(&self) -> &NodeRef {
        &self.node
    }

    pub(super) fn evidence(&self) -> Evidence {
        self.known.evidence
    }

    pub(super) fn settled(&self) -> Option<Settled> {
        self.known.settled
    }
}

/// An incident.
#[derive(Clone, Debug)]
pub struct Incident {
    /// Which.
    pub id: IncidentId,
    /// Of which node.
    pub node: NodeRef,
    /// The worst level.
    pub level: Level,
    /// A person asked for it.
    pub manual: bool,
    /// Where it stands.
    pub state: IncidentState,
    pub(crate) state_at: Timestamp,
    /// Why, with numbers.
    pub reason: String,
    pub(super) decision_no: u32,
    pub(super) policy_revision: u64,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// Episodes that it holds, with level and since when.
    pub faults: BTreeMap<(FaultKey, u32), (Level, Timestamp)>,
    /// Those of its faults that have asked for an eviction.
    pub(super) asked: BTreeSet<FaultKey>,
    /// Level of each of its decisions.
    pub(super) decisions: BTreeMap<u32, Level>,
}

/// A command.
#[derive(Clone, Debug)]
pub struct Command {
    /// As it was decided.
    pub planned: PlannedCommand,
    /// Its incident.
    pub incident: IncidentId,
    pub(super) decision_no: u32,
    /// Its number in the cluster.
    pub cmd_seq: u64,
    /// Epoch under which it was issued.
    pub hub_term: u64,
    /// The policy that it comes from.
    pub policy_revision: u64,
    pub(super) policy_digest: String,
    /// Where it stands.
    pub state: CommandState,
    pub(super) state_at: Timestamp,
    /// The signed bytes.
    pub envelope: Option<bytes::Bytes>,
    pub(super) sha256: String,
    pub(super) sent_at: Option<Timestamp>,
    pub(super) resend_at: Option<Timestamp>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) status_seq: u64,
    pub(super) steps: Vec<StepReport>,
    pub(super) undo: Option<Undo>,
    pub(super) refusal: &'static str,
    pub(super) result_reason: String,
    pub(super) corrections: u32,
    pub(super) cancel_reason: String,
    pub(super) cancel_asked_at: Option<Timestamp>,
    pub(super) cancel_envelope: Option<bytes::Bytes>,
    /// Epoch of the database that it was signed under.
    pub(super) cancel_term: u64,
    pub(super) cancel_sent_at: Option<Timestamp>,
    pub(super) outcome_asked_at: Option<Timestamp>,
}

/// From which decision a command comes, and its numbers.
pub(super) struct Issue {
    pub(super) incident: IncidentId,
    pub(super) decision_no: u32,
    pub(super) cmd_seq: u64,
    pub(super) hub_term: u64,
    /// Revision and digest.
    pub(super) policy: (u64, String),
}

impl Command {
    /// As it is inserted.
    pub(super) fn proposed(planned: PlannedCommand, issue: Issue, now: Timestamp) -> Self {
        Self {
            planned,
            incident: issue.incident,
            decision_no: issue.decision_no,
            cmd_seq: issue.cmd_seq,
            hub_term: issue.hub_term,
            policy_revision: issue.policy.0,
            policy_digest: issue.policy.1,
            state: CommandState::Proposed,
            state_at: now,
            envelope: None,
            sha256: String::new(),
            sent_at: None,
            resend_at: None,
            started_at: None,
            status_seq: 0,
            steps: Vec::new(),
            undo: None,
            refusal: "",
            result_reason: String::new(),
            corrections: 0,
            cancel_reason: String::new(),
            cancel_asked_at: None,
            cancel_envelope: None,
            cancel_term: 0,
            cancel_sent_at: None,
            outcome_asked_at: None,
        }
    }
}
