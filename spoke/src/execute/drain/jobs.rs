//! The pods of one drain and where each stands. No IO: told what happened and what time it is, says what is due.

mod answered;
mod hold;
mod job;
mod late;
mod record;
mod returns;
mod seen;
mod told;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_spoke_core::drain::{Plan, PodFacts, backoff, grace_secs};
use tokio::time::Instant;

pub(super) use self::{
    hold::Hold,
    record::{planned_record, skipped_record},
};
use self::{
    job::{GRACE_SILENT_MAX, GRACE_SLACK, Job, State},
    record::record,
    returns::Returns,
};
use super::evict::Call;
use crate::healaction::PodRecord;

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
        let stateless = plan.stateless.iter().map(|planned| (planned, false));
        let all: Vec<_> = stateless.chain(plan.stateful.iter().map(|planned| (planned, true))).collect();
        Self {
            order: all.iter().map(|(planned, _)| planned.pod.uid.clone()).collect(),
            by_uid: all
                .into_iter()
                .map(|(planned, stateful)| {
                    (planned.pod.uid.clone(), Job::new(&planned.pod, stateful, planned.after_completion, now))
                })
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
    /// that only a person can move or that asked to be let finish, and no other stateful one is on its way.
    pub(super) fn due(&self, now: Instant) -> Vec<String> {
        let stateless_open = self.by_uid.values().any(|job| !job.stateful && !job.over() && !job.blocked && !job.after_completion);
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
    pub(super) fn waits(&mut self, uid: &str, (hold, why): (Hold, String), now: Instant) -> Option<(Hold, String)> {
        let job = self.by_uid.get_mut(uid).filter(|job| job.state == State::Waiting)?;
        job.due = now + backoff(job.attempt, None, crate::chance::chance(0.0));
        job.attempt += 1;
        self.dirty |= job.reason != why;
        job.reason = why.clone();
        job.tell(hold, &why)
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
            job.past_budget = job.passes();
        }
        Some(Call { pod: job.pod.clone(), grace_secs, doubt: job.doubt, bypass: job.passes() })
    }

    /// Whether one is on its way out: how long it is waited for hangs on its kubelet.
    pub(super) fn leaving(&self) -> bool {
        self.by_uid.values().any(|job| job.state == State::Leaving)
    }

    fn grace(&self, job: &Job) -> Duration {
        job.grace(self.grace_max, self.silent)
    }

    fn grace_max_now(&self) -> Duration {
        if self.silent { self.grace_max.min(GRACE_SILENT_MAX) } else { self.grace_max }
    }
}

#[cfg(test)]
mod tests;
