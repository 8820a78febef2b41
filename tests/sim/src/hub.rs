//! One hub process: streams, their sessions, and the stages in turn over the shared store. What lives in memory dies with
//! it; what must outlive it is in the store. The signer is the shipping one, with the epoch that it has seen.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuheal_hub::{
    ingest::{Origin, Taken},
    link::hello::{Hello, Seen},
    sign::{Key, Signer},
    store::{
        server::{Recognised, Witness},
        session::Attached,
    },
};
use gpuheal_proto::{
    ids::{ClusterId, CommandId},
    limits,
    link::v1::{self, attach_request::Message as Up, attach_response::Message as Down},
    time::Timestamp,
};

use crate::store::{Due, Error, Leader, Owner, Store};

/// Rounds of judging in one turn: more is left to the next.
const ROUNDS: usize = 8;

/// How often it asks which of its sessions are still its own.
const SEEN_EVERY: Duration = Duration::from_secs(10);
/// How often it asks what became of commands whose end nobody told.
const UNHEARD_EVERY: Duration = Duration::from_secs(5);

/// What it puts out.
#[derive(Clone, Debug)]
pub enum Out {
    /// A message down a stream.
    Down(u64, Box<Down>),
    /// That message was a command's.
    Commanded(u64, CommandId),
    /// It ends a stream.
    Close(u64),
    /// Faults of this session were committed.
    Committed(Owner),
    /// What is held of this cluster's nodes is not what it told.
    Differs(Owner),
    /// Envelopes were put on streams and are still to be noted.
    Note(Vec<Due>),
    /// There is something to do soon.
    Wake,
    /// Something worth a line in the trace.
    Say(String),
}

/// A stream's session.
#[derive(Clone, Debug)]
struct Session {
    owner: Owner,
    lease: Option<u64>,
    heard: Timestamp,
    beat: Timestamp,
    /// All of the cluster's state was asked for and has not come yet.
    asked: bool,
    /// When it was last noted that it lives.
    noted: Option<Timestamp>,
    /// The epoch that it attached or was asked for all under.
    term: u64,
}

/// The process.
pub struct Hub {
    /// Its name.
    pub id: String,
    signer: Arc<Signer>,
    sessions: BTreeMap<u64, Session>,
    seen_at: Timestamp,
    unheard_at: Timestamp,
    /// How far it has seen the database's server come.
    witness: Option<Witness>,
    out: Vec<Out>,
}

impl Hub {
    /// Starts, with the keys of `pem`.
    #[must_use]
    pub fn start(id: String, pem: &str) -> Self {
        let key = Key::from_pem(pem).expect("the simulation's key is one");
        Self {
            id,
            signer: Arc::new(Signer::new(key, 1)),
            sessions: BTreeMap::new(),
            seen_at: Timestamp::EPOCH,
            unheard_at: Timestamp::EPOCH,
            witness: None,
            out: Vec::new(),
        }
    }

    /// What it has put out since it was last asked.
    pub fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    fn down(&mut self, conn: u64, message: Down) {
        self.out.push(Out::Down(conn, Box::new(message)));
    }

