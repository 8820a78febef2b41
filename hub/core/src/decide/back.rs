//! The ways back: a release, a person's hand, a node that is gone, a mark that no incident knew. None of them passes a
//! guard: what makes things as they were waits for no budget, window or breaker.

use std::time::Duration;

use gpuheal_proto::{
    ids::FaultKey,
    time::Timestamp,
    words::{Action, Level},
};

use super::{BudgetOp, CancelCommand, Notice, RequestOutcome, Urgency, case::Case, hand, progress::Stage};
use crate::incident::IncidentState;

/// A release that came to nothing is tried again this late.
const RELEASE_RETRY: Duration = Duration::from_secs(60);

impl Case<'_> {
    /// The node's object was seen deleted: nothing of ours can remain on it.
    pub(super) fn gone(&mut self) {
        self.say("the node is gone");
        if let Some(request) = &self.snapshot.request {
            let reason = format!("node {} is gone", self.snapshot.node.reference.name);
            self.decision.reasons.push(format!("{} asked for {}", request.caller, request.action));
            self.decision.request = Some(RequestOutcome::Blocked { reason });
        }
        if self.incident().is_none() {
            return;
        }
        let open = self.snapshot.commands.iter().filter(|command| !command.state.terminal());
        let cancel = open.map(|command| CancelCommand { id: command.id, reason: "the node is gone".to_owned() }).collect();
        self.decision.cancel = cancel;
        self.close(IncidentState::Gone, self.keys_merged(), Level::P0);
    }

    /// A person undid a part of it: the rest follows, and nothing comes back for this episode.
    pub(super) fn overriding(&mut self, why: &str) {
        self.decision.reasons.insert(0, format!("overridden by a person: {why}"));
        let keys = self.keys_merged();
        self.cancel_harm(why);
        if hand::mark_seen(self.snapshot) || !self.progress.harmful_open.is_empty() || self.cordon_remains() {
            self.release_command(IncidentState::Overriding, keys);
            return;
        }
        self.close(IncidentState::Overridden, keys, Level::P0);
    }

    /// A cordon of ours may outlive our label and taint.
    fn cordon_remains(&self) -> bool {
        use gpuheal_proto::command::UndoKind;
        let ours = self.incident().is_some_and(|incident| incident.undo.fields.iter().any(|f| f.kind == UndoKind::Unschedulable));
        ours && self.snapshot.node.unschedulable
    }

    /// The release is under way, or has to be tried again.
    pub(super) fn releasing(&mut self, state: IncidentState) {
        let keys = self.keys_held();
        let closed = if state == IncidentState::Overriding { IncidentState::Overridden } else { IncidentState::Released };
        match &self.progress.release {
            Stage::Done => {
                self.say("our marks are undone");
                self.close(closed, keys, Level::P0);
            }
            Stage::Pending => {
                self.say("the release is under way");
                self.again(self.now.after(RELEASE_RETRY));
                self.stay(state, keys);
            }
            Stage::None | Stage::Failed(_) | Stage::Unknown(_) => self.release_again(state, closed, keys),
        }
    }

    fn release_again(&mut self, state: IncidentState, closed: IncidentState, keys: Vec<FaultKey>) {
        let failed = self.progress.release_failed;
        let since = failed.map_or(Timestamp::EPOCH, |command| command.state_at);
        let view_at = self.snapshot.cluster.observer.state_at.unwrap_or_default().max(self.snapshot.node.seen_at);
        if !hand::mark_seen(self.snapshot)
            && !self.cordon_remains()
            && failed.is_some_and(|command| view_at > command.start_by.min(since))
        {
            self.say("nothing of ours is on the node any more");
            self.close(closed, keys, Level::P0);
            return;
        }
        let retry_at = since.after(RELEASE_RETRY);
        if self.now < retry_at {
            self.say(
                failed.map_or_else(String::new, |command| {
                    format!("the release came to nothing: {} {}", command.state, command.outcome)
                }),
            );
            self.again(retry_at);
            self.stay(state, keys);
            return;
        }
        if let Some(command) = failed {
            let text = format!("the release of node {} came to nothing: {}", self.snapshot.node.reference.name, command.outcome);
            self.decision.notify.push(Notice { urgency: Urgency::Page, text });
        }
        self.say("our marks are to be undone");
        self.release_command(state, keys);
    }

    /// Undoes our marks, or closes at once when there are none.
    pub(super) fn start_release(&mut self, state: IncidentState, why: &str, keys: Vec<FaultKey>) {
        self.cancel_harm(why);
        if self.bare() {
            self.close(IncidentState::Released, keys, Level::P0);
        } else {
            self.release_command(state, keys);
        }
    }

    /// Nothing of ours is on the node, nor on its way there, as far as is known here.
    pub(super) fn bare(&self) -> bool {
        let marked = self.progress.marked() || hand::mark_seen(self.snapshot) || !self.progress.harmful_open.is_empty();
        !marked && !matches!(self.progress.mark, Stage::Failed(_))
    }

    pub(super) fn release_command(&mut self, state: IncidentState, keys: Vec<FaultKey>) {
        let reason = self.decision.reasons.first().cloned().unwrap_or_default();
        let mut words = self.words(&[], &reason);
        if self.incident().is_none_or(|incident| incident.manual) {
            words.level = "manual".to_owned();
        }
        let plan = self.plan();
        let command = plan.command(Action::Release, vec![plan.release(state == IncidentState::Overriding)], words, false);
        self.again(self.now.after(RELEASE_RETRY));
        self.send(command);
        self.stay(state, keys);
    }

    fn stay(&mut self, state: IncidentState, keys: Vec<FaultKey>) {
        let manual = self.incident().is_some_and(|incident| incident.manual);
        self.stand(state, keys, manual);
    }

    /// A mark that is there, or a command under way that may set one, beside an incident which holds no place, as after a
    /// restore: the node is out, whatever the budgets say.
    pub(super) fn count_found(&mut self) {
        if self.incident().is_none_or(|incident| incident.held) || self.decision.budget != BudgetOp::Keep {
            return;
        }
        let node = &self.snapshot.node;
        if hand::mark_seen(self.snapshot) && node.plan_revision >= node.plan_rev_floor {
            self.say("the node carries our mark: counted as out");
            self.decision.budget = BudgetOp::HoldFound;
        } else if let Some(command) = self.progress.harmful_open.first() {
            self.say(format!("command {} may be marking the node: counted as out", command.id));
            self.decision.budget = BudgetOp::HoldFound;
        }
    }

    /// A mark of ours without an incident gets one: it is out, whatever the budgets say, and somebody must know why.
    pub(super) fn adopt(&mut self) {
        let named = self.snapshot.node.mark.as_ref().map(|mark| mark.incident.clone()).unwrap_or_default();
        let named = if named.is_empty() { "none".to_owned() } else { named };
        self.say(format!("the node carries our mark without an open incident (its annotation names {named}): adopted"));
        self.decision.budget = BudgetOp::HoldFound;
        self.decision.notify.push(Notice {
            urgency: Urgency::Warn,
            text: format!("node {} carries our mark without an open incident", self.snapshot.node.reference.name),
        });
        self.would("process release, or its faults clear".to_owned());
        self.stay(IncidentState::Validating, self.keys_merged());
    }
}
