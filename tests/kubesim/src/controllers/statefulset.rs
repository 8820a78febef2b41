//! StatefulSets: pods with fixed names, in order, each with its claims; a pod that ends comes back as itself, with a new UID.

use serde_json::{Value, json};

use super::pods;
use crate::obj;
use crate::store::{ObjKey, Store};

const HASH_LABEL: &str = "controller-revision-hash";

pub(super) fn reconcile(store: &Store, key: &ObjKey) {
    let Some(set) = store.load(super::STATEFULSETS, key).map(|stored| stored.bare()) else { return };
    let all = pods::of_owner(store, &key.namespace, obj::uid(&set));
    let hash = format!("{}-{}", key.name, pods::template_hash(&set));
    if !obj::terminating(&set) {
        keep_order(store, &set, &all, &hash);
    }
    write_status(store, key, &set, &all, &hash);
}

fn keep_order(store: &Store, set: &Value, all: &[Value], hash: &str) {
    let wanted = obj::int(set, "/spec/replicas").unwrap_or(1);
    let ordered = obj::text(set, "/spec/podManagementPolicy") != "Parallel";
    let pod_of = |ordinal: i64| all.iter().find(|pod| obj::name(pod) == name_of(set, ordinal));
    for ordinal in 0..wanted {
        match pod_of(ordinal) {
            // One that ended by itself makes room for its successor.
            Some(pod) if obj::pod_finished(pod) && !obj::terminating(pod) => {
                super::settle(store.delete_now("pods", obj::namespace(set), obj::name(pod)), "delete an ended pod")
            }
            Some(pod) if ordered && !(pods::active(pod) && obj::pod_ready(pod)) => return,
            Some(_) => {}
            None => {
                create(store, set, ordinal, hash);
                if ordered {
                    return;
                }
            }
        }
    }
    let surplus = all
        .iter()
        .filter(|pod| ordinal_of(set, pod).is_none_or(|ordinal| ordinal >= wanted))
        .max_by_key(|pod| ordinal_of(set, pod));
    let outdated =
        || all.iter().filter(|pod| pod["metadata"]["labels"][HASH_LABEL] != json!(hash)).max_by_key(|pod| ordinal_of(set, pod));
    let on_delete = obj::text(set, "/spec/updateStrategy/type") == "OnDelete";
    let calm = all.iter().all(|pod| pods::active(pod) && obj::pod_ready(pod));
    if let Some(pod) = surplus.or_else(|| if on_delete { None } else { outdated() }).filter(|_| calm) {
        super::settle(store.delete("pods", obj::namespace(set), obj::name(pod)), "delete a pod");
    }
}

fn name_of(set: &Value, ordinal: i64) -> String {
    format!("{}-{ordinal}", obj::name(set))
}

fn ordinal_of(set: &Value, pod: &Value) -> Option<i64> {
    obj::name(pod).strip_prefix(obj::name(set))?.strip_prefix('-')?.parse().ok()
}

fn create(store: &Store, set: &Value, ordinal: i64, hash: &str) {
    let mut pod = pods::from_template(set, "StatefulSet");
    let name = name_of(set, ordinal);
    obj::metadata(&mut pod).insert("name".into(), json!(name));
    obj::metadata(&mut pod).remove("generateName");
    pods::set_label(&mut pod, "statefulset.kubernetes.io/pod-name", &name);
    pods::set_label(&mut pod, "apps.kubernetes.io/pod-index", &ordinal.to_string());
    pods::set_label(&mut pod, HASH_LABEL, hash);
    let spec = obj::child(&mut pod, "spec");
    spec.insert("hostname".into(), json!(name));
    let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
    for template in obj::list(set, "/spec/volumeClaimTemplates") {
        let volume = obj::name(template);
        let claim = format!("{volume}-{name}");
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(json!({ "name": volume, "persistentVolumeClaim": { "claimName": claim } }));
        }
        let object = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": claim, "namespace": obj::namespace(set), "labels": set["spec"]["selector"]["matchLabels"] },
            "spec": template["spec"],
        });
        if store.get("persistentvolumeclaims", obj::namespace(set), &claim).is_none() {
            super::settle(store.create(object), "create a claim");
        }
    }
    super::settle(store.create(pod), "create a pod");
}

/// Claims find a volume at once, the one that they ask for if they name one.
pub(super) fn bind_claim(store: &Store, key: &ObjKey) {
    let Some(claim) = store.load(super::CLAIMS, key).map(|stored| stored.bare()) else { return };
    if obj::text(&claim, "/status/phase") != "Pending" {
        return;
    }
    let volume = match obj::text(&claim, "/spec/volumeName") {
        "" => format!("pvc-{}", obj::uid(&claim)),
        asked => asked.to_owned(),
    };
    let patch = json!({
        "spec": { "volumeName": volume },
        "status": { "phase": "Bound", "accessModes": claim["spec"]["accessModes"], "capacity": claim["spec"]["resources"]["requests"] },
    });
    super::settle(store.patch_merge("persistentvolumeclaims", &key.namespace, &key.name, &patch), "bind a claim");
}

fn write_status(store: &Store, key: &ObjKey, set: &Value, all: &[Value], hash: &str) {
    let live: Vec<&Value> = all.iter().filter(|pod| pods::active(pod)).collect();
    let ready = live.iter().filter(|pod| obj::pod_ready(pod)).count();
    let updated = live.iter().filter(|pod| pod["metadata"]["labels"][HASH_LABEL] == json!(hash)).count();
    let current = if updated == live.len() { json!(hash) } else { set["status"]["currentRevision"].clone() };
    let status = json!({
        "replicas": live.len(), "readyReplicas": ready, "availableReplicas": ready, "currentReplicas": updated, "updatedReplicas": updated,
        "currentRevision": current, "updateRevision": hash, "observedGeneration": set["metadata"]["generation"],
    });
    if set["status"] != status {
        super::settle(store.edit(super::STATEFULSETS, &key.namespace, &key.name, |set| set["status"] = status), "write a status");
    }
}
