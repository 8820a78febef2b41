//! Pure: server-side apply: given fields become so, fields given up are taken away, fields of others are a conflict.

use serde_json::{Value, json};

use super::fields::{FieldSet, Leaves, Path, shown};
use super::{entry, same_writer, store, with_fields};
use crate::obj;
use crate::patch::strategic_merge;
use crate::registry::ResourceKind;
use crate::rest::Part;
use crate::status::ApiError;

pub(crate) struct Apply<'a> {
    pub(crate) manager: &'a str,
    pub(crate) force: bool,
    pub(crate) part: Part,
    pub(crate) now: &'a str,
}

/// The object after an apply, with its `managedFields`.
pub(crate) fn apply(kind: &ResourceKind, current: Option<&Value>, wanted: &Value, how: &Apply<'_>) -> Result<Value, ApiError> {
    let leaves = Leaves::of(wanted);
    let set = FieldSet::from_paths(leaves.paths());
    let ours = entry(kind, how.manager, "Apply", how.part, how.now);
    let Some(current) = current else {
        let mut object = wanted.clone();
        store(&mut object, vec![with_fields(ours, &set)]);
        return Ok(object);
    };
    let mut entries = obj::list(current, "/metadata/managedFields").to_vec();
    let before = Leaves::of(current);
    let mut conflicts: Vec<(String, Path)> = Vec::new();
    for other in entries.iter_mut().filter(|other| !same_writer(other, &ours)) {
        let mut theirs = FieldSet::decode(&other["fieldsV1"]);
        let differing = leaves.iter().filter(|(path, value)| theirs.contains(path) && before.get(path) != Some(value));
        let paths: std::collections::BTreeSet<Path> = differing.map(|(path, _)| path.clone()).collect();
        conflicts.extend(paths.iter().map(|path| (obj::text(other, "/manager").to_owned(), path.clone())));
        theirs.remove(&paths);
        other["fieldsV1"] = theirs.encode();
    }
    if !conflicts.is_empty() && !how.force {
        return Err(refused(kind, &conflicts));
    }
    let mut object = current.clone();
    let mut patch = wanted.clone();
    obj::metadata(&mut patch).remove("managedFields");
    strategic_merge(&mut object, &patch);
    let position = entries.iter().position(|known| same_writer(known, &ours));
    let previous = position.map(|position| entries.remove(position));
    let held = previous.as_ref().map(|entry| FieldSet::decode(&entry["fieldsV1"])).unwrap_or_default();
    for path in held.iter().filter(|path| !set.contains(path)) {
        if !entries.iter().any(|other| FieldSet::decode(&other["fieldsV1"]).contains(path)) {
            take_away(&mut object, path);
        }
    }
    // An apply that changes nothing keeps its old time, so that it is no write.
    entries.push(previous.filter(|_| held == set).unwrap_or_else(|| with_fields(ours, &set)));
    store(&mut object, entries);
    Ok(object)
}

fn refused(kind: &ResourceKind, conflicts: &[(String, Path)]) -> ApiError {
    let using = kind.api_version();
    let lines: Vec<String> =
        conflicts.iter().map(|(manager, path)| format!("conflict with \"{manager}\" using {using}: {}", shown(path))).collect();
    let causes: Vec<Value> = conflicts.iter().map(|(manager, path)| {
        json!({ "reason": "FieldManagerConflict", "message": format!("conflict with \"{manager}\" using {using}"), "field": shown(path) })
    }).collect();
    let count = if lines.len() == 1 { "1 conflict".to_owned() } else { format!("{} conflicts", lines.len()) };
    ApiError::new(409, "Conflict", format!("Apply failed with {count}: {}", lines.join(", ")))
        .with_details(json!({ "causes": causes }))
}

fn take_away(object: &mut Value, path: &[String]) {
    match path {
        [] => {}
        [item, dot] if dot == "." => drop_item(object, item),
        [last] => drop_item(object, last),
        [first, rest @ ..] => {
            if let Some(inner) = step(object, first) {
                take_away(inner, rest);
            }
        }
    }
}

fn step<'v>(value: &'v mut Value, element: &str) -> Option<&'v mut Value> {
    if let Some(field) = element.strip_prefix("f:") {
        return value.get_mut(field);
    }
    let key: Value = serde_json::from_str(element.strip_prefix("k:")?).ok()?;
    value.as_array_mut()?.iter_mut().find(|item| has(item, &key))
}

fn drop_item(value: &mut Value, element: &str) {
    match (value, element.split_at(2)) {
        (Value::Object(map), ("f:", field)) => drop(map.remove(field)),
        (Value::Array(items), ("k:", key)) => {
            if let Ok(key) = serde_json::from_str::<Value>(key) {
                items.retain(|item| !has(item, &key));
            }
        }
        (Value::Array(items), ("v:", wanted)) => {
            let wanted = serde_json::from_str::<Value>(wanted).unwrap_or_default();
            items.retain(|item| *item != wanted);
        }
        _ => {}
    }
}

fn has(item: &Value, key: &Value) -> bool {
    key.as_object().into_iter().flatten().all(|(field, value)| item.get(field) == Some(value))
}
