//! Direct helpers for tests, the demo and the controllers: the rules of `rest`, without HTTP, faults and recorder.

use serde_json::{Value, json};

use super::{ObjKey, Store};
use crate::managed::DIRECT as MANAGER;
use crate::obj;
use crate::patch;
use crate::registry::ResourceKind;
use crate::rest::{self, DeleteOptions, Part, WriteOptions};
use crate::status::ApiError;
use std::sync::Arc;

impl Store {
    fn kind_of(&self, word: &str) -> Result<Arc<ResourceKind>, ApiError> {
        self.lock().registry.find_loose(word).ok_or_else(ApiError::no_such_path)
    }

    fn kind_of_object(&self, object: &Value) -> Result<Arc<ResourceKind>, ApiError> {
        let (api_version, kind) = (obj::text(object, "/apiVersion"), obj::text(object, "/kind"));
        self.lock().registry.find_kind(api_version, kind).ok_or_else(ApiError::no_such_path)
    }

    /// Creates an object as given, status included. Makes its namespace when that is missing.
    pub fn create(&self, object: Value) -> Result<Value, ApiError> {
        let kind = self.kind_of_object(&object)?;
        let status = object.get("status").cloned();
        let namespace = match obj::namespace(&object) {
            "" if kind.namespaced => "default".to_owned(),
            given => given.to_owned(),
        };
        let options = WriteOptions::by(MANAGER);
        self.write(false, |txn| {
            if kind.namespaced {
                rest::ensure_namespace(txn, &namespace, &options)?;
            }
            let stored = rest::create(txn, &kind, &namespace, object, &options)?;
            let Some(status) = status else { return Ok(stored.value(&kind)) };
            let mut object = stored.value(&kind);
            object["status"] = status;
            Ok(rest::update(txn, &kind, object, Part::Status, &options)?.value(&kind))
        })
    }

    /// Reads one object; `resource` is a plural, `plural.group` or a kind.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let kind = self.kind_of(resource).ok()?;
        Some(self.load(&kind.storage, &ObjKey::new(namespace, name))?.value(&kind))
    }

    /// All objects of a resource, in all namespaces.
    pub fn list(&self, resource: &str) -> Vec<Value> {
        let Ok(kind) = self.kind_of(resource) else { return Vec::new() };
        self.snapshot(&kind.storage).0.iter().map(|(_, stored)| stored.value(&kind)).collect()
    }

    /// Merges a patch into an object, spec and status alike.
    pub fn patch_merge(&self, resource: &str, namespace: &str, name: &str, patch: &Value) -> Result<Value, ApiError> {
        self.edit(resource, namespace, name, |object| patch::merge(object, patch))
    }

    /// Changes an object in place, spec and status alike.
    pub fn edit(&self, resource: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> Result<Value, ApiError> {
        let kind = self.kind_of(resource)?;
        let key = ObjKey::new(namespace, name);
        let options = WriteOptions::by(MANAGER);
        self.write(false, |txn| {
            let stored = txn.get(&kind.storage, &key).ok_or_else(|| ApiError::not_found(&kind, name))?;
            let mut object = stored.value(&kind);
            change(&mut object);
            obj::metadata(&mut object).remove("resourceVersion");
            Ok(rest::update(txn, &kind, object, Part::All, &options)?.value(&kind))
        })
    }

    /// Deletes with the object's own grace and finalizers.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<(), ApiError> {
        self.delete_with(resource, namespace, name, &DeleteOptions::default())
    }

    /// Deletes at once: no grace; finalizers still hold.
    pub fn delete_now(&self, resource: &str, namespace: &str, name: &str) -> Result<(), ApiError> {
        self.delete_with(resource, namespace, name, &DeleteOptions::now())
    }

    pub(crate) fn delete_with(&self, resource: &str, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        let kind = self.kind_of(resource)?;
        self.write(false, |txn| rest::delete(txn, &kind, &ObjKey::new(namespace, name), options)).map(drop)
    }

    /// The machine is exchanged under the same name: same spec and labels of the kubelet, new UID.
    /// Marks, taints and annotations of the old one are gone, as after a fresh registration.
    pub fn replace_node(&self, name: &str) -> Result<Value, ApiError> {
        let old = self.get("nodes", "", name).ok_or_else(ApiError::no_such_path)?;
        self.delete_now("nodes", "", name)?;
        let keep = |label: &&str| label.contains("kubernetes.io/") || label.starts_with("nvidia.com/");
        let labels: Value = obj::entries(&old, "/metadata/labels")
            .filter(|(key, _)| keep(key))
            .map(|(k, v)| (k.to_owned(), json!(v)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": labels },
            "spec": {}, "status": old["status"],
        });
        self.create(node)
    }
}
