//! The kubelet stand-in: bound pods run and get Ready, deleted pods end. Behaviour by annotation, see `build`.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};
use serde_json::{Value, json};

use crate::build;
use crate::obj;
use crate::rest::DeleteOptions;
use crate::store::{ObjKey, Store};

/// Containers that are told to stop need a moment even when they obey at once.
const EXIT_AFTER_MS: i64 = 10;

#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// When a pod was first seen bound, and first seen terminating, by UID.
    bound: BTreeMap<String, DateTime<Utc>>,
    ending: BTreeMap<String, DateTime<Utc>>,
}

/// Nothing starts or ends on a node whose kubelet is dead.
pub(super) fn is_dead(node: &Value) -> bool {
    obj::annotation(node, build::KUBELET) == Some("dead")
}

impl Kubelet {
    /// Does what is due for one pod; when to look again, if that is known.
    pub(super) fn look(&mut self, store: &Store, key: &ObjKey) -> Option<DateTime<Utc>> {
        let pod = store.load(super::PODS, key)?.bare();
        let node = store.load(super::NODES, &ObjKey::new("", obj::text(&pod, "/spec/nodeName")))?.bare();
        if is_dead(&node) {
            return None;
        }
        if obj::terminating(&pod) { self.end(store, key, &pod) } else { self.start(store, key, &pod) }
    }

    fn start(&mut self, store: &Store, key: &ObjKey, pod: &Value) -> Option<DateTime<Utc>> {
        let uid = obj::uid(pod);
        if obj::text(pod, "/status/phase") != "Pending" {
            self.bound.remove(uid);
            return None;
        }
        let now = store.clock.now();
        let since = *self.bound.entry(uid.to_owned()).or_insert(now);
        let due = since + millis(pod, build::START_AFTER_MS).unwrap_or(Duration::zero());
        if due > now {
            return Some(due);
        }
        self.bound.remove(uid);
        let stamp = store.clock.stamp();
        let started = store.edit("pods", &key.namespace, &key.name, |pod| run(pod, &stamp));
        super::settle(started, "start a pod");
        None
    }

    fn end(&mut self, store: &Store, key: &ObjKey, pod: &Value) -> Option<DateTime<Utc>> {
        if obj::annotation(pod, build::HANG) == Some("true") {
            return None;
        }
        let uid = obj::uid(pod);
        let now = store.clock.now();
        let since = *self.ending.entry(uid.to_owned()).or_insert(now);
        let obeyed = since + millis(pod, build::EXIT_AFTER_MS).unwrap_or(Duration::milliseconds(EXIT_AFTER_MS));
        let killed =
            DateTime::parse_from_rfc3339(obj::text(pod, "/metadata/deletionTimestamp")).map_or(now, |moment| moment.to_utc());
        // deletionTimestamp counts whole seconds: a pod that obeys is not held back by its rounding.
        let due = obeyed.min(killed.max(since));
        if due > now {
            return Some(due);
        }
        let uid = uid.to_owned();
        self.ending.remove(&uid);
        if !obj::finalizers(pod).is_empty() {
            let stamp = store.clock.stamp();
            super::settle(store.edit("pods", &key.namespace, &key.name, |pod| stop(pod, &stamp)), "stop a pod");
        }
        let options = DeleteOptions { uid: Some(uid), ..DeleteOptions::now() };
        super::settle(store.delete_with("pods", &key.namespace, &key.name, &options), "end a pod");
        None
    }
}

fn millis(pod: &Value, annotation: &str) -> Option<Duration> {
    obj::annotation(pod, annotation)?.parse().ok().map(Duration::milliseconds)
}

fn run(pod: &mut Value, now: &str) {
    let ready = obj::annotation(pod, build::READY) != Some("false");
    let ip = obj::annotation(pod, build::POD_IP).map_or_else(|| pod_ip(obj::uid(pod)), str::to_owned);
    let containers: Vec<Value> = obj::list(pod, "/spec/containers").iter().map(|container| json!({
        "name": container["name"], "image": container["image"], "imageID": "", "containerID": "containerd://0", "ready": ready, "started": true, "restartCount": 0,
        "state": { "running": { "startedAt": now } },
    })).collect();
    let status = obj::child(pod, "status");
    for (field, value) in [
        ("phase", json!("Running")),
        ("podIP", json!(ip)),
        ("podIPs", json!([{ "ip": ip }])),
        ("hostIP", json!("127.0.0.1")),
        ("startTime", json!(now)),
        ("containerStatuses", json!(containers)),
    ] {
        status.insert(field.to_owned(), value);
    }
    let answer = if ready { "True" } else { "False" };
    for (kind, answer) in [("PodScheduled", "True"), ("Initialized", "True"), ("ContainersReady", answer), ("Ready", answer)] {
        obj::set_condition(pod, json!({ "type": kind, "status": answer }), now);
    }
}

fn stop(pod: &mut Value, now: &str) {
    obj::child(pod, "status").insert("phase".into(), json!("Succeeded"));
    for kind in ["ContainersReady", "Ready"] {
        obj::set_condition(pod, json!({ "type": kind, "status": "False", "reason": "PodCompleted" }), now);
    }
}

/// An address of the pod network that differs from pod to pod.
fn pod_ip(uid: &str) -> String {
    let hash = uid.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    format!("10.{}.{}.{}", 64 + (hash >> 16) % 64, (hash >> 8) & 0xff, hash & 0xff)
}
