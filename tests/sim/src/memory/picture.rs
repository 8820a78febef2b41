//! The memory in words that it can be compared by.

use gpuheal_hub_core::cooldown::CooldownState;

use super::{Memory, inventory::marked};
use crate::store::Picture;

impl Memory {
    pub(super) fn draw(&self) -> Picture {
        let mut picture = Picture { hub_term: self.hub_term, ..Picture::default() };
        for (id, cluster) in &self.clusters {
            for fault in cluster.faults.values().flatten() {
                let known = &fault.known;
                let settled = known.settled.map_or("open", |settled| settled.level.as_str());
                picture.faults.push(format!(
                    "{id} {} {} {} #{} {} {settled}",
                    known.class,
                    known.code,
                    fault.node.name,
                    known.episode,
                    format!("{:?}", known.evidence.state).to_lowercase()
                ));
            }
            for incident in cluster.incidents.values() {
                let open = if incident.closed_at.is_some() { "closed" } else { "open" };
                picture.incidents.push(format!(
                    "{id} {} {} {} holds {} {open}",
                    incident.node.name,
                    incident.state,
                    incident.level,
                    incident.faults.len()
                ));
            }
            for command in cluster.commands.values() {
                picture.commands.push(format!(
                    "{id} {} {} {} {} rev {} term {} signed {} seq {} refusal {:?} corrections {} cancel {}",
                    command.cmd_seq,
                    command.planned.node.name,
                    command.planned.action,
                    command.state,
                    command.planned.plan_rev,
                    command.hub_term,
                    command.envelope.is_some(),
                    command.status_seq,
                    command.refusal,
                    command.corrections,
                    command.cancel_asked_at.is_some()
                ));
            }
            picture.out.extend(cluster.holds.keys().map(|node| format!("{id} {node}")));
            if cluster.out > 0 {
                picture.out.push(format!("{id} cluster {}", cluster.out));
            }
            for (node, cooldown) in &cluster.cooldowns {
                let state = match cooldown.state {
                    CooldownState::Reserved => "reserved",
                    CooldownState::Running { .. } => "running",
                    CooldownState::Void => "void",
                };
                picture.cooldowns.push(format!("{id} {node} {state}"));
            }
            picture.streams.extend(cluster.streams.iter().map(|(stream, upto)| format!("{id} {stream} {upto}")));
            for (replica, session) in &cluster.sessions {
                let (generation, lease) = (session.generation, session.lease_transitions);
                picture.sessions.push(format!("{id} {replica} {generation} leads {lease:?} detached {}", session.detached));
            }
            for node in cluster.nodes.values() {
                picture.nodes.push(format!(
                    "{id} {} marked {} shows {} issued {} gone {}",
                    node.reference.name,
                    marked(&node.mark),
                    node.plan_revision,
                    node.plan_rev_issued,
                    node.gone_at.is_some()
                ));
            }
        }
        for (chain, entries) in &self.audit {
            picture.audit.extend(entries.iter().map(|entry| format!("{chain} {:05} {}", entry.seq, entry.fact.kind)));
        }
        picture.sorted()
    }
}

impl Picture {
    /// With every list in order.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        for list in [
            &mut self.faults,
            &mut self.incidents,
            &mut self.commands,
            &mut self.out,
            &mut self.cooldowns,
            &mut self.streams,
            &mut self.sessions,
            &mut self.nodes,
            &mut self.audit,
        ] {
            list.sort();
        }
        self
    }
}
