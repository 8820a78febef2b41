//! What the watch of the node's pods shows: who is gone, who is on its way out, who came meanwhile.

use gpuheal_spoke_core::drain::{PodFacts, after_completion};
use tokio::time::Instant;

use super::{
    super::pods::Event,
    Jobs,
    job::{Job, State},
    record::finalizers,
};

impl Jobs {
    /// Takes an event of the watch.
    pub(in super::super) fn seen(&mut self, event: Event, now: Instant) {
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
}
