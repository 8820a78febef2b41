//! The moment of truth: everything was given time to come to rest.

use std::time::Duration;

use gpuheal_hub_core::{decide::VerdictOutcome, incident::IncidentState};
use gpuheal_proto::{
    ids::NodeUid,
    time::Timestamp,
    words::{Action, Mode},
};

use super::World;
use crate::{
    body::{self, Body, GPUS, Ill},
    memory::{Fault, Incident},
};

/// What is due is done within it, also where a command that came to nothing is planned again.
const DUE: Duration = Duration::from_secs(120);
/// An illness is known, judged and acted on within it: pages each half minute, a breaker that holds for two minutes.
const SEEN_BY: Duration = Duration::from_secs(600);
/// A command that nobody executes has come to nothing by then.
const MOVES: Duration = Duration::from_secs(900);
/// The soak of four minutes, a command that came to nothing first, and a page.
const WELL_BY: Duration = Duration::from_secs(1200);

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
            self.what_is_due_is_done(at, now);
            self.who_is_ill_is_out_or_says_why(at, now);
            self.who_is_well_is_released_or_says_why(at, now);
        }
    }

    /// 5. Nothing is left undone that could be done: by what is known no incident was to be opened two minutes ago, and nobody released.
    fn what_is_due_is_done(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        for body in cluster.bodies.values() {
            let Ok(uid) = NodeUid::parse(&body.uid) else { continue };
            let Some((_, decision)) = self.db.judgement(&cluster.id, &uid, now.before(DUE)) else { continue };
            let opens = decision.incident.as_ref().is_some_and(|change| change.opens);
            let releases = decision.commands.iter().any(|command| command.action == Action::Release);
            if opens || releases {
                let actions: Vec<_> = decision.commands.iter().map(|command| command.action.as_str()).collect();
                let why = format!("{}/{}: {} for {}", cluster.id, body.name, actions.join(", "), decision.reasons.join("; "));
                return self.oracle.breaks("what is due is done", now, why);
            }
        }
    }

    /// 5. What needs a repair is marked, or its incident says what it waits for.
    fn who_is_ill_is_out_or_says_why(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        let ill = |body: &&Body| body.ills.iter().any(|(_, ill, since)| *ill != Ill::Hot && now.since(*since) > SEEN_BY);
        for body in cluster.bodies.values().filter(ill) {
            let marked = cluster.api.nodes.get(&body.name).is_some_and(|node| node.facts.marked());
            let incident = self.open_incident(at, body);
            // A person who took our marks off or opted out has said that he knows.
            if incident.is_none() && self.was_overridden(at, body) {
                continue;
            }
            let says = incident.is_some_and(|incident| {
                let waits = incident.state.waiting() || incident.state == IncidentState::Failed;
                let moves = now.since(incident.state_at) < MOVES;
                !incident.reason.is_empty() && (marked || waits || moves)
            });
            if !says {
                let state = incident.map(|incident| (incident.state, incident.reason.as_str()));
                let why = format!("{}/{} has {:?}, marked: {marked}, its incident: {state:?}", cluster.id, body.name, body.ills);
                return self.oracle.breaks("who is ill is out or says why", now, why);
            }
        }
    }

    /// 4. A release waits for nothing but the signs of recovery: who has been well for long is not marked, unless his incident says why.
    fn who_is_well_is_released_or_says_why(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        let well = |body: &&Body| body.ills.is_empty() && now.since(body.well_since) > WELL_BY;
        for body in cluster.bodies.values().filter(well) {
            let marked = cluster.api.nodes.get(&body.name).is_some_and(|node| node.facts.marked());
            let incident = self.open_incident(at, body);
            // What came to nothing is planned again some minutes later, and says so.
            let waits = incident.is_some_and(|incident| incident.state.waiting() && !incident.reason.is_empty());
            if !marked || waits {
                continue;
            }
            let state = incident.map(|incident| (incident.state, incident.reason.as_str()));
            let said = NodeUid::parse(&body.uid).ok().and_then(|uid| self.db.judgement(&cluster.id, &uid, now));
            let said = said.map(|(_, decision)| (decision.reasons, decision.would_change));
            let knows =
                |slot: &super::Slot| slot.spoke.as_ref().map(|spoke| (slot.replica().to_string(), spoke.knows_of(&body.uid)));
            let known: Vec<_> = cluster.slots.iter().filter_map(knows).collect();
            let why = format!(
                "{}/{} is marked, well since {}, its incident: {state:?}, judged: {said:?}, known: {known:?}",
                cluster.id, body.name, body.well_since
            );
            return self.oracle.breaks("who is well is released or says why", now, why);
        }
    }

    /// A person has ended an incident of each illness's fault, which has not been clear since: the board may be another by then, and
    /// nobody can tell.
    fn was_overridden(&self, at: usize, body: &Body) -> bool {
        let Some(rows) = self.db.clusters.get(&self.clusters[at].id) else { return false };
        let said = |gpu: u8, ill: Ill| {
            let of_ill = |fault: &Fault| {
                let slot = fault.known.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref()).map(ToString::to_string);
                fault.node().uid.as_str() == body.uid
                    && fault.known.class == ill.class()
                    && slot.is_none_or(|slot| slot == body::slot(gpu))
            };
            let mut latest = rows.faults.values().filter_map(|episodes| episodes.last()).filter(|fault| of_ill(fault));
            latest.any(|fault| {
                let key = (fault.known.key, fault.known.episode);
                let mut held = rows.incidents.values().filter(|incident| incident.faults.contains_key(&key));
                held.any(|incident| incident.state == IncidentState::Overridden)
            })
        };
        let mut ills = body.ills.iter().filter(|(_, ill, _)| *ill != Ill::Hot);
        ills.all(|(gpu, ill, _)| said(*gpu, *ill))
    }

    fn open_incident(&self, at: usize, body: &Body) -> Option<&Incident> {
        let uid = NodeUid::parse(&body.uid).ok()?;
        self.db.clusters.get(&self.clusters[at].id)?.open_incident(&uid)
    }

    /// Where a fault of one GPU is acted on and nothing more is planned, who used that GPU when the trouble began is gone: whichever
    /// GPU failed first.
    fn who_uses_an_ill_gpu_is_gone(&mut self, at: usize, now: Timestamp) {
        let cluster = &self.clusters[at];
        let mut left = Vec::new();
        for body in cluster.bodies.values() {
            let judged = NodeUid::parse(&body.uid).ok().and_then(|uid| self.db.judgement(&cluster.id, &uid, now));
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
                let shown = |fault: &Fault| fault.node().uid.as_str() == body.uid && fault.known.class == ill.class();
                let known = rows.faults.values().flatten().any(shown);
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
