//! Commands as the pure code sees them: one signed, expiring, idempotent instruction to one spoke; and how it went.

mod wire;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::{
    fault::{self, GpuRef, NodeRef},
    ids::{ClusterId, CommandId, FaultKey, IncidentId, ParseIdError},
    limits,
    time::Timestamp,
    words::{Action, words},
};

/// What is signed. Deadlines are in the database's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// Identity, and the HealAction's name.
    pub id: CommandId,
    /// H(incident, plan revision, step): unique in Postgres.
    pub idempotency_key: String,
    /// The one cluster that may execute it.
    pub audience: ClusterId,
    /// Epoch of the signing keys.
    pub key_epoch: u64,
    /// Epoch of the hub's database.
    pub hub_term: u64,
    /// Number within the cluster.
    pub cmd_seq: u64,
    /// Number within the node: only a higher one may write to it.
    pub plan_rev: u64,
    /// The five moments.
    pub times: Times,
    /// The incident it belongs to.
    pub incident: IncidentId,
    /// `P0`, `P1`, `P2` or `manual`, for people.
    pub level: String,
    /// Why, with numbers.
    pub reason: String,
    /// The policy that led to it.
    pub policy_revision: u64,
    /// Digest of that policy.
    pub policy_digest: String,
    /// Which node, and which GPU if one.
    pub target: Target,
    /// Faults whose own fresh source must not have cleared them; empty for a release.
    pub fault_keys: Vec<FaultKey>,
    /// A person's signed waiver of the cooldown.
    pub ignore_cooldown: bool,
    /// What policy says of others who are at work on nodes.
    pub others: Others,
    /// In order.
    pub steps: Vec<Step>,
}

/// The moments of a command, each after the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Times {
    /// When it was made.
    pub created: Timestamp,
    /// Undelivered by then: dead.
    pub deliver_by: Timestamp,
    /// No first effect after it.
    pub start_by: Timestamp,
    /// No step after it.
    pub finish_by: Timestamp,
    /// Nothing of it may be remembered as open after it.
    pub expires: Timestamp,
}

/// What a command is aimed at.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The node; its UID must match.
    pub node: NodeRef,
    /// The GPU, when the fault is one GPU's.
    pub gpu: Option<GpuRef>,
}

/// What policy says of others who are at work on nodes. Empty is the careful meaning: whatever mark of theirs keeps us off, and every
/// hand on a node is a person's.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Others {
    /// Marks that keep us off nowhere, as they are told: `taint KEY` or `KEY=VALUE`. At most [`limits::MARKERS_IGNORED_MAX`].
    pub markers_ignored: Vec<String>,
    /// Field managers whose hand on a node is no person's order. At most [`limits::AUTOMATIONS_MAX`].
    pub automations: Vec<String>,
}

/// One thing to do. Each can be undone or does no lasting harm, and each may be repeated with the same end.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Post a Kubernetes Event.
    Notify {
        /// What it says.
        message: String,
    },
    /// One patch of the node.
    Mark {
        /// Set our label.
        label: bool,
        /// Set our taint.
        taint: bool,
        /// Set `spec.unschedulable` too.
        cordon: bool,
    },
    /// Evict the node's GPU pods.
    Drain(Drain),
    /// Restart the owners' rollouts.
    #[serde(rename = "restart")]
    RestartWorkload {
        /// `kind/namespace/name` of each.
        owners: Vec<String>,
    },
    /// Undo what the record says.
    Release {
        /// What was ours.
        undo: Undo,
        /// A person has taken a part of it off, whatever stands.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overridden: bool,
    },
}

impl Step {
    /// The step's name in records and tables.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Notify { .. } => "notify",
            Self::Mark { .. } => "mark",
            Self::Drain(_) => "drain",
            Self::RestartWorkload { .. } => "restart",
            Self::Release { .. } => "release",
        }
    }
}

/// How to drain.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drain {
    /// Longest grace a pod is given; its own when that is shorter.
    pub grace_max: Duration,
    /// How long the drain may take before `on_deadline` applies.
    pub deadline: Duration,
    /// What then.
    pub on_deadline: DeadlineOutcome,
    /// May a PDB be passed at the deadline?
    pub allow_pdb_bypass: bool,
    /// Pods with storage too, where their namespace allows it.
    pub include_stateful: bool,
}

