//! ReplicaSets: as many pods as wanted, those that end replaced at once.

use serde_json::{Value, json};

use super::pods;
use crate::obj;
use crate::store::{ObjKey, Store};

pub(super) fn reconcile(store: &Store, key: &ObjKey) {
    let Some(set) = store.load(super::REPLICASETS, key).map(|stored| stored.bare()) else { return };
    let all = pods::of_owner(store, &key.namespace, obj::uid(&set));
    let mut live: Vec<&Value> = all.iter().filter(|pod| pods::active(pod)).collect();
    let wanted = usize::try_from(obj::int(&set, "/spec/replicas").unwrap_or(1)).unwrap_or(0);
    if !obj::terminating(&set) {
        for _ in live.len()..wanted {
            super::settle(store.create(pods::from_template(&set, "ReplicaSet")), "create a pod");
        }
        // What is not Ready goes first.
        live.sort_by_key(|pod| obj::pod_ready(pod));
        for pod in live.iter().take(live.len().saturating_sub(wanted)) {
            super::settle(store.delete("pods", &key.namespace, obj::name(pod)), "delete a pod");
        }
    }
    let ready = live.iter().filter(|pod| obj::pod_ready(pod)).count();
    let status = json!({
        "replicas": live.len(), "fullyLabeledReplicas": live.len(), "readyReplicas": ready, "availableReplicas": ready,
        "observedGeneration": set["metadata"]["generation"],
    });
    if set["status"] != status {
        super::settle(store.edit(super::REPLICASETS, &key.namespace, &key.name, |set| set["status"] = status), "write a status");
    }
}
