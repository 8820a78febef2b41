//! The pods of one drain and where each stands. No IO: told what happened and what time it is, says what is due.

mod returns;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_spoke_core::drain::{Plan, PodFacts, Skipped, after_completion, backoff, grace_secs};
use tokio::time::Instant;

use self::returns::Returns;
use super::{
    evict::{Call, Outcome},
    pods::Event,
};
use crate::healaction::PodRecord;

/// Waits of what only a person or time can mend.
const SLOW_RECHECK: Duration = Duration::from_secs(30);
/// How long after its grace a pod may still be there before we say so; on a dead node we stop waiting then.
const GRACE_SLACK: Duration = Duration::from_secs(30);
/// Longest grace of a pod whose kubelet is silent: it ends nobody's containers, however long they are given. Kubernetes' own default,
/// in case it is heard of again.
const GRACE_SILENT_MAX: Duration = Duration::from_secs(30);
/// From so many attempts in a row on that brought no answer, people are told: one or two a restarting API server explains,
/// and the third is asked some 3 s (1 + 2, with jitter half of it at least) and three timeouts of 2 s after the first.
const UNANSWERED_TOLD: u32 = 3;
/// What to say where a budget keeps a pod that serves nobody.
const UNREADY: &str =
    "the pod itself is not ready, and such a one may go under a budget with unhealthyPodEvictionPolicy: AlwaysAllow";
/// Bytes of an owner's UID in a record: one of the API server's own has 36.
const OWNER_UID_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be evicted at `due`.
    Waiting,
    /// Asked, not answered.
    Asked,
    /// On its way out.
    Leaving,
    /// Not there any more, or finished.
    Gone,
    /// We stop waiting: it cannot go.
    Stuck,
}

#[derive(Debug)]
struct Job {
    pod: PodFacts,
    stateful: bool,
    /// Its work is waited for.
    patient: bool,
    state: State,
    due: Instant,
    attempt: u32,
    calls: u32,
    reason: String,
    /// Only a person can help: stateful pods need not wait for it.
    blocked: bool,
    doubt: bool,
    /// Attempts in a row that brought no answer.
    unanswered: u32,
    /// It may be deleted past its budgets.
    bypass: bool,
    /// It was asked to be, and nothing says that it was not: in doubt it counts, also for whoever takes the drain up.
    past_budget: bool,
    /// It asks to be let finish: what comes of it is an eviction, at the latest at the deadline, and never a delete.
    after_completion: bool,
    leaving_since: Option<Instant>,
    /// The grace that it was asked for with.
    asked_grace: Option<Duration>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Jobs {
    by_uid: BTreeMap<String, Job>,
    /// UIDs in the plan's order.
    order: Vec<String>,
    grace_max: Duration,
    /// Their node's kubelet is not heard of.
    silent: bool,
    /// Nobody's own end is waited for any more.
    impatient: bool,
    dirty: bool,
    returns: Returns,
    /// Pods that the plan leaves where they are: they have not come back, whoever their owner is.
    stay: BTreeSet<String>,
    relist: Option<Vec<String>>,
}

impl Jobs {
    pub(super) fn new(plan: &Plan, grace_max: Duration, now: Instant) -> Self {
        let job = |pod: &PodFacts, stateful, after_completion| Job {
            pod: pod.clone(),
            stateful,
            patient: after_completion,
            state: if pod.deleting { State::Leaving } else { State::Waiting },
            due: now,
            attempt: 0,
            calls: 0,
            reason: String::new(),
            blocked: false,
            doubt: false,
            unanswered: 0,
            bypass: false,
            past_budget: false,
            after_completion,
            leaving_since: pod.deleting.then_some(now),
            asked_grace: None,
        };
        let stateless = plan.stateless.iter().map(|planned| (planned, false));
        let all: Vec<_> = stateless.chain(plan.stateful.iter().map(|planned| (planned, true))).collect();
        Self {
            order: all.iter().map(|(planned, _)| planned.pod.uid.clone()).collect(),
            by_uid: all
                .into_iter()
                .map(|(planned, stateful)| (planned.pod.uid.clone(), job(&planned.pod, stateful, planned.after_completion)))
                .collect(),
            grace_max,
            silent: false,
            impatient: false,
            // Whom it waits for is to be seen, also when nothing happens for long.
            dirty: plan.planned().any(|planned| planned.after_completion),
            returns: Returns::default(),
            stay: plan.skipped.iter().map(|skipped| skipped.pod.uid.clone()).collect(),
            relist: None,
        }
    }

