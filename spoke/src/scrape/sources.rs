//! How fresh each source of signals is, and which GPUs each node's source last showed. A source that nobody has heard
//! of lately is stale, later broken; unknown is neither healthy nor faulty.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuheal_proto::{link::v1, time::Timestamp};

use crate::{clock, settings::Settings, watch::Touched};

#[derive(Clone, Debug, Default)]
struct Source {
    node: String,
    seen_at: Option<Timestamp>,
    /// By boottime: when it was last seen, or first expected.
    since: Duration,
    reason: String,
}

/// All sources. Shared.
#[derive(Debug)]
pub struct Sources {
    sources: Mutex<BTreeMap<String, Source>>,
    gpus: Mutex<BTreeMap<String, Vec<v1::GpuRef>>>,
    settings: Arc<Settings>,
    touched: Arc<Touched>,
}

impl Sources {
    /// None yet. `touched` gets the nodes whose GPUs changed.
    #[must_use]
    pub fn new(settings: Arc<Settings>, touched: Arc<Touched>) -> Arc<Self> {
        Arc::new(Self { sources: Mutex::default(), gpus: Mutex::default(), settings, touched })
    }

    /// It has spoken.
    pub fn seen(&self, source: &str, node: &str, now: Timestamp) {
        let mut sources = self.sources.lock().expect("no holder of this lock panics");
        let entry = sources.entry(source.to_owned()).or_default();
        node.clone_into(&mut entry.node);
        entry.seen_at = Some(now);
        entry.since = clock::boottime();
        entry.reason.clear();
    }

    /// It should have spoken and did not.
    pub fn failed(&self, source: &str, node: &str, reason: &str) {
        let mut sources = self.sources.lock().expect("no holder of this lock panics");
        let entry = sources.entry(source.to_owned()).or_insert_with(|| Source { since: clock::boottime(), ..Source::default() });
        node.clone_into(&mut entry.node);
        reason.clone_into(&mut entry.reason);
    }

    /// It is not expected any more.
    pub fn forget(&self, source: &str) {
        self.sources.lock().expect("no holder of this lock panics").remove(source);
    }

    /// GPUs that a node's source showed last.
    #[must_use]
    pub fn gpus(&self, node: &str) -> Vec<v1::GpuRef> {
        self.gpus.lock().expect("no holder of this lock panics").get(node).cloned().unwrap_or_default()
    }

    /// Takes what a node's source shows. A GPU that is gone from it stays in the inventory: absence proves nothing.
    pub fn set_gpus(&self, node: &str, shown: Vec<v1::GpuRef>) {
        let mut all = self.gpus.lock().expect("no holder of this lock panics");
        let known = all.entry(node.to_owned()).or_default();
        let before = known.clone();
        for gpu in shown {
            let same = |other: &&mut v1::GpuRef| {
                if gpu.slot.is_empty() || other.slot.is_empty() { gpu.uuid == other.uuid } else { gpu.slot == other.slot }
            };
            match known.iter_mut().find(same) {
                Some(other) => *other = gpu,
                None => known.push(gpu),
            }
        }
        if *known != before {
            self.touched.add(node);
        }
    }

    /// Each source with its state: `fresh`, `stale` or `broken`.
    #[must_use]
    pub fn states(&self) -> Vec<v1::SourceState> {
        self.states_at(clock::boottime())
    }

    fn states_at(&self, now: Duration) -> Vec<v1::SourceState> {
        let settings = self.settings.current();
        let interval = Duration::from_millis(settings.scrape_interval_ms.into());
        let stale_after = interval * settings.stale_after_intervals;
        let broken_after = Duration::from_millis(settings.broken_after_ms.into()).max(stale_after);
        let state = |(name, source): (&String, &Source)| {
            let age = now.saturating_sub(source.since);
            let state = match () {
                () if age >= broken_after => "broken",
                () if age >= stale_after || source.seen_at.is_none() => "stale",
                () => "fresh",
            };
            v1::SourceState {
                source: name.clone(),
                node: source.node.clone(),
                last_seen_unix_ms: source.seen_at.map_or(0, Timestamp::unix_ms),
                state: state.to_owned(),
                reason: source.reason.clone(),
            }
        };
        self.sources.lock().expect("no holder of this lock panics").iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Arc<Sources> {
        Sources::new(Settings::new(), Touched::new())
    }

    #[test]
    fn a_source_that_fell_silent_is_stale_and_then_broken() {
        let sources = sources();
        sources.seen("exporter n1", "n1", Timestamp::from_unix_ms(5));
        let at = |secs| sources.states_at(clock::boottime() + Duration::from_secs(secs))[0].state.clone();
        assert_eq!([at(0), at(200), at(400)], ["fresh", "stale", "broken"]);
    }

    #[test]
    fn a_source_that_never_spoke_is_not_fresh_and_says_why() {
        let sources = sources();
        sources.failed("exporter n1", "n1", "status");
        let state = &sources.states()[0];
        assert_eq!((state.state.as_str(), state.reason.as_str(), state.last_seen_unix_ms), ("stale", "status", 0));
    }

    #[test]
    fn a_gpu_gone_from_the_page_stays_in_the_inventory_and_a_swapped_one_replaces_it() {
        let sources = sources();
        let gpu = |slot: &str, uuid: &str| v1::GpuRef { slot: slot.into(), uuid: uuid.into(), model: "H100".into() };
        sources.set_gpus("n1", vec![gpu("0000:01:00", "GPU-a"), gpu("0000:02:00", "GPU-b")]);
        sources.set_gpus("n1", vec![gpu("0000:01:00", "GPU-c")]);
        assert_eq!(sources.gpus("n1"), [gpu("0000:01:00", "GPU-c"), gpu("0000:02:00", "GPU-b")]);
    }
}
