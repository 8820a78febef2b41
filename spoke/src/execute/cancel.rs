//! What the hub has called off. It says so once in a session, so that a cancellation is kept here until the command has an end:
//! one that comes before this replica leads, or whose write the API server did not take, is carried out at the next tick, and the
//! command is not begun or taken up meanwhile.

use gpuheal_proto::command::CommandState;
use gpuheal_spoke_core::verify::{self, Cancel};

use super::{OPEN_MAX, StopWord, hand::HandLoop};
use crate::healaction;

/// Cancellations that are kept: a stop of the fleet calls off no more than may be open. Each is below 2 KiB.
const CALLED_OFF_MAX: usize = OPEN_MAX;

impl HandLoop {
    /// A cancellation, as it was signed.
    pub(super) fn cancel(&mut self, bytes: &[u8]) {
        let deps = &self.ctx.deps;
        let fence = self.ctx.fence_heard();
        let cancel = match verify::cancel(bytes, &deps.trust, &deps.cluster, fence) {
            Ok(cancel) => cancel,
            Err(refused) => return tracing::warn!(refusal = %refused.refusal, reason = refused.reason, "cancellation not accepted"),
        };
        // A hub that asks does not know, whatever it once acked.
        if let Some(action) = self.ctx.actions.get(&cancel.command.to_string()).filter(|action| healaction::is_final(action))
            && self.ctx.reign().is_some()
        {
            return self.tell(action);
        }
        if self.called_off.len() >= CALLED_OFF_MAX {
            // Ids are in the order of their making: the oldest has run out first.
            self.called_off.pop_first();
        }
        self.called_off.insert(cancel.command, cancel);
        self.call_off();
    }

    /// Stops what is at work, ends what is open, and leaves a tombstone for what has not come yet; forgets what has its end.
    pub(super) fn call_off(&mut self) {
        if self.ctx.reign().is_none() || !self.ctx.actions.ready() {
            return;
        }
        let actions = &self.ctx.actions;
        self.called_off.retain(|id, _| !actions.get(&id.to_string()).is_some_and(|action| healaction::is_final(&action)));
        let waiting: Vec<Cancel> =
            self.called_off.values().filter(|cancel| !self.pending.contains(&cancel.command)).cloned().collect();
        for cancel in waiting {
            self.carry_out(&cancel);
        }
    }

    fn carry_out(&mut self, cancel: &Cancel) {
        let reason = healaction::called_off_reason(cancel);
        if let Some(running) = self.running.get(&cancel.command) {
            running.stop.send_replace(Some(StopWord { state: CommandState::Cancelled, reason }));
            return;
        }
        if let Some(action) = self.ctx.actions.get(&cancel.command.to_string()) {
            return self.end_open(&action, CommandState::Cancelled, "", reason);
        }
        let spec = healaction::called_off_spec(cancel, self.ctx.deps.replica.as_str(), self.ctx.reign().unwrap_or(0));
        self.bury_cancelled(cancel.command, spec);
    }
}