    /// What was asked before this one took the drain up counts on.
    pub(super) fn recall(&mut self, earlier: &[PodRecord]) {
        for record in earlier {
            if let Some(job) = self.by_uid.get_mut(&record.uid) {
                job.calls = record.eviction_calls;
                job.past_budget = record.past_budget;
            }
        }
    }

    /// A pod that is known to have come after the drain began.
    pub(super) fn came_later(&mut self, pod: PodFacts) {
        self.returns.saw(pod);
    }

    pub(super) fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub(super) fn settled(&self) -> bool {
        self.by_uid.values().all(|job| matches!(job.state, State::Gone | State::Stuck))
    }

    pub(super) const fn dirty(&self) -> bool {
        self.dirty
    }

    /// Whether there is something to write, if it may be written now.
    pub(super) const fn take_dirty(&mut self, may_write: bool) -> bool {
        let write = self.dirty && may_write;
        if write {
            self.dirty = false;
        }
        write
    }

    /// UIDs that are to be asked for now, in order. A stateful pod's turn comes when no stateless one is left but those
    /// that only a person can move, and no other stateful one is on its way.
    pub(super) fn due(&self, now: Instant) -> Vec<String> {
        let stateless_open = self.by_uid.values().any(|job| !job.stateful && !job.over() && !job.blocked);
        let stateful_moving = self.by_uid.values().any(|job| job.stateful && matches!(job.state, State::Asked | State::Leaving));
        let mut one_stateful = !stateless_open && !stateful_moving;
        let mut due = Vec::new();
        for uid in &self.order {
            let job = &self.by_uid[uid];
            if job.state != State::Waiting || job.due > now || job.patient {
                continue;
            }
            if !job.stateful || std::mem::take(&mut one_stateful) {
                due.push(uid.clone());
            }
        }
        due
    }

    /// When something is due next without anything happening.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.by_uid.values().filter(|job| job.state == State::Waiting && !job.patient).map(|job| job.due);
        let leaving = self.by_uid.values().filter(|job| job.state == State::Leaving && job.reason.is_empty());
        let overdue = leaving.filter_map(|job| Some(job.leaving_since? + self.grace(job) + GRACE_SLACK));
        let now = Instant::now();
        waiting.chain(overdue).filter(|at| *at > now).min()
    }

    /// The longest grace may be another by now, and the node's kubelet may have fallen silent, or be heard of again.
    pub(super) const fn look(&mut self, grace_max: Duration, kubelet_silent: bool) {
        self.grace_max = grace_max;
        self.silent = kubelet_silent;
    }

    /// A pod whose turn has come and which is to be judged once more; nothing of one that may have been evicted already, and is to
    /// be looked up.
    pub(super) fn to_judge(&self, uid: &str) -> Option<&PodFacts> {
        self.by_uid.get(uid).filter(|job| job.state == State::Waiting && !job.doubt).map(|job| &job.pod)
    }

    /// A pod that is to go or went.
    pub(super) fn pod(&self, uid: &str) -> Option<&PodFacts> {
        self.by_uid.get(uid).map(|job| &job.pod)
    }

    /// It is asked for later, since something that time or a person mends is in the way. Gives what to tell people when that is new.
    pub(super) fn waits(&mut self, uid: &str, why: &str, now: Instant) -> Option<String> {
        let job = self.by_uid.get_mut(uid).filter(|job| job.state == State::Waiting)?;
        job.due = now + backoff(job.attempt, None, crate::chance::chance(0.0));
        job.attempt += 1;
        self.dirty |= job.reason != why;
        let first = std::mem::replace(&mut job.reason, why.to_owned()).is_empty();
        first.then(|| blocked_words(&job.pod, why))
    }

    /// UIDs of those that go or went: nobody counts on them any more.
    pub(super) fn going(&self) -> BTreeSet<String> {
        let going = self.by_uid.iter().filter(|(_, job)| job.state != State::Waiting || job.doubt);
        going.map(|(uid, _)| uid.clone()).collect()
    }

    /// It is to stay after all. Gives its record and what to tell people.
    pub(super) fn stays(&mut self, uid: &str, why: &str) -> Option<(PodRecord, String)> {
        let job = self.by_uid.remove(uid)?;
        self.order.retain(|known| known != uid);
        self.stay.insert(uid.to_owned());
        self.dirty = true;
        let told = format!("pod {}/{} is left where it is: {why}", job.pod.namespace, job.pod.name);
        Some((record(&job.pod, "skipped", why.to_owned(), job.calls), told))
    }

