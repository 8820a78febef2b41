//! Deployments: one ReplicaSet per template, and a rolling change from the old to the new.

use serde_json::{Value, json};

use super::pods;
use crate::obj;
use crate::store::{ObjKey, Store};

const HASH_LABEL: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

pub(super) fn reconcile(store: &Store, key: &ObjKey) {
    let Some(deployment) = store.load(super::DEPLOYMENTS, key).map(|stored| stored.bare()) else { return };
    let sets =
        store.values(super::REPLICASETS, |set, stored| set.namespace == key.namespace && stored.owned_by(obj::uid(&deployment)));
    let hash = pods::template_hash(&deployment);
    let (new, old): (Vec<&Value>, Vec<&Value>) = sets.iter().partition(|set| set["metadata"]["labels"][HASH_LABEL] == json!(hash));
    if !obj::terminating(&deployment) && !obj::flag(&deployment, "/spec/paused") {
        match new.first() {
            Some(new) => roll(store, &deployment, new, &old),
            None => create_set(store, &deployment, &hash, &old),
        }
    }
    write_status(store, key, &deployment, new.first().copied(), &sets);
}

fn replicas(object: &Value) -> i64 {
    obj::int(object, "/spec/replicas").unwrap_or(1)
}

/// (how many more than wanted, how many fewer available)
fn limits(deployment: &Value, wanted: i64) -> (i64, i64) {
    let strategy = &deployment["spec"]["strategy"];
    if obj::text(strategy, "/type") == "Recreate" {
        return (0, wanted);
    }
    let quarter = json!("25%");
    let rolling = |field: &str| strategy.pointer(&format!("/rollingUpdate/{field}")).unwrap_or(&quarter).clone();
    let surge = pods::share(&rolling("maxSurge"), wanted, true).unwrap_or(1);
    let missing = pods::share(&rolling("maxUnavailable"), wanted, false).unwrap_or(0);
    (surge.max(i64::from(missing == 0)), missing)
}

fn create_set(store: &Store, deployment: &Value, hash: &str, old: &[&Value]) {
    let wanted = replicas(deployment);
    let (surge, _) = limits(deployment, wanted);
    let there: i64 = old.iter().map(|set| replicas(set)).sum();
    let revision = old.iter().filter_map(|set| obj::annotation(set, REVISION)?.parse::<u64>().ok()).max().unwrap_or(0) + 1;
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": format!("{}-{hash}", obj::name(deployment)), "namespace": obj::namespace(deployment),
            "labels": deployment["spec"]["template"]["metadata"]["labels"],
            "annotations": { REVISION: revision.to_string() },
            "ownerReferences": [pods::owner_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {
            "replicas": (wanted + surge - there).clamp(0, wanted), "selector": deployment["spec"]["selector"], "template": deployment["spec"]["template"],
        },
    });
    pods::set_label(&mut set, HASH_LABEL, hash);
    pods::set_label(&mut set["spec"]["template"], HASH_LABEL, hash);
    obj::child(&mut set["spec"]["selector"], "matchLabels").insert(HASH_LABEL.into(), json!(hash));
    super::settle(store.create(set), "create a replica set");
    let (namespace, name) = (obj::namespace(deployment), obj::name(deployment));
    let noted = store.patch_merge(
        super::DEPLOYMENTS,
        namespace,
        name,
        &json!({ "metadata": { "annotations": { REVISION: revision.to_string() } } }),
    );
    super::settle(noted, "note the revision");
}

fn roll(store: &Store, deployment: &Value, new: &Value, old: &[&Value]) {
    let wanted = replicas(deployment);
    let (surge, missing) = limits(deployment, wanted);
    let old_total: i64 = old.iter().map(|set| replicas(set)).sum();
    let room = (wanted + surge - old_total).clamp(0, wanted);
    let next = if old_total == 0 { wanted } else { room.max(replicas(new).min(wanted)) };
    scale(store, new, next);
    let ready = |set: &Value| obj::int(set, "/status/readyReplicas").unwrap_or(0);
    let available: i64 = old.iter().map(|set| ready(set)).sum::<i64>() + ready(new);
    let mut spare = (available - (wanted - missing)).max(0);
    for set in old {
        // Pods of the old template that do not run are no loss.
        let idle = (replicas(set) - ready(set)).max(0);
        let go = (idle + spare.min(ready(set))).min(replicas(set));
        spare -= (go - idle).max(0);
        scale(store, set, replicas(set) - go);
    }
}

fn scale(store: &Store, set: &Value, to: i64) {
    if replicas(set) != to {
        let patch = json!({ "spec": { "replicas": to } });
        super::settle(store.patch_merge(super::REPLICASETS, obj::namespace(set), obj::name(set), &patch), "scale a replica set");
    }
}

fn write_status(store: &Store, key: &ObjKey, deployment: &Value, new: Option<&Value>, sets: &[Value]) {
    let of = |set: &Value, field: &str| obj::int(set, &format!("/status/{field}")).unwrap_or(0);
    let sum = |field: &str| sets.iter().map(|set| of(set, field)).sum::<i64>();
    let (ready, wanted) = (sum("readyReplicas"), replicas(deployment));
    let available = if ready >= wanted - limits(deployment, wanted).1 { "True" } else { "False" };
    let fields = [
        ("replicas", json!(sum("replicas"))),
        ("readyReplicas", json!(ready)),
        ("availableReplicas", json!(ready)),
        ("unavailableReplicas", json!((wanted - ready).max(0))),
        ("updatedReplicas", json!(new.map_or(0, |set| of(set, "replicas")))),
        ("observedGeneration", deployment["metadata"]["generation"].clone()),
    ];
    let stamp = store.clock.stamp();
    let written = store.edit(super::DEPLOYMENTS, &key.namespace, &key.name, |deployment| {
        let status = obj::child(deployment, "status");
        for (field, value) in fields {
            status.insert(field.to_owned(), value);
        }
        let reason = if available == "True" { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" };
        obj::set_condition(deployment, json!({ "type": "Available", "status": available, "reason": reason }), &stamp);
        obj::set_condition(
            deployment,
            json!({ "type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable" }),
            &stamp,
        );
    });
    super::settle(written, "write a status");
}
