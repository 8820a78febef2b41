//! The simulated store: what the hub's tables hold, in maps. Every decision in it is hub/core's, with the snapshot that
//! hub/core asks for; what is written follows the hub's own statements one by one. Held to the same contract suite as
//! Postgres. It proves nothing about isolation: its operations never overlap.

mod adopt;
mod audit;
mod deliver;
mod ingest;
mod inventory;
mod judge;
mod picture;
mod rows;
mod settle;
mod snapshot;
mod unheard;

use std::{collections::BTreeMap, rc::Rc, sync::Arc, time::Duration};

use gpuheal_hub::{
    audit::Kind,
    ingest::{Origin, Taken},
    link::{
        clone::alternates,
        hello::{Hello, Seen},
        plausible,
    },
    sign::Signer,
    store::{
        server::{Recognised, Witness, witness},
        session::Attached,
    },
};
use gpuheal_hub_core::{audit::Entry, budget::RateState, policy::Policy};
use gpuheal_proto::{
    ids::{ClusterId, CommandId, NodeUid, ReplicaId},
    link::v1,
    time::Timestamp,
};
use serde_json::json;
use uuid::Uuid;

use crate::{
    mutation::{Mutation, Mutations},
    store::{Due, Error, Leader, Owner, Picture, Store},
};
pub use rows::{Cluster, Command, Fault, Incident, Node, Session};

/// Boot ids of a session that are remembered.
const BOOTS_MAX: usize = 16;

/// A backup that is put back as a copy of the disk is of the same server and timeline.
const LINEAGE: &str = "the server/00000001";

/// The chain of what belongs to no one cluster.
const FLEET: &str = gpuheal_hub::audit::FLEET_CHAIN;

/// The database. A clone of it is a backup.
#[derive(Clone, Debug)]
pub struct Memory {
    pub(crate) now: Timestamp,
    /// Epoch of the database.
    pub hub_term: u64,
    stop: Option<String>,
    pub(crate) policies: Vec<Rc<Policy>>,
    /// All clusters.
    pub clusters: BTreeMap<ClusterId, Cluster>,
    fleet_out: u32,
    fleet_rate: Option<RateState>,
    /// Entries by chain.
    pub audit: BTreeMap<String, Vec<Rc<Entry>>>,
    /// Which run of its server this is, and the one that a hub has recognised last.
    pub(crate) run: u64,
    recognised: Option<u64>,
    /// What each hub has left at its last look, and how many there were.
    marks: BTreeMap<String, Uuid>,
    looks: u64,
    pub(crate) mutations: Mutations,
}

impl Memory {
    /// A new database.
    #[must_use]
    pub fn new(now: Timestamp, mutations: Mutations) -> Self {
        Self {
            now,
            hub_term: 1,
            stop: None,
            policies: Vec::new(),
            clusters: BTreeMap::new(),
            fleet_out: 0,
            fleet_rate: None,
            audit: BTreeMap::new(),
            run: 0,
            recognised: None,
            marks: BTreeMap::new(),
            looks: 0,
            mutations,
        }
    }