    pub(super) fn launch(&mut self, uid: &str) -> Option<Call> {
        let grace_max = self.grace_max_now();
        let job = self.by_uid.get_mut(uid).filter(|job| job.state == State::Waiting)?;
        job.state = State::Asked;
        job.calls += u32::from(!job.doubt);
        let grace_secs = grace_secs(&job.pod, grace_max);
        if !job.doubt {
            job.asked_grace = Some(Duration::from_secs(grace_secs));
            job.past_budget = job.bypass;
        }
        Some(Call { pod: job.pod.clone(), grace_secs, doubt: job.doubt, bypass: job.bypass })
    }

    /// Takes an answer; returns what to tell people when it is blocked for the first time.
    pub(super) fn answered(&mut self, uid: &str, outcome: Outcome, now: Instant) -> Option<String> {
        self.dirty = true;
        let job = self.by_uid.get_mut(uid)?;
        let went = matches!(outcome, Outcome::Accepted | Outcome::Doubt) || job.doubt && outcome == Outcome::Gone;
        job.past_budget &= went;
        if job.state != State::Asked {
            return None;
        }
        let first = job.reason.is_empty();
        let looked = std::mem::replace(&mut job.doubt, outcome == Outcome::Doubt);
        job.unanswered = match outcome {
            Outcome::Again { .. } | Outcome::Doubt => job.unanswered + 1,
            Outcome::Unsent => job.unanswered,
            _ => 0,
        };
        let (wait, reason, blocked) = match outcome {
            Outcome::Accepted => {
                job.leave(now);
                return None;
            }
            Outcome::Gone => {
                job.go();
                return None;
            }
            Outcome::Budget { wait, why } => {
                let why = if job.pod.ready { why } else { format!("{why}; {UNREADY}") };
                (backoff(job.attempt, wait, crate::chance::chance(0.0)), why, false)
            }
            Outcome::Throttled { wait } => (backoff(job.attempt, wait, crate::chance::chance(0.0)), String::new(), false),
            Outcome::ManyBudgets { why } => (SLOW_RECHECK, why, true),
            Outcome::Terminating => (SLOW_RECHECK, "its namespace is going away".to_owned(), true),
            Outcome::Denied { wait, why } => (backoff(job.attempt + 2, wait, crate::chance::chance(0.0)), why, false),
            Outcome::Again { wait: None, .. } if looked => (Duration::ZERO, String::new(), false),
            Outcome::Again { wait, why } => {
                (backoff(job.attempt, wait, crate::chance::chance(0.0)), job.unanswered_words(why), false)
            }
            Outcome::Doubt => {
                let why = job.unanswered_words("neither its eviction nor a look at it was answered".to_owned());
                (backoff(job.attempt, None, crate::chance::chance(0.0)), why, false)
            }
            Outcome::Invalid { why } | Outcome::NoRight { why } => (SLOW_RECHECK, why, true),
            Outcome::Unsent => {
                job.state = State::Waiting;
                job.calls = job.calls.saturating_sub(1);
                return None;
            }
        };
        job.state = State::Waiting;
        job.attempt += 1;
        job.due = now + wait;
        job.blocked = blocked;
        // An answer that says nothing of why leaves what held it back before as the best that is known.
        if !reason.is_empty() {
            job.reason.clone_from(&reason);
        }
        (first && !reason.is_empty()).then(|| blocked_words(&job.pod, &reason))
    }

    /// Takes an event of the watch.
    pub(super) fn seen(&mut self, event: Event, now: Instant) {
        match event {
            Event::Listing => self.relist = Some(Vec::new()),
            Event::Is(pod) => {
                if let Some(listed) = &mut self.relist {
                    listed.push(pod.uid.clone());
                }
                self.applied(*pod, now);
            }
            Event::Gone(uid) => {
                self.returns.left(&uid);
                if let Some(job) = self.by_uid.get_mut(&uid) {
                    job.go();
                    self.dirty = true;
                }
            }
            Event::Listed => {
                if let Some(there) = self.relist.take() {
                    self.returns.listed(&there);
                    self.by_uid.iter_mut().filter(|(uid, _)| !there.contains(uid)).for_each(|(_, job)| job.go());
                    self.dirty = true;
                }
            }
        }
    }

