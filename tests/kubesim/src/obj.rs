//! Pure: short ways to read and write the usual fields of an object held as `serde_json::Value`.
//! An absent field reads as empty; writing makes the maps on the way.

use serde_json::{Map, Value, json};

/// A string anywhere in the object, by JSON pointer; empty when absent.
pub(crate) fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn int(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

pub(crate) fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// An array anywhere in the object; empty when absent.
pub(crate) fn list<'v>(object: &'v Value, pointer: &str) -> &'v [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A map's string entries; empty when absent.
pub(crate) fn entries<'v>(object: &'v Value, pointer: &str) -> impl Iterator<Item = (&'v str, &'v str)> {
    let map = object.pointer(pointer).and_then(Value::as_object);
    map.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

pub(crate) fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

pub(crate) fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

pub(crate) fn resource_version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

pub(crate) fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object.pointer("/metadata/annotations").and_then(|map| map.get(key)).and_then(Value::as_str)
}

pub(crate) fn terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

pub(crate) fn finalizers(object: &Value) -> &[Value] {
    list(object, "/metadata/finalizers")
}

/// The `metadata` map, made when missing.
pub(crate) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    child(object, "metadata")
}

/// A map under a key of the object, made when missing or null.
pub(crate) fn child<'v>(object: &'v mut Value, key: &str) -> &'v mut Map<String, Value> {
    if !object.is_object() {
        *object = json!({});
    }
    let map = object.as_object_mut().expect("made an object just above");
    let slot = map.entry(key).or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("made an object just above")
}

/// Copies a field from one map to another, or takes it away when the source has none.
pub(crate) fn carry(from: &Value, to: &mut Map<String, Value>, key: &str) {
    match from.get(key) {
        Some(value) => to.insert(key.to_owned(), value.clone()),
        None => to.remove(key),
    };
}

/// The controlling owner, when there is one.
pub(crate) fn controller(object: &Value) -> Option<&Value> {
    list(object, "/metadata/ownerReferences").iter().find(|owner| flag(owner, "/controller"))
}

/// A condition of `status.conditions` by type.
pub(crate) fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    list(object, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)
}

pub(crate) fn pod_ready(pod: &Value) -> bool {
    condition(pod, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

pub(crate) fn pod_finished(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Sets a condition by type; the transition time moves only with the status.
pub(crate) fn set_condition(object: &mut Value, mut condition: Value, now: &str) {
    let status = child(object, "status");
    let slot = status.entry("conditions").or_insert_with(|| json!([]));
    if !slot.is_array() {
        *slot = json!([]);
    }
    let conditions = slot.as_array_mut().expect("made an array just above");
    let kind = text(&condition, "/type").to_owned();
    condition["lastTransitionTime"] = json!(now);
    match conditions.iter_mut().find(|old| text(old, "/type") == kind) {
        Some(old) => {
            if text(old, "/status") == text(&condition, "/status") {
                condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = condition;
        }
        None => conditions.push(condition),
    }
}

/// A field with a default when absent.
pub(crate) fn child_default<'v>(object: &'v mut Value, key: &str, default: Value) -> &'v mut Value {
    let map = object.as_object_mut().expect("callers hold an object");
    map.entry(key).or_insert(default)
}
