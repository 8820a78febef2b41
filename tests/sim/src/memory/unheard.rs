//! Commands whose end nobody has told, as the hub's own statement finds them.

use std::time::Duration;

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId},
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
}
