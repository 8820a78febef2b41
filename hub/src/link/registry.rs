//! Who is attached to this hub process. In memory only: what must outlive the process is in the table `sessions`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use gpuheal_proto::{
    ids::{ClusterId, ReplicaId},
    link::v1::{Goaway, attach_response::Message},
    time::Timestamp,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    hello::Journal,
    lanes::{Lane, Lanes, Refused},
};
use crate::{
    identity::denied::Certificate,
    metrics,
    store::{leading::Leading, session::Alive},
};

/// Stands for "does not lead".
const NO_LEASE: i64 = -1;

/// What a session proved of its leadership, and under which epoch it counts.
#[derive(Clone, Copy, Debug)]
struct Proof {
    lease: Option<u64>,
    /// The epoch of the database under which its cluster was taken over when it attached, or that it was asked for all under.
    term: u64,
}

/// Whose a stream is, and in which generation.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) cluster: ClusterId,
    pub(super) replica: ReplicaId,
    pub(super) generation: u64,
}

/// One replica's stream.
#[derive(Debug)]
pub struct Session {
    owner: Owner,
    certificate: Certificate,
    lanes: Lanes,
    end: CancellationToken,
    proof: Mutex<Proof>,
    heard: Mutex<Instant>,
    /// When it was last noted in the database that it lives.
    noted: Mutex<Option<Timestamp>>,
    /// A message of its is being worked on, so that silence is ours and not its.
    busy: AtomicBool,
    /// How far its replica's journal goes, and whether that is noted in the database.
    head: Mutex<Option<(Journal, bool)>>,
    /// Its replica's wall clock is far off.
    clock_apart: AtomicBool,
    /// A heartbeat of its has raised the epoch.
    raised: AtomicBool,
    cause: OnceLock<&'static str>,
}

impl Session {
    pub(super) fn new(owner: Owner, certificate: Certificate, lanes: Lanes, term: u64, end: CancellationToken) -> Self {
        Self {
            owner,
            certificate,
            lanes,
            end,
            proof: Mutex::new(Proof { lease: None, term }),
            heard: Mutex::new(Instant::now()),
            noted: Mutex::new(None),
            busy: AtomicBool::new(false),
            head: Mutex::new(None),
            clock_apart: AtomicBool::new(false),
            raised: AtomicBool::new(false),
            cause: OnceLock::new(),
        }
    }

    /// Its heartbeat has raised the epoch; true when it is not the first that did.
    pub(super) fn raises_again(&self) -> bool {
        self.raised.swap(true, Relaxed)
    }

    /// It is to be asked for all that it has under this epoch; false when it was, or attached under it. What it proved before counts no
    /// more: the next beat, which the question brings, shows the numbers that its cluster has seen.
    pub(super) fn to_be_asked_under(&self, term: u64) -> bool {
        let mut proof = self.proof();
        let behind = proof.term < term;
        if behind {
            *proof = Proof { lease: None, term };
        }
        behind
    }

    fn proof(&self) -> MutexGuard<'_, Proof> {
        self.proof.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its cluster.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterId {
        &self.owner.cluster
    }

    /// Its replica.
    #[must_use]
    pub const fn replica(&self) -> &ReplicaId {
        &self.owner.replica
    }

