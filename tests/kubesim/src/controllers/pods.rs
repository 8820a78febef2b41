//! What the workload controllers share: pods from templates, pods of an owner, template hashes.

use serde_json::{Value, json};

use crate::obj;
use crate::store::Store;

/// Pods of an owner by its UID, ended ones included.
pub(super) fn of_owner(store: &Store, namespace: &str, uid: &str) -> Vec<Value> {
    store.values(super::PODS, |key, pod| &*key.namespace == namespace && pod.owned_by(uid))
}

/// Neither ended nor ending.
pub(super) fn active(pod: &Value) -> bool {
    !obj::terminating(pod) && !obj::pod_finished(pod)
}

pub(super) fn owner_reference(owner: &Value, api_version: &str, kind: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": obj::name(owner), "uid": obj::uid(owner),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod from the owner's template, without a name yet.
pub(super) fn from_template(owner: &Value, kind: &str) -> Value {
    let template = &owner["spec"]["template"];
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"] });
    let metadata = obj::metadata(&mut pod);
    metadata.remove("creationTimestamp");
    metadata.remove("name");
    metadata.insert("namespace".into(), json!(obj::namespace(owner)));
    metadata.insert("generateName".into(), json!(format!("{}-", obj::name(owner))));
    metadata.insert("ownerReferences".into(), json!([owner_reference(owner, "apps/v1", kind)]));
    pod
}

pub(super) fn set_label(object: &mut Value, key: &str, value: &str) {
    let labels = obj::metadata(object).entry("labels").or_insert_with(|| json!({}));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert(key.to_owned(), json!(value));
    }
}

/// FNV-1a over the template's text: changes with the template, and with nothing else.
pub(super) fn template_hash(owner: &Value) -> String {
    let text = owner["spec"]["template"].to_string();
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{:010x}", hash & 0xff_ffff_ffff)
}

/// A number, or a percentage of a whole.
pub(super) fn share(value: &Value, whole: i64, round_up: bool) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let percent: i64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    Some(if round_up { (whole * percent + 99).div_euclid(100) } else { (whole * percent).div_euclid(100) })
}
