//! When the device plugin of each node last started. A plugin that starts takes allocatable down for a minute with every
//! GPU well; the detectors ask here before they believe it. Told by the watch of plugin pods; a start is the later of the
//! pod's own and of its containers', so that a replaced pod and a restarted container both count.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use gpuheal_proto::time::Timestamp;

use super::{
    follow::Keep,
    wire::{PodSeen, moment},
};

/// Starts by node: more than one, since an old pod that ends beside its successor must not take the successor's away.
type Starts = BTreeMap<Box<str>, Vec<Start>>;

/// One pod of a plugin.
#[derive(Debug)]
struct Start {
    uid: Box<str>,
    at: Timestamp,
    /// Which watch has found it, and in which of its lists.
    found: (usize, u32),
}

/// Starts of device plugins. Shared; written by the watches of their pods.
#[derive(Debug, Default)]
pub struct Plugins {
    starts: Mutex<Starts>,
}

impl Plugins {
    /// None is known.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// When the node's plugin last started, where one is known.
    #[must_use]
    pub fn started_at(&self, node: &str) -> Option<Timestamp> {
        let starts = self.starts.lock().expect("no holder of this lock panics");
        starts.get(node)?.iter().map(|start| start.at).max()
    }

    /// A keeper for one more watch of their pods.
    pub(crate) fn keeper(self: &Arc<Self>, watch: usize) -> KeepPlugins {
        KeepPlugins { plugins: Arc::clone(self), watch, list: 0 }
    }

    fn retain(&self, stays: impl Fn(&Start) -> bool) {
        let mut starts = self.starts.lock().expect("no holder of this lock panics");
        starts.retain(|_, here| {
            here.retain(&stays);
            !here.is_empty()
        });
    }
}

/// Keeps what one watch tells of plugins' pods.
pub(crate) struct KeepPlugins {
    plugins: Arc<Plugins>,
    watch: usize,
    list: u32,
}

impl Keep<PodSeen> for KeepPlugins {
    fn begin(&mut self) {
        self.list += 1;
    }

    fn put(&mut self, seen: PodSeen) {
        let (Some((node, uid)), Some(at)) = (place(&seen), started(&seen)) else { return };
        let start = Start { uid: uid.into(), at, found: (self.watch, self.list) };
        let mut starts = self.plugins.starts.lock().expect("no holder of this lock panics");
        if !starts.contains_key(node) {
            starts.insert(node.into(), Vec::with_capacity(1));
        }
        let here = starts.get_mut(node).expect("it was just put there");
        match here.iter_mut().find(|known| *known.uid == *uid) {
            Some(known) => *known = start,
            None => here.push(start),
        }
    }

    fn remove(&mut self, seen: PodSeen) {
        let Some((node, uid)) = place(&seen) else { return };
        let mut starts = self.plugins.starts.lock().expect("no holder of this lock panics");
        let Some(here) = starts.get_mut(node) else { return };
        here.retain(|known| *known.uid != *uid);
        if here.is_empty() {
            starts.remove(node);
        }
    }

    fn end(&mut self) {
        let (watch, list) = (self.watch, self.list);
        self.plugins.retain(|start| start.found.0 != watch || start.found.1 == list);
    }
}

fn place(pod: &PodSeen) -> Option<(&str, &str)> {
    Some((pod.spec.node_name.as_deref()?, pod.metadata.uid.as_deref()?))
}

/// A container that waits to start again says nothing: a plugin that never comes back is gone, and that is a fault.
fn started(pod: &PodSeen) -> Option<Timestamp> {
    let containers = pod.status.container_statuses.iter().flatten();
    let containers = containers.filter_map(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    containers.chain(pod.status.start_time.as_ref()).map(moment).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, start: &str, state: &serde_json::Value) -> PodSeen {
        serde_json::from_value(json!({
            "metadata": {"name": uid, "uid": uid},
            "spec": {"nodeName": "n1", "containers": []},
            "status": {"startTime": start, "containerStatuses": [
                {"name": "plugin", "image": "", "imageID": "", "ready": true, "restartCount": 1, "state": state}]},
        }))
        .unwrap()
    }

    fn minute(minute: i64) -> Option<Timestamp> {
        // 2026-11-29T12:00:00Z.
        Some(Timestamp::from_unix_ms(1_795_953_600_000 + minute * 60_000))
    }

    #[test]
    fn a_container_that_restarts_is_a_start_and_one_that_waits_is_none() {
        let plugins = Plugins::new();
        let mut keeper = plugins.keeper(0);
        assert_eq!(plugins.started_at("n1"), None);
        let running = json!({"running": {"startedAt": "2026-11-29T12:07:00Z"}});
        keeper.put(pod("a", "2026-11-29T12:01:00Z", &running));
        assert_eq!(plugins.started_at("n1"), minute(7));
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        keeper.put(pod("a", "2026-11-29T12:01:00Z", &waits));
        assert_eq!(plugins.started_at("n1"), minute(1));
        assert_eq!(plugins.started_at("n2"), None);
    }

    #[test]
    fn an_old_pod_that_goes_leaves_its_successors_start() {
        let plugins = Plugins::new();
        let (mut keeper, none) = (plugins.keeper(0), json!({}));
        keeper.put(pod("old", "2026-11-29T12:01:00Z", &none));
        keeper.put(pod("new", "2026-11-29T12:09:00Z", &none));
        keeper.remove(pod("old", "2026-11-29T12:01:00Z", &none));
        assert_eq!(plugins.started_at("n1"), minute(9));
        keeper.remove(pod("new", "2026-11-29T12:09:00Z", &none));
        assert_eq!(plugins.started_at("n1"), None);
    }

    #[test]
    fn what_a_whole_list_does_not_bring_is_gone_and_another_watch_keeps_its_own() {
        let plugins = Plugins::new();
        let (mut first, mut second, none) = (plugins.keeper(0), plugins.keeper(1), json!({}));
        first.begin();
        first.put(pod("a", "2026-11-29T12:01:00Z", &none));
        first.end();
        second.begin();
        second.put(pod("b", "2026-11-29T12:00:00Z", &none));
        second.end();
        assert_eq!(plugins.started_at("n1"), minute(1));
        first.begin();
        assert_eq!(plugins.started_at("n1"), minute(1), "a list that has only begun removes nothing");
        first.end();
        assert_eq!(plugins.started_at("n1"), minute(0));
    }
}