words!(
    /// What to do when a drain has run out of time.
    DeadlineOutcome {
        /// Stop and ask a person.
        Stop = "stop",
        /// Go on waiting until `finish_by`.
        Wait = "wait",
        /// Delete past the budget.
        BypassPdb = "bypass-pdb",
    }
);

/// The fields of a node that we changed, each as it was and as we left it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Undo {
    /// In the order of change.
    pub fields: Vec<UndoField>,
}

/// One field that we changed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct UndoField {
    /// Which kind.
    pub kind: UndoKind,
    /// Its key: label or taint key; empty for the cordon.
    pub key: String,
    /// JSON text before; empty = absent.
    pub before: String,
    /// JSON text after.
    pub after: String,
    /// The node's resourceVersion that `before` was read at.
    pub resource_version: String,
}

words!(
    /// The kinds of field that we ever change on a node.
    UndoKind {
        /// A label.
        Label = "label",
        /// A taint.
        Taint = "taint",
        /// `spec.unschedulable`.
        Unschedulable = "unschedulable",
    }
);

words!(
    /// Where a command stands. The first five are the hub's own, the rest come from the spoke.
    CommandState {
        /// Decided, not yet signed.
        Proposed = "PROPOSED",
        /// Waits for a person.
        AwaitingApproval = "AWAITING_APPROVAL",
        /// Bytes exist.
        Signed = "SIGNED",
        /// Bytes were put on a stream.
        Dispatched = "DISPATCHED",
        /// Its time ran out before a spoke took it.
        Expired = "EXPIRED",
        /// The intent exists in the cluster.
        Received = "RECEIVED",
        /// A first effect may have happened.
        Started = "STARTED",
        /// Done.
        Succeeded = "SUCCEEDED",
        /// Tried, not done.
        Failed = "FAILED",
        /// Cannot be told: a person must look.
        Unknown = "UNKNOWN",
        /// Never will be.
        Refused = "REFUSED",
        /// Called off.
        Cancelled = "CANCELLED",
    }
);

impl CommandState {
    /// Nothing more will happen by itself.
    #[must_use]
    pub const fn terminal(self) -> bool {
        match self {
            Self::Expired | Self::Succeeded | Self::Failed | Self::Unknown | Self::Refused | Self::Cancelled => true,
            Self::Proposed | Self::AwaitingApproval | Self::Signed | Self::Dispatched | Self::Received | Self::Started => false,
        }
    }
}

words!(
    /// Why a spoke said no. `not now` ones leave no trace and the same bytes may come again; the rest are for ever.
    Refusal {
        /// Over the size limit.
        TooLarge = "TOO_LARGE",
        /// No signature of a trusted key.
        BadSignature = "BAD_SIGNATURE",
        /// A payload of another type.
        WrongType = "WRONG_TYPE",
        /// Signed, yet not a command.
        Malformed = "MALFORMED",
        /// For another cluster.
        WrongAudience = "WRONG_AUDIENCE",
        /// Its HealAction exists and is final: that state is the answer.
        Replayed = "REPLAYED",
        /// Signed under an older epoch of keys than seen.
        StaleKeyEpoch = "STALE_KEY_EPOCH",
        /// From an older database than seen.
        StaleHubTerm = "STALE_HUB_TERM",
        /// Past `start_by`.
        Expired = "EXPIRED",
        /// Not now: the clock is too uncertain.
        ClockUncertain = "CLOCK_UNCERTAIN",
        /// The node carries a higher plan revision.
        Superseded = "SUPERSEDED",
        /// Not now: another replica leads.
        NotLeader = "NOT_LEADER",
        /// Not now: the Lease runs out too soon.
        LeaseMargin = "LEASE_MARGIN",
        /// No node of that UID.
        NodeGone = "NODE_GONE",
        /// The fault's own fresh source says clear.
        FaultCleared = "FAULT_CLEARED",
        /// The node's owner keeps us off.
        OptedOut = "OPTED_OUT",
        /// Another incident's cooldown runs.
        Cooldown = "COOLDOWN",
        /// Somebody else is at work on the node.
        ForeignMarker = "FOREIGN_MARKER",
        /// Over the cluster owner's ceiling.
        OverCeiling = "OVER_CEILING",
        /// The cluster's own stop switch.
        Stopped = "STOPPED",
        /// A step this version does not know.
        Unsupported = "UNSUPPORTED",
        /// Not now: too much at once.
        Busy = "BUSY",
        /// Nothing keeps new pods off the node that is to be drained.
        Unmarked = "UNMARKED",
    }
);

