//! When the device plugin of each node last started. A plugin that starts takes allocatable down for a minute with every
//! GPU well; the detectors ask here before they believe it. Told by the watch of plugin pods; a start is the later of the
//! pod's own and of its containers', so that a replaced pod and a restarted container both count.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use gpuheal_proto::time::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::runtime::watcher::Event;

/// Starts by node and by the pod's UID: an old pod that ends beside its successor must not take the successor's away.
type Starts = BTreeMap<String, BTreeMap<String, Timestamp>>;

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
        self.starts.lock().expect("no holder of this lock panics").get(node)?.values().max().copied()
    }

    /// Hears of a plugin's pod.
    pub fn see(&self, event: &Event<Pod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => self.put(pod),
            Event::Delete(pod) => self.remove(pod),
            // A list tells what has gone by a deletion of each.
            Event::Init | Event::InitDone => {}
        }
    }

    fn put(&self, pod: &Pod) {
        let (Some((node, uid)), Some(started)) = (place(pod), started(pod)) else { return };
        let mut starts = self.starts.lock().expect("no holder of this lock panics");
        starts.entry(node.to_owned()).or_default().insert(uid.to_owned(), started);
    }

    fn remove(&self, pod: &Pod) {
        let Some((node, uid)) = place(pod) else { return };
        let mut starts = self.starts.lock().expect("no holder of this lock panics");
        let Some(here) = starts.get_mut(node) else { return };
        here.remove(uid);
        if here.is_empty() {
            starts.remove(node);
        }
    }
}

fn place(pod: &Pod) -> Option<(&str, &str)> {
    Some((pod.spec.as_ref()?.node_name.as_deref()?, pod.metadata.uid.as_deref()?))
}

/// A container that waits to start again says nothing: a plugin that never comes back is gone, and that is a fault.
fn started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let running = |at: &Time| Timestamp::from_unix_ms(at.0.as_millisecond());
    let containers = status.container_statuses.iter().flatten();
    let containers = containers.filter_map(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    containers.chain(status.start_time.as_ref()).map(running).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, start: &str, state: &serde_json::Value) -> Pod {
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
        assert_eq!(plugins.started_at("n1"), None);
        let running = json!({"running": {"startedAt": "2026-11-29T12:07:00Z"}});
        plugins.see(&Event::Apply(pod("a", "2026-11-29T12:01:00Z", &running)));
        assert_eq!(plugins.started_at("n1"), minute(7));
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        plugins.see(&Event::Apply(pod("a", "2026-11-29T12:01:00Z", &waits)));
        assert_eq!(plugins.started_at("n1"), minute(1));
        assert_eq!(plugins.started_at("n2"), None);
    }

    #[test]
    fn an_old_pod_that_goes_leaves_its_successors_start() {
        let plugins = Plugins::new();
        let none = json!({});
        plugins.see(&Event::InitApply(pod("old", "2026-11-29T12:01:00Z", &none)));
        plugins.see(&Event::Apply(pod("new", "2026-11-29T12:09:00Z", &none)));
        plugins.see(&Event::Delete(pod("old", "2026-11-29T12:01:00Z", &none)));
        assert_eq!(plugins.started_at("n1"), minute(9));
        plugins.see(&Event::Delete(pod("new", "2026-11-29T12:09:00Z", &none)));
        assert_eq!(plugins.started_at("n1"), None);
    }
}
