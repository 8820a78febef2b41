//! A status as a spoke sent it, read without believing more than it says. What this version does not know is kept as
//! unreadable: refusing it would only make the spoke send it again.

use gpuheal_proto::{
    bytes_text::clip,
    command::{CommandState, Refusal, Undo},
    ids::CommandId,
    limits,
    link::v1,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

/// Steps and pods that are kept of one report; the protocol allows as many.
const PODS_MAX: usize = 256;

/// What a report says of the command's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// It stands so.
    State(CommandState),
    /// Refused without a trace.
    NotNow,
    /// A word of a later version.
    Unreadable,
}

impl Reported {
    /// The word that is stored.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::State(state) => state.as_str(),
            Self::NotNow => "NOT_NOW",
            Self::Unreadable => "UNREADABLE",
        }
    }
}

/// One status.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Command id, or the hash of an envelope that did not verify.
    pub subject: String,
    /// The command, when it could be named.
    pub command: Option<CommandId>,
    /// Number within the command.
    pub status_seq: u64,
    /// What it says.
    pub reported: Reported,
    /// Why it was refused; empty when it was not.
    pub refusal: &'static str,
    /// In words.
    pub reason: String,
    /// How each step went.
    pub steps: Vec<StepReport>,
    /// What was changed, when anything was.
    pub undo: Option<Undo>,
    /// Something was changed, and what it was before cannot be read here: only the spoke has it.
    pub undo_unreadable: bool,
    /// Leadership that reports.
    pub lease_transitions: u64,
    /// By the spoke's clock.
    pub spoke_at: Timestamp,
}

/// How one step went; stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// notify, mark, drain, restart, release.
    pub name: String,
    /// pending, running, done, failed or skipped.
    pub state: String,
    /// In words.
    pub message: String,
    /// By the spoke's clock; 0: not yet.
    pub started_unix_ms: i64,
    /// By the spoke's clock; 0: not yet.
    pub finished_unix_ms: i64,
    /// Pods of a drain.
    #[serde(default)]
    pub pods: Vec<PodReport>,
}

/// How one pod of a drain fared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// evicting, gone, blocked, skipped or failed.
    pub state: String,
    /// Why.
    pub reason: String,
    /// Eviction calls made for it.
    pub eviction_calls: u32,
    /// It was deleted although a budget kept it.
    #[serde(default)]
    pub past_budget: bool,
}

/// Pods that were deleted although a budget kept them.
pub fn past_budgets(steps: &[StepReport]) -> impl Iterator<Item = &PodReport> {
    steps.iter().flat_map(|step| &step.pods).filter(|pod| pod.past_budget)
}

impl Report {
    /// Reads a status.
    #[must_use]
    pub fn of(status: &v1::CommandStatus) -> Self {
        let command = CommandId::parse(&status.command_id).ok();
        let undo = status.undo.clone().map(Undo::try_from);
        let undo_unreadable = matches!(undo, Some(Err(_)));
        let subject = if status.command_id.is_empty() { &status.envelope_sha256 } else { &status.command_id };
        Self {
            subject: clip(subject, 128).to_owned(),
            command,
            status_seq: status.status_seq,
            reported: reported(status.state),
            refusal: v1::RefusalCode::try_from(status.refusal)
                .ok()
                .and_then(|code| Refusal::try_from(code).ok())
                .map_or("", Refusal::as_str),
            reason: clip(&status.reason, limits::REASON_BYTES_MAX).to_owned(),
            steps: status.steps.iter().take(limits::STEPS_MAX).map(step).collect(),
            undo: undo.and_then(Result::ok).filter(|undo| !undo.fields.is_empty()),
            undo_unreadable,
            lease_transitions: status.lease_transitions,
            spoke_at: Timestamp::from_unix_ms(status.at_unix_ms),
        }
    }

    /// It tells an end.
    #[must_use]
    pub const fn over(&self) -> bool {
        matches!(self.reported, Reported::State(state) if state.terminal())
    }

    /// It tells of something that was changed, readable or not.
    #[must_use]
    pub const fn undone(&self) -> bool {
        self.undo.is_some() || self.undo_unreadable
    }

    /// Some step had an effect that is known of.
    #[must_use]
    pub fn did_something(&self) -> bool {
        self.undone()
            || self.steps.iter().any(|step| step.name != "notify" && matches!(step.state.as_str(), "done" | "running" | "failed"))
    }
}

fn reported(state: i32) -> Reported {
    use v1::CommandState as Wire;
    match Wire::try_from(state) {
        Ok(Wire::Received) => Reported::State(CommandState::Received),
        Ok(Wire::Started) => Reported::State(CommandState::Started),
        Ok(Wire::Succeeded) => Reported::State(CommandState::Succeeded),
        Ok(Wire::Failed) => Reported::State(CommandState::Failed),
        Ok(Wire::Unknown) => Reported::State(CommandState::Unknown),
        Ok(Wire::Refused) => Reported::State(CommandState::Refused),
        Ok(Wire::Cancelled) => Reported::State(CommandState::Cancelled),
        Ok(Wire::NotNow) => Reported::NotNow,
        Ok(Wire::Unspecified) | Err(_) => Reported::Unreadable,
    }
}

fn step(step: &v1::StepStatus) -> StepReport {
    use v1::StepState as Wire;
    let state = match Wire::try_from(step.state) {
        Ok(Wire::Pending) => "pending",
        Ok(Wire::Running) => "running",
        Ok(Wire::Done) => "done",
        Ok(Wire::Failed) => "failed",
        Ok(Wire::Skipped) => "skipped",
        Ok(Wire::Unspecified) | Err(_) => "unreadable",
    };
    StepReport {
        name: clip(&step.name, 64).to_owned(),
        state: state.to_owned(),
        message: clip(&step.message, limits::REASON_BYTES_MAX).to_owned(),
        started_unix_ms: step.started_unix_ms,
        finished_unix_ms: step.finished_unix_ms,
        pods: step.pods.iter().take(PODS_MAX).map(pod).collect(),
    }
}

fn pod(pod: &v1::PodStatus) -> PodReport {
    PodReport {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        state: pod.state.clone(),
        reason: clip(&pod.reason, limits::REASON_BYTES_MAX).to_owned(),
        eviction_calls: pod.eviction_calls,
        past_budget: pod.past_budget,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_that_did_not_verify_is_named_by_its_hash() {
        let status = v1::CommandStatus { envelope_sha256: "ab".repeat(32), ..Default::default() };
        let report = Report::of(&status);
        assert_eq!((report.command, report.subject.as_str()), (None, "ab".repeat(32).as_str()));
    }

    #[test]
    fn a_state_of_a_later_version_is_kept_and_moves_nothing() {
        let report = Report::of(&v1::CommandStatus { state: 99, ..Default::default() });
        assert_eq!(report.reported, Reported::Unreadable);
    }
}
