//! When each watch was last heard: at an event, a bookmark or a full list. An open connection that says nothing proves
//! nothing, and what the hub is told is never newer than this.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuheal_proto::time::Timestamp;

use crate::clock::{self, HubClock};

/// The watch of nodes.
pub const NODES: &str = "node";
/// The watch of GPU pods.
pub const GPU_PODS: &str = "gpu pod";
/// Watches that the cluster's state is made of.
const STATE: [&str; 2] = [NODES, GPU_PODS];
/// A watch that said nothing for so long is stale: three of its bookmarks are missing.
pub const STALE_AFTER: Duration = Duration::from_secs(90);

/// When each watch was last heard, by time since boot. Shared; each watch writes its own.
#[derive(Debug, Default)]
pub struct Heard {
    at: Mutex<BTreeMap<&'static str, Option<Duration>>>,
}

impl Heard {
    /// Nothing was heard of anything.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A watch begins; nothing was heard of it yet.
    pub fn begin(&self, kind: &'static str) {
        self.at.lock().expect("no holder of this lock panics").entry(kind).or_default();
    }

    /// What `kind` shows was so at `at`, a time since boot.
    pub fn note(&self, kind: &'static str, at: Duration) {
        self.at.lock().expect("no holder of this lock panics").insert(kind, Some(at));
    }

    /// As if it had never been heard, for tests.
    #[cfg(test)]
    pub(crate) fn forget(&self, kind: &'static str) {
        self.at.lock().expect("no holder of this lock panics").insert(kind, None);
    }

    /// How long ago each watch was heard; nothing for one that never was.
    #[must_use]
    pub fn ages(&self) -> Vec<(&'static str, Option<Duration>)> {
        self.ages_at(clock::boottime())
    }

    /// Whether nodes and GPU pods are known as they are.
    #[must_use]
    pub fn fresh(&self) -> bool {
        self.stale().is_empty()
    }

    /// Which of the watches that the cluster's state is made of are not fresh, with their age.
    #[must_use]
    pub fn stale(&self) -> Vec<(&'static str, Option<Duration>)> {
        let ages = self.ages();
        let age = |kind| ages.iter().find(|known| known.0 == kind).and_then(|known| known.1);
        let all = STATE.map(|kind| (kind, age(kind)));
        all.into_iter().filter(|(_, age)| age.is_none_or(|age| age > STALE_AFTER)).collect()
    }

    /// The moment, by the hub's clock, of which the nodes are known. The marks of ours are on nodes, so theirs is the
    /// watch that counts. Never later than it was: the clock's uncertainty is taken off.
    #[must_use]
    pub fn nodes_as_of(&self, clock: &HubClock) -> Option<Timestamp> {
        // One look at the clock for both: whoever is held up in between must not tell of a later moment than was seen.
        let at = clock::boottime();
        let age = self.ages_at(at).into_iter().find(|known| known.0 == NODES)?.1?;
        let (now, uncertainty) = clock.now_at(at)?;
        Some(now.before(age + uncertainty))
    }

    fn ages_at(&self, now: Duration) -> Vec<(&'static str, Option<Duration>)> {
        let at = self.at.lock().expect("no holder of this lock panics");
        at.iter().map(|(kind, at)| (*kind, at.map(|at| now.saturating_sub(at)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_never_heard_or_not_for_long_is_stale() {
        let heard = Heard::new();
        heard.begin(NODES);
        assert_eq!(heard.stale(), [(NODES, None), (GPU_PODS, None)]);
        let now = clock::boottime();
        heard.note(NODES, now);
        heard.note(GPU_PODS, now);
        assert!(heard.fresh());
        let later = heard.ages_at(now + STALE_AFTER * 2);
        assert_eq!(later, [(GPU_PODS, Some(STALE_AFTER * 2)), (NODES, Some(STALE_AFTER * 2))]);
    }

    #[test]
    fn the_state_is_as_old_as_the_watch_of_nodes_by_the_hubs_clock() {
        let (heard, clock) = (Heard::new(), HubClock::new());
        let server = Timestamp::from_unix_ms(1_800_000_000_000);
        assert_eq!(heard.nodes_as_of(&clock), None);
        heard.note(NODES, clock::boottime());
        assert_eq!(heard.nodes_as_of(&clock), None, "without the hub's clock there is no time");
        // Two minutes of round trip are a minute of doubt: without it the state would be of a minute later.
        clock.set(server, Duration::from_secs(120));
        let as_of = heard.nodes_as_of(&clock).unwrap();
        assert!(as_of <= server.after(Duration::from_secs(30)), "{as_of}: the wall clock has no say, and doubt makes it older");
        assert!(as_of >= server.before(Duration::from_secs(30)), "{as_of}");
    }
}
