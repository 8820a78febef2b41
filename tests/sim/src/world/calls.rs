//! A replica's calls to its API server: sent, lost, late, served; what they change, and whom the watches show it.

use std::{rc::Rc, time::Duration};

use gpuheal_proto::ids::CommandId;
use gpuheal_spoke_core::verify::STEP_MARGIN;

use super::{Calling, Event, Place, World};
use crate::{
    api::{Call, Effect, Fault},
    oracle::Acting,
    spoke::Spoke,
};

/// How long a call to the API server may take before it counts as not answered.
const CALL_TIMEOUT: Duration = Duration::from_millis(2000);

impl World {
    pub(super) fn spoke_calls(&mut self, place: Place, token: u64, call: Call, by: Option<CommandId>) {
        let now = self.now;
        if let Call::PatchNode(node, _) = &call {
            self.before_patch(place, node);
        }
        let slot = &self.clusters[place.0].slots[place.1];
        let holder = &self.clusters[place.0].api.lease.holder;
        let led = holder == slot.replica().as_str() && slot.spoke.as_ref().and_then(Spoke::margin) >= Some(STEP_MARGIN);
        let calling = Rc::new(Calling { token, call, by, sent_at: now, led, contact_at: slot.contact_at });
        let life = slot.life;
        let calm = self.peace;
        let late = !calm && self.chance.once_in(200);
        let arrives = if late { self.chance.ms(2000, 60_000) } else { self.chance.ms(1, if calm { 10 } else { 60 }) };
        self.at(now.after(arrives), Event::Called(place, life, calling));
        self.at(now.after(CALL_TIMEOUT), Event::Answered(place, life, token, Err(Fault::Unanswered)));
    }

    pub(super) fn called(&mut self, place: Place, life: u64, calling: &Rc<Calling>) {
        let now = self.now;
        let cut = self.slot(place).api_cut_until > now;
        let lost = !self.peace && self.chance.once_in(100);
        // What was sent by a process that has died since still arrives.
        if cut || lost {
            return;
        }
        let cluster = &mut self.clusters[place.0];
        let result = cluster.api.serve(&calling.call, calling.by);
        let effects = std::mem::take(&mut cluster.api.effects);
        for effect in effects {
            self.effect(place, calling, &effect);
        }
        self.spread(place.0);
        if let (Call::CreateAction(action), Ok(_)) = (&calling.call, &result)
            && action.spec.tombstone.is_none()
            && let Some(command) = calling.by
        {
            self.after_intent(place, command);
        }
        let silent = !self.peace && self.chance.once_in(100);
        if !silent {
            let back = self.chance.ms(1, if self.peace { 10 } else { 60 });
            self.at(now.after(back), Event::Answered(place, life, calling.token, result));
        }
    }

    pub(super) fn effect(&mut self, place: Place, calling: &Calling, effect: &Effect) {
        let now = self.now;
        self.say(|| format!("{} {} of {} by {}", Self::name(place), effect.what, effect.node, effect.command));
        let acting = Acting { sent_at: calling.sent_at, led: calling.led, contact_at: calling.contact_at };
        let cluster = &self.clusters[place.0];
        self.oracle.acted(&cluster.id, &cluster.api, effect, acting, now);
        if effect.what == "mark" {
            let clusters: Vec<_> = self.clusters.iter().map(|cluster| (&cluster.id, &cluster.api)).collect();
            self.oracle.nodes_out_never_exceed_the_budget(&self.db, &clusters, now);
        }
        if let Some(uid) = effect.what.strip_prefix("evict ") {
            self.soon(500, 20_000, Event::PodGone(place.0, uid.to_owned()));
        }
        self.after_effect(place, effect.command, &effect.what);
    }

    /// Watches of a cluster show what changed, each after its own lag.
    pub(super) fn spread(&mut self, cluster: usize) {
        let changes = std::mem::take(&mut self.clusters[cluster].api.changes);
        for change in changes {
            for slot in 0..self.clusters[cluster].slots.len() {
                let place = (cluster, slot);
                let lag = self.chance.ms(1, if self.peace { 20 } else { 300 });
                let now = self.now;
                let slot = self.slot(place);
                if slot.spoke.is_none() || slot.api_cut_until > now {
                    continue;
                }
                slot.watch_at = slot.watch_at.max(now.after(lag));
                let (at, life, epoch) = (slot.watch_at, slot.life, slot.watch_epoch);
                self.at(at, Event::Watched(place, life, epoch, change.clone()));
            }
        }
    }
}
