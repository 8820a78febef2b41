//! What is asked once everything was given time to come to rest.

use std::time::Duration;

use gpuheal_proto::{
    ids::{ClusterId, CommandId, NodeUid},
    time::{Timestamp, parse_rfc3339},
};
use gpuheal_spoke::healaction;

use super::Oracle;
use crate::{api::Api, memory::Memory};

impl Oracle {
    /// 5. A fault that the hub acked is settled or open, never lost: in front of a judge or in an incident.
    pub fn no_acked_fault_is_lost(&mut self, db: &Memory, now: Timestamp) {
        let lost = self.acked.keys().find(|(cluster, key)| {
            let Some(rows) = db.clusters.get(cluster) else { return true };
            let Some(fault) = rows.faults.get(key).and_then(|episodes| episodes.last()) else { return true };
            let node = &fault.node().uid;
            let held = rows.incidents.values().any(|incident| incident.faults.contains_key(&(*key, fault.known.episode)));
            fault.known.settled.is_none() && !held && !rows.judgements.contains_key(node)
        });
        if let Some((cluster, key)) = lost.cloned() {
            self.breaks("no acked fault is lost", now, format!("{key} of cluster {cluster}"));
        }
    }

    /// 8. The audit chain verifies from its first entry.
    pub fn the_audit_chain_is_whole(&mut self, db: &Memory, now: Timestamp) {
        if let Err(verdict) = db.audit_verify() {
            self.breaks("the audit chain is whole", now, format!("{verdict:?}"));
        }
    }

    /// Liveness: every command is terminal by `finish_by` + 60 s, what was received and what was not.
    pub fn every_command_ends(&mut self, db: &Memory, now: Timestamp) {
        for command in db.clusters.values().flat_map(|cluster| cluster.commands.values()) {
            let late = now.since(command.planned.times.finish_by) > Duration::from_secs(70);
            if late && !command.state.terminal() {
                let why = format!("{} is {} and was due by {}", command.planned.id, command.state, command.planned.times.finish_by);
                self.breaks("every command ends by finish_by and a minute", now, why);
            }
        }
    }

    /// Liveness: an intent is taken up until it has an end.
    pub fn every_intent_ends(&mut self, id: &ClusterId, api: &Api, now: Timestamp) {
        for action in api.actions.values().filter(|action| !healaction::is_final(action)) {
            let by = parse_rfc3339(&action.spec.finish_by).unwrap_or(Timestamp::EPOCH);
            if now.since(by) > Duration::from_secs(60) {
                self.breaks("every intent ends", now, format!("{id}: {} is {} past {by}", action.id(), healaction::state(action)));
            }
        }
    }

    /// Liveness: what a cluster says of a command is what the hub knows of it, if it knows the command at all.
    pub fn what_was_done_is_known(&mut self, id: &ClusterId, api: &Api, db: &Memory, now: Timestamp) {
        let Some(rows) = db.clusters.get(id) else { return };
        for action in api.actions.values().filter(|action| healaction::is_final(action)) {
            let command = CommandId::parse(action.id()).ok().and_then(|id| rows.commands.get(&id));
            let Some(state) = command.map(|command| command.state) else { continue };
            if state != healaction::state(action) {
                let why = format!("{id}: {} is {} there and {state} at the hub", action.id(), healaction::state(action));
                self.breaks("what was done is known", now, why);
            }
        }
    }

    /// 5. No node is marked without an open incident.
    pub fn no_mark_without_an_open_incident(&mut self, id: &ClusterId, api: &Api, db: &Memory, now: Timestamp) {
        let Some(cluster) = db.clusters.get(id) else { return };
        for node in api.nodes.values().filter(|node| node.facts.marked()) {
            let open = NodeUid::parse(&node.facts.uid).ok().and_then(|uid| cluster.open_incident(&uid));
            if open.is_none() {
                self.breaks("no mark without an open incident", now, format!("{id}/{}", node.facts.name));
            }
        }
    }

    /// 10. What is refused, skipped, blocked or dropped says so.
    pub fn what_is_refused_says_so(&mut self, db: &Memory, now: Timestamp) {
        for incident in db.clusters.values().flat_map(|cluster| cluster.incidents.values()) {
            if incident.reason.is_empty() {
                self.breaks(
                    "what is refused says so",
                    now,
                    format!("incident {} is {} without a reason", incident.id, incident.state),
                );
            }
        }
        if let Some((id, _)) = self.issued.iter().find(|(_, issued)| !issued.reasoned) {
            self.breaks("what is refused says so", now, format!("command {id} has no reason"));
        }
    }
}
