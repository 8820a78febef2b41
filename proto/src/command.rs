//! Commands as the pure code sees them: one signed, expiring, idempotent instruction to one spoke; and how it went.

use std::time::Duration;

use crate::{
    fault::{self, GpuRef, NodeRef},
    ids::{ClusterId, CommandId, FaultKey, IncidentId, ParseIdError},
    limits,
    link::v1,
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
    RestartWorkload {
        /// `kind/namespace/name` of each.
        owners: Vec<String>,
    },
    /// Undo what the record says.
    Release {
        /// What was ours.
        undo: Undo,
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
    /// Prefixes of resource names that make a pod a GPU pod; empty = `nvidia.com/gpu` and `nvidia.com/mig-`.
    pub resource_prefixes: Vec<String>,
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
            Step::Drain(_) | Step::RestartWorkload { .. } => Action::Evict,
            Step::Mark { .. } => Action::Mark,
            Step::Notify { .. } => Action::Notify,
        };
        self.steps.iter().map(rank).max().unwrap_or(Action::Notify)
    }

    /// Whether it can do harm: a release and an Event cannot.
    #[must_use]
    pub fn harmful(&self) -> bool {
        matches!(self.action(), Action::Mark | Action::Evict)
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

impl TryFrom<v1::CommandBody> for Command {
    type Error = Error;
    fn try_from(body: v1::CommandBody) -> Result<Self, Error> {
        let at = Timestamp::from_unix_ms;
        let times = Times {
            created: at(body.created_unix_ms),
            deliver_by: at(body.deliver_by_unix_ms),
            start_by: at(body.start_by_unix_ms),
            finish_by: at(body.finish_by_unix_ms),
            expires: at(body.expires_at_unix_ms),
        };
        if !times.in_order() {
            return Err(Error::Times);
        }
        if body.steps.is_empty() || body.steps.len() > limits::STEPS_MAX {
            return Err(Error::Steps { count: body.steps.len() });
        }
        let target = body.target.ok_or(Error::Missing { field: "target" })?;
        let preconditions = body.preconditions.unwrap_or_default();
        Ok(Self {
            id: CommandId::parse(&body.command_id)?,
            idempotency_key: body.idempotency_key,
            audience: ClusterId::parse(&body.audience)?,
            key_epoch: body.key_epoch,
            hub_term: body.hub_term,
            cmd_seq: body.cmd_seq,
            plan_rev: body.plan_rev,
            times,
            incident: IncidentId::parse(&body.incident_id)?,
            level: body.level,
            reason: body.reason,
            policy_revision: body.policy_revision,
            policy_digest: body.policy_digest,
            target: Target {
                node: target.node.ok_or(Error::Missing { field: "target.node" })?.try_into()?,
                gpu: target.gpu.map(GpuRef::try_from).transpose()?,
            },
            fault_keys: preconditions.fault_keys.iter().map(|key| FaultKey::parse(key)).collect::<Result<_, _>>()?,
            ignore_cooldown: preconditions.ignore_cooldown,
            steps: body.steps.into_iter().enumerate().map(|(index, step)| step_from(index, step)).collect::<Result<_, _>>()?,
        })
    }
}

fn step_from(index: usize, step: v1::Step) -> Result<Step, Error> {
    use v1::step::Step as Wire;
    Ok(match step.step.ok_or(Error::UnknownStep { index })? {
        Wire::Notify(notify) => Step::Notify { message: notify.message },
        Wire::Mark(mark) => Step::Mark { label: mark.label, taint: mark.taint, cordon: mark.cordon },
        Wire::Drain(drain) => Step::Drain(drain.try_into()?),
        Wire::RestartWorkload(restart) => Step::RestartWorkload { owners: restart.owners },
        Wire::Release(release) => Step::Release { undo: release.undo.unwrap_or_default().try_into()? },
    })
}

fn span(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

fn span_ms(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

impl TryFrom<v1::DrainStep> for Drain {
    type Error = Error;
    fn try_from(drain: v1::DrainStep) -> Result<Self, Error> {
        Ok(Self {
            grace_max: span(drain.grace_max_ms),
            deadline: span(drain.deadline_ms),
            on_deadline: match v1::DeadlineOutcome::try_from(drain.on_deadline) {
                Ok(v1::DeadlineOutcome::Stop) => DeadlineOutcome::Stop,
                Ok(v1::DeadlineOutcome::Wait) => DeadlineOutcome::Wait,
                Ok(v1::DeadlineOutcome::BypassPdb) => DeadlineOutcome::BypassPdb,
                Ok(v1::DeadlineOutcome::Unspecified) | Err(_) => {
                    return Err(Error::Unknown { field: "on_deadline", value: drain.on_deadline });
                }
            },
            allow_pdb_bypass: drain.allow_pdb_bypass,
            include_stateful: drain.include_stateful,
            resource_prefixes: drain.resource_prefixes,
        })
    }
}

impl TryFrom<v1::UndoRecord> for Undo {
    type Error = Error;
    fn try_from(undo: v1::UndoRecord) -> Result<Self, Error> {
        let field = |field: v1::UndoField| {
            Ok(UndoField {
                kind: match v1::UndoKind::try_from(field.kind) {
                    Ok(v1::UndoKind::Label) => UndoKind::Label,
                    Ok(v1::UndoKind::Taint) => UndoKind::Taint,
                    Ok(v1::UndoKind::Unschedulable) => UndoKind::Unschedulable,
                    Ok(v1::UndoKind::Unspecified) | Err(_) => return Err(Error::Unknown { field: "undo kind", value: field.kind }),
                },
                key: field.key,
                before: field.before,
                after: field.after,
                resource_version: field.resource_version,
            })
        };
        Ok(Self { fields: undo.fields.into_iter().map(field).collect::<Result<_, Error>>()? })
    }
}

impl From<&Undo> for v1::UndoRecord {
    fn from(undo: &Undo) -> Self {
        let kind = |kind| match kind {
            UndoKind::Label => v1::UndoKind::Label,
            UndoKind::Taint => v1::UndoKind::Taint,
            UndoKind::Unschedulable => v1::UndoKind::Unschedulable,
        };
        let field = |field: &UndoField| v1::UndoField {
            kind: kind(field.kind).into(),
            key: field.key.clone(),
            before: field.before.clone(),
            after: field.after.clone(),
            resource_version: field.resource_version.clone(),
        };
        Self { fields: undo.fields.iter().map(field).collect() }
    }
}

impl From<&Step> for v1::Step {
    fn from(step: &Step) -> Self {
        use v1::step::Step as Wire;
        let outcome = |outcome| match outcome {
            DeadlineOutcome::Stop => v1::DeadlineOutcome::Stop,
            DeadlineOutcome::Wait => v1::DeadlineOutcome::Wait,
            DeadlineOutcome::BypassPdb => v1::DeadlineOutcome::BypassPdb,
        };
        let step = match step {
            Step::Notify { message } => Wire::Notify(v1::NotifyStep { message: message.clone() }),
            Step::Mark { label, taint, cordon } => Wire::Mark(v1::MarkStep { label: *label, taint: *taint, cordon: *cordon }),
            Step::Drain(drain) => Wire::Drain(v1::DrainStep {
                grace_max_ms: span_ms(drain.grace_max),
                deadline_ms: span_ms(drain.deadline),
                on_deadline: outcome(drain.on_deadline).into(),
                allow_pdb_bypass: drain.allow_pdb_bypass,
                include_stateful: drain.include_stateful,
                resource_prefixes: drain.resource_prefixes.clone(),
            }),
            Step::RestartWorkload { owners } => Wire::RestartWorkload(v1::RestartWorkloadStep { owners: owners.clone() }),
            Step::Release { undo } => Wire::Release(v1::ReleaseStep { undo: Some(undo.into()) }),
        };
        Self { step: Some(step) }
    }
}

impl From<&Command> for v1::CommandBody {
    fn from(command: &Command) -> Self {
        Self {
            command_id: command.id.to_string(),
            idempotency_key: command.idempotency_key.clone(),
            audience: command.audience.to_string(),
            key_epoch: command.key_epoch,
            hub_term: command.hub_term,
            cmd_seq: command.cmd_seq,
            plan_rev: command.plan_rev,
            created_unix_ms: command.times.created.unix_ms(),
            deliver_by_unix_ms: command.times.deliver_by.unix_ms(),
            start_by_unix_ms: command.times.start_by.unix_ms(),
            finish_by_unix_ms: command.times.finish_by.unix_ms(),
            expires_at_unix_ms: command.times.expires.unix_ms(),
            incident_id: command.incident.to_string(),
            level: command.level.clone(),
            reason: command.reason.clone(),
            policy_revision: command.policy_revision,
            policy_digest: command.policy_digest.clone(),
            target: Some(v1::Target {
                node: Some((&command.target.node).into()),
                gpu: command.target.gpu.as_ref().map(Into::into),
            }),
            preconditions: Some(v1::Preconditions {
                fault_keys: command.fault_keys.iter().map(ToString::to_string).collect(),
                ignore_cooldown: command.ignore_cooldown,
            }),
            steps: command.steps.iter().map(Into::into).collect(),
            traceparent: String::new(),
        }
    }
}

macro_rules! refusal_wire {
    ($($variant:ident),* $(,)?) => {
        impl From<Refusal> for v1::RefusalCode {
            fn from(refusal: Refusal) -> Self {
                match refusal { $(Refusal::$variant => Self::$variant),* }
            }
        }
        impl TryFrom<v1::RefusalCode> for Refusal {
            type Error = Error;
            fn try_from(code: v1::RefusalCode) -> Result<Self, Error> {
                match code {
                    $(v1::RefusalCode::$variant => Ok(Self::$variant),)*
                    v1::RefusalCode::Unspecified => Err(Error::Unknown { field: "refusal", value: 0 }),
                }
            }
        }
    };
}
refusal_wire!(
    TooLarge,
    BadSignature,
    WrongType,
    Malformed,
    WrongAudience,
    Replayed,
    StaleKeyEpoch,
    StaleHubTerm,
    Expired,
    ClockUncertain,
    Superseded,
    NotLeader,
    LeaseMargin,
    NodeGone,
    FaultCleared,
    OptedOut,
    Cooldown,
    ForeignMarker,
    OverCeiling,
    Stopped,
    Unsupported,
    Busy,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{NodeName, NodeUid, uuid_v7};

    fn command() -> Command {
        let at = |s: i64| Timestamp::from_unix_ms(s * 1000);
        Command {
            id: CommandId::from_uuid(uuid_v7(at(1), &[1; 32])),
            idempotency_key: "k".into(),
            audience: ClusterId::parse("c1").unwrap(),
            key_epoch: 1,
            hub_term: 1,
            cmd_seq: 3,
            plan_rev: 2,
            times: Times { created: at(1), deliver_by: at(60), start_by: at(300), finish_by: at(2700), expires: at(3000) },
            incident: IncidentId::from_uuid(uuid_v7(at(1), &[2; 32])),
            level: "P0".into(),
            reason: "xid 79".into(),
            policy_revision: 4,
            policy_digest: "d".into(),
            target: Target {
                node: NodeRef { name: NodeName::parse("n").unwrap(), uid: NodeUid::parse("u").unwrap(), boot_id: "b".into() },
                gpu: None,
            },
            fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).unwrap()],
            ignore_cooldown: false,
            steps: vec![
                Step::Notify { message: "m".into() },
                Step::Mark { label: true, taint: true, cordon: false },
                Step::Drain(Drain {
                    grace_max: Duration::from_secs(30),
                    deadline: Duration::from_secs(1800),
                    on_deadline: DeadlineOutcome::Stop,
                    allow_pdb_bypass: false,
                    include_stateful: true,
                    resource_prefixes: vec![],
                }),
            ],
        }
    }

    #[test]
    fn a_command_survives_the_wire() {
        let command = command();
        assert_eq!(Command::try_from(v1::CommandBody::from(&command)).unwrap(), command);
        assert_eq!(command.action(), Action::Evict);
    }

    #[test]
    fn moments_out_of_order_are_refused() {
        let mut command = command();
        command.times.start_by = command.times.finish_by.after(Duration::from_secs(1));
        assert_eq!(Command::try_from(v1::CommandBody::from(&command)), Err(Error::Times));
    }

    #[test]
    fn a_step_that_nobody_knows_is_refused() {
        let mut wire = v1::CommandBody::from(&command());
        wire.steps[1] = v1::Step { step: None };
        assert_eq!(Command::try_from(wire), Err(Error::UnknownStep { index: 1 }));
    }

    #[test]
    fn an_unspecified_deadline_outcome_is_refused_and_never_a_default() {
        let mut wire = v1::CommandBody::from(&command());
        wire.steps[2] = v1::Step { step: Some(v1::step::Step::Drain(v1::DrainStep::default())) };
        assert_eq!(Command::try_from(wire), Err(Error::Unknown { field: "on_deadline", value: 0 }));
    }

    #[test]
    fn a_release_is_not_harmful() {
        let mut command = command();
        command.steps = vec![Step::Release { undo: Undo::default() }];
        assert!(!command.harmful());
        assert!(command.writes_node());
    }
}
