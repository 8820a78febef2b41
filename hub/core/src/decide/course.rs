//! The ordinary course: faults open an incident, the incident acts or waits, and it ends when its faults do.

use std::time::Duration;

use gpuheal_proto::{
    command::Step,
    time::Timestamp,
    words::{Action, Level, Mode},
};

use super::{
    Notice, Urgency,
    case::Case,
    drains::NextDrain,
    guards::{self, RECHECK},
    hand,
    judge::Judged,
    lines,
    progress::Stage,
    recover::{Recovery, recovery},
};
use crate::{cooldown::CooldownOp, incident::IncidentState};

/// After a command came to nothing the plan is made again this late, doubled each time up to [`RETRY_MAX`]: a ceiling or
/// a marker that refused a moment ago will refuse again.
const RETRY: Duration = Duration::from_secs(5 * 60);
/// Once an hour is often enough for what has refused four times.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// A command's end is waited for this long past its own deadlines.
const OVERDUE: Duration = Duration::from_secs(60);

impl Case<'_> {
    pub(super) fn course(&mut self, given_back: bool) {
        let opens = self.judged.iter().any(|one| one.live() && one.classified.opens);
        if self.incident().is_none() && !opens {
            self.tell_lines(self.judged.iter());
            return;
        }
        self.reasons();
        if self.ended() {
            return;
        }
        let state = self.act(given_back);
        // Watching and recording alone tell here; a plan that acts carries its own Event.
        if self.decision.commands.is_empty() {
            self.tell_alone();
        }
        let manual = self.incident().is_some_and(|incident| incident.manual);
        self.stand(state, self.keys_merged(), manual);
    }

    /// The faults speak first, the worst one before the others.
    fn reasons(&mut self) {
        self.tell_lines(self.judged.iter().filter(|one| one.live()));
    }

    fn tell_lines<'j>(&mut self, judged: impl Iterator<Item = &'j Judged<'j>>) {
        for line in lines::lines(judged) {
            self.say(line.words);
            if let Some(would) = line.would {
                self.would(would);
            }
        }
    }

    /// Whether the trouble is over, or was never more than a record.
    fn ended(&mut self) -> bool {
        let Some(incident) = self.incident() else { return false };
        let bare = !self.progress.marked() && self.progress.nothing_open() && !hand::mark_seen(self.snapshot);
        if bare && self.file() {
            return true;
        }
        match recovery(self.snapshot, incident, self.judged, self.settings, self.now, bare) {
            Recovery::Over(why) => {
                self.decision.reasons.insert(0, why.clone());
                self.start_release(IncidentState::Releasing, &why, self.keys_held());
                true
            }
            Recovery::NotYet { reason, recheck_at } => {
                if self.progress.marked() || self.judged.iter().all(|one| !one.live()) {
                    self.say(reason.clone());
                    self.would(format!("release: {reason}"));
                }
                if let Some(at) = recheck_at {
                    self.again(at);
                }
                false
            }
        }
    }

    /// A record of P2 faults alone is closed when the merge window has passed: it claims nothing about anybody's health.
    fn file(&mut self) -> bool {
        let Some(incident) = self.incident() else { return false };
        let light = |one: &Judged<'_>| one.classified.level == Level::P2 || one.classified.user_app;
        let ours: Vec<_> = self.judged.iter().filter(|one| one.live() || incident.fault_keys.contains(&one.fault.key)).collect();
        let known = ours.len() >= incident.fault_keys.len() && ours.iter().all(|one| light(one));
        let from = matches!(incident.state, IncidentState::Open | IncidentState::Recorded | IncidentState::Watching);
        let level = ours.iter().map(|one| one.classified.level).max().unwrap_or(Level::P2);
        if !known || !from || incident.level > level || (ours.is_empty() && !incident.manual) {
            return false;
        }
        let last = ours.iter().map(|one| one.fault.last_at).max().unwrap_or(incident.opened_at).max(incident.opened_at);
        let file_at = last.after(self.settings.windows.merge);
        if self.now < file_at {
            self.again(file_at);
            return false;
        }
        self.say(format!("recorded; nothing new within {} min", self.settings.windows.merge.as_secs() / 60));
        let keys = self.keys_merged();
        self.close(IncidentState::Filed, keys, level);
        true
    }

    /// What is done, or what is waited for.
    fn act(&mut self, given_back: bool) -> IncidentState {
        if !self.progress.harmful_open.is_empty() {
            return self.under_way();
        }
        self.restart_under_way();
        if let Some(trouble) = self.progress.trouble().filter(|_| !self.others_first()) {
            self.decision.reasons.insert(0, trouble.clone());
            self.would("a person looks, then process evict or release".to_owned());
            return self.page(IncidentState::Failed, trouble);
        }
        let (want, spent) = self.want();
        let mark_needed = want >= Some(Action::Mark) && !self.progress.marked();
        let drain = if want == Some(Action::Evict) { self.next_drain() } else { None };
        if !mark_needed && drain.is_none() {
            return self.rest(spent);
        }
        if let Some(until) = self.retry_at(given_back, drain.as_ref()) {
            self.again(until);
            return IncidentState::Blocked;
        }
        if want == Some(Action::Evict) && self.needs_approval(drain.as_ref()) {
            return IncidentState::AwaitingApproval;
        }
        self.plan_harm(mark_needed, drain)
    }

    /// Nothing of the node waits for a restart, but a stop of the fleet calls it off too, and its end is looked for.
    fn restart_under_way(&mut self) {
        let Some(open) = self.progress.restart_open else { return };
        if let Some(why) = &self.snapshot.cluster.fleet_stop {
            self.cancel_harm(&format!("the fleet is stopped: {why}"));
        }
        self.again(self.now.after(RECHECK).max(open.finish_by.after(OVERDUE)));
    }

    fn under_way(&mut self) -> IncidentState {
        if let Some(why) = &self.snapshot.cluster.fleet_stop {
            let why = format!("the fleet is stopped: {why}");
            self.cancel_harm(&why);
            self.decision.reasons.insert(0, why);
            self.again(self.now.after(RECHECK));
            return IncidentState::Blocked;
        }
        for command in &self.progress.harmful_open {
            let received = matches!(
                command.state,
                gpuheal_proto::command::CommandState::Received | gpuheal_proto::command::CommandState::Started
            );
            let due = if received { command.finish_by } else { command.start_by };
            self.again(self.now.after(RECHECK).max(due.after(OVERDUE)));
        }
        let draining = self.progress.mark == Stage::Done && self.progress.drains.under_way();
        if draining { IncidentState::Draining } else { IncidentState::Quarantining }
    }

    /// A GPU's drain ended ill, and another GPU's users have still to be drained: they are, before a person is waited for. Not where
    /// the trouble is the whole node's, nor where that one waits itself.
    fn others_first(&self) -> bool {
        let of_node = matches!(self.progress.mark, Stage::Failed(_) | Stage::Unknown(_)) || self.progress.drains.of_all_ended_ill();
        let spent = self.recent_attempts() >= self.settings.attempts.max;
        !of_node && !spent && self.next_drain().is_some_and(|drain| !drain.waits)
    }

    fn recent_attempts(&self) -> u32 {
        let window = self.settings.attempts.window;
        let recent = self.snapshot.attempts.iter().filter(|at| self.now.since(**at) < window).count();
        u32::try_from(recent).unwrap_or(u32::MAX)
    }

    /// What the faults are reason enough for; and whether the node's attempts are used up, so that it is marked alone.
    fn want(&mut self) -> (Option<Action>, bool) {
        let want = self.judged.iter().filter_map(|one| one.want).max();
        let rule = self.settings.attempts;
        let recent = self.recent_attempts();
        let spent = recent >= rule.max;
        if want.is_none() || !spent {
            return (want, false);
        }
        let hours = rule.window.as_secs() / 3600;
        self.decision.reasons.insert(
            0,
            format!("{recent} quarantines of this node within {hours} h, {} are allowed: marked, and a person is called", rule.max),
        );
        self.would("a person repairs the node, then process release".to_owned());
        (Some(Action::Mark), true)
    }

    /// Nothing more is to be done: what is waited for.
    fn rest(&mut self, spent: bool) -> IncidentState {
        let soonest = self.judged.iter().filter(|one| one.live()).filter_map(|one| one.wait_until).min();
        if let Some(at) = soonest {
            self.again(at);
        }
        if self.progress.marked() {
            if spent {
                let why = self.decision.reasons.first().cloned().unwrap_or_default();
                return self.page(IncidentState::Escalated, why);
            }
            let was = self.incident().map(|incident| incident.state);
            return if was == Some(IncidentState::Escalated) { IncidentState::Escalated } else { IncidentState::Validating };
        }
        if hand::mark_seen(self.snapshot) {
            return IncidentState::Validating;
        }
        let waits = self.judged.iter().any(|one| one.outcome == super::VerdictOutcome::Waits);
        let live = self.judged.iter().any(Judged::live);
        let was_more = self.incident().is_some_and(|incident| incident.level > Level::P2);
        if waits || (!live && was_more) { IncidentState::Watching } else { IncidentState::Recorded }
    }

    /// Calls a person once; where nothing more is done until that person comes, again for each fault that asks for an eviction from then
    /// on, be it new or known and worse by now: nobody else helps its users.
    fn page(&mut self, state: IncidentState, text: String) -> IncidentState {
        let news = self.incident().is_some_and(|incident| {
            let asks_anew = |one: &Judged<'_>| one.asks_to_evict() && !incident.asked_keys.contains(&one.fault.key);
            incident.state != state || self.judged.iter().any(asks_anew)
        });
        if news {
            self.decision.notify.push(Notice { urgency: Urgency::Page, text });
        }
        state
    }

    fn retry_at(&mut self, given_back: bool, drain: Option<&NextDrain>) -> Option<Timestamp> {
        let last = self.progress.came_to_nothing?;
        if !given_back && drain.is_some_and(|drain| drain.outlives(last)) {
            return None;
        }
        let tries = self
            .snapshot
            .commands
            .iter()
            .filter(|command| {
                super::progress::void(command) && matches!(command.action, Action::Mark | Action::Evict | Action::Release)
            })
            .count();
        let doublings = u32::try_from(tries.saturating_sub(1)).unwrap_or(u32::MAX).min(4);
        let until = last.state_at.after((RETRY * 2_u32.pow(doublings)).min(RETRY_MAX));
        let why = last.refusal.map_or_else(|| last.state.to_string(), |refusal| format!("refused, {refusal}"));
        if self.now < until || given_back {
            let until = until.max(self.now.after(Duration::from_secs(1)));
            self.decision
                .reasons
                .insert(0, format!("{} came to nothing ({why}: {}); planned again at {until}", last.action, last.outcome));
            self.would(format!("the cause of {why} goes"));
            return Some(until);
        }
        None
    }

    /// Mode approve waits for a person, whose yes is their own request: `process --action evict`.
    fn needs_approval(&mut self, drain: Option<&NextDrain>) -> bool {
        let asks = |one: &&Judged<'_>| one.want == Some(Action::Evict);
        let all_wait = || !self.judged.iter().filter(asks).any(|one| one.stance.mode == Mode::Heal);
        if !drain.map_or_else(all_wait, |drain| drain.waits) {
            return false;
        }
        let (node, cluster) = (&self.snapshot.node.reference.name, &self.snapshot.cluster.id);
        self.would(format!("a person says yes: gpuhealctl process {node} --cluster {cluster} --action evict --reason WHY"));
        self.say("mode approve: waits for a person");
        self.again(self.now.after(RECHECK));
        true
    }

    fn plan_harm(&mut self, mark_needed: bool, drain: Option<NextDrain>) -> IncidentState {
        let pass = match guards::admit(self.snapshot, self.settings, None, self.now) {
            Ok(pass) => pass,
            Err(block) => {
                self.decision.reasons.insert(0, block.reason);
                self.would(block.would);
                self.again(block.recheck_at);
                return block.state;
            }
        };
        let words = self.words_of_harm(drain.as_ref());
        let news = self.news();
        let mut steps: Vec<Step> = self.tell(news).into_iter().collect();
        let plan = self.plan();
        if mark_needed {
            steps.push(plan.mark());
        }
        if drain.is_some() {
            steps.push(plan.drain());
        }
        let action = if drain.is_some() { Action::Evict } else { Action::Mark };
        let command = plan.command(action, steps, words, pass.takes_rate);
        self.again(command.times.start_by.after(OVERDUE));
        self.send(command);
        self.take(pass.budget);
        let reach = drain.map(|drain| drain.words);
        for words in reach.into_iter().chain(pass.words) {
            self.say(words);
        }
        if mark_needed { IncidentState::Quarantining } else { IncidentState::Draining }
    }

    /// Takes the place in the budgets and reserves the cooldown, with the command, in one decision.
    pub(super) fn take(&mut self, budget: super::BudgetOp) {
        self.decision.budget = budget;
        let ours = self.snapshot.cooldown.is_some_and(|row| {
            Some(row.incident) == self.incident().map(|incident| incident.id) && row.state != crate::cooldown::CooldownState::Void
        });
        if !ours {
            self.decision.cooldown = CooldownOp::Reserve;
        }
    }
}