    /// A message up a stream. Without a store nothing is taken, and the session ends.
    pub fn up(&mut self, conn: u64, cluster: &ClusterId, message: Up, store: Option<&mut dyn Store>, now: Timestamp) {
        let Some(store) = store else {
            if matches!(message, Up::Hello(_)) {
                self.reject(conn);
            } else {
                self.end(conn, "the database is away");
            }
            return;
        };
        if let Up::Hello(hello) = message {
            return self.attach(conn, cluster, hello, store, now);
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        session.heard = now;
        let owner = session.owner.clone();
        let taken = match message {
            Up::FaultBatch(batch) => {
                let words = format!(
                    "{} takes {} faults of {}/{}, {} from {}",
                    self.id,
                    batch.faults.len(),
                    owner.cluster,
                    owner.replica,
                    batch.stream_id,
                    batch.first_seq
                );
                self.out.push(Out::Say(words));
                store.faults(&owner, batch).map(|ack| self.acked(conn, &owner, ack))
            }
            Up::Gap(gap) => {
                let words = format!(
                    "{} takes a gap of {}/{}, {} from {} to {}",
                    self.id, owner.cluster, owner.replica, gap.stream_id, gap.from_seq, gap.to_seq
                );
                self.out.push(Out::Say(words));
                store.gap(&owner, gap).map(|ack| self.acked(conn, &owner, ack))
            }
            Up::ClusterState(state) => {
                let whole = matches!(state.body, Some(v1::cluster_state::Body::Snapshot(_)));
                store.state(&Origin::from(&owner), state).map(|taken| self.told(conn, whole, taken))
            }
            Up::Evidence(batch) => store.evidence(&Origin::from(&owner), batch),
            Up::CommandStatus(status) => {
                let words = format!(
                    "{} hears {} {} of {} from {}/{}",
                    self.id,
                    status.state().as_str_name(),
                    status.status_seq,
                    status.command_id,
                    owner.cluster,
                    owner.replica
                );
                self.out.push(Out::Say(words));
                let ack = store.settle(&Origin::from(&owner), status, Some(&self.signer));
                ack.map(|ack| ack.into_iter().for_each(|ack| self.down(conn, Down::StatusAck(ack))))
            }
            Up::Heartbeat(beat) => self.beat(conn, &owner, &beat, store),
            Up::Hello(_) | Up::Process(_) | Up::SettingsAck(_) => Ok(()),
        };
        match taken {
            Ok(()) => self.out.push(Out::Wake),
            Err(error) => self.end(conn, &error.to_string()),
        }
    }

    /// A change of a state that is not known is answered by asking for all of it, once until it has come. Here nothing is ever held
    /// otherwise than it was told.
    fn told(&mut self, conn: u64, whole: bool, taken: Taken) {
        let Some(session) = self.sessions.get_mut(&conn) else { return };
        match taken {
            Taken::Counts { differs: true, .. } => self.out.push(Out::Differs(session.owner.clone())),
            Taken::Counts { .. } if whole => session.asked = false,
            Taken::Unfounded if !std::mem::replace(&mut session.asked, true) => {
                self.down(conn, Down::Resync(v1::Resync { snapshot: true, ..v1::Resync::default() }));
            }
            Taken::Counts { .. } | Taken::Unfounded | Taken::Part | Taken::PassedOver => {}
        }
    }

    fn acked(&mut self, conn: u64, owner: &Owner, ack: v1::FaultAck) {
        self.out.push(Out::Committed(owner.clone()));
        self.out.push(Out::Say(format!("{} acks {} up to {}", self.id, ack.stream_id, ack.persisted_upto)));
        self.down(conn, Down::FaultAck(ack));
    }

    fn attach(&mut self, conn: u64, cluster: &ClusterId, hello: v1::Hello, store: &mut dyn Store, now: Timestamp) {
        let hello = match Hello::read(hello, cluster, std::time::Instant::now()) {
            Ok(hello) => hello,
            Err(error) => {
                self.out.push(Out::Say(format!("{} rejects a hello of {cluster}: {error}", self.id)));
                return self.reject(conn);
            }
        };
        let attached = match store.attach(&hello, &self.id) {
            Ok(attached) => attached,
            Err(_) => return self.reject(conn),
        };
        let owner = Owner { cluster: cluster.clone(), replica: hello.replica.clone(), generation: attached.generation };
        let old: Vec<u64> = self.sessions.iter().filter(|(_, s)| same(&s.owner, &owner)).map(|(conn, _)| *conn).collect();
        self.sessions.insert(
            conn,
            Session {
                owner,
                lease: hello.lease_transitions,
                heard: now,
                beat: now,
                asked: false,
                noted: None,
                term: attached.hub_term,
            },
        );
        self.down(conn, Down::Welcome(welcome(&hello, &attached)));
        old.into_iter().for_each(|conn| self.end(conn, "attached again"));
        if !attached.taken_over {
            self.down(conn, Down::Resync(all_under(attached.hub_term)));
        }
        self.out.push(Out::Wake);
    }

    fn reject(&mut self, conn: u64) {
        let reject = v1::Reject { code: v1::RejectCode::Busy.into(), reason: "busy".to_owned(), retry_after_ms: 1000 };
        self.down(conn, Down::Reject(reject));
        self.out.push(Out::Close(conn));
    }

    fn beat(&mut self, conn: u64, owner: &Owner, beat: &v1::Heartbeat, store: &mut dyn Store) -> Result<(), Error> {
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        if session.lease == beat.lease_transitions {
            return Ok(());
        }
        if store.lead(owner, beat.lease_transitions, Seen::told(beat))? {
            self.out.push(Out::Say(format!("{} raises the term for {}", self.id, owner.cluster)));
        }
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        session.lease = beat.lease_transitions;
        Ok(())
    }

    fn end(&mut self, conn: u64, why: &str) {
        if self.sessions.remove(&conn).is_some() {
            self.down(conn, Down::Goaway(v1::Goaway { reconnect_after_ms: 500, reason: why.to_owned() }));
        }
        self.out.push(Out::Close(conn));
    }

    /// A stream is gone.
    pub fn closed(&mut self, conn: u64, store: Option<&mut dyn Store>) {
        if let (Some(session), Some(store)) = (self.sessions.remove(&conn), store) {
            store.detach(&session.owner);
        }
    }

    /// Heartbeats, and the end of streams that are silent.
    pub fn pulse(&mut self, now: Timestamp) {
        let conns: Vec<u64> = self.sessions.keys().copied().collect();
        for conn in conns {
            let Some(session) = self.sessions.get_mut(&conn) else { continue };
            if now.since(session.heard) > limits::DEAD_AFTER {
                self.end(conn, "silent");
            } else if now.since(session.beat) >= limits::HEARTBEAT {
                session.beat = now;
                self.down(conn, Down::Heartbeat(v1::Heartbeat::default()));
            }
        }
    }

    /// Sessions that another hub has taken over, or of which the database has lost commits, end here.
    pub fn seen(&mut self, store: &mut dyn Store, now: Timestamp) {
        if now.since(self.seen_at) < SEEN_EVERY {
            return;
        }
        self.seen_at = now;
        let mut lost = Vec::new();
        for (conn, session) in &mut self.sessions {
            match store.owned(&session.owner, session.noted) {
                None => lost.push(*conn),
                noted => session.noted = noted,
            }
        }
        lost.into_iter().for_each(|conn| self.end(conn, "another hub has this session, or the database has lost it"));
    }

    /// A run of the database's server that is new is recognised.
    ///
    /// # Errors
    /// When the store fails.
    pub fn look(&mut self, store: &mut dyn Store) -> Result<(), Error> {
        match store.recognise(&self.id, &mut self.witness)? {
            Recognised::Known => {}
            Recognised::GoesOn => self.out.push(Out::Say(format!("{} has seen that the database lost nothing", self.id))),
            Recognised::MayHaveLost { term, reason } => {
                self.out.push(Out::Say(format!("{} raises the term to {term}: {reason}", self.id)));
            }
        }
        if let Some(term) = self.witness.as_ref().map(Witness::term) {
            self.ask_all_under(term);
        }
        Ok(())
    }

    /// Whoever attached or was asked under an older epoch is asked for all that he has, and proves anew that he leads.
    fn ask_all_under(&mut self, term: u64) {
        let mut behind = Vec::new();
        for (conn, session) in self.sessions.iter_mut().filter(|(_, session)| session.term < term) {
            (session.term, session.lease) = (term, None);
            behind.push(*conn);
        }
        behind.into_iter().for_each(|conn| self.down(conn, Down::Resync(all_under(term))));
    }

    /// The stages that need no stream: what is due is judged, signed and swept.
    ///
    /// # Errors
    /// When a decision cannot be stored: a defect.
    pub fn stages(&mut self, store: &mut dyn Store) -> Result<(), Error> {
        for _ in 0..ROUNDS {
            if store.judge()? == 0 {
                break;
            }
        }
        store.sign(&self.signer)?;
        store.sweep()?;
        Ok(())
    }

    /// Puts what is due on the leaders' streams: sent first, noted after.
    ///
    /// # Errors
    /// When the store fails.
    pub fn deliver(&mut self, store: &mut dyn Store) -> Result<(), Error> {
        for (conn, leader) in self.leading() {
            let due = store.due(&[leader])?;
            for one in &due {
                let envelope = one.envelope.clone();
                let message =
                    if one.cancels { Down::Cancel(v1::Cancel { envelope }) } else { Down::Command(v1::Command { envelope }) };
                self.down(conn, message);
                if !one.cancels {
                    self.out.push(Out::Commanded(conn, one.command));
                }
            }
            if !due.is_empty() {
                self.out.push(Out::Note(due));
            }
        }
        Ok(())
    }

    /// Asks each leader here what became of the commands whose end nobody has told, and how faults stand that another found.
    ///
    /// # Errors
    /// When the store fails.
    pub fn ask_unheard(&mut self, store: &mut dyn Store, now: Timestamp) -> Result<(), Error> {
        if now.since(self.unheard_at) < UNHEARD_EVERY {
            return Ok(());
        }
        self.unheard_at = now;
        for (conn, leader) in self.leading() {
            let leader = [leader];
            let command_ids: Vec<String> = store.unheard(&leader)?.into_iter().map(|(_, id)| id.to_string()).collect();
            let faults = store.untold(&leader)?;
            if !command_ids.is_empty() || !faults.is_empty() {
                self.down(conn, Down::Resync(v1::Resync { command_ids, faults, ..v1::Resync::default() }));
            }
        }
        Ok(())
    }

    /// The session here that proves leadership best, of each cluster.
    fn leading(&self) -> Vec<(u64, Leader)> {
        let mut best: BTreeMap<ClusterId, (u64, u64, u64)> = BTreeMap::new();
        for (conn, session) in &self.sessions {
            let Some(lease) = session.lease else { continue };
            let key = (lease, session.owner.generation, *conn);
            let known = best.entry(session.owner.cluster.clone()).or_insert(key);
            *known = (*known).max(key);
        }
        let leader = |(lease_transitions, _, conn): (u64, u64, u64)| {
            (conn, Leader { owner: self.sessions[&conn].owner.clone(), lease_transitions })
        };
        best.into_values().map(leader).collect()
    }
}

/// Asks for everything, under this epoch.
const fn all_under(term: u64) -> v1::Resync {
    v1::Resync { snapshot: false, all_under_term: term, command_ids: Vec::new(), faults: Vec::new() }
}

fn same(one: &Owner, other: &Owner) -> bool {
    one.cluster == other.cluster && one.replica == other.replica
}

fn welcome(hello: &Hello, attached: &Attached) -> v1::Welcome {
    let acked = |stream: &str| attached.acked.iter().find(|(known, _)| known == stream).map_or(0, |(_, upto)| *upto);
    let resume = hello
        .journals
        .iter()
        .map(|journal| v1::ResumePoint { stream_id: journal.stream.to_string(), from_seq: acked(journal.stream.as_str()) + 1 });
    v1::Welcome {
        session_generation: attached.generation,
        hub_term: attached.hub_term,
        resume: resume.collect(),
        credit: limits::CREDIT,
        heartbeat_ms: 15_000,
        server_time_unix_ms: attached.now.unix_ms(),
        lease_transitions_known: attached.reign_known,
    }
}
