//! What a person asks for: the same guards as for the hub's own plans, but a person is witness enough, and a release
//! passes none.

use gpuheal_proto::{
    command::Step,
    fault::GpuRef,
    words::{Action, Mode},
    workload::Workload,
};

use super::{RequestOutcome, case::Case, guards, hand, judge::Judged, plan::Plan, progress::Stage};
use crate::{
    incident::IncidentState,
    snapshot::{KnownCommand, Request},
};

impl Case<'_> {
    /// True when the request was answered with a command and the decision is complete.
    pub(super) fn request(&mut self, request: &Request) -> bool {
        let outcome = match request.action {
            Action::Release => self.asked_release(request),
            Action::Notify => self.asked_notify(request),
            Action::Restart => self.asked_restart(request),
            Action::Mark | Action::Evict => self.asked_harm(request),
        };
        let done = matches!(outcome, RequestOutcome::Accepted { .. }) || self.decision.incident.is_some();
        self.decision.request = Some(outcome);
        done
    }

    /// While our marks are being undone nothing else is begun.
    pub(super) fn answer_while_releasing(&mut self, request: &Request) {
        let open = self.snapshot.commands.iter().rfind(|c| c.action == Action::Release && !c.state.terminal()).map(|c| c.id);
        let command = self.decision.commands.last().map(|command| command.id).or(open);
        self.decision.request = Some(match request.action {
            Action::Release => RequestOutcome::AlreadyDone { command, reason: "a release is under way".to_owned() },
            Action::Notify | Action::Mark | Action::Restart | Action::Evict => {
                RequestOutcome::Blocked { reason: "a release is under way: ask again when it has ended".to_owned() }
            }
        });
    }

    fn words_of(request: &Request) -> String {
        let how = if request.past_budgets { " past budgets" } else { "" };
        format!("{} asked for {}{how}{}: {}", request.caller, request.action, of_what(&request.workloads), request.reason)
    }

    fn accepted(&self) -> RequestOutcome {
        match self.decision.commands.last() {
            Some(command) => RequestOutcome::Accepted { command: command.id },
            None => RequestOutcome::AlreadyDone { command: None, reason: "nothing of ours is on the node".to_owned() },
        }
    }

    fn asked_release(&mut self, request: &Request) -> RequestOutcome {
        // What a database that lost commits does not know of may be there all the same, and stay when it is taken over.
        if self.bare() && !self.snapshot.cluster.taken_over() {
            let cluster = &self.snapshot.cluster.id;
            let reason = format!(
                "cluster {cluster} is not taken over yet, and whether our mark is on the node is not known before that: ask again then"
            );
            return RequestOutcome::Blocked { reason };
        }
        if self.incident().is_none() && !hand::mark_seen(self.snapshot) {
            return RequestOutcome::AlreadyDone { command: None, reason: "nothing of ours is on the node".to_owned() };
        }
        if let Some(command) = self.snapshot.commands.iter().rfind(|c| c.action == Action::Release && !c.state.terminal()) {
            return RequestOutcome::AlreadyDone { command: Some(command.id), reason: "a release is under way".to_owned() };
        }
        let words = Self::words_of(request);
        self.decision.reasons.insert(0, words.clone());
        let keys = self.keys_merged();
        if self.incident().is_none() {
            self.decision.budget = super::BudgetOp::HoldFound;
            self.release_command(IncidentState::Releasing, keys);
        } else {
            self.start_release(IncidentState::Releasing, &words, keys);
        }
        self.accepted()
    }

    fn asked_notify(&mut self, request: &Request) -> RequestOutcome {
        let stance = self.policy.stance(self.snapshot, None);
        if stance.mode < Mode::Notify || !self.settings.response.notify {
            let reason = format!("mode {} ({}) lets nothing leave the hub, or notifying is off", stance.mode, stance.mode_from);
            return RequestOutcome::Blocked { reason };
        }
        if self.snapshot.node.opted_out {
            return RequestOutcome::Blocked { reason: "the node's owner keeps us off (opt-out label)".to_owned() };
        }
        if !self.snapshot.cluster.taken_over() {
            return RequestOutcome::Blocked { reason: guards::not_taken_over(&self.snapshot.cluster.id) };
        }
        let reason = Self::words_of(request);
        self.decision.reasons.insert(0, reason.clone());
        let mut words = self.words(&[], &reason);
        words.level = "manual".to_owned();
        let step = Step::Notify { message: reason.clone() };
        let command = self.plan().command(Action::Notify, vec![step], words, false);
        self.send(command);
        let state = self.incident().map_or(IncidentState::Recorded, |incident| incident.state);
        self.stand_asked(state);
        self.accepted()
    }

    fn asked_harm(&mut self, request: &Request) -> RequestOutcome {
        let drains = request.action == Action::Evict;
        if let Some(answer) = self.already(drains, request.past_budgets) {
            return answer;
        }
        if request.past_budgets && !self.settings.response.drain.allow_pdb_bypass {
            let reason = "the policy lets nobody pass budgets (response.drain.allowPdbBypass)".to_owned();
            return RequestOutcome::Blocked { reason };
        }
        if let Err(reason) = self.mode_allows(drains) {
            self.would(reason.clone());
            return RequestOutcome::Blocked { reason };
        }
        let pass = match guards::admit(self.snapshot, self.settings, Some(request), self.now) {
            Ok(pass) => pass,
            Err(block) => {
                self.would(block.would);
                return RequestOutcome::Blocked { reason: block.reason };
            }
        };
        let reason = Self::words_of(request);
        self.decision.reasons.insert(0, reason.clone());
        let mut words = self.words(&[], &reason);
        words.level = "manual".to_owned();
        words.ignore_cooldown = request.ignore_cooldown;
        let plan = self.plan();
        let mut steps = vec![];
        if self.settings.response.notify {
            steps.push(Step::Notify { message: reason.clone() });
        }
        // Of a mark whose end nobody knows nobody knows either whether it keeps pods off: nothing is drained by it.
        let marks = !self.progress.marked() || self.progress.mark != Stage::Done;
        if marks {
            steps.push(plan.mark());
        }
        if drains {
            steps.push(if request.past_budgets { plan.drain_past_budgets() } else { plan.drain() });
        }
        let command = plan.command(request.action, steps, words, pass.takes_rate);
        self.again(command.times.start_by);
        self.send(command);
        self.take(pass.budget);
        for words in pass.words {
            self.say(words);
        }
        self.stand_asked(if marks { IncidentState::Quarantining } else { IncidentState::Draining });
        self.accepted()
    }

    /// A rollout of what runs on the node, which itself is left as it is: no mark, no place in the budgets, no cooldown that would keep
    /// a later fault of it waiting. Never by policy: which workload a restart would help no fault says.
    fn asked_restart(&mut self, request: &Request) -> RequestOutcome {
        if let Some(open) = self.progress.harmful_open.last().copied().or(self.progress.restart_open) {
            return RequestOutcome::Blocked { reason: format!("{} is under way: ask again when it has ended", in_words(open)) };
        }
        let pass =
            guards::admit_in_place(self.snapshot, self.settings, request, self.now).map_err(|block| (block.reason, block.would));
        let allowed = self.mode_allows(true).map_err(|reason| (reason.clone(), reason));
        if let Err((reason, would)) = allowed.and(pass) {
            self.would(would);
            return RequestOutcome::Blocked { reason };
        }
        let reason = Self::words_of(request);
        self.decision.reasons.insert(0, reason.clone());
        let mut words = self.words(&[], &reason);
        words.level = "manual".to_owned();
        words.ignore_cooldown = request.ignore_cooldown;
        let told = self.settings.response.notify.then_some(Step::Notify { message: reason });
        let steps = told.into_iter().chain([Plan::restart(&request.workloads)]).collect();
        let command = self.plan().command(Action::Restart, steps, words, true);
        self.again(command.times.finish_by);
        self.send(command);
        let state = self.incident().map_or(IncidentState::Recorded, |incident| incident.state);
        self.stand_asked(state);
        self.accepted()
    }

    /// A command under way, or done, that does it already.
    fn already(&self, drains: bool, past_budgets: bool) -> Option<RequestOutcome> {
        if let Some(open) = self.progress.harmful_open.last() {
            // A person asks for the whole node, and whether the one under way passes budgets is not known here.
            let covers = !drains || !past_budgets && open.gpu.is_none() && open.steps.iter().any(|step| step == "drain");
            return Some(if covers {
                RequestOutcome::AlreadyDone {
                    command: Some(open.id),
                    reason: format!("a command for {} is under way", open.action),
                }
            } else {
                RequestOutcome::Blocked { reason: format!("{} is under way: ask again when it has ended", in_words(open)) }
            });
        }
        let done = self.progress.mark == Stage::Done && (!drains || self.progress.drains.of_all_done()) && self.progress.marked();
        done.then(|| RequestOutcome::AlreadyDone {
            command: self.progress.marking.map(|command| command.id),
            reason: "it is done already".to_owned(),
        })
    }

    /// The widest mode that holds on this node for anything that is wrong with it bounds a person too.
    fn mode_allows(&self, drains: bool) -> Result<(), String> {
        let node = self.policy.stance(self.snapshot, None);
        let widest = self.judged.iter().filter(|one| one.live()).map(|one: &Judged<'_>| one.stance.mode).chain([node.mode]).max();
        let mode = widest.unwrap_or(node.mode);
        let needed = if drains { Mode::Approve } else { Mode::Mark };
        if mode < needed {
            return Err(format!("mode {mode} ({}) does not allow it: {needed} is needed", node.mode_from));
        }
        if drains && !self.settings.response.evict {
            return Err("eviction is off in the policy or in the cluster's own settings".to_owned());
        }
        Ok(())
    }

    fn stand_asked(&mut self, state: IncidentState) {
        let manual = self.incident().is_none_or(|incident| incident.manual);
        self.stand(state, self.keys_merged(), manual);
    }
}

/// Which workloads, the first by name: all of them are in the step.
fn of_what(workloads: &[Workload]) -> String {
    match workloads {
        [] => String::new(),
        [one] => format!(" of {one}"),
        [first, others @ ..] => format!(" of {first} and {} more", others.len()),
    }
}

/// A command for people.
fn in_words(command: &KnownCommand) -> String {
    let of = command.gpu.as_ref().and_then(GpuRef::place).map(|place| format!(" of GPU {place} alone"));
    format!("a command for {}{}", command.action, of.unwrap_or_default())
}