    fn applied(&mut self, facts: PodFacts, now: Instant) {
        match self.by_uid.get_mut(&facts.uid) {
            Some(job) if facts.finished() => {
                job.go();
                if facts.deleting && !facts.finalizers.is_empty() {
                    job.reason = format!("finished; its object is held by finalizer {}", finalizers(&facts));
                }
            }
            Some(job) => {
                if facts.deleting && job.state != State::Leaving && !job.over() {
                    job.leave(now);
                }
                // Its own word may be another now; of those who were let finish until the deadline nobody is any more.
                job.after_completion = after_completion(&facts);
                job.patient = job.after_completion && !self.impatient;
                job.pod = facts;
            }
            None if self.stay.contains(&facts.uid) => return,
            None => {
                let Some(owner) = &facts.owner else { return };
                let same_owner = |job: &Job| job.pod.owner.as_ref().is_some_and(|known| known.uid == owner.uid);
                if !self.returns.knows(&owner.uid) && !self.by_uid.values().any(same_owner) {
                    return;
                }
                self.returns.saw(facts);
            }
        }
        self.dirty = true;
    }

    /// Whether one is on its way out: how long it is waited for hangs on its kubelet.
    pub(super) fn leaving(&self) -> bool {
        self.by_uid.values().any(|job| job.state == State::Leaving)
    }

    /// Lets time pass: what should be gone and is not is named; on a dead node it is not waited for, nor for the whole of a long grace.
    pub(super) fn age(&mut self, now: Instant) {
        let (grace_max, silent) = (self.grace_max, self.silent);
        for job in self.by_uid.values_mut() {
            let Some(since) = job.leaving_since.filter(|_| job.state == State::Leaving) else { continue };
            let grace = job.grace(grace_max, silent);
            if now < since + grace + GRACE_SLACK {
                continue;
            }
            if job.reason.is_empty() {
                job.reason = if job.pod.finalizers.is_empty() {
                    format!("still terminating {} s after it was evicted", now.duration_since(since).as_secs())
                } else {
                    format!("still terminating, held by finalizer {}", finalizers(&job.pod))
                };
                self.dirty = true;
            }
            if silent {
                job.state = State::Stuck;
                self.dirty = true;
            }
        }
    }

    /// Those whose own end is waited for have had their time: they are to be evicted like the others. Whether there were any.
    pub(super) fn end_patience(&mut self, now: Instant) -> bool {
        let mut any = false;
        self.impatient = true;
        for job in self.by_uid.values_mut().filter(|job| job.patient) {
            job.patient = false;
            job.due = now;
            any |= job.state == State::Waiting;
        }
        self.dirty |= any;
        any
    }

    /// Whatever waits is to be deleted past its budgets, except what a finalizer holds anyway, and what asked to be let finish: it
    /// is asked for by evictions to the end. So is what is being asked
    /// for at this very moment, in case it is refused: then soon, whatever came of the attempts before.
    pub(super) fn bypass(&mut self, now: Instant) {
        let waits = |job: &&mut Job| matches!(job.state, State::Waiting | State::Asked) && job.pod.finalizers.is_empty();
        for job in self.by_uid.values_mut().filter(waits).filter(|job| !job.after_completion) {
            job.bypass = true;
            job.blocked = false;
            job.attempt = 0;
            job.due = now;
        }
    }

    /// Whether it went past its budget, or may have.
    pub(super) fn is_past_budget(&self, uid: &str) -> bool {
        self.by_uid.get(uid).is_some_and(|job| job.past_budget)
    }

    /// Those that went past their budgets, or are about to, with what to tell people.
    pub(super) fn past_budgets(&self) -> Vec<(PodFacts, String)> {
        let past = self.by_uid.values().filter(|job| job.past_budget && matches!(job.state, State::Leaving | State::Gone));
        let words =
            |pod: &PodFacts| format!("pod {}/{} is deleted past its budget at the drain's deadline", pod.namespace, pod.name);
        past.map(|job| (job.pod.clone(), words(&job.pod))).collect()
    }

    /// When the last of those that are on their way out should be gone; nothing while one is still to be asked for, or to be answered.
    pub(super) fn last_gone_by(&self) -> Option<Instant> {
        let open = || self.by_uid.values().filter(|job| !job.over());
        if open().any(|job| job.state != State::Leaving) {
            return None;
        }
        open().filter_map(|job| Some(job.leaving_since? + self.grace(job) + GRACE_SLACK)).max()
    }

    pub(super) fn grace_longest(&self) -> Duration {
        self.by_uid.values().map(|job| self.grace(job)).max().unwrap_or_default()
    }

    fn grace(&self, job: &Job) -> Duration {
        job.grace(self.grace_max, self.silent)
    }

    fn grace_max_now(&self) -> Duration {
        if self.silent { self.grace_max.min(GRACE_SILENT_MAX) } else { self.grace_max }
    }

    pub(super) fn gone(&self) -> usize {
        self.by_uid.values().filter(|job| job.state == State::Gone).count()
    }

