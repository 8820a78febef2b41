//! Updating: which part of an object an endpoint may change, and when a write is refused.
//! A write that changes nothing commits nothing: no new resourceVersion, no watch event.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{WriteOptions, validate};
use crate::managed;
use crate::obj;
use crate::registry::ResourceKind;
use crate::status::{ApiError, Cause};
use crate::store::{ObjKey, Stored, Txn};

/// What a write is allowed to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The main endpoint: status is kept where the kind has a status endpoint.
    Main,
    /// The status endpoint.
    Status,
    /// Everything: the direct helpers.
    All,
}

/// Metadata that no update changes.
const IMMUTABLE: &[&str] =
    &["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"];

pub(crate) fn update(
    txn: &mut Txn<'_>,
    kind: &ResourceKind,
    mut object: Value,
    part: Part,
    options: &WriteOptions,
) -> Result<Arc<Stored>, ApiError> {
    let key = ObjKey::of(&object);
    let stored = txn.get(&kind.storage, &key).ok_or_else(|| ApiError::not_found(kind, &key.name))?;
    let old = stored.value(kind);
    same_object(kind, &old, &object, options)?;
    restrict(kind, &old, &mut object, part);
    keep_identity(&old, &mut object);
    if !options.applied {
        let metadata = obj::metadata(&mut object);
        obj::carry(&old["metadata"], metadata, "managedFields");
    }
    finalizers_only_shrink(kind, &old, &object)?;
    validate::object(kind, Some(&old), &mut object, options.strict)?;
    if object == old {
        return Ok(stored);
    }
    if kind.generation && spec_differs(kind, &old, &object) {
        let generation = obj::int(&old, "/metadata/generation").unwrap_or(1) + 1;
        obj::metadata(&mut object).insert("generation".into(), json!(generation));
    }
    managed::track(kind, Some((&old, part)), &mut object, options, &txn.clock.stamp());
    let gone = obj::terminating(&object) && obj::finalizers(&object).is_empty() && released(&object);
    if gone {
        txn.put(kind, object);
        return txn.remove(kind, &key).ok_or_else(|| ApiError::not_found(kind, &key.name));
    }
    Ok(txn.put(kind, object))
}

fn same_object(kind: &ResourceKind, old: &Value, new: &Value, options: &WriteOptions) -> Result<(), ApiError> {
    let name = obj::name(old);
    let version = obj::resource_version(new);
    if !obj::uid(new).is_empty() && obj::uid(new) != obj::uid(old) {
        return Err(another_uid(kind, old, new, options.replace));
    }
    if version.is_empty() && options.replace && !kind.unconditional_update {
        return Err(ApiError::invalid(
            kind,
            name,
            &[Cause::invalid("metadata.resourceVersion", "0x0", "must be specified for an update")],
        ));
    }
    if !version.is_empty() && version != obj::resource_version(old) {
        return Err(ApiError::modified(kind, name));
    }
    Ok(())
}

/// A PUT's UID is a precondition; a patch's is a change of what cannot change.
fn another_uid(kind: &ResourceKind, old: &Value, new: &Value, replace: bool) -> ApiError {
    let (was, wanted) = (obj::uid(old), obj::uid(new));
    if replace {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {was}");
        return ApiError::conflict(kind, obj::name(old), &why);
    }
    ApiError::invalid(kind, obj::name(old), &[Cause::invalid("metadata.uid", format!("\"{wanted}\""), "field is immutable")])
}

fn restrict(kind: &ResourceKind, old: &Value, object: &mut Value, part: Part) {
    match part {
        Part::All => {}
        Part::Main if kind.has("status") => carry_over(old, object, "status"),
        Part::Main => {}
        Part::Status if kind.custom.is_some() => {
            let status = object.get("status").cloned();
            *object = old.clone();
            let map = object.as_object_mut().expect("a stored object is a map");
            match status {
                Some(status) => map.insert("status".into(), status),
                None => map.remove("status"),
            };
        }
        Part::Status => carry_over(old, object, "spec"),
    }
}

fn carry_over(old: &Value, object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        obj::carry(old, map, field);
    }
}

fn keep_identity(old: &Value, object: &mut Value) {
    let old_metadata = old.get("metadata").unwrap_or(&Value::Null);
    for field in ["apiVersion", "kind"] {
        object[field] = old[field].clone();
    }
    let metadata = obj::metadata(object);
    for field in IMMUTABLE {
        obj::carry(old_metadata, metadata, field);
    }
    obj::carry(old_metadata, metadata, "resourceVersion");
    for map in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = metadata.get(map).is_some_and(|m| {
            m.is_null() || m.as_object().is_some_and(serde_json::Map::is_empty) || m.as_array().is_some_and(Vec::is_empty)
        });
        if empty {
            metadata.remove(map);
        }
    }
}

fn finalizers_only_shrink(kind: &ResourceKind, old: &Value, new: &Value) -> Result<(), ApiError> {
    let added = obj::finalizers(new).iter().any(|finalizer| !obj::finalizers(old).contains(finalizer));
    if !obj::terminating(old) || !added {
        return Ok(());
    }
    let why = "no new finalizers can be added if the object is being deleted";
    Err(ApiError::invalid(kind, obj::name(old), &[Cause::forbidden("metadata.finalizers", why)]))
}

/// A custom resource's grace does not exist; a pod's must have been waited for by its kubelet.
fn released(object: &Value) -> bool {
    obj::int(object, "/metadata/deletionGracePeriodSeconds").unwrap_or(0) == 0 && obj::list(object, "/spec/finalizers").is_empty()
}

fn spec_differs(kind: &ResourceKind, old: &Value, new: &Value) -> bool {
    let ignored = |field: &str| {
        matches!(field, "metadata" | "apiVersion" | "kind") || (field == "status" && (kind.has("status") || kind.custom.is_none()))
    };
    let fields = |object: &Value| -> Vec<(String, Value)> {
        object.as_object().into_iter().flatten().filter(|(field, _)| !ignored(field)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    fields(old) != fields(new)
}
