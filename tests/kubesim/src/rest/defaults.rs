//! What the server fills in when an object is created. Only what clients of this project can see.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::obj;
use crate::registry::ResourceKind;
use crate::store::Txn;

/// A pod's grace when it names none.
pub(crate) const GRACE_SECONDS: i64 = 30;

pub(super) fn on_create(txn: &Txn<'_>, kind: &ResourceKind, object: &mut Value) {
    if kind.has("status")
        && !kind.is("nodes")
        && let Some(map) = object.as_object_mut()
    {
        map.remove("status");
    }
    match &*kind.storage {
        "nodes" => drop(obj::child(object, "spec")),
        "pods" => pod(object),
        "namespaces" => namespace(object),
        "deployments.apps" => {
            workload(object);
            fill(
                object,
                "spec",
                json!({ "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } }, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600 }),
            );
        }
        "replicasets.apps" => workload(object),
        "statefulsets.apps" => {
            workload(object);
            fill(
                object,
                "spec",
                json!({ "podManagementPolicy": "OrderedReady", "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } } }),
            );
        }
        "daemonsets.apps" => fill(
            object,
            "spec",
            json!({ "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } } }),
        ),
        "services" => service(object),
        "persistentvolumeclaims" => claim(object),
        "customresourcedefinitions.apiextensions.k8s.io" => definition(object, &txn.clock.stamp()),
        "secrets" => secret(object),
        _ => {}
    }
}

fn fill(object: &mut Value, part: &str, defaults: Value) {
    let target = obj::child(object, part);
    for (field, value) in defaults.as_object().into_iter().flatten() {
        target.entry(field.clone()).or_insert_with(|| value.clone());
    }
}

fn pod(object: &mut Value) {
    fill(
        object,
        "spec",
        json!({
            "restartPolicy": "Always", "terminationGracePeriodSeconds": GRACE_SECONDS, "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler", "serviceAccountName": "default", "securityContext": {},
        }),
    );
    object["status"] = json!({ "phase": "Pending", "qosClass": "BestEffort" });
}

fn namespace(object: &mut Value) {
    fill(object, "spec", json!({ "finalizers": ["kubernetes"] }));
    object["status"] = json!({ "phase": "Active" });
    let name = obj::name(object).to_owned();
    let labels = obj::metadata(object).entry("labels").or_insert_with(|| json!({}));
    labels["kubernetes.io/metadata.name"] = json!(name);
}

fn workload(object: &mut Value) {
    fill(object, "spec", json!({ "replicas": 1 }));
    object["status"] = json!({ "replicas": 0 });
}

/// `stringData` is written, and read as `data`.
fn secret(object: &mut Value) {
    obj::child_default(object, "type", json!("Opaque"));
    let plain = object.as_object_mut().and_then(|map| map.remove("stringData")).unwrap_or_default();
    for (key, value) in plain.as_object().into_iter().flatten() {
        let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
        obj::child(object, "data").insert(key.clone(), json!(encoded));
    }
}

fn service(object: &mut Value) {
    fill(object, "spec", json!({ "type": "ClusterIP", "sessionAffinity": "None", "clusterIP": "None" }));
}

fn claim(object: &mut Value) {
    object["status"] = json!({ "phase": "Pending" });
}

fn definition(object: &mut Value, now: &str) {
    let names = object.pointer("/spec/names").cloned().unwrap_or_default();
    let versions: Vec<Value> =
        obj::list(object, "/spec/versions").iter().filter(|v| obj::flag(v, "/storage")).map(|v| v["name"].clone()).collect();
    let condition = |kind: &str, reason: &str| json!({ "type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now });
    object["status"] = json!({
        "acceptedNames": names, "storedVersions": versions,
        "conditions": [condition("NamesAccepted", "NoConflicts"), condition("Established", "InitialNamesAccepted")],
    });
}