    /// New pods of the owners of those that are drained, in words; empty when there are none.
    pub(super) fn returned(&self) -> String {
        self.returns.words()
    }

    /// UIDs of owners that are to be told of, with the words, each once.
    pub(super) fn take_told(&mut self) -> Vec<(String, String)> {
        self.returns.take_told()
    }

    /// What will not go: pods that we stopped waiting for, and owners that keep coming back.
    pub(super) fn stuck(&self) -> Vec<String> {
        let stuck = self.by_uid.values().filter(|job| job.state == State::Stuck).map(Job::words);
        stuck.chain(self.returns.leftovers()).collect()
    }

    /// Pods that we stopped waiting for.
    pub(super) fn stuck_pods(&self) -> Vec<PodFacts> {
        self.by_uid.values().filter(|job| job.state == State::Stuck).map(|job| job.pod.clone()).collect()
    }

    /// Those that are not gone, in words.
    pub(super) fn open(&self) -> String {
        let open: Vec<_> =
            self.order.iter().map(|uid| &self.by_uid[uid]).filter(|job| job.state != State::Gone).map(Job::words).collect();
        open.join("; ")
    }

    pub(super) fn records(&self) -> Vec<PodRecord> {
        self.order.iter().map(|uid| self.by_uid[uid].record()).chain(self.returns.records()).collect()
    }
}

impl Job {
    /// How long it may take to go: what it was given, else what it would be.
    fn grace(&self, grace_max: Duration, silent: bool) -> Duration {
        let own = self.asked_grace.unwrap_or_else(|| Duration::from_secs(grace_secs(&self.pod, grace_max)));
        if silent { own.min(GRACE_SILENT_MAX) } else { own }
    }

    const fn over(&self) -> bool {
        matches!(self.state, State::Gone | State::Stuck)
    }

    fn leave(&mut self, now: Instant) {
        self.state = State::Leaving;
        self.leaving_since.get_or_insert(now);
        self.reason.clear();
        self.blocked = false;
    }

    fn go(&mut self) {
        self.state = State::Gone;
        self.reason.clear();
    }

    /// What to say of an attempt that brought no answer: nothing, until there were several.
    fn unanswered_words(&self, why: String) -> String {
        if self.unanswered < UNANSWERED_TOLD { String::new() } else { why }
    }

    fn words(&self) -> String {
        let state = if self.reason.is_empty() { self.word() } else { self.reason.as_str() };
        format!("{}/{}: {state}", self.pod.namespace, self.pod.name)
    }

    fn word(&self) -> &'static str {
        match self.state {
            State::Waiting if self.patient => "waiting for its completion",
            State::Waiting if self.reason.is_empty() => "waiting",
            // Asking again is no progress while the last answer was no.
            State::Waiting => "blocked",
            State::Asked if !self.reason.is_empty() => "blocked",
            State::Asked | State::Leaving => "evicting",
            State::Gone => "gone",
            State::Stuck => "failed",
        }
    }

    fn record(&self) -> PodRecord {
        PodRecord { past_budget: self.past_budget, ..record(&self.pod, self.word(), self.reason.clone(), self.calls) }
    }
}

fn blocked_words(pod: &PodFacts, why: &str) -> String {
    format!("pod {}/{} cannot be evicted yet: {why}", pod.namespace, pod.name)
}

fn finalizers(pod: &PodFacts) -> String {
    pod.finalizers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The record of a pod that is to go.
pub(super) fn planned_record(pod: &PodFacts) -> PodRecord {
    record(pod, "planned", String::new(), 0)
}

/// The record of a pod that stays.
pub(super) fn skipped_record(skipped: &Skipped) -> PodRecord {
    record(&skipped.pod, "skipped", skipped.why.clone(), 0)
}

fn record(pod: &PodFacts, state: &str, reason: String, eviction_calls: u32) -> PodRecord {
    PodRecord {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        state: state.to_owned(),
        reason,
        spared: false,
        came_later: false,
        past_budget: false,
        eviction_calls,
        owner_uid: pod.owner.as_ref().map(|owner| owner_uid(&owner.uid)).unwrap_or_default(),
    }
}

/// An owner's UID as a record keeps it. Whoever may make a pod writes its owners, and the API server asks no more of a UID there
/// than that it is not empty: what is none is left out, since a record that does not fit its schema would keep the whole node from
/// being healed.
fn owner_uid(uid: &str) -> String {
    let fits = uid.len() <= OWNER_UID_MAX && uid.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { uid.to_owned() } else { String::new() }
}

#[cfg(test)]
mod tests;
