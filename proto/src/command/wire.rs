//! Commands on the wire: each message to our types and back. What is unknown is an error, never a default; nothing here
//! decides whether a command may be executed.

use std::time::Duration;

use super::{Command, DeadlineOutcome, Drain, Error, Others, Refusal, Step, Target, Times, Undo, UndoField, UndoKind};
use crate::{
    fault::GpuRef,
    ids::{ClusterId, CommandId, FaultKey, IncidentId},
    limits,
    link::v1,
    time::Timestamp,
};

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
            others: Others {
                markers_ignored: short(
                    (limits::MARKERS_IGNORED_MAX, limits::MARKER_BYTES_MAX),
                    "markers_ignored",
                    preconditions.markers_ignored,
                )?,
                automations: short(
                    (limits::AUTOMATIONS_MAX, limits::AUTOMATION_BYTES_MAX),
                    "automations",
                    preconditions.automations,
                )?,
            },
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
        Wire::RestartWorkload(restart) => {
            Step::RestartWorkload { owners: at_most(limits::WORKLOADS_MAX, "workloads", restart.owners)? }
        }
        Wire::Release(release) => {
            Step::Release { undo: release.undo.unwrap_or_default().try_into()?, overridden: release.overridden }
        }
    })
}

fn at_most<T>(max: usize, field: &'static str, all: Vec<T>) -> Result<Vec<T>, Error> {
    if all.len() > max { Err(Error::TooMany { field, count: all.len(), max }) } else { Ok(all) }
}

/// At most so many, of so many bytes each.
fn short((max, bytes_max): (usize, usize), field: &'static str, all: Vec<String>) -> Result<Vec<String>, Error> {
    match all.iter().map(String::len).find(|bytes| *bytes > bytes_max) {
        Some(bytes) => Err(Error::TooLong { field, bytes, max: bytes_max }),
        None => at_most(max, field, all),
    }
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
            }),
            Step::RestartWorkload { owners } => Wire::RestartWorkload(v1::RestartWorkloadStep { owners: owners.clone() }),
            Step::Release { undo, overridden } => {
                Wire::Release(v1::ReleaseStep { undo: Some(undo.into()), overridden: *overridden })
            }
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
                markers_ignored: command.others.markers_ignored.clone(),
                automations: command.others.automations.clone(),
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
    Unmarked,
);
