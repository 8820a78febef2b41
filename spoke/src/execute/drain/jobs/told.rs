//! What is told of the pods: how many are gone, who will not go, who came in their place, and the record of each.

use gpuheal_spoke_core::drain::PodFacts;

use super::{
    Jobs,
    job::{Job, State},
};
use crate::healaction::PodRecord;

impl Jobs {
    pub(in super::super) fn gone(&self) -> usize {
        self.by_uid.values().filter(|job| job.state == State::Gone).count()
    }

    /// New pods of the owners of those that are drained, in words; empty when there are none.
    pub(in super::super) fn returned(&self) -> String {
        self.returns.words()
    }

    /// UIDs of owners that are to be told of, with the words, each once.
    pub(in super::super) fn take_told(&mut self) -> Vec<(String, String)> {
        self.returns.take_told()
    }

    /// What will not go: pods that we stopped waiting for, and owners that keep coming back.
    pub(in super::super) fn stuck(&self) -> Vec<String> {
        let stuck = self.by_uid.values().filter(|job| job.state == State::Stuck).map(Job::words);
        stuck.chain(self.returns.leftovers()).collect()
    }

    /// Pods that we stopped waiting for.
    pub(in super::super) fn stuck_pods(&self) -> Vec<PodFacts> {
        self.by_uid.values().filter(|job| job.state == State::Stuck).map(|job| job.pod.clone()).collect()
    }

    /// Those that are not gone, in words.
    pub(in super::super) fn open(&self) -> String {
        let open: Vec<_> =
            self.order.iter().map(|uid| &self.by_uid[uid]).filter(|job| job.state != State::Gone).map(Job::words).collect();
        open.join("; ")
    }

    pub(in super::super) fn records(&self) -> Vec<PodRecord> {
        self.order.iter().map(|uid| self.by_uid[uid].record()).chain(self.returns.records()).collect()
    }
}
