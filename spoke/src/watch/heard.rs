//! When each watch was last heard: at an event, a bookmark or a full list. An open connection that says nothing proves
//! nothing, and what the hub is told is never newer than this.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuheal_proto::time::Timestamp;

use crate::clock::{self, HubClock};

/// The watch of nodes.
pub const NODES: &str = "node";
/// The watch of GPU pods.
pub const GPU_PODS: &str = "gpu pod";
/// The watch of exporter pods.
pub const EXPORTERS: &str = "exporter pod";
/// The watches of device plugin pods, one for each selector.
pub const PLUGINS: &str = "device plugin pod";
/// The watch of the owner's ConfigMap, and with it of the cluster's own stop.
pub const CONFIG: &str = "config map";
/// The watch of the commands' records.
pub const HEAL_ACTIONS: &str = "HealAction";
/// The watches of the pods of nodes that are being drained, one for each drain.
pub const DRAINED_PODS: &str = "drained pod";
/// Watches that the cluster's state is made of.
const STATE: [&str; 2] = [NODES, GPU_PODS];
/// A watch that said nothing for so long is stale. One that lives is heard every 30 s, by the bookmark before its request ends. One that
/// falls silent is given up after 40 s and asked for anew, and heard by that one's bookmark 28 s later: 70 s after the last word.
/// The other 20 are for an API server that is slow, or away for a moment.
pub const STALE_AFTER: Duration = Duration::from_secs(90);

/// When each watch was last heard, by time since boot. Shared; each watch writes its own.
#[derive(Debug, Default)]
pub struct Heard {
    at: Mutex<BTreeMap<(&'static str, u64), Option<Duration>>>,
    begun: AtomicU64,
}

/// One watch that goes on. Dropped, there is none any more, and it has no age.
#[derive(Debug)]
pub(crate) struct Hearing {
    heard: Arc<Heard>,
    key: (&'static str, u64),
}

impl Hearing {
    /// What it shows was so at `at`, a time since boot.
    pub(crate) fn note(&self, at: Duration) {
        self.heard.at.lock().expect("no holder of this lock panics").insert(self.key, Some(at));
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.heard.at.lock().expect("no holder of this lock panics").remove(&self.key);
    }
}

impl Heard {
    /// Nothing was heard of anything.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A watch begins; nothing was heard of it yet.
    pub(crate) fn begin(self: &Arc<Self>, kind: &'static str) -> Hearing {
        let key = (kind, self.begun.fetch_add(1, Ordering::Relaxed));
        self.at.lock().expect("no holder of this lock panics").insert(key, None);
        Hearing { heard: Arc::clone(self), key }
    }

    /// As if every watch of this kind had been heard at `at`, for tests.
    pub fn note(&self, kind: &'static str, at: Duration) {
        self.set(kind, Some(at));
    }

    /// As if none had ever been heard, for tests.
    #[cfg(test)]
    pub(crate) fn forget(&self, kind: &'static str) {
        self.set(kind, None);
    }

    fn set(&self, kind: &'static str, heard: Option<Duration>) {
        let mut all = self.at.lock().expect("no holder of this lock panics");
        if all.keys().all(|known| known.0 != kind) {
            all.insert((kind, self.begun.fetch_add(1, Ordering::Relaxed)), heard);
        }
        all.iter_mut().filter(|(known, _)| known.0 == kind).for_each(|(_, at)| *at = heard);
    }

    /// How long ago each kind of watch was heard; of several of a kind the one that was not for longest, and nothing where one never was.
    #[must_use]
    pub fn ages(&self) -> Vec<(&'static str, Option<Duration>)> {
        self.ages_at(clock::boottime())
    }

    /// The age of one kind; nothing where one was never heard, or there is none.
    #[must_use]
    pub fn age(&self, kind: &str) -> Option<Duration> {
        self.ages().into_iter().find(|known| known.0 == kind).and_then(|known| known.1)
    }

    /// Whether nodes and GPU pods are known as they are.
    #[must_use]
    pub fn fresh(&self) -> bool {
        STATE.iter().all(|kind| self.age(kind).is_some_and(|age| age <= STALE_AFTER))
    }

    /// Which watches are not fresh, with their age: of all that go on, and of those that the cluster's state is made of also where they do not.
    #[must_use]
    pub fn stale(&self) -> Vec<(&'static str, Option<Duration>)> {
        let mut all = self.ages();
        let missing = STATE.into_iter().filter(|kind| all.iter().all(|known| known.0 != *kind)).collect::<Vec<_>>();
        all.extend(missing.into_iter().map(|kind| (kind, None)));
        all.retain(|(_, age)| age.is_none_or(|age| age > STALE_AFTER));
        all
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
        let mut ages = BTreeMap::new();
        for ((kind, _), at) in at.iter() {
            let age = at.map(|at| now.saturating_sub(at));
            // One that was never heard is older than any.
            ages.entry(*kind)
                .and_modify(|known: &mut Option<Duration>| *known = (*known).zip(age).map(|(a, b)| a.max(b)))
                .or_insert(age);
        }
        ages.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_was_never_heard_or_not_for_long_is_stale() {
        let heard = Heard::new();
        let _nodes = heard.begin(NODES);
        assert_eq!(heard.stale(), [(NODES, None), (GPU_PODS, None)]);
        let now = clock::boottime();
        heard.note(NODES, now);
        heard.note(GPU_PODS, now);
        assert!(heard.fresh());
        let later = heard.ages_at(now + STALE_AFTER * 2);
        assert_eq!(later, [(GPU_PODS, Some(STALE_AFTER * 2)), (NODES, Some(STALE_AFTER * 2))]);
    }

    #[test]
    fn every_watch_that_goes_on_can_be_stale_and_one_that_lives_hides_no_dead_one_of_its_kind() {
        let (heard, now) = (Heard::new(), clock::boottime() + STALE_AFTER * 4);
        STATE.iter().for_each(|kind| heard.note(kind, now));
        let (dead, alive, config) = (heard.begin(DRAINED_PODS), heard.begin(DRAINED_PODS), heard.begin(CONFIG));
        config.note(now);
        alive.note(now);
        assert_eq!(heard.stale(), [(DRAINED_PODS, None)]);
        dead.note(now - STALE_AFTER * 2);
        assert!(heard.ages_at(now).contains(&(DRAINED_PODS, Some(STALE_AFTER * 2))));
        drop(dead);
        assert!(heard.ages_at(now).contains(&(DRAINED_PODS, Some(Duration::ZERO))), "a drain that is over has no watch");
        drop(alive);
        assert_eq!(heard.age(DRAINED_PODS), None);
        assert!(heard.stale().is_empty());
        config.note(Duration::ZERO);
        assert_eq!(heard.ages_at(now).iter().find(|known| known.0 == CONFIG), Some(&(CONFIG, Some(now))));
        assert!(heard.fresh(), "the state is made of nodes and pods");
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
