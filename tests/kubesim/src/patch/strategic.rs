//! Pure: strategic merge patch. Lists merge by key where the API types say so; all other lists are atomic.
//! Note: `spec.taints` of a Node is atomic, `status.conditions` merges by `type`.

use serde_json::{Map, Value};

/// Lists of objects that merge, and by which field.
pub(crate) fn merge_key(parent: &str, field: &str, items: &[Value]) -> Option<&'static str> {
    let key = match field {
        "containers" | "initContainers" | "ephemeralContainers" | "volumes" | "env" | "imagePullSecrets" | "secrets" => "name",
        "conditions" | "addresses" => "type",
        "ownerReferences" => "uid",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "hostAliases" | "podIPs" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        "ports" if parent == "spec" => "port",
        "ports" => "containerPort",
        _ => return None,
    };
    items.iter().all(|item| item.get(key).is_some() || item.get("$patch").is_some()).then_some(key)
}

/// Lists of plain values that merge as sets.
fn is_set(field: &str) -> bool {
    matches!(field, "finalizers" | "podCIDRs")
}

pub(crate) fn strategic_merge(target: &mut Value, patch: &Value) {
    match (target.as_object_mut(), patch.as_object()) {
        (Some(target), Some(patch)) => merge_maps("", target, patch),
        _ => *target = patch.clone(),
    }
}

fn merge_maps(parent: &str, target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = patch.iter().filter(|(key, _)| *key != "$patch").map(|(k, v)| (k.clone(), v.clone())).collect();
            return;
        }
        Some("delete") => {
            target.clear();
            return;
        }
        _ => {}
    }
    retain_keys(target, patch);
    for (field, value) in patch {
        if let Some(list) = field.strip_prefix("$deleteFromPrimitiveList/") {
            delete_from(target, list, value);
        } else if !field.starts_with('$') {
            merge_field(parent, target, field, value);
        }
    }
}

fn merge_field(parent: &str, target: &mut Map<String, Value>, field: &str, value: &Value) {
    if value.is_null() {
        target.remove(field);
        return;
    }
    match (target.get_mut(field), value) {
        (Some(Value::Object(old)), Value::Object(new)) => merge_maps(field, old, new),
        (Some(Value::Array(old)), Value::Array(new)) => merge_lists(parent, field, old, new),
        (_, Value::Object(new)) => {
            let mut fresh = Map::new();
            merge_maps(field, &mut fresh, new);
            target.insert(field.to_owned(), Value::Object(fresh));
        }
        (_, Value::Array(new)) => {
            let plain = new.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
            target.insert(field.to_owned(), Value::Array(plain));
        }
        (_, scalar) => {
            target.insert(field.to_owned(), scalar.clone());
        }
    }
}

fn merge_lists(parent: &str, field: &str, old: &mut Vec<Value>, new: &[Value]) {
    if is_set(field) {
        for item in new {
            if !old.contains(item) {
                old.push(item.clone());
            }
        }
        return;
    }
    let replace = new.iter().any(|item| item.get("$patch").and_then(Value::as_str) == Some("replace"));
    let Some(key) = merge_key(parent, field, new).filter(|_| !replace) else {
        *old = new.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
        return;
    };
    for item in new {
        let position = old.iter().position(|known| known.get(key) == item.get(key));
        let delete = item.get("$patch").and_then(Value::as_str) == Some("delete");
        match (position, delete) {
            (Some(position), true) => drop(old.remove(position)),
            (None, true) => {}
            (Some(position), false) => strategic_merge(&mut old[position], item),
            (None, false) => old.push(item.clone()),
        }
    }
}

fn delete_from(target: &mut Map<String, Value>, list: &str, values: &Value) {
    if let (Some(Value::Array(items)), Some(values)) = (target.get_mut(list), values.as_array()) {
        items.retain(|item| !values.contains(item));
    }
}

fn retain_keys(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    if let Some(keep) = patch.get("$retainKeys").and_then(Value::as_array) {
        target.retain(|key, _| keep.iter().any(|kept| kept.as_str() == Some(key)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_merge_by_type_and_taints_are_replaced_whole() {
        let mut node = json!({
            "spec": { "taints": [{ "key": "theirs", "effect": "NoSchedule" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Disk", "status": "False" }] },
        });
        let patch = json!({
            "spec": { "taints": [{ "key": "ours", "effect": "NoSchedule" }] },
            "status": { "$setElementOrder/conditions": [], "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Xid", "status": "True" }] },
        });
        strategic_merge(&mut node, &patch);
        assert_eq!(node["spec"]["taints"], json!([{ "key": "ours", "effect": "NoSchedule" }]));
        assert_eq!(
            node["status"]["conditions"],
            json!([{ "type": "Ready", "status": "False" }, { "type": "Disk", "status": "False" }, { "type": "Xid", "status": "True" }])
        );
    }

    #[test]
    fn directives_delete_and_replace() {
        let mut pod =
            json!({ "spec": { "containers": [{ "name": "a" }, { "name": "b" }] }, "metadata": { "finalizers": ["x", "y"] } });
        let patch = json!({
            "spec": { "containers": [{ "name": "a", "$patch": "delete" }], "nodeSelector": { "$patch": "replace", "k": "v" } },
            "metadata": { "$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"] },
        });
        strategic_merge(&mut pod, &patch);
        assert_eq!(pod["spec"], json!({ "containers": [{ "name": "b" }], "nodeSelector": { "k": "v" } }));
        assert_eq!(pod["metadata"]["finalizers"], json!(["y", "z"]));
    }
}
