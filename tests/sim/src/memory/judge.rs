//! Judging what is due: hub/core decides, and what it says is written in the order of the hub's own statements.

use std::rc::Rc;

use gpuheal_hub::audit::Kind;
use gpuheal_hub_core::{
    cooldown::{Cooldown, CooldownOp, CooldownState},
    decide::{BudgetOp, Decision, IncidentChange, decide},
    policy::Policy,
    snapshot::{Settled, Snapshot},
};
use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, IncidentId, NodeUid},
    time::Timestamp,
    words::{Action, Level},
};
use serde_json::json;

use super::{Command, Incident, Memory, rows::Issue};
use crate::{mutation::Mutation, store::Error};

/// Nodes of one transaction.
const BATCH: usize = 64;

impl Memory {
    /// The policy in force; one that only observes when there is none.
    pub(super) fn policy_in_force(&self) -> Rc<Policy> {
        self.policies.last().cloned().unwrap_or_else(|| Rc::new(Policy::observing()))
    }

    pub(super) fn judge_due(&mut self) -> Result<usize, Error> {
        let now = self.now;
        let due = |cluster: &super::Cluster| {
            let mut nodes: Vec<_> = cluster
                .judgements
                .iter()
                .filter_map(|(node, due)| due.filter(|due| *due <= now).map(|due| (due, node.clone())))
                .collect();
            nodes.sort();
            nodes
        };
        let first = self.clusters.iter().filter_map(|(id, cluster)| due(cluster).first().map(|(at, _)| (*at, id.clone()))).min();
        let Some((_, id)) = first else { return Ok(0) };
        let nodes: Vec<NodeUid> = due(&self.clusters[&id]).into_iter().take(BATCH).map(|(_, node)| node).collect();
        for node in &nodes {
            self.judge_node(&id, node)?;
        }
        Ok(nodes.len())
    }

    fn judge_node(&mut self, id: &ClusterId, node: &NodeUid) -> Result<(), Error> {
        let policy = self.policy_in_force();
        let story = self.story(id, node, &policy, None).filter(|_| !self.mutations.has(Mutation::NobodyJudges));
        let Some(mut snapshot) = story else {
            self.cluster(id).judgements.insert(node.clone(), None);
            return Ok(());
        };
        if self.mutations.has(Mutation::BudgetUnguarded) {
            (snapshot.cluster.out, snapshot.cluster.fleet_out) = (0, 0);
        }
        let mut decision = decide(&snapshot, &policy, self.now);
        if self.mutations.has(Mutation::HoldFreedBlind) {
            freed_blind(&snapshot, &mut decision);
        }
        let releases = decision.commands.iter().any(|command| command.action == Action::Release);
        if releases && self.mutations.has(Mutation::NobodyReleases) {
            self.cluster(id).judgements.insert(node.clone(), None);
            return Ok(());
        }
        self.apply(id, &snapshot, &decision, &policy)?;
        self.cluster(id).judgements.insert(node.clone(), decision.recheck_at);
        Ok(())
    }

    /// How a node would be judged at that time by what is known now, and that: nothing is changed.
    #[must_use]
    pub fn judgement(&self, id: &ClusterId, node: &NodeUid, at: Timestamp) -> Option<(Snapshot, Decision)> {
        let policy = self.policy_in_force();
        let snapshot = self.story(id, node, &policy, None)?;
        let decision = decide(&snapshot, &policy, at);
        Some((snapshot, decision))
    }

    fn apply(&mut self, id: &ClusterId, snapshot: &Snapshot, decision: &Decision, policy: &Policy) -> Result<(), Error> {
        if let Some(change) = &decision.incident {
            self.apply_incident(id, snapshot, change, decision, policy)?;
        }
        for settled in &decision.settle {
            let latest = self.cluster(id).faults.get_mut(&settled.key).and_then(|episodes| episodes.last_mut());
            let latest = latest.ok_or_else(|| senseless(snapshot, "a fault to settle that is not there"))?;
            latest.known.settled = Some(Settled { level: settled.settled.level });
        }
        for cancel in &decision.cancel {
            self.call_off(id, cancel.id, &cancel.reason);
        }
        let incident = decision.incident.as_ref().map(|change| change.id).or(snapshot.incident.as_ref().map(|one| one.id));
        self.apply_budget(id, snapshot, decision.budget, incident)?;
        self.apply_cooldown(id, snapshot, decision.cooldown, incident);
        self.issue(id, snapshot, decision, policy)?;
        if decision.is_news() {
            self.tell_decision(id, snapshot, decision, policy, incident);
        }
        Ok(())
    }

