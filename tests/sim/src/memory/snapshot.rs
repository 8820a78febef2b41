//! One node's whole story, gathered as the hub gathers it: what a decision may look at, and nothing else.

use std::collections::BTreeSet;

use gpuheal_hub::store::snapshot::merge_undo;
use gpuheal_hub_core::{
    budget::{Rate, RateState},
    policy::{Narrowing, Policy},
    snapshot::{self, KnownCommand, KnownFault, Observer, Request, Snapshot},
};
use gpuheal_proto::{
    command::{Refusal, Step, Undo},
    fault::NodeRef,
    ids::{ClusterId, NodeUid},
    time::Timestamp,
    words::{Action, Level},
};

use super::{Cluster, Incident, Memory, Node, inventory::marked};
use crate::mutation::Mutation;

impl Memory {
    /// `None`: nothing of that UID is known.
    pub(super) fn story(&self, id: &ClusterId, node: &NodeUid, policy: &Policy, request: Option<Request>) -> Option<Snapshot> {
        let cluster = self.clusters.get(id)?;
        let (faults, told) = faults(cluster, node);
        let node_view = match cluster.nodes.get(node) {
            Some(row) => self.node_view(cluster, row),
            None => snapshot::Node::never_shown(told?),
        };
        let incident = cluster.open_incident(node);
        let (mut commands, undo) = incident.map(|incident| commands(cluster, incident)).unwrap_or_default();
        if self.mutations.has(Mutation::AnyDrainIsAll) {
            commands.iter_mut().for_each(|command| command.gpu = None);
        }
        let attempts_since = self.now.before(policy.settings.attempts.window);
        let mut shared = self.shared(id, cluster, policy);
        shared.newly_suspect = newly_suspect(cluster, node, self.now.before(policy.settings.breaker.window)) + 1;
        Some(Snapshot {
            cluster: shared,
            node: node_view,
            faults,
            incident: incident.map(|incident| told_of(cluster, incident, undo)),
            commands,
            cooldown: cluster.cooldowns.get(node).copied(),
            attempts: attempts(cluster, node, incident, attempts_since),
            request,
        })
    }

    fn shared(&self, id: &ClusterId, cluster: &Cluster, policy: &Policy) -> snapshot::Cluster {
        let rates = &policy.settings.rates;
        // What other clusters have out that have not shown it since the epoch rose: each counts at its full budget.
        let others = self.clusters.iter().filter(|(other, rows)| *other != id && rows.snapshot_term.is_some() && !self.whole(rows));
        let unknown = others.map(|(_, rows)| policy.settings.budgets.cluster.allowed(rows.gpu_nodes()).saturating_sub(rows.out));
        let adopting: u32 = unknown.fold(0, u32::saturating_add);
        let fleet_unheld = self.clusters.values().map(unheld).sum::<u32>().saturating_add(adopting);
        let rate = |rate: Rate, stored: Option<RateState>| stored.unwrap_or_else(|| rate.full(self.now));
        snapshot::Cluster {
            id: id.clone(),
            gpu_nodes: cluster.gpu_nodes(),
            out: cluster.out + unheld(cluster),
            fleet_gpu_nodes: self.clusters.values().map(Cluster::gpu_nodes).sum(),
            fleet_out: self.fleet_out.saturating_add(fleet_unheld),
            fleet_adopting: adopting,
            rate: rate(rates.cluster, cluster.rate),
            fleet_rate: rate(rates.fleet, self.fleet_rate),
            narrowing: Narrowing::in_force(&cluster.config_yaml).0,
            observer: Observer {
                state_at: cluster.state_as_of.filter(|_| self.whole(cluster)),
                told_upto: match self.mutations.has(Mutation::ToldBlind) {
                    true => Some(self.now),
                    false => cluster.told_upto.filter(|_| self.whole(cluster)),
                },
            },
            fleet_stop: self.stop.clone(),
            newly_suspect: 0,
        }
    }

    fn node_view(&self, cluster: &Cluster, row: &Node) -> snapshot::Node {
        let written = cluster.commands.values().filter(|command| {
            command.planned.node.uid == row.reference.uid && !matches!(command.planned.action, Action::Notify | Action::Restart)
        });
        let written_at = written.map(|command| command.state_at).max().filter(|_| marked(&row.mark));
        snapshot::Node {
            reference: row.reference.clone(),
            labels: row.labels.clone(),
            gpus: row.gpus.clone(),
            capacity_gpus: row.capacity_gpus,
            allocatable_gpus: row.allocatable_gpus,
            ready: row.ready,
            unschedulable: row.unschedulable,
            unschedulable_by: row.unschedulable_by.clone(),
            mark: marked(&row.mark).then(|| row.mark.clone()),
            plan_revision: row.plan_revision,
            plan_rev_floor: row.plan_rev_issued,
            opted_out: row.opted_out,
            foreign_markers: row.foreign_markers.clone(),
            created_at: row.created_at,
            seen_at: cluster.state_as_of.unwrap_or_default().max(row.state_as_of),
            written_at: written_at.unwrap_or(Timestamp::EPOCH),
            gone: row.gone_at.is_some(),
        }
    }
}