    /// Sets its clock, which only goes forward.
    pub fn at(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// Raises the epoch, as whoever restores a database is told to.
    pub fn raise_term(&mut self) {
        self.hub_term += 1;
    }

    fn cluster(&mut self, cluster: &ClusterId) -> &mut Cluster {
        let first_term = self.hub_term;
        self.clusters.entry(cluster.clone()).or_insert_with(|| Cluster { first_term, ..Cluster::default() })
    }

    /// Its server is started anew, and goes on where it was.
    pub fn restarts(&mut self) {
        self.run += 1;
    }

    /// Whether a hub knows the run of the server that this is: what harms is neither issued nor sent before that.
    fn run_known(&self) -> bool {
        self.recognised.is_none_or(|run| run == self.run)
    }

    /// All that it has is here since the epoch was raised last, and there is no doubt that it was the last time.
    fn whole(&self, cluster: &Cluster) -> bool {
        self.adopted(cluster) && self.run_known()
    }

    /// All that it has is here since the epoch was raised last.
    fn adopted(&self, cluster: &Cluster) -> bool {
        cluster.taken_over_term == Some(self.hub_term)
    }

    fn owns(&self, owner: &Owner) -> Result<(), Error> {
        let session = self.clusters.get(&owner.cluster).and_then(|cluster| cluster.sessions.get(&owner.replica));
        if session.map(|session| session.generation) == Some(owner.generation) || self.mutations.has(Mutation::AnyGeneration) {
            return Ok(());
        }
        Err(Error::TakenOver { replica: owner.replica.clone(), generation: owner.generation })
    }

    /// The session that a message came over, if it came over one, is its stream's owner still.
    fn holds_session(&self, from: &Origin) -> Result<(), Error> {
        let Some((replica, generation)) = &from.session else { return Ok(()) };
        self.owns(&Owner { cluster: from.cluster.clone(), replica: replica.clone(), generation: *generation })
    }

    /// Makes nodes due now.
    fn ask(&mut self, cluster: &ClusterId, nodes: impl IntoIterator<Item = NodeUid>) {
        let now = self.now;
        let judgements = &mut self.cluster(cluster).judgements;
        for node in nodes {
            let due = judgements.entry(node).or_default();
            *due = Some(due.map_or(now, |due| due.min(now)));
        }
    }

    /// Makes every node with an open incident due.
    fn ask_open(&mut self) {
        let now = self.now;
        for cluster in self.clusters.values_mut() {
            let open: Vec<NodeUid> =
                cluster.incidents.values().filter(|i| i.closed_at.is_none()).map(|i| i.node.uid.clone()).collect();
            for node in open {
                if let Some(due) = cluster.judgements.get_mut(&node) {
                    *due = Some(due.map_or(now, |due| due.min(now)));
                }
            }
        }
    }

    /// The epoch. A cluster that has seen a later one, or a higher command, proves that commits were lost here; one that has
    /// not seen the present epoch yet lost its commands before it began.
    fn term_for(&mut self, id: &ClusterId, says: Seen) -> (u64, bool) {
        let lost = self.cluster(id).cmd_seq < says.cmd_seq;
        let mut same = self.cluster(id).commands.values().filter(|command| command.cmd_seq == says.cmd_seq);
        let twice = same.any(|command| says.cmd_id.is_some_and(|id| id != command.planned.id));
        if self.mutations.has(Mutation::TermNeverRises) {
            return (self.hub_term, false);
        }
        if lost {
            self.cluster(id).cmd_seq = says.cmd_seq;
        }
        let seen = says.term.max(says.term_heard);
        if self.hub_term >= seen && !(self.hub_term == says.term && (lost || twice)) {
            return (self.hub_term, false);
        }
        self.hub_term = seen + 1;
        let body = json!({"term": self.hub_term, "seen": seen, "command": says.cmd_seq});
        self.tell(id, Kind::TermRaised, "hub/link", &format!("cluster/{id}"), None, &body);
        (self.hub_term, true)
    }

    /// The identity was seen in two places: everybody who shows it is out.
    fn quarantine(&mut self, id: &ClusterId) {
        let cluster = self.cluster(id);
        if std::mem::replace(&mut cluster.quarantined, true) {
            return;
        }
        for session in cluster.sessions.values_mut().filter(|session| !session.detached) {
            session.generation += 1;
            session.detached = true;
            session.lease_transitions = None;
        }
        self.tell(id, Kind::CloneQuarantined, "hub/link", &format!("cluster/{id}"), None, &json!({}));
    }
}

impl Store for Memory {
    fn now(&mut self) -> Timestamp {
        self.now
    }

    fn elapse(&mut self, span: Duration) {
        self.now = self.now.after(span);
    }

    fn policy(&mut self, yaml: &str) -> Result<u64, Error> {
        let policy = Policy::parse(yaml)
            .map_err(|problems| Error::Refused(problems.first().map(ToString::to_string).unwrap_or_default()))?;
        let before = self.policies.last().map(|policy| policy.digest.clone());
        if before.as_ref() == Some(&policy.digest) {
            return Ok(self.policies.len() as u64);
        }
        let revision = self.policies.len() as u64 + 1;
        let digest = policy.digest.clone();
        self.policies.push(Rc::new(policy.with_revision(revision)));
        self.ask_open();
        let body = json!({"revision": revision, "digest": digest, "before": before, "request_id": ""});
        self.record(FLEET, Kind::PolicyApplied, "sim", &format!("policy/{revision}"), None, &body);
        Ok(revision)
    }

    fn stop(&mut self, reason: Option<&str>) -> Result<(), Error> {
        if self.stop.is_some() == reason.is_some() {
            return Ok(());
        }
        self.ask_open();
        let body = json!({"stopped": reason.is_some(), "reason": reason.unwrap_or("over"), "before": self.stop});
        self.stop = reason.map(str::to_owned);
        let kind = if reason.is_some() { Kind::FleetStop } else { Kind::FleetResume };
        self.record(FLEET, kind, "sim", "fleet", None, &body);
        Ok(())
    }

