//! What is asked of each commit of the hub.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_hub::audit::Kind;
use gpuheal_hub_core::{incident::IncidentState, snapshot::EvidenceState};
use gpuheal_proto::{ids::ClusterId, time::Timestamp, words::Action};

use super::{Issued, Oracle, SIGHT};
use crate::{
    body::{self, Body, Ill},
    memory::{Cluster, Command, Memory},
    store::{Due, Owner},
};

impl Oracle {
    /// What was committed since the last look. True: a command was issued.
    pub fn committed(&mut self, db: &Memory, now: Timestamp) -> bool {
        let before = self.issued.len();
        for (id, cluster) in &db.clusters {
            let most = self.most.entry(id.clone()).or_default();
            *most = (*most).max(cluster.gpu_nodes());
            for command in cluster.commands.values() {
                if !self.issued.contains_key(&command.planned.id) {
                    self.issue(db, id, cluster, command, now);
                }
            }
            for incident in cluster.incidents.values().filter(|incident| incident.closed_at.is_some()) {
                if self.closed.insert(incident.id) {
                    self.closings += 1;
                }
            }
            if let Some(mute) = cluster.mute.first() {
                self.breaks("what is refused says so", now, mute.clone());
            }
        }
        self.a_budgets_counter_is_the_number_of_its_holds(db, now);
        self.issued.len() > before
    }

    /// 1. No command without an incident, a reason and the policy revision it came from.
    fn issue(&mut self, db: &Memory, id: &ClusterId, cluster: &Cluster, command: &Command, now: Timestamp) {
        let planned = &command.planned;
        let reasoned =
            cluster.incidents.contains_key(&command.incident) && !planned.reason.is_empty() && command.policy_revision > 0;
        if !reasoned {
            self.breaks("every command has an incident, a reason and a policy", now, planned.id.to_string());
        }
        let text = planned.id.to_string();
        let told = |entry: &std::rc::Rc<gpuheal_hub_core::audit::Entry>| {
            entry.fact.kind == Kind::Decision.as_str() && entry.fact.body.contains(&text)
        };
        let audited = db.audit.get(id.as_str()).is_some_and(|chain| chain.iter().rev().take(200).any(told));
        let number = (id.clone(), command.hub_term, command.cmd_seq);
        if !self.numbers.insert(number) && self.informed(id, planned.times.created) {
            let why = format!("{id}: term {}, number {}", command.hub_term, command.cmd_seq);
            self.breaks("no number is given out twice", now, why);
        }
        let node = planned.node.name.to_string();
        let issued = Issued { times: planned.times, action: planned.action, node, audited, reasoned };
        self.issued.insert(planned.id, issued);
    }

    fn a_budgets_counter_is_the_number_of_its_holds(&mut self, db: &Memory, now: Timestamp) {
        if let Some(why) = db.counters_differ() {
            self.breaks("a budget's counter is the number of its holds", now, why);
        }
    }

    /// 7. Absence is not health: no incident that had a fault which is still there is closed as released.
    pub fn silence_closes_nothing(&mut self, id: &ClusterId, db: &Memory, bodies: &BTreeMap<String, Body>, now: Timestamp) {
        let Some(cluster) = db.clusters.get(id) else { return };
        for incident in cluster.incidents.values() {
            let fresh = incident.closed_at.is_some_and(|at| now.since(at) < Duration::from_secs(2));
            if incident.state != IncidentState::Released || !fresh {
                continue;
            }
            let body = bodies.get(incident.node.name.as_str()).filter(|body| body.uid == incident.node.uid.as_str());
            // What broke after the release was decided is the next incident's.
            let releases = cluster
                .commands
                .values()
                .filter(|command| command.incident == incident.id && command.planned.action == Action::Release);
            let decided_at = releases.map(|command| command.planned.times.created).max().or(incident.closed_at).unwrap_or(now);
            for (key, _) in incident.faults.keys() {
                let Some(fault) = cluster.faults.get(key).and_then(|episodes| episodes.last()) else { continue };
                let slot = fault.known.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref()).map(ToString::to_string);
                let shown =
                    |(gpu, ill, _): &&(u8, Ill, Timestamp)| Some(body::slot(*gpu)) == slot && ill.class() == fault.known.class;
                let Some((body, (_, ill, since))) = body.and_then(|body| body.ills.iter().find(shown).map(|ill| (body, ill)))
                else {
                    continue;
                };
                let evidence = fault.known.evidence;
                let seen = body.known_since(*ill, *since).is_some_and(|since| decided_at.since(since) > SIGHT);
                if seen && (evidence.state != EvidenceState::Clear || evidence.since > *since) {
                    let (node, state) = (&incident.node.name, evidence.state);
                    let why = format!(
                        "{node} was released, {ill:?} is there since {since}, its evidence is {state:?} since {}",
                        evidence.since
                    );
                    self.breaks("silence closes nothing", now, why);
                }
            }
        }
    }

    /// The generation is looked at in the transaction that takes a batch.
    pub fn a_session_that_was_taken_over_commits_nothing(&mut self, db: &Memory, owner: &Owner, now: Timestamp) {
        let session = db.sessions(&owner.cluster).find(|(replica, _)| **replica == owner.replica);
        let generation = session.map(|(_, session)| session.generation);
        if generation != Some(owner.generation) {
            let why = format!("generation {} of {}/{}, {generation:?} owns it", owner.generation, owner.cluster, owner.replica);
            self.breaks("a session that was taken over commits nothing", now, why);
        }
    }

    /// Undelivered by `deliver_by`: dead.
    pub fn nothing_is_sent_after_its_time(&mut self, sent: &[Due], now: Timestamp) {
        for due in sent.iter().filter(|due| !due.cancels) {
            let late = self.issued.get(&due.command).filter(|issued| due.at > issued.times.deliver_by);
            if let Some(by) = late.map(|issued| issued.times.deliver_by) {
                self.breaks("nothing is sent after its time", now, format!("{} was to be delivered by {by}", due.command));
            }
        }
    }
}
