//! Deleting: preconditions, a pod's grace, finalizers, propagation.
//! What has to wait is only marked here; the kubelet stand-in and the collectors finish it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::clock;
use crate::obj;
use crate::registry::ResourceKind;
use crate::status::ApiError;
use crate::store::{ObjKey, Stored, Txn};

/// `metav1.DeleteOptions`, as far as it has an effect here.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_seconds: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) propagation: Option<String>,
}

impl DeleteOptions {
    pub(crate) fn now() -> Self {
        Self { grace_seconds: Some(0), ..Self::default() }
    }

    pub(crate) fn parse(body: &Value) -> Self {
        let string = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        Self {
            grace_seconds: obj::int(body, "/gracePeriodSeconds"),
            uid: string("/preconditions/uid"),
            resource_version: string("/preconditions/resourceVersion"),
            propagation: string("/propagationPolicy"),
        }
    }
}

/// How far a deletion got.
#[derive(Debug, Clone)]
pub(crate) enum Deleted {
    /// No longer there; its last state.
    Gone(Arc<Stored>),
    /// Marked; somebody else has to finish.
    Going(Arc<Stored>),
}

pub(crate) fn delete(txn: &mut Txn<'_>, kind: &ResourceKind, key: &ObjKey, options: &DeleteOptions) -> Result<Deleted, ApiError> {
    let stored = txn.get(&kind.storage, key).ok_or_else(|| ApiError::not_found(kind, &key.name))?;
    let mut object = stored.value(kind);
    preconditions(kind, &object, options)?;
    if kind.is("namespaces") && !obj::list(&object, "/spec/finalizers").is_empty() {
        obj::child(&mut object, "status").insert("phase".into(), json!("Terminating"));
        return Ok(mark(txn, kind, object, 0));
    }
    let grace = grace_seconds(kind, &object, options);
    hold_for_dependents(&mut object, options);
    if grace > 0 {
        let running = obj::int(&object, "/metadata/deletionGracePeriodSeconds").filter(|_| obj::terminating(&object));
        if running.is_some_and(|running| running <= grace) {
            return Ok(Deleted::Going(stored));
        }
        return Ok(mark(txn, kind, object, grace));
    }
    if !obj::finalizers(&object).is_empty() {
        return Ok(mark(txn, kind, object, 0));
    }
    txn.remove(kind, key).map(Deleted::Gone).ok_or_else(|| ApiError::not_found(kind, &key.name))
}

fn preconditions(kind: &ResourceKind, object: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let name = obj::name(object);
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != obj::uid(object)) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {}", obj::uid(object));
        return Err(ApiError::conflict(kind, name, &why));
    }
    if let Some(version) = options.resource_version.as_deref().filter(|version| *version != obj::resource_version(object)) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            obj::resource_version(object)
        );
        return Err(ApiError::conflict(kind, name, &why));
    }
    Ok(())
}

/// Only pods have a grace, and only while something runs.
fn grace_seconds(kind: &ResourceKind, object: &Value, options: &DeleteOptions) -> i64 {
    if !kind.is("pods") || obj::text(object, "/spec/nodeName").is_empty() || obj::pod_finished(object) {
        return 0;
    }
    let own = obj::int(object, "/spec/terminationGracePeriodSeconds").unwrap_or(super::defaults::GRACE_SECONDS);
    options.grace_seconds.unwrap_or(own).max(0)
}

fn hold_for_dependents(object: &mut Value, options: &DeleteOptions) {
    let finalizer = match options.propagation.as_deref() {
        Some("Foreground") => "foregroundDeletion",
        Some("Orphan") => "orphan",
        _ => return,
    };
    let finalizers = obj::metadata(object).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(finalizers) = finalizers.as_array_mut()
        && !finalizers.contains(&json!(finalizer))
    {
        finalizers.push(json!(finalizer));
    }
}

fn mark(txn: &mut Txn<'_>, kind: &ResourceKind, mut object: Value, grace: i64) -> Deleted {
    let end = clock::stamp(txn.clock.now() + chrono::Duration::seconds(grace));
    let first = !obj::terminating(&object);
    let metadata = obj::metadata(&mut object);
    if first || grace > 0 || kind.is("pods") {
        metadata.insert("deletionTimestamp".into(), json!(end));
        metadata.insert("deletionGracePeriodSeconds".into(), json!(grace));
    }
    if first && kind.generation {
        let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(1) + 1;
        metadata.insert("generation".into(), json!(generation));
    }
    let before = txn.get(&kind.storage, &ObjKey::of(&object));
    match before {
        Some(before) if before.value(kind) == object => Deleted::Going(before),
        _ => Deleted::Going(txn.put(kind, object)),
    }
}