    fn apply_incident(
        &mut self,
        id: &ClusterId,
        snapshot: &Snapshot,
        change: &IncidentChange,
        decision: &Decision,
        policy: &Policy,
    ) -> Result<(), Error> {
        let now = self.now;
        let cluster = self.cluster(id);
        if change.opens {
            if cluster.open_incident(&snapshot.node.reference.uid).is_some() {
                return Err(senseless(snapshot, "a second open incident of one node"));
            }
            let incident = Incident {
                id: change.id,
                node: snapshot.node.reference.clone(),
                level: change.level,
                manual: change.manual,
                state: change.state,
                state_at: now,
                reason: change.reason.clone(),
                decision_no: change.decision_no,
                policy_revision: policy.revision,
                opened_at: now,
                closed_at: change.state.closed().then_some(now),
                faults: Default::default(),
                asked: Default::default(),
                decisions: Default::default(),
            };
            if cluster.incidents.insert(change.id, incident).is_some() {
                return Err(senseless(snapshot, "an incident of an id that is taken"));
            }
        }
        let incident = cluster.incidents.get_mut(&change.id).filter(|incident| change.opens || incident.closed_at.is_none());
        let incident = incident.ok_or_else(|| senseless(snapshot, "an incident that is closed or not there"))?;
        if !change.opens && !change.changed {
            return Ok(());
        }
        if !change.opens {
            if incident.decision_no + 1 != change.decision_no {
                return Err(senseless(snapshot, "a decision out of its order"));
            }
            if incident.state.go(change.state).is_err() {
                return Err(senseless(snapshot, "a move that no incident can make"));
            }
            if incident.state != change.state {
                incident.state_at = now;
            }
            (incident.level, incident.manual, incident.state) = (change.level, change.manual, change.state);
            incident.reason.clone_from(&change.reason);
            (incident.decision_no, incident.policy_revision) = (change.decision_no, policy.revision);
            incident.closed_at = change.state.closed().then_some(now);
        }
        incident.decisions.insert(change.decision_no, change.level);
        incident.asked.extend(&change.asked_keys);
        for fault in snapshot.faults.iter().filter(|fault| change.fault_keys.contains(&fault.key)) {
            let verdict = decision.verdicts.iter().find(|verdict| verdict.key == fault.key);
            let level = verdict.map_or(Level::P2, |verdict| verdict.level);
            let held = incident.faults.entry((fault.key, fault.episode)).or_insert((level, now));
            held.0 = level;
        }
        Ok(())
    }

    fn call_off(&mut self, id: &ClusterId, command: gpuheal_proto::ids::CommandId, reason: &str) {
        let now = self.now;
        let Some(row) = self.cluster(id).commands.get_mut(&command) else { return };
        if row.cancel_asked_at.is_some() || row.state.terminal() {
            return;
        }
        row.cancel_reason = reason.to_owned();
        row.cancel_asked_at = Some(now);
        if row.envelope.is_none() {
            (row.state, row.state_at) = (CommandState::Cancelled, now);
            row.cancel_sent_at = Some(now);
            row.result_reason = reason.to_owned();
        }
    }

    fn apply_budget(
        &mut self,
        id: &ClusterId,
        snapshot: &Snapshot,
        op: BudgetOp,
        incident: Option<IncidentId>,
    ) -> Result<(), Error> {
        let node = snapshot.node.reference.uid.clone();
        match (op, incident) {
            (BudgetOp::Keep, _) => Ok(()),
            (BudgetOp::Free, _) => {
                if self.cluster(id).holds.remove(&node).is_some() {
                    self.cluster(id).out -= 1;
                    self.fleet_out -= 1;
                }
                Ok(())
            }
            (BudgetOp::Hold { cluster_allowed, fleet_allowed }, Some(incident)) => {
                let unguarded = self.mutations.has(Mutation::BudgetUnguarded);
                let room = self.cluster(id).out < cluster_allowed && self.fleet_out < fleet_allowed;
                if !room && !unguarded && !self.cluster(id).holds.contains_key(&node) {
                    return Err(senseless(snapshot, "a place in a budget that has none left"));
                }
                self.hold(id, node, incident);
                Ok(())
            }
            (BudgetOp::HoldFound, Some(incident)) => {
                self.hold(id, node, incident);
                Ok(())
            }
            (BudgetOp::Hold { .. } | BudgetOp::HoldFound, None) => {
                Err(senseless(snapshot, "a place in the budgets without an incident"))
            }
        }
    }

