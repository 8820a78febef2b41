//! Creating: names, namespaces, identity. Called for POST, for apply of something absent, and by the controllers.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use super::{WriteOptions, defaults, validate};
use crate::managed;
use crate::obj;
use crate::registry::ResourceKind;
use crate::status::{ApiError, Cause};
use crate::store::{ObjKey, Stored, Txn};

/// Random letters that `generateName` adds, as a real server does.
const SUFFIX_LETTERS: usize = 5;
/// No vowels and no look-alikes: no words by accident.
const SUFFIX_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

pub(crate) fn create(
    txn: &mut Txn<'_>,
    kind: &ResourceKind,
    namespace: &str,
    mut object: Value,
    options: &WriteOptions,
) -> Result<Arc<Stored>, ApiError> {
    place(kind, namespace, &mut object)?;
    validate::name(kind, &object)?;
    if !obj::resource_version(&object).is_empty() {
        return Err(ApiError::new(500, "", "resourceVersion should not be set on objects to be created"));
    }
    if kind.namespaced {
        namespace_open(txn, kind, namespace, obj::name(&object))?;
    }
    identify(txn, kind, &mut object);
    defaults::on_create(txn, kind, &mut object);
    validate::object(kind, None, &mut object, options.strict)?;
    let key = ObjKey::of(&object);
    if txn.get(&kind.storage, &key).is_some() {
        return Err(ApiError::already_exists(kind, &key.name));
    }
    managed::track(kind, None, &mut object, options, &txn.clock.stamp());
    Ok(txn.put(kind, object))
}

/// Makes a namespace that the direct helpers were given an object for.
pub(crate) fn ensure_namespace(txn: &mut Txn<'_>, name: &str, options: &WriteOptions) -> Result<(), ApiError> {
    if txn.get("namespaces", &ObjKey::new("", name)).is_some() {
        return Ok(());
    }
    let kind = txn.registry().find("", "v1", "namespaces").expect("the built-in table has namespaces");
    let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    create(txn, &kind, "", object, options).map(drop)
}

fn place(kind: &ResourceKind, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let metadata = obj::metadata(object);
    if kind.namespaced {
        let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != namespace {
            return Err(ApiError::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".into(), json!(namespace));
    } else {
        metadata.remove("namespace");
    }
    let unnamed = metadata.get("name").and_then(Value::as_str).unwrap_or_default().is_empty();
    let stem = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default().to_owned();
    if unnamed && !stem.is_empty() {
        metadata.insert("name".into(), json!(format!("{stem}{}", suffix())));
    } else if unnamed {
        return Err(ApiError::invalid(kind, "", &[Cause::required("metadata.name", "name or generateName is required")]));
    }
    Ok(())
}

/// Random letters for names, from a fresh UUID's randomness.
pub(crate) fn suffix() -> String {
    let random = Uuid::new_v4();
    let letter = |byte: &u8| SUFFIX_ALPHABET[usize::from(*byte) % SUFFIX_ALPHABET.len()] as char;
    random.as_bytes()[..SUFFIX_LETTERS].iter().map(letter).collect()
}

fn namespace_open(txn: &Txn<'_>, kind: &ResourceKind, namespace: &str, name: &str) -> Result<(), ApiError> {
    let namespaces = txn.registry().find("", "v1", "namespaces").expect("the built-in table has namespaces");
    let stored = txn.get("namespaces", &ObjKey::new("", namespace)).ok_or_else(|| ApiError::not_found(&namespaces, namespace))?;
    if obj::text(&stored.bare(), "/status/phase") != "Terminating" {
        return Ok(());
    }
    Err(namespace_terminating(kind, namespace, name))
}

pub(super) fn namespace_terminating(kind: &ResourceKind, namespace: &str, name: &str) -> ApiError {
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    let mut error = ApiError::forbidden(kind, name, &why);
    if let Some(details) = error.details.as_mut() {
        details["causes"] = json!([{
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        }]);
    }
    error
}

fn identify(txn: &Txn<'_>, kind: &ResourceKind, object: &mut Value) {
    let now = txn.clock.stamp();
    let metadata = obj::metadata(object);
    for set_by_server in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation"] {
        metadata.remove(set_by_server);
    }
    metadata.insert("uid".into(), json!(Uuid::new_v4().to_string()));
    metadata.insert("creationTimestamp".into(), json!(now));
    if kind.generation {
        metadata.insert("generation".into(), json!(1));
    }
}