    fn attach(&mut self, hello: &Hello, _hub: &str) -> Result<Attached, Error> {
        let now = self.now;
        let cluster = self.cluster(&hello.cluster);
        let uid = cluster.kube_system_uid.get_or_insert_with(|| hello.kube_system_uid.clone()).clone();
        if uid != hello.kube_system_uid {
            self.quarantine(&hello.cluster);
            return Err(Error::Foreign);
        }
        if cluster.quarantined {
            return Err(Error::Refused("quarantined".to_owned()));
        }
        if let Some(detail) = plausible::beyond(hello, self.hub_term, self.cluster(&hello.cluster).cmd_seq) {
            return Err(Error::Refused(format!("implausible: {detail}")));
        }
        let cluster = self.cluster(&hello.cluster);
        let session = cluster.sessions.entry(hello.replica.clone()).or_insert_with(|| Session::new(now));
        session.generation += 1;
        session.attached_at = now;
        session.detached = false;
        session.seen_at = now;
        session.lease_transitions = hello.lease_transitions;
        if session.boots.last().is_none_or(|(boot, _)| *boot != hello.boot_id) {
            session.boots.push((hello.boot_id.clone(), now));
            let older = session.boots.len().saturating_sub(BOOTS_MAX);
            session.boots.drain(..older);
        }
        let generation = session.generation;
        if alternates(&session.boots, now) {
            self.quarantine(&hello.cluster);
            return Err(Error::Refused("quarantined".to_owned()));
        }
        let streams = &self.clusters[&hello.cluster].streams;
        let acked = |stream: &gpuheal_proto::ids::StreamId| streams.get(stream).map(|upto| (stream.to_string(), *upto));
        let acked = hello.journals.iter().map(|journal| &journal.stream).filter_map(acked).collect();
        let (hub_term, term_raised) = self.term_for(&hello.cluster, hello.seen);
        let taken_over = self.adopted(&self.clusters[&hello.cluster]);
        let reign_known = self.clusters[&hello.cluster].state_lease;
        Ok(Attached { generation, hub_term, acked, now, taken_over, term_raised, reign_known, clock_skew_ms: None })
    }

    fn lead(&mut self, owner: &Owner, lease_transitions: Option<u64>, says: Seen) -> Result<bool, Error> {
        self.owns(owner)?;
        let (now, term, cmd_seq) = (self.now, self.hub_term, self.cluster(&owner.cluster).cmd_seq);
        let session = self.session(owner)?;
        if session.detached {
            return Err(Error::TakenOver { replica: owner.replica.clone(), generation: owner.generation });
        }
        if lease_transitions.is_none() {
            session.lease_transitions = None;
            return Ok(false);
        }
        if let Some(detail) = plausible::unseen(says, term, cmd_seq) {
            return Err(Error::Refused(format!("implausible: {detail}")));
        }
        (session.lease_transitions, session.leads_since) = (lease_transitions, Some(now));
        Ok(self.term_for(&owner.cluster, says).1)
    }

    fn recognise(&mut self, hub: &str, seen: &mut Option<Witness>) -> Result<Recognised, Error> {
        if self.mutations.has(Mutation::AnyServer) || self.mutations.has(Mutation::TermNeverRises) {
            return Ok(Recognised::Known);
        }
        let mark = self.marks.get(hub).copied();
        let went_back = seen.as_ref().is_some_and(|seen| mark.is_none_or(|mark| *seen != witness(LINEAGE, mark, seen.term())));
        let raised_since = seen.as_ref().is_some_and(|seen| seen.term() < self.hub_term);
        let known = self.recognised == Some(self.run);
        let recognised = if known && (!went_back || raised_since) {
            Recognised::Known
        } else if self.recognised.is_none() || (seen.is_some() && !went_back) {
            self.ask_open();
            Recognised::GoesOn
        } else {
            self.hub_term = self.hub_term.max(seen.as_ref().map_or(0, Witness::term));
            self.raise_term();
            let reason = "commits may be lost";
            let body = json!({"term": self.hub_term, "reason": reason});
            self.record(FLEET, Kind::TermRaised, "hub", "fleet", None, &body);
            Recognised::MayHaveLost { term: self.hub_term, reason }
        };
        self.recognised = Some(self.run);
        self.looks += 1;
        // No two of one moment, nor of a database and its backup.
        let mark = Uuid::from_u128((u128::from(self.now.unix_ms().unsigned_abs()) << 32) | u128::from(self.looks));
        self.marks.insert(hub.to_owned(), mark);
        *seen = Some(witness(LINEAGE, mark, self.hub_term));
        Ok(recognised)
    }