impl Refusal {
    /// Reported without a trace; the hub sends the same bytes again until `deliver_by`.
    #[must_use]
    pub const fn not_now(self) -> bool {
        matches!(self, Self::ClockUncertain | Self::NotLeader | Self::LeaseMargin | Self::Busy)
    }
}

impl Command {
    /// What the command is for, in one word: its most far-reaching step.
    #[must_use]
    pub fn action(&self) -> Action {
        let rank = |step: &Step| match step {
            Step::Release { .. } => Action::Release,
            Step::Drain(_) => Action::Evict,
            Step::RestartWorkload { .. } => Action::Restart,
            Step::Mark { .. } => Action::Mark,
            Step::Notify { .. } => Action::Notify,
        };
        self.steps.iter().map(rank).max().unwrap_or(Action::Notify)
    }

    /// Whether it can do harm: a release and an Event cannot.
    #[must_use]
    pub fn harmful(&self) -> bool {
        matches!(self.action(), Action::Mark | Action::Restart | Action::Evict)
    }

    /// Whether it changes the node or what runs on it, or undoes that: all but an Event.
    #[must_use]
    pub fn changes_node(&self) -> bool {
        self.action() != Action::Notify
    }

    /// Whether it drains a node that an earlier command has marked: it has no mark step of its own.
    #[must_use]
    pub fn drains_marked(&self) -> bool {
        let has = |is: fn(&Step) -> bool| self.steps.iter().any(is);
        has(|step| matches!(step, Step::Drain(_))) && !has(|step| matches!(step, Step::Mark { .. }))
    }

    /// Whether it writes to the Node object.
    #[must_use]
    pub fn writes_node(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Mark { .. } | Step::Release { .. }))
    }
}

/// Why signed bytes are not a command.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Not the protobuf of a command.
    #[error("command body does not parse")]
    Decode(#[source] prost::DecodeError),
    /// A part that must be there is not.
    #[error("command has no {field}")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// Steps beyond the limit, or none.
    #[error("command has {count} steps, 1 to {} are allowed", limits::STEPS_MAX)]
    Steps {
        /// How many there are.
        count: usize,
    },
    /// More of something than one command may hold.
    #[error("command has {count} {field}, at most {max} are allowed")]
    TooMany {
        /// What of.
        field: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A text beyond its limit.
    #[error("command has {field} of {bytes} bytes, at most {max} are allowed")]
    TooLong {
        /// Which.
        field: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A step that this version does not know.
    #[error("command has a step that this version does not know, at {index}")]
    UnknownStep {
        /// Its place, from 0.
        index: usize,
    },
    /// The moments are not in order, or too far apart.
    #[error("command's moments are out of order or span more than 24 h")]
    Times,
    /// An enum value unknown here.
    #[error("command has an unknown {field}: {value}")]
    Unknown {
        /// Name of the field.
        field: &'static str,
        /// Its number on the wire.
        value: i32,
    },
    /// Target or fault of a broken shape.
    #[error(transparent)]
    Fault(#[from] fault::Error),
    /// An id that breaks its rule.
    #[error(transparent)]
    Id(#[from] ParseIdError),
}

impl Times {
    fn in_order(self) -> bool {
        self.created <= self.deliver_by
            && self.deliver_by <= self.start_by
            && self.start_by <= self.finish_by
            && self.finish_by <= self.expires
            && self.expires.since(self.created) <= limits::COMMAND_LIFE_MAX * 2
            && self.finish_by.since(self.created) <= limits::COMMAND_LIFE_MAX
    }
}
