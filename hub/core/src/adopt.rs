//! A command that its cluster shows and that the database has lost, as after a restore: whether anything of it still stands, and
//! what it does to its node's incident. Who signed it is for the caller to know.

use gpuheal_proto::{
    command::{Command, Step},
    ids::IncidentId,
    words::{Action, Level},
};

use crate::{
    decide::{IncidentChange, PlannedCommand},
    incident::IncidentState,
};

/// What a lost command meets on its node.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Something of ours is on it.
    pub marked: bool,
    /// The plan that wrote to it last.
    pub plan_revision: u64,
    /// The highest plan that this database knows of for it, issued or taken over.
    pub plan_rev_issued: u64,
    /// Its open incident.
    pub incident: Option<OpenIncident>,
}

/// An incident that is not over.
#[derive(Clone, Copy, Debug)]
pub struct OpenIncident {
    /// Which.
    pub id: IncidentId,
    /// Where it stands.
    pub state: IncidentState,
    /// The worst so far.
    pub level: Level,
    /// A person asked for it.
    pub manual: bool,
    /// Number of its last decision.
    pub decision_no: u32,
}

/// What taking the command over does to its node's incident; `over`: it is reported as ended. `None`: nothing of it stands. It
/// is to be taken over while it is not over, or while the node carries the very mark that it set: of that its record tells how to
/// undo it. What was undone since, by whomever, is history that no one needs to act on. An incident that knows a later plan of its node
/// stays where that has brought it: commands are shown in any order.
#[must_use]
pub fn adopt(command: &Command, over: bool, found: &Found) -> Option<IncidentChange> {
    let state = under_way(command)?;
    if over && !(command.harmful() && found.marked && found.plan_revision == command.plan_rev) {
        return None;
    }
    let (open, level) = (found.incident, Level::parse(&command.level));
    let later = open.filter(|_| found.plan_rev_issued > command.plan_rev);
    Some(IncidentChange {
        id: open.map_or(command.incident, |open| open.id),
        opens: open.is_none(),
        changed: true,
        decision_no: open.map_or(0, |open| open.decision_no) + 1,
        state: later.map_or(state, |open| open.state),
        level: open.map_or(Level::P2, |open| open.level).max(level.unwrap_or(Level::P2)),
        manual: open.map_or(level.is_none(), |open| open.manual),
        fault_keys: command.fault_keys.clone(),
        asked_keys: if state == IncidentState::Draining { command.fault_keys.clone() } else { Vec::new() },
        reason: format!(
            "taken over with command {}, which its cluster showed and this database had lost: {}",
            command.id, command.reason
        ),
    })
}

/// What an incident does whose command this is. Neither an Event nor a rollout changes anything that would have to be undone.
fn under_way(command: &Command) -> Option<IncidentState> {
    let overridden = |step: &Step| matches!(step, Step::Release { overridden: true, .. });
    match command.action() {
        Action::Notify | Action::Restart => None,
        Action::Mark => Some(IncidentState::Quarantining),
        Action::Evict => Some(IncidentState::Draining),
        Action::Release if command.steps.iter().any(overridden) => Some(IncidentState::Overriding),
        Action::Release => Some(IncidentState::Releasing),
    }
}

/// A command as it was planned. Whatever rate it took, it took from a database that is gone.
#[must_use]
pub fn planned(command: &Command) -> PlannedCommand {
    PlannedCommand {
        id: command.id,
        idempotency_key: command.idempotency_key.clone(),
        action: command.action(),
        steps: command.steps.clone(),
        node: command.target.node.clone(),
        gpu: command.target.gpu.clone(),
        level: command.level.clone(),
        reason: command.reason.clone(),
        fault_keys: command.fault_keys.clone(),
        ignore_cooldown: command.ignore_cooldown,
        others: command.others.clone(),
        times: command.times,
        plan_rev: command.plan_rev,
        takes_rate: false,
    }
}
