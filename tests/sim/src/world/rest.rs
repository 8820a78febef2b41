//! The moment of truth: everything was given time to come to rest.

use gpuheal_hub_core::{decide::VerdictOutcome, incident::IncidentState};
use gpuheal_proto::{fault::FaultClass, ids::NodeUid, time::Timestamp, words::Mode};

use super::World;
use crate::body::{self, GPUS, Ill};

impl World {
    /// The moment of truth: everything was given time to come to rest.
    pub(super) fn at_rest(&mut self) {
        let now = self.now;
        self.oracle.every_command_ends(&self.db, now);
        self.oracle.no_acked_fault_is_lost(&self.db, now);
        self.oracle.the_audit_chain_is_whole(&self.db, now);
        self.oracle.what_is_refused_says_so(&self.db, now);
        for at in 0..self.clusters.len() {
            let cluster = &self.clusters[at];
            self.oracle.no_mark_without_an_open_incident(&cluster.id, &cluster.api, &self.db, now);
            self.oracle.every_intent_ends(&cluster.id, &cluster.api, now);
            self.oracle.what_was_done_is_known(&cluster.id, &cluster.api, &self.db, now);
            self.release_leaves_what_was_theirs(at, now);
            self.what_was_journaled_is_sent(at, now);
            self.what_stands_is_known(at, now);
            self.who_uses_an_ill_gpu_is_gone(at, now);
        }
    }

    /// Where a fault of one GPU is acted on and nothing more is planned, who used that GPU when the trouble began is gone: whichever
    /// GPU failed first.
    fn who_uses_an_ill_gpu_is_gone(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        let mut left = Vec::new();
        for body in cluster.bodies.values() {
            let judged = NodeUid::parse(&body.uid).ok().and_then(|uid| self.db.judgement(&cluster.id, &uid));
            let Some((story, decision)) = judged.filter(|(_, decision)| decision.commands.is_empty()) else { continue };
            let Some(incident) = story.incident.filter(|incident| incident.state == IncidentState::Validating) else { continue };
            // An incident of a command that a restored database took over was opened then; its trouble began with that command.
            let commands = self.db.clusters.get(&cluster.id).into_iter().flat_map(|rows| rows.commands.values());
            let made = commands.filter(|command| command.incident == incident.id).map(|command| command.planned.times.created);
            let began = made.min().map_or(incident.opened_at, |made| made.min(incident.opened_at));
            let acts = decision.verdicts.iter().filter(|one| one.outcome == VerdictOutcome::Acts && one.mode == Mode::Heal);
            let faults = acts.filter_map(|one| story.faults.iter().find(|fault| fault.key == one.key));
            for uuid in faults.filter_map(|fault| fault.gpu.as_ref()?.uuid.as_ref()) {
                let ill = (0..GPUS).find(|gpu| body::gpu_uuid(&body.name, *gpu) == uuid.as_str());
                let stays = cluster
                    .api
                    .pods
                    .values()
                    .find(|pod| pod.node == body.name && Some(pod.gpu) == ill && !pod.deleting && pod.started < began);
                left.extend(stays.map(|pod| format!("{} on {uuid} of {}/{}: {}", pod.name, cluster.id, body.name, incident.id)));
            }
        }
        if let Some(first) = left.first() {
            self.oracle.breaks("who uses an ill GPU is gone", now, first.clone());
        }
    }

    /// 5. One that was not acked is sent again: in the end nothing waits.
    fn what_was_journaled_is_sent(&mut self, at: usize, now: Timestamp) {
        for slot in &self.clusters[at].slots {
            let waits = slot.spoke.as_ref().map_or(0, |spoke| spoke.disk.unacked());
            if waits > 0 {
                let why = format!("{waits} faults wait in the journal of {}/{}", self.clusters[at].id, slot.replica());
                self.oracle.breaks("what was journaled is sent", now, why);
            }
        }
    }

    /// 5. What still stands is known, whatever was lost in between.
    fn what_stands_is_known(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        let Some(rows) = self.db.clusters.get(&cluster.id) else { return };
        let mut unknown = Vec::new();
        for body in cluster.bodies.values() {
            for (gpu, ill, _) in &body.ills {
                let class = match ill {
                    Ill::RowRemap => FaultClass::RowRemap,
                    Ill::Hot => FaultClass::Thermal,
                    Ill::Xid => FaultClass::Xid,
                };
                let known =
                    rows.faults.values().flatten().any(|fault| fault.node().uid.as_str() == body.uid && fault.known.class == class);
                if !known {
                    unknown.push(format!("{:?} of GPU {gpu} of {}/{}", ill, cluster.id, body.name));
                }
            }
        }
        if let Some(first) = unknown.first() {
            self.oracle.breaks("what stands is known", now, first.clone());
        }
    }
}
