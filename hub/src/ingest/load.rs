//! How many faults wait for their commit in this hub, and how many a session may therefore have in flight. While the hub keeps up
//! that is all that the protocol allows; the more wait, the less. What a session may not send stays in its journal.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use gpuheal_proto::limits::{BATCH_FAULTS_MAX, CREDIT};

/// From here on each session has one batch in flight: at 5,000 faults a second three seconds of work, about 32 MiB.
const MANY: usize = 16 * 1024;
/// From here on an eighth of one: 2,000 sessions have no more than 64,000 faults in flight then, about 128 MiB.
const TOO_MANY: usize = 64 * 1024;

/// Counts them.
#[derive(Debug, Default)]
pub(crate) struct Load {
    waiting: AtomicUsize,
}

impl Load {
    /// So many wait until what is given back is dropped.
    pub(crate) fn wait(self: &Arc<Self>, faults: usize) -> Waiting {
        self.waiting.fetch_add(faults, Relaxed);
        Waiting { load: Arc::clone(self), faults }
    }

    /// What a session may have in flight.
    pub(crate) fn credit(&self) -> u32 {
        credit(self.waiting.load(Relaxed))
    }
}

/// Faults that wait.
pub(crate) struct Waiting {
    load: Arc<Load>,
    faults: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.load.waiting.fetch_sub(self.faults, Relaxed);
    }
}

const fn credit(waiting: usize) -> u32 {
    match waiting {
        TOO_MANY.. => BATCH_FAULTS_MAX as u32 / 8,
        MANY.. => BATCH_FAULTS_MAX as u32,
        0.. => CREDIT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_faults_wait_the_fewer_may_be_in_flight_and_never_none() {
        let load = Arc::new(Load::default());
        assert_eq!(load.credit(), 1024);
        let many = load.wait(MANY);
        assert_eq!(load.credit(), 256);
        let more = load.wait(TOO_MANY - MANY);
        assert_eq!(load.credit(), 32, "a spoke that may send nothing would never hear that it may again");
        drop(many);
        assert_eq!(load.credit(), 256);
        drop(more);
        assert_eq!(load.credit(), 1024);
    }
}
