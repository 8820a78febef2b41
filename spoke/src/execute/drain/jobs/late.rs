//! What time makes of the pods: who should be gone by now, who was let finish long enough, who goes past its budgets.

use std::time::Duration;

use gpuheal_spoke_core::drain::PodFacts;
use tokio::time::Instant;

use super::{
    Jobs,
    job::{GRACE_SLACK, Job, State},
    record::finalizers,
};

impl Jobs {
    /// Lets time pass: what should be gone and is not is named; on a dead node it is not waited for, nor for the whole of a long grace.
    pub(in super::super) fn age(&mut self, now: Instant) {
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
    pub(in super::super) fn end_patience(&mut self, now: Instant) -> bool {
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

    /// Whatever a budget holds back is to be deleted past it, except what a finalizer holds anyway, and what asked to be let finish: it
    /// is asked for by evictions to the end. What was not asked for yet, or is being asked for at this very moment, is evicted like any
    /// other, and deleted in case a budget refuses that: then at once, whatever came of the attempts before.
    pub(in super::super) fn bypass(&mut self, now: Instant) {
        let waits = |job: &&mut Job| matches!(job.state, State::Waiting | State::Asked) && job.pod.finalizers.is_empty();
        for job in self.by_uid.values_mut().filter(waits).filter(|job| !job.after_completion) {
            job.bypass = true;
            job.blocked = false;
            job.attempt = 0;
            job.due = now;
        }
    }

    /// Whether it went past its budget, or may have, or is being asked to.
    pub(in super::super) fn is_past_budget(&self, uid: &str) -> bool {
        self.by_uid.get(uid).is_some_and(|job| job.past_budget)
    }

    /// Those that went past their budgets, or are about to, with what to tell people.
    pub(in super::super) fn past_budgets(&self) -> Vec<(PodFacts, String)> {
        let past = self.by_uid.values().filter(|job| job.past_budget && matches!(job.state, State::Leaving | State::Gone));
        let words =
            |pod: &PodFacts| format!("pod {}/{} is deleted past its budget at the drain's deadline", pod.namespace, pod.name);
        past.map(|job| (job.pod.clone(), words(&job.pod))).collect()
    }

    /// When the last of those that are on their way out should be gone; nothing while one is still to be asked for, or to be answered.
    pub(in super::super) fn last_gone_by(&self) -> Option<Instant> {
        let open = || self.by_uid.values().filter(|job| !job.over());
        if open().any(|job| job.state != State::Leaving) {
            return None;
        }
        open().filter_map(|job| Some(job.leaving_since? + self.grace(job) + GRACE_SLACK)).max()
    }

    pub(in super::super) fn grace_longest(&self) -> Duration {
        self.by_uid.values().map(|job| self.grace(job)).max().unwrap_or_default()
    }
}