    /// Its number: higher ones take over.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.owner.generation
    }

    /// As the table of sessions is asked about it.
    pub(super) fn alive(&self) -> Alive {
        let seen_at = *self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        Alive {
            cluster: self.owner.cluster.clone(),
            replica: self.owner.replica.clone(),
            generation: self.owner.generation,
            seen_at,
        }
    }

    /// It was noted that it lives.
    pub(super) fn noted(&self, at: Option<Timestamp>) {
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    /// What it showed when it attached.
    #[must_use]
    pub const fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// What it proved of its leadership.
    #[must_use]
    pub fn lease(&self) -> Option<u64> {
        self.proof().lease
    }

    /// It proved so much, which was held against what its cluster has seen under this epoch. False, and nothing is proved, where it was
    /// asked for all under a later one meanwhile: it says again what it has seen, and is believed then.
    pub(super) fn prove(&self, lease: Option<u64>, checked_under: u64) -> bool {
        let mut proof = self.proof();
        let counts = lease.is_none() || checked_under >= proof.term;
        proof.lease = lease.filter(|_| counts);
        counts
    }

    /// Puts a message on a lane if there is room.
    ///
    /// # Errors
    /// When there is none, or the message can never be sent.
    pub fn offer(&self, lane: Lane, message: Message) -> Result<(), Refused> {
        self.lanes.offer(lane, message)
    }

    pub(super) async fn send(&self, lane: Lane, message: Message) -> Result<(), Refused> {
        self.lanes.send(lane, message).await
    }

    /// For how long its peer has taken nothing of what waits for it.
    pub(super) fn stalled_for(&self) -> Duration {
        self.lanes.stalled_for()
    }

    /// As deliver asks the database about it.
    #[must_use]
    pub fn leading(&self) -> Leading {
        Leading {
            cluster: self.owner.cluster.clone(),
            replica: self.owner.replica.to_string(),
            generation: i64::try_from(self.owner.generation).unwrap_or(i64::MAX),
            lease_transitions: self.lease().and_then(|lease| i64::try_from(lease).ok()).unwrap_or(NO_LEASE),
        }
    }

    pub(super) fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn silent_for(&self) -> Duration {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Relaxed);
    }

    pub(super) fn busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// A heartbeat said how far its replica's journal goes.
    pub(super) fn hear_head(&self, journal: Journal) {
        let mut head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        if head.as_ref().is_none_or(|(known, _)| *known != journal) {
            *head = Some((journal, false));
        }
    }

    /// How far it goes, unless that is noted.
    pub(super) fn head_unnoted(&self) -> Option<(ClusterId, Journal)> {
        let head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        head.as_ref().filter(|(_, noted)| !noted).map(|(journal, _)| (self.owner.cluster.clone(), journal.clone()))
    }

    /// It is noted that it goes so far.
    pub(super) fn head_noted(&self, journal: &Journal) {
        let mut head = self.head.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, noted)) = head.as_mut() {
            *noted = known == journal;
        }
    }

    pub(super) fn set_clock_apart(&self, apart: bool) {
        self.clock_apart.store(apart, Relaxed);
    }

    pub(super) fn clock_apart(&self) -> bool {
        self.clock_apart.load(Relaxed)
    }

    /// Ends it, with a last word if there is one. The first cause counts.
    pub(super) fn finish(&self, cause: &'static str, goaway: Option<Goaway>) {
        if self.cause.set(cause).is_ok()
            && let Some(goaway) = goaway
        {
            // A spoke that does not read finds out by the closed stream.
            let _ = self.offer(Lane::Control, Message::Goaway(goaway));
        }
        self.end.cancel();
    }

    pub(super) fn cause(&self) -> &'static str {
        self.cause.get().copied().unwrap_or("closed")
    }

    pub(super) const fn end(&self) -> &CancellationToken {
        &self.end
    }
}

type Key = (ClusterId, ReplicaId);

/// All sessions of this process.
#[derive(Debug, Default)]
pub struct Registry {
    sessions: Mutex<BTreeMap<Key, Arc<Session>>>,
    leadership: Notify,
}

impl Registry {
    /// Adds a session and returns the one that it takes over from, if that was here.
    pub(super) fn insert(&self, session: &Arc<Session>) -> Option<Arc<Session>> {
        let key = (session.cluster().clone(), session.replica().clone());
        let mut sessions = self.lock();
        let old = sessions.insert(key, session.clone());
        metrics::SESSIONS.set(i64::try_from(sessions.len()).unwrap_or(i64::MAX));
        drop(sessions);
        self.leadership.notify_one();
        old
    }

