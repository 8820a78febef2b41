//! One pod of a drain: how far it got, how long it may take to go, and how that is said.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_spoke_core::drain::{PodFacts, grace_secs};
use tokio::time::Instant;

use super::{
    hold::Hold,
    record::{blocked_words, record},
};
use crate::healaction::PodRecord;

/// How long after its grace a pod may still be there before we say so; on a dead node we stop waiting then.
pub(super) const GRACE_SLACK: Duration = Duration::from_secs(30);
/// Longest grace of a pod whose kubelet is silent: it ends nobody's containers, however long they are given. Kubernetes' own default,
/// in case it is heard of again.
pub(super) const GRACE_SILENT_MAX: Duration = Duration::from_secs(30);
/// From so many attempts in a row on that brought no answer, people are told: one or two a restarting API server explains,
/// and the third is asked some 3 s (1 + 2, with jitter half of it at least) and three timeouts of 2 s after the first.
const UNANSWERED_TOLD: u32 = 3;
/// How far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
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

/// A pod that is to go.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) pod: PodFacts,
    pub(super) stateful: bool,
    /// Its work is waited for.
    pub(super) patient: bool,
    pub(super) state: State,
    pub(super) due: Instant,
    pub(super) attempt: u32,
    pub(super) calls: u32,
    pub(super) reason: String,
    /// What of that was told.
    pub(super) told: BTreeSet<Hold>,
    /// Only a person can help: stateful pods need not wait for it.
    pub(super) blocked: bool,
    pub(super) doubt: bool,
    /// Attempts in a row that brought no answer.
    pub(super) unanswered: u32,
    /// The last word on its eviction was a budget's no.
    pub(super) held: bool,
    /// It may be deleted past its budgets, should one be in its way.
    pub(super) bypass: bool,
    /// It was asked to be, and nothing says that it was not: in doubt it counts, also for whoever takes the drain up.
    pub(super) past_budget: bool,
    /// It asks to be let finish: what comes of it is an eviction, at the latest at the deadline, and never a delete.
    pub(super) after_completion: bool,
    pub(super) leaving_since: Option<Instant>,
    /// The grace that it was asked for with.
    pub(super) asked_grace: Option<Duration>,
}

impl Job {
    pub(super) fn new(pod: &PodFacts, stateful: bool, after_completion: bool, now: Instant) -> Self {
        Self {
            pod: pod.clone(),
            stateful,
            patient: after_completion,
            state: if pod.deleting { State::Leaving } else { State::Waiting },
            due: now,
            attempt: 0,
            calls: 0,
            reason: String::new(),
            told: BTreeSet::new(),
            blocked: false,
            doubt: false,
            unanswered: 0,
            held: false,
            bypass: false,
            past_budget: false,
            after_completion,
            leaving_since: pod.deleting.then_some(now),
            asked_grace: None,
        }
    }

    /// How long it may take to go: what it was given, else what it would be.
    pub(super) fn grace(&self, grace_max: Duration, silent: bool) -> Duration {
        let own = self.asked_grace.unwrap_or_else(|| Duration::from_secs(grace_secs(&self.pod, grace_max)));
        if silent { own.min(GRACE_SILENT_MAX) } else { own }
    }

    /// Whether the next call deletes it past its budgets: only where one has said no to its eviction. What a webhook is against, or
    /// a finalizer holds, or asks to be let finish, is asked for by evictions to the end.
    pub(super) const fn passes(&self) -> bool {
        self.bypass && self.held && !self.after_completion && self.pod.finalizers.is_empty()
    }

    pub(super) const fn over(&self) -> bool {
        matches!(self.state, State::Gone | State::Stuck)
    }

    pub(super) fn leave(&mut self, now: Instant) {
        self.state = State::Leaving;
        self.leaving_since.get_or_insert(now);
        self.reason.clear();
        self.blocked = false;
    }

    pub(super) fn go(&mut self) {
        self.state = State::Gone;
        self.reason.clear();
    }

    /// What to say of an attempt that brought no answer: nothing, until there were several.
    pub(super) fn unanswered_words(&self, why: String) -> String {
        if self.unanswered < UNANSWERED_TOLD { String::new() } else { why }
    }

    /// What to tell people of what keeps it: each kind once.
    pub(super) fn tell(&mut self, hold: Hold, why: &str) -> Option<(Hold, String)> {
        self.told.insert(hold).then(|| (hold, blocked_words(&self.pod, why)))
    }

    pub(super) fn words(&self) -> String {
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

    pub(super) fn record(&self) -> PodRecord {
        PodRecord { past_budget: self.past_budget, ..record(&self.pod, self.word(), self.reason.clone(), self.calls) }
    }
}
