//! `metadata.managedFields`: who wrote what, so that a reader can tell a person's cordon from ours. Pure.

mod apply;
mod fields;

use serde_json::{Value, json};

use crate::obj;
use crate::registry::ResourceKind;
use crate::rest::{Part, WriteOptions};
use fields::{FieldSet, Leaves};

pub(crate) use apply::{Apply, apply};

/// Notes the writer of a change. `old` is the state before, and the part that the write could change.
/// The direct helpers own nothing, but what they change is no longer anybody else's.
pub(crate) fn track(kind: &ResourceKind, old: Option<(&Value, Part)>, new: &mut Value, options: &WriteOptions, now: &str) {
    if options.applied {
        return;
    }
    let part = old.map_or(Part::Main, |(_, part)| part);
    let direct = part == Part::All || options.manager == DIRECT;
    let mut entries = old.map(|(old, _)| obj::list(old, "/metadata/managedFields").to_vec()).unwrap_or_default();
    if direct && entries.is_empty() {
        obj::metadata(new).remove("managedFields");
        return;
    }
    let (before, after) = (old.map(|(old, _)| Leaves::of(old)).unwrap_or_default(), Leaves::of(new));
    let (changed, removed) = (after.differing_from(&before), before.missing_in(&after));
    let ours = entry(kind, &options.manager, "Update", part, now);
    for known in &mut entries {
        let mut set = FieldSet::decode(&known["fieldsV1"]);
        set.remove(&removed);
        if !same_writer(known, &ours) {
            set.remove(&changed);
        }
        known["fieldsV1"] = set.encode();
    }
    if !direct && !changed.is_empty() {
        let mut set = FieldSet::default();
        if let Some(position) = entries.iter().position(|known| same_writer(known, &ours)) {
            set = FieldSet::decode(&entries.remove(position)["fieldsV1"]);
        }
        set.add(&changed);
        entries.push(with_fields(ours, &set));
    }
    store(new, entries);
}

/// Manager of what is written past the API; it leaves no entry.
pub(crate) const DIRECT: &str = "kubesim";

fn entry(kind: &ResourceKind, manager: &str, operation: &str, part: Part, now: &str) -> Value {
    let mut entry = json!({ "manager": manager, "operation": operation, "apiVersion": kind.api_version(), "time": now, "fieldsType": "FieldsV1" });
    if part == Part::Status {
        entry["subresource"] = json!("status");
    }
    entry
}

fn with_fields(mut entry: Value, set: &FieldSet) -> Value {
    entry["fieldsV1"] = set.encode();
    entry
}

fn same_writer(a: &Value, b: &Value) -> bool {
    ["manager", "operation", "subresource"].iter().all(|field| a.get(field) == b.get(field))
}

fn store(object: &mut Value, mut entries: Vec<Value>) {
    entries.retain(|entry| entry["fieldsV1"].as_object().is_some_and(|fields| !fields.is_empty()));
    let metadata = obj::metadata(object);
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), Value::Array(entries));
    }
}