    /// Removes a session unless another has taken its place already.
    pub(super) fn remove(&self, session: &Session) {
        let key = (session.cluster().clone(), session.replica().clone());
        let mut sessions = self.lock();
        if sessions.get(&key).is_some_and(|current| current.generation() == session.generation()) {
            sessions.remove(&key);
        }
        metrics::SESSIONS.set(i64::try_from(sessions.len()).unwrap_or(i64::MAX));
    }

    /// Everyone.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    /// For each cluster the session here that proves the highest leadership. Whether another hub has a higher one is the
    /// database's to say.
    #[must_use]
    pub fn leading(&self) -> Vec<Arc<Session>> {
        let mut leaders: BTreeMap<&ClusterId, &Arc<Session>> = BTreeMap::new();
        let sessions = self.lock();
        for session in sessions.values().filter(|session| session.lease().is_some()) {
            let best = leaders.entry(session.cluster()).or_insert(session);
            if (session.lease(), session.generation()) > (best.lease(), best.generation()) {
                *best = session;
            }
        }
        leaders.into_values().cloned().collect()
    }

    /// The leader's session of one cluster, if it is here.
    #[must_use]
    pub fn leader_of(&self, cluster: &ClusterId) -> Option<Arc<Session>> {
        self.leading().into_iter().find(|session| session.cluster() == cluster)
    }

    pub(super) fn leadership_moved(&self) {
        self.leadership.notify_one();
    }

    /// Waits until some session came or changed its proof.
    pub async fn leadership_changed(&self) {
        self.leadership.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Session {
    /// One of this owner, and what goes down it.
    pub(super) fn of(cluster: &str, replica: &str, generation: u64) -> (Arc<Self>, super::lanes::Down) {
        let end = CancellationToken::new();
        let (lanes, down) = super::lanes::lanes(&end);
        let owner = Owner { cluster: ClusterId::parse(cluster).unwrap(), replica: ReplicaId::parse(replica).unwrap(), generation };
        let serial = crate::identity::denied::Serial::from_bytes(&[1]);
        let certificate = Certificate { serial, not_before: Timestamp::EPOCH };
        (Arc::new(Self::new(owner, certificate, lanes, 1, end)), down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(cluster: &str, replica: &str, generation: u64, lease: Option<u64>) -> Arc<Session> {
        let (session, down) = Session::of(cluster, replica, generation);
        std::mem::forget(down);
        session.prove(lease, 1);
        session
    }

    #[test]
    fn the_leader_is_whoever_proves_the_highest_lease() {
        let registry = Registry::default();
        for session in [session("a", "r0", 1, Some(4)), session("a", "r1", 1, Some(5)), session("b", "r0", 1, None)] {
            registry.insert(&session);
        }
        let leading = registry.leading();
        assert_eq!(leading.len(), 1, "a cluster of standbys has no leader");
        assert_eq!(leading[0].replica().as_str(), "r1");
    }

    /// Failure table, row 18.
    #[test]
    fn a_proof_that_was_checked_before_the_epoch_rose_counts_no_more_once_the_session_was_asked_under_it() {
        let session = session("a", "r0", 1, Some(4));
        assert!(session.to_be_asked_under(2));
        assert_eq!(session.lease(), None, "its proof is of before");
        assert!(!session.prove(Some(5), 1), "checked before, and kept only now");
        assert_eq!(session.lease(), None);
        assert!(!session.to_be_asked_under(2), "once");
        assert!(session.prove(Some(5), 2));
        assert_eq!(session.lease(), Some(5));
        assert!(session.prove(None, 1), "who no longer leads is believed");
        assert_eq!(session.lease(), None);
    }

    #[test]
    fn an_old_session_cannot_remove_the_one_that_took_over() {
        let registry = Registry::default();
        let (old, new) = (session("a", "r0", 1, None), session("a", "r0", 2, None));
        registry.insert(&old);
        assert_eq!(registry.insert(&new).unwrap().generation(), 1);
        registry.remove(&old);
        assert_eq!(registry.all().len(), 1);
        registry.remove(&new);
        assert!(registry.all().is_empty());
    }
}