    pub(super) fn hold(&mut self, id: &ClusterId, node: NodeUid, incident: IncidentId) {
        if self.cluster(id).holds.insert(node, incident).is_none() {
            self.cluster(id).out += 1;
            self.fleet_out += 1;
        }
    }

    fn apply_cooldown(&mut self, id: &ClusterId, snapshot: &Snapshot, op: CooldownOp, incident: Option<IncidentId>) {
        let state = match op {
            CooldownOp::Keep => return,
            CooldownOp::Reserve => CooldownState::Reserved,
            CooldownOp::Run { until } => CooldownState::Running { until },
            CooldownOp::Void => CooldownState::Void,
        };
        if let Some(incident) = incident.or(snapshot.cooldown.map(|row| row.incident)) {
            self.cluster(id).cooldowns.insert(snapshot.node.reference.uid.clone(), Cooldown { incident, state });
        }
    }

    fn issue(&mut self, id: &ClusterId, snapshot: &Snapshot, decision: &Decision, policy: &Policy) -> Result<(), Error> {
        let (now, hub_term) = (self.now, self.hub_term);
        let mut rates = (snapshot.cluster.rate, snapshot.cluster.fleet_rate);
        for planned in &decision.commands {
            let Some(change) = decision.incident.as_ref().filter(|change| change.changed || change.opens) else {
                return Err(senseless(snapshot, "a command without a decision of its own"));
            };
            let node = self.cluster(id).nodes.get_mut(&planned.node.uid).filter(|node| node.plan_rev_issued < planned.plan_rev);
            node.ok_or_else(|| senseless(snapshot, "a plan revision that is not higher"))?.plan_rev_issued = planned.plan_rev;
            if planned.takes_rate {
                let none_left = |_| senseless(snapshot, "a rate that has nothing left");
                rates.1 = policy.settings.rates.fleet.take(rates.1, now).map_err(none_left)?;
                rates.0 = policy.settings.rates.cluster.take(rates.0, now).map_err(none_left)?;
                (self.cluster(id).rate, self.fleet_rate) = (Some(rates.0), Some(rates.1));
            }
            let cluster = self.cluster(id);
            if cluster.commands.values().any(|other| other.planned.idempotency_key == planned.idempotency_key) {
                return Err(senseless(snapshot, "a command of an idempotency key that is taken"));
            }
            cluster.cmd_seq += 1;
            let issue = Issue {
                incident: change.id,
                decision_no: change.decision_no,
                cmd_seq: cluster.cmd_seq,
                hub_term,
                policy: (policy.revision, policy.digest.clone()),
            };
            let command = Command::proposed(planned.clone(), issue, now);
            cluster.commands.insert(planned.id, command);
        }
        Ok(())
    }

    fn tell_decision(
        &mut self,
        id: &ClusterId,
        snapshot: &Snapshot,
        decision: &Decision,
        policy: &Policy,
        incident: Option<IncidentId>,
    ) {
        let change = decision.incident.as_ref();
        let commands: Vec<_> =
            decision.commands.iter().map(|c| json!({"id": c.id, "action": c.action, "plan_rev": c.plan_rev})).collect();
        let body = json!({
            "from": snapshot.incident.as_ref().map(|incident| incident.state), "to": change.map(|change| change.state),
            "decision_no": change.map(|change| change.decision_no), "reasons": decision.reasons, "commands": commands,
            "cancel": decision.cancel.iter().map(|cancel| cancel.id).collect::<Vec<_>>(),
            "settle": decision.settle.iter().map(|settled| settled.key).collect::<Vec<_>>(),
            "budget": decision.budget, "cooldown": decision.cooldown, "policy_revision": policy.revision,
        });
        let subject = format!("node/{}", snapshot.node.reference.name);
        self.tell(id, Kind::Decision, "hub/decide", &subject, incident, &body);
    }
}

fn senseless(snapshot: &Snapshot, why: &str) -> Error {
    Error::Refused(format!("the decision about node {} cannot be stored: {why}", snapshot.node.reference.name))
}

/// The defect: a command that is over without a word gives its place back at once.
fn freed_blind(snapshot: &Snapshot, decision: &mut Decision) {
    let held = snapshot.incident.as_ref().is_some_and(|incident| incident.held);
    let over = snapshot.commands.last().is_some_and(|command| command.state.terminal() && command.state != CommandState::Succeeded);
    if held && over && decision.budget == BudgetOp::Keep && decision.commands.is_empty() {
        decision.budget = BudgetOp::Free;
    }
}
