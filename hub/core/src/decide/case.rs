//! One decision in the making: what it looks at, and the few moves that every path through it shares.

use gpuheal_proto::{
    fault::GpuRef,
    ids::{FaultKey, IncidentId, digest, uuid_v7},
    time::Timestamp,
    words::Level,
};

use super::{
    BudgetOp, CancelCommand, Decision, IncidentChange, PlannedCommand, SettleFault, hand,
    judge::Judged,
    plan::{Plan, Words},
    progress::Progress,
};
use crate::{
    cooldown::{self, Cooldown, CooldownOp, CooldownState},
    gpu::same_place,
    incident::IncidentState,
    policy::{Policy, Settings},
    snapshot::{EvidenceState, Incident, KnownFault, Settled, Snapshot},
};

/// A view of the cluster is waited for a little longer than the moment that it must be newer than.
const VIEW_SLACK: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) struct Case<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) policy: &'a Policy,
    pub(super) settings: &'a Settings,
    pub(super) judged: &'a [Judged<'a>],
    pub(super) progress: &'a Progress<'a>,
    pub(super) now: Timestamp,
    pub(super) decision: Decision,
}

impl<'a> Case<'a> {
    pub(super) fn incident(&self) -> Option<&'a Incident> {
        self.snapshot.incident.as_ref()
    }

    /// Faults of the incident and every live one that has come since.
    pub(super) fn keys_merged(&self) -> Vec<FaultKey> {
        let mut keys = self.keys_held();
        for one in self.judged.iter().filter(|one| one.live()) {
            if !keys.contains(&one.fault.key) {
                keys.push(one.fault.key);
            }
        }
        keys
    }

    pub(super) fn keys_held(&self) -> Vec<FaultKey> {
        self.incident().map(|incident| incident.fault_keys.clone()).unwrap_or_default()
    }

    /// Faults among `keys` that have asked for an eviction, now or before.
    fn keys_asked(&self, keys: &[FaultKey]) -> Vec<FaultKey> {
        let before = self.incident().map_or(&[][..], |incident| &incident.asked_keys);
        let now: Vec<FaultKey> = self.judged.iter().filter(|one| one.asks_to_evict()).map(|one| one.fault.key).collect();
        keys.iter().filter(|key| before.contains(key) || now.contains(key)).copied().collect()
    }

    /// The incident's id: its own, or one made from what opens it.
    pub(super) fn id(&self) -> IncidentId {
        if let Some(incident) = self.incident() {
            return incident.id;
        }
        let first = self.judged.iter().filter(|one| one.live()).min_by_key(|one| (one.fault.first_at, one.fault.key));
        let cause = first.map(|one| (one.fault.key.to_string(), one.fault.episode.to_string()));
        let (key, episode) = cause.unwrap_or_else(|| match &self.snapshot.request {
            Some(request) => (request.id.clone(), "request".to_owned()),
            None => ("mark".to_owned(), self.snapshot.node.plan_revision.to_string()),
        });
        let (cluster, node) = (self.snapshot.cluster.id.as_str(), self.snapshot.node.reference.uid.as_str());
        IncidentId::from_uuid(uuid_v7(self.now, &digest(&["incident", cluster, node, &key, &episode])))
    }

    pub(super) fn next_no(&self) -> u32 {
        self.incident().map_or(0, |incident| incident.decision_no) + 1
    }

    /// The worst level of the incident and of what is live.
    pub(super) fn level(&self) -> Level {
        let live = self.judged.iter().filter(|one| one.live()).map(|one| one.classified.level).max();
        live.max(self.incident().map(|incident| incident.level)).unwrap_or(Level::P2)
    }

    pub(super) fn plan(&self) -> Plan<'a> {
        Plan { snapshot: self.snapshot, settings: self.settings, incident: self.id(), decision_no: self.next_no(), now: self.now }
    }

    /// The words of a command about these faults.
    pub(super) fn words(&self, about: &[&Judged<'_>], reason: &str) -> Words {
        let level = about.iter().map(|one| one.classified.level).max().unwrap_or_else(|| self.level());
        Words {
            level: level.to_string(),
            reason: reason.to_owned(),
            fault_keys: about.iter().map(|one| one.fault.key).collect(),
            gpu: same_gpu(about),
            ignore_cooldown: false,
        }
    }

    pub(super) fn send(&mut self, command: PlannedCommand) {
        self.decision.commands.push(command);
    }

    pub(super) fn say(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        if !self.decision.reasons.contains(&reason) {
            self.decision.reasons.push(reason);
        }
    }

    pub(super) fn would(&mut self, change: impl Into<String>) {
        let change = change.into();
        if !self.decision.would_change.contains(&change) {
            self.decision.would_change.push(change);
        }
    }

    /// Looks again then, or earlier if something else asks for it.
    pub(super) fn again(&mut self, at: Timestamp) {
        self.decision.recheck_at = Some(self.decision.recheck_at.map_or(at, |earlier| earlier.min(at)));
    }

    pub(super) fn cancel_harm(&mut self, reason: &str) {
        for command in self.progress.harmful_open.iter().copied().chain(self.progress.restart_open) {
            self.decision.cancel.push(CancelCommand { id: command.id, reason: reason.to_owned() });
        }
    }

    /// Ends the decision with the incident in `state`.
    pub(super) fn stand(&mut self, state: IncidentState, keys: Vec<FaultKey>, manual: bool) {
        let old = self.incident();
        let level = self.level();
        let from = old.map_or(IncidentState::Open, |incident| incident.state);
        // A move that the table refuses would be a bug of ours: the incident then stays, and the reasons say it.
        let state = from.go(state).unwrap_or_else(|refused| {
            self.say(refused.to_string());
            from
        });
        let asked_keys = self.keys_asked(&keys);
        let differs = |incident: &Incident| {
            incident.state != state
                || incident.level != level
                || incident.fault_keys != keys
                || asked_keys.iter().any(|key| !incident.asked_keys.contains(key))
                || incident.manual != manual
                || incident.policy_revision != self.policy.revision
        };
        let acts = !self.decision.commands.is_empty() || !self.decision.cancel.is_empty();
        let changed = acts || old.is_none_or(differs);
        let decision_no = if changed { self.next_no() } else { self.next_no() - 1 };
        // What came while it was being ended, and stands, is the next incident's: nothing else would ask for that judgement.
        let left = |fault: &KnownFault| {
            fault.settled.is_none() && fault.evidence.state != EvidenceState::Clear && !keys.contains(&fault.key)
        };
        let comes_next = self.snapshot.faults.iter().any(left);
        let fresh = || self.decision.reasons.first().cloned().unwrap_or_else(|| state.to_string());
        let reason = self.persons_words(state).unwrap_or_else(fresh);
        let change = IncidentChange {
            id: self.id(),
            opens: old.is_none(),
            changed,
            decision_no,
            state,
            level,
            manual,
            fault_keys: keys,
            asked_keys,
            reason,
        };
        self.decision.incident = Some(change);
        if state.closed() {
            self.decision.recheck_at = comes_next.then_some(self.now);
        }
    }

    /// What a person asked for stays the reason of their incident until another person, a fault or a failure speaks.
    fn persons_words(&self, state: IncidentState) -> Option<String> {
        use IncidentState::{Draining, Quarantining, Recorded, Released, Releasing, Validating, Watching};
        let calm = |state| matches!(state, Quarantining | Draining | Validating | Releasing | Released | Recorded | Watching);
        let asked = self.snapshot.request.is_some() && (state.closed() || !self.decision.commands.is_empty());
        let acts = self.judged.iter().any(|one| one.want.is_some());
        let old = self.incident().filter(|old| old.manual && !old.reason.is_empty() && calm(old.state) && calm(state))?;
        (!asked && !acts).then(|| old.reason.clone())
    }

    /// Closes the incident: its faults' episodes are done with up to `level`, its place in the budgets is free.
    pub(super) fn close(&mut self, state: IncidentState, keys: Vec<FaultKey>, level: Level) {
        self.decision.settle = keys.iter().map(|key| SettleFault { key: *key, settled: Settled { level } }).collect();
        if self.incident().is_some_and(|incident| incident.held) {
            self.decision.budget = BudgetOp::Free;
        }
        let manual = self.incident().is_some_and(|incident| incident.manual);
        self.stand(state, keys, manual);
    }

    /// Cooldown and place in the budgets follow what was heard of the commands. True when they were given back.
    pub(super) fn settle_outcomes(&mut self) -> bool {
        let Some(incident) = self.incident() else { return false };
        let ours = self.snapshot.cooldown.filter(|row| row.incident == incident.id);
        if let (Some(effect_at), Some(Cooldown { state: CooldownState::Reserved, .. })) = (self.progress.first_effect_at, ours) {
            self.decision.cooldown = CooldownOp::Run { until: cooldown::ends(effect_at, self.settings.cooldown) };
        }
        let Some(void) = self.progress.came_to_nothing.filter(|_| incident.held) else { return false };
        if self.progress.marked() || !self.progress.harmful_open.is_empty() || self.progress.first_effect_at.is_some() {
            return false;
        }
        let state_at = self.snapshot.cluster.observer.state_at.unwrap_or_default();
        if state_at.max(self.snapshot.node.seen_at) <= void.start_by || hand::mark_seen(self.snapshot) {
            self.again(self.now.max(void.start_by).after(VIEW_SLACK));
            return false;
        }
        self.decision.budget = BudgetOp::Free;
        if ours.is_some_and(|row| row.state == CooldownState::Reserved) {
            self.decision.cooldown = CooldownOp::Void;
        }
        self.say(format!(
            "{} came to nothing ({}): its cooldown and its place in the budgets are given back",
            void.action, void.state
        ));
        true
    }
}

/// The one GPU that all of them are of, for sure.
fn same_gpu(about: &[&Judged<'_>]) -> Option<GpuRef> {
    let first = about.first()?.fault.gpu.as_ref()?;
    let same = |one: &&Judged<'_>| one.fault.gpu.as_ref().is_some_and(|gpu| same_place(gpu, first) == Some(true));
    about.iter().all(same).then(|| first.clone())
}
