//! DaemonSets: one pod on every node that the template's selector takes; cordons and taints do not keep it off.
//! A pod that is evicted comes back on the same node, which is why nobody should evict it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::pods;
use crate::obj;
use crate::store::{ObjKey, Store};

const HASH_LABEL: &str = "controller-revision-hash";

pub(super) fn reconcile(store: &Store, key: &ObjKey) {
    let Some(set) = store.load(super::DAEMONSETS, key).map(|stored| stored.bare()) else { return };
    let wanted = |node: &Value| {
        obj::entries(&set, "/spec/template/spec/nodeSelector")
            .all(|(label, value)| node["metadata"]["labels"][label] == json!(value))
    };
    let nodes: BTreeSet<String> =
        store.values(super::NODES, |_, _| true).iter().filter(|node| wanted(node)).map(|node| obj::name(node).to_owned()).collect();
    let all = pods::of_owner(store, &key.namespace, obj::uid(&set));
    let hash = pods::template_hash(&set);
    if !obj::terminating(&set) {
        spread(store, &set, &nodes, &all, &hash);
    }
    write_status(store, key, &set, nodes.len(), &all, &hash);
}

fn spread(store: &Store, set: &Value, nodes: &BTreeSet<String>, all: &[Value], hash: &str) {
    let mut on: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for pod in all {
        on.entry(obj::text(pod, "/spec/nodeName")).or_default().push(pod);
    }
    for node in nodes.iter().filter(|node| !on.contains_key(node.as_str())) {
        let mut pod = pods::from_template(set, "DaemonSet");
        obj::child(&mut pod, "spec").insert("nodeName".into(), json!(node));
        obj::child(&mut pod, "spec").entry("tolerations").or_insert_with(|| json!([{ "operator": "Exists" }]));
        pods::set_label(&mut pod, HASH_LABEL, hash);
        super::settle(store.create(pod), "create a pod");
    }
    for (node, pods) in &on {
        let homeless = !nodes.contains(*node);
        for pod in pods.iter().filter(|pod| !obj::terminating(pod) && (homeless || obj::pod_finished(pod))) {
            super::settle(store.delete_now("pods", obj::namespace(set), obj::name(pod)), "delete a pod");
        }
    }
    let calm = all.iter().all(|pod| pods::active(pod) && obj::pod_ready(pod));
    let outdated = all.iter().find(|pod| pod["metadata"]["labels"][HASH_LABEL] != json!(hash));
    if let Some(pod) = outdated.filter(|_| calm && obj::text(set, "/spec/updateStrategy/type") != "OnDelete") {
        super::settle(store.delete("pods", obj::namespace(set), obj::name(pod)), "delete an outdated pod");
    }
}

fn write_status(store: &Store, key: &ObjKey, set: &Value, desired: usize, all: &[Value], hash: &str) {
    let live: Vec<&Value> = all.iter().filter(|pod| pods::active(pod)).collect();
    let ready = live.iter().filter(|pod| obj::pod_ready(pod)).count();
    let updated = live.iter().filter(|pod| pod["metadata"]["labels"][HASH_LABEL] == json!(hash)).count();
    let status = json!({
        "desiredNumberScheduled": desired, "currentNumberScheduled": live.len(), "numberMisscheduled": 0, "numberReady": ready,
        "numberAvailable": ready, "numberUnavailable": desired.saturating_sub(ready), "updatedNumberScheduled": updated,
        "observedGeneration": set["metadata"]["generation"],
    });
    if set["status"] != status {
        super::settle(store.edit(super::DAEMONSETS, &key.namespace, &key.name, |set| set["status"] = status), "write a status");
    }
}