/// Nodes that a mark takes out and no hold counts yet; not those whose mark was shown before their incident was closed.
fn unheld(cluster: &Cluster) -> u32 {
    let closed_since = |uid: &NodeUid, at: Timestamp| {
        let closed =
            cluster.incidents.values().filter(|incident| incident.node.uid == *uid).filter_map(|incident| incident.closed_at);
        closed.max().is_some_and(|closed| closed >= at)
    };
    let shown = cluster.nodes.iter().filter(|(_, node)| node.gone_at.is_none() && marked(&node.mark));
    let unheld = shown.filter(|(uid, node)| !cluster.holds.contains_key(*uid) && !closed_since(uid, node.state_as_of));
    u32::try_from(unheld.count()).unwrap_or(u32::MAX)
}

/// The latest episode of each fault that is not over, and how the latest of them names its node.
fn faults(cluster: &Cluster, node: &NodeUid) -> (Vec<KnownFault>, Option<NodeRef>) {
    let latest = cluster.faults.values().filter_map(|episodes| episodes.last()).filter(|fault| fault.node.uid == *node);
    let over = |fault: &&super::Fault| {
        fault.settled().is_some() && fault.evidence().state == gpuheal_hub_core::snapshot::EvidenceState::Clear
    };
    let standing: Vec<&super::Fault> = latest.filter(|fault| !over(fault)).collect();
    let told = standing.iter().max_by_key(|fault| fault.known.last_at).map(|fault| fault.node.clone());
    let mut known: Vec<KnownFault> = standing.into_iter().map(|fault| fault.known.clone()).collect();
    known.sort_by_key(|fault| (fault.first_at, fault.key));
    (known, told)
}

fn told_of(cluster: &Cluster, row: &Incident, undo: Undo) -> snapshot::Incident {
    let mut fault_keys: Vec<_> = row.faults.keys().map(|(key, _)| *key).collect();
    fault_keys.dedup();
    snapshot::Incident {
        id: row.id,
        state: row.state,
        level: row.level,
        manual: row.manual,
        opened_at: row.opened_at,
        state_at: row.state_at,
        decision_no: row.decision_no,
        policy_revision: row.policy_revision,
        fault_keys,
        asked_keys: row.asked.iter().copied().collect(),
        held: cluster.holds.contains_key(&row.node.uid),
        undo,
        reason: row.reason.clone(),
    }
}

/// The incident's commands, oldest first, and what all of them together changed on the node.
fn commands(cluster: &Cluster, incident: &Incident) -> (Vec<KnownCommand>, Undo) {
    let mut rows: Vec<_> = cluster.commands.values().filter(|command| command.incident == incident.id).collect();
    rows.sort_by_key(|command| command.cmd_seq);
    let undo = rows.iter().filter_map(|row| row.undo.as_ref()).fold(Undo::default(), merge_undo);
    let known = |row: &&super::Command| KnownCommand {
        id: row.planned.id,
        action: row.planned.action,
        steps: row.planned.steps.iter().map(|step| step.name().to_owned()).collect(),
        cordons: row.planned.steps.iter().any(|step| matches!(step, Step::Mark { cordon: true, .. })),
        gpu: row.planned.gpu.clone(),
        state: row.state,
        steps_done: row.steps.iter().filter(|step| step.state == "done").map(|step| step.name.clone()).collect(),
        refusal: Refusal::parse(row.refusal),
        outcome: row.result_reason.clone(),
        plan_rev: row.planned.plan_rev,
        decision_no: row.decision_no,
        level: incident.decisions.get(&row.decision_no).copied().unwrap_or(Level::P2),
        created_at: row.planned.times.created,
        start_by: row.planned.times.start_by,
        finish_by: row.planned.times.finish_by,
        state_at: row.state_at,
    };
    (rows.iter().map(known).collect(), undo)
}

/// When commands that quarantined the node were made for other incidents; those that came to nothing were no attempts.
fn attempts(cluster: &Cluster, node: &NodeUid, open: Option<&Incident>, since: Timestamp) -> Vec<Timestamp> {
    let of_other = |command: &&super::Command| {
        command.planned.node.uid == *node
            && command.planned.times.created >= since
            && matches!(command.planned.action, Action::Mark | Action::Evict)
            && open.is_none_or(|open| open.id != command.incident)
            && command.started_at.is_some()
    };
    let mut all: Vec<_> = cluster.commands.values().filter(of_other).map(|command| command.planned.times.created).collect();
    all.sort_unstable();
    all
}

/// Other nodes with a fault above P2 that joined an incident inside the breaker's window.
fn newly_suspect(cluster: &Cluster, node: &NodeUid, since: Timestamp) -> u32 {
    let suspect = |incident: &&Incident| {
        incident.node.uid != *node && incident.faults.values().any(|(level, added_at)| *added_at >= since && *level > Level::P2)
    };
    let nodes: BTreeSet<&NodeUid> = cluster.incidents.values().filter(suspect).map(|incident| &incident.node.uid).collect();
    u32::try_from(nodes.len()).unwrap_or(u32::MAX)
}
