//! What the log says of commands, once it is committed: one line for each that ended, or whose end was corrected. What
//! ended as it should is news, the rest is a warning.

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId, IncidentId},
};

use super::Report;
use crate::metrics;

/// Where a command was and where it is now.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) cluster: ClusterId,
    pub(super) node: String,
    pub(super) command: CommandId,
    pub(super) incident: IncidentId,
    pub(super) faults: Vec<String>,
    pub(super) from: CommandState,
    pub(super) to: CommandState,
    pub(super) refusal: &'static str,
    pub(super) reason: String,
}

impl Ended {
    /// Writes its line and counts it; of steps on the way only whoever debugs reads.
    pub(super) fn tell(&self) {
        let Self { cluster, node, command, incident, faults, from, to, refusal, reason } = self;
        if from == to {
            return;
        }
        let faults = faults.join(",");
        macro_rules! line {
            ($level:ident, $says:literal) => {
                tracing::$level!(
                    cluster.id = %cluster, node.name = %node, incident.id = %incident, command.id = %command, fault.id = %faults,
                    command.state = %to, before.state = %from, refusal, reason, $says
                )
            };
        }
        if to.terminal() {
            metrics::COMMANDS_ENDED.inc([to.as_str()]);
        }
        match to {
            _ if from.terminal() && !to.terminal() => line!(warn, "command is under way after its end was assumed"),
            CommandState::Succeeded | CommandState::Cancelled if from.terminal() => line!(info, "command's end was corrected"),
            CommandState::Succeeded | CommandState::Cancelled => line!(info, "command ended"),
            CommandState::Failed | CommandState::Refused | CommandState::Expired | CommandState::Unknown => {
                line!(warn, "command ended");
            }
            CommandState::Proposed
            | CommandState::AwaitingApproval
            | CommandState::Signed
            | CommandState::Dispatched
            | CommandState::Received
            | CommandState::Started => line!(debug, "command went on"),
        }
    }
}

/// What a status came to.
pub(super) enum Told {
    /// Nothing that anybody needs to read.
    Nothing,
    /// A command's step.
    Ended(Ended),
    /// It is of a command that is not known here.
    Unknown(CommandId),
    /// An envelope was refused, and it is none of ours.
    Stranger,
}

impl Told {
    pub(super) fn tell(&self, cluster: &ClusterId, report: &Report) {
        match self {
            Self::Nothing => {}
            Self::Ended(ended) => ended.tell(),
            Self::Unknown(command) => {
                tracing::warn!(cluster.id = %cluster, command.id = %command, "a status of a command that is not known here");
            }
            Self::Stranger => {
                tracing::warn!(cluster.id = %cluster, envelope.sha256 = report.subject, refusal = report.refusal, reason = report.reason, "an envelope was refused unverified");
            }
        }
    }
}
