//! Commands whose end nobody has told, and faults of which the leader has told nothing, as the hub's own statements find them.

use std::time::Duration;

use gpuheal_hub::store::unheard::{HAS_TOLD_AFTER, NOT_TOLD_FOR};
use gpuheal_hub_core::snapshot::EvidenceState;
use gpuheal_proto::{
    command::CommandState,
    fault::{Asked, Fault, Onset, Witness},
    ids::{ClusterId, CommandId},
    link::v1,
};

use super::Memory;
use crate::{mutation::Mutation, store::Leader};

/// A spoke has a command on record for so long after it has run out.
const ON_RECORD: Duration = Duration::from_secs(86_400);

impl Memory {
    pub(super) fn ask_unheard(&mut self, leader: &Leader) -> Vec<(ClusterId, CommandId)> {
        use CommandState::{Cancelled, Dispatched, Expired, Received, Signed, Started, Unknown};
        let (now, id) = (self.now, &leader.owner.cluster);
        let Some(attached_at) = self.leads_since(leader).filter(|_| !self.mutations.has(Mutation::NobodyIsAsked)) else {
            return Vec::new();
        };
        let mut asked = Vec::new();
        for command in self.cluster(id).commands.values_mut() {
            let since = match command.state {
                Signed | Dispatched | Received | Started if command.planned.times.created < attached_at => attached_at,
                Expired | Unknown => attached_at.max(command.state_at),
                Cancelled if command.status_seq == 0 => attached_at.max(command.state_at),
                _ => continue,
            };
            let on_record = !command.state.terminal() || command.planned.times.expires.after(ON_RECORD) > now;
            if on_record && command.outcome_asked_at.is_none_or(|asked_at| asked_at < since) {
                command.outcome_asked_at = Some(now);
                asked.push((command.cmd_seq, (id.clone(), command.planned.id)));
            }
        }
        asked.sort();
        asked.into_iter().map(|(_, asked)| asked).collect()
    }

    pub(super) fn ask_untold(&mut self, leader: &Leader) -> Vec<v1::FaultAsked> {
        let now = self.now;
        let led = self.leads_since(leader).filter(|since| *since < now.before(HAS_TOLD_AFTER));
        let Some(since) = led.filter(|_| !self.mutations.has(Mutation::FindersAlone)) else { return Vec::new() };
        let mut asked = Vec::new();
        for fault in self.cluster(&leader.owner.cluster).faults.values_mut().filter_map(|episodes| episodes.last_mut()) {
            let stands = fault.settled().is_none() && fault.known.evidence.state != EvidenceState::Clear;
            let long_ago = since.max(now.before(NOT_TOLD_FOR));
            if stands && fault.evidence_at < long_ago && fault.asked_at.is_none_or(|at| at < long_ago) {
                fault.asked_at = Some(now);
                asked.push((fault.known.first_at, fault.known.key, (&fault.asked()).into()));
            }
        }
        asked.sort_by_key(|(first_at, key, _)| (*first_at, *key));
        asked.into_iter().map(|(.., asked)| asked).collect()
    }
}

impl super::Fault {
    fn asked(&self) -> Asked {
        let witnesses = self.known.witnesses.iter().map(|seen| seen.kind).collect::<std::collections::BTreeSet<_>>();
        let fault = Fault {
            key: self.known.key,
            node: self.node.clone(),
            gpu: self.known.gpu.clone(),
            class: self.known.class,
            code: self.known.code.clone(),
            onset: Onset::Standing,
            witness: witnesses.first().copied().unwrap_or(Witness::Alert),
            observed_at: self.observed_at,
            value: self.value,
            threshold: 0.0,
            count: self.known.count,
            source: String::new(),
            detail: String::new(),
            workload: String::new(),
        };
        Asked { fault, witnesses }
    }
}
