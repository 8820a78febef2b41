//! `metadata.managedFields`: who wrote what, so that a reader can tell a person's cordon from ours. Pure.

use serde_json::{Value, json};

use crate::obj;
use crate::registry::ResourceKind;
use crate::rest::{Part, WriteOptions};

/// Notes the writer of a change. `old` is the state before, and the part that the write could change.
pub(crate) fn track(kind: &ResourceKind, old: Option<(&Value, Part)>, new: &mut Value, options: &WriteOptions, now: &str) {
    let part = old.map_or(Part::Main, |(_, part)| part);
    if part == Part::All {
        return;
    }
    let mut entry = json!({
        "manager": options.manager, "operation": "Update", "apiVersion": kind.api_version(),
        "time": now, "fieldsType": "FieldsV1", "fieldsV1": {},
    });
    if part == Part::Status {
        entry["subresource"] = json!("status");
    }
    let entries = obj::metadata(new).entry("managedFields").or_insert_with(|| json!([]));
    let Some(entries) = entries.as_array_mut() else { return };
    let same = |known: &Value| ["manager", "operation", "apiVersion", "subresource"].iter().all(|field| known.get(field) == entry.get(field));
    entries.retain(|known| !same(known));
    entries.push(entry);
}
