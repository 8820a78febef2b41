//! What machines show: their exporters' pages, an alert about them, and what of it the hub has acked.

use gpuheal_proto::ids::FaultKey;

use super::{Event, Place, World};
use crate::body;

/// How often exporters are asked.
const SCRAPE_MS: u64 = 30_000;

impl World {
    /// What an ack says is kept is remembered, to be looked for later; likewise what a Welcome goes on after.
    pub(super) fn ack_arrives(&mut self, place: Place, stream: &str, upto: u64) {
        let now = self.now;
        let cluster = &self.clusters[place.0];
        let Some(spoke) = &cluster.slots[place.1].spoke else { return };
        let known = spoke.disk.acked_upto(stream);
        for seq in known + 1..=upto {
            let key = spoke.disk.fault(stream, seq).and_then(|fault| FaultKey::parse(&fault.fault_key).ok());
            if let Some(key) = key.filter(|key| !self.oracle.was_on_its_way(&self.db, &cluster.id, key, now)) {
                self.oracle.fault_acked(&cluster.id, key, now);
            }
        }
    }

    pub(super) fn scrape(&mut self, cluster: usize, node: &str) {
        let now = self.now;
        let site = &mut self.clusters[cluster];
        let pods = site.api.pods.values().filter(|pod| pod.node == node);
        let users: Vec<(u8, String)> = pods.map(|pod| (pod.gpu, pod.name.clone())).collect();
        let Some(body) = site.bodies.get_mut(node) else { return };
        let (page, start) = (body.page(now, &users), body.start());
        for slot in 0..self.clusters[cluster].slots.len() {
            let place = (cluster, slot);
            if self.slot(place).paused_until <= now {
                self.with_spoke(place, |spoke| spoke.page(node, &start, page.as_deref()));
            }
        }
        let site = &mut self.clusters[cluster];
        let reads = |slot: &usize| page.is_some() && site.slots[*slot].paused_until <= now;
        let reign = |slot: usize| site.slots[slot].spoke.as_ref().and_then(|spoke| spoke.reign()).map(|reign| (slot, reign));
        let leader = (0..site.slots.len()).filter(reads).find_map(reign);
        if let Some(body) = site.bodies.get_mut(node) {
            body.read_by(leader, now);
        }
        self.soon(SCRAPE_MS - 2000, SCRAPE_MS + 2000, Event::Scrape(cluster, node.to_owned()));
    }

    /// Alertmanager tells a replica, and tells another if that one does not answer.
    pub(super) fn alert(&mut self, cluster: usize, node: &str, gpu: u8) {
        let body = body::alert(node, gpu, self.now);
        let first = usize::try_from(self.chance.below(2)).unwrap_or(0);
        for slot in [first, 1 - first] {
            let (place, now) = ((cluster, slot), self.now);
            if self.slot(place).spoke.is_none() || self.slot(place).paused_until > now {
                continue;
            }
            let mut taken = false;
            self.with_spoke(place, |spoke| taken = spoke.alert(&body));
            if taken {
                return;
            }
        }
    }
}