    fn detach(&mut self, owner: &Owner) {
        if self.owns(owner).is_ok()
            && let Ok(session) = self.session(owner)
        {
            session.detached = true;
            session.lease_transitions = None;
        }
    }

    fn faults(&mut self, from: &Owner, batch: v1::FaultBatch) -> Result<v1::FaultAck, Error> {
        self.take_faults(from, batch)
    }

    fn gap(&mut self, from: &Owner, gap: v1::Gap) -> Result<v1::FaultAck, Error> {
        self.take_gap(from, gap)
    }

    fn state(&mut self, from: &Origin, state: v1::ClusterState) -> Result<Taken, Error> {
        self.holds_session(from)?;
        self.take_state(&from.cluster, state)
    }

    fn evidence(&mut self, from: &Origin, batch: v1::EvidenceBatch) -> Result<(), Error> {
        self.holds_session(from)?;
        self.take_evidence(&from.cluster, &batch);
        Ok(())
    }

    fn judge(&mut self) -> Result<usize, Error> {
        self.judge_due()
    }

    fn owned(&mut self, owner: &Owner, noted: Option<Timestamp>) -> Option<Timestamp> {
        self.owns(owner).ok()?;
        let now = self.now;
        let session = self.cluster(&owner.cluster).sessions.get_mut(&owner.replica)?;
        if noted.is_some_and(|noted| session.seen_at < noted) {
            return None;
        }
        session.seen_at = noted.map_or(now, |noted| noted.max(now));
        Some(session.seen_at)
    }

    fn sign(&mut self, signer: &Arc<Signer>) -> Result<usize, Error> {
        Ok(self.sign_proposed(signer) + self.sign_cancels(signer))
    }

    fn due(&mut self, leaders: &[Leader]) -> Result<Vec<Due>, Error> {
        Ok(leaders.iter().flat_map(|leader| self.due_for(leader)).collect())
    }

    fn unheard(&mut self, leaders: &[Leader]) -> Result<Vec<(ClusterId, CommandId)>, Error> {
        Ok(leaders.iter().flat_map(|leader| self.ask_unheard(leader)).collect())
    }

    fn untold(&mut self, leaders: &[Leader]) -> Result<Vec<v1::FaultAsked>, Error> {
        Ok(leaders.iter().flat_map(|leader| self.ask_untold(leader)).collect())
    }

    fn sent(&mut self, sent: &[Due]) -> Result<(), Error> {
        self.note_sent(sent);
        Ok(())
    }

    fn settle(
        &mut self,
        from: &Origin,
        status: v1::CommandStatus,
        signer: Option<&Signer>,
    ) -> Result<Option<v1::StatusAck>, Error> {
        self.holds_session(from)?;
        Ok(self.take_status(&from.cluster, status, signer))
    }

    fn sweep(&mut self) -> Result<u64, Error> {
        Ok(self.end_lapsed())
    }

    fn picture(&mut self) -> Picture {
        self.draw()
    }
}

impl Memory {
    fn session(&mut self, owner: &Owner) -> Result<&mut Session, Error> {
        let out = || Error::TakenOver { replica: owner.replica.clone(), generation: owner.generation };
        self.cluster(&owner.cluster).sessions.get_mut(&owner.replica).ok_or_else(out)
    }

    /// The sessions of a cluster, for whoever checks.
    pub fn sessions(&self, cluster: &ClusterId) -> impl Iterator<Item = (&ReplicaId, &Session)> {
        self.clusters.get(cluster).into_iter().flat_map(|cluster| &cluster.sessions)
    }
}

impl Memory {
    /// Where a counter of the budgets is not the number of places taken.
    #[must_use]
    pub fn counters_differ(&self) -> Option<String> {
        let fleet: u32 = self.clusters.values().map(|cluster| cluster.out).sum();
        let wrong = |(id, cluster): (&ClusterId, &Cluster)| {
            (cluster.holds.len() as u32 != cluster.out)
                .then(|| format!("{id}: counter {}, holds {}", cluster.out, cluster.holds.len()))
        };
        self.clusters
            .iter()
            .find_map(wrong)
            .or_else(|| (fleet != self.fleet_out).then(|| format!("fleet: counter {}, clusters {fleet}", self.fleet_out)))
    }
}
