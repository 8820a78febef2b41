//! Namespaces: a terminating one is emptied, and goes when nothing is left. A new one gets its default service account.

use serde_json::{Value, json};

use crate::obj;
use crate::store::{ObjKey, Store};

fn terminating(store: &Store, name: &str) -> Option<bool> {
    let namespace = store.load("namespaces", &ObjKey::new("", name))?.bare();
    Some(obj::text(&namespace, "/status/phase") == "Terminating")
}

pub(super) fn furnish(store: &Store, name: &str) {
    let missing = store.load("serviceaccounts", &ObjKey::new(name, "default")).is_none();
    if missing && terminating(store, name) == Some(false) {
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": name } });
        super::settle(store.create(account), "create the default service account");
    }
}

pub(super) fn finish(store: &Store, name: &str) {
    if terminating(store, name) != Some(true) {
        return;
    }
    let inside = || store.everywhere(|key, _| &*key.namespace == name);
    for (storage, key) in inside() {
        let going = store.load(&storage, &key).is_none_or(|stored| obj::terminating(&stored.bare()));
        if !going {
            super::settle(store.delete(&storage, &key.namespace, &key.name), "empty a namespace");
        }
    }
    if inside().is_empty() {
        let emptied = store.edit("namespaces", "", name, |namespace| {
            obj::child(namespace, "spec").insert("finalizers".into(), Value::Array(Vec::new()));
        });
        super::settle(emptied, "let a namespace go");
    }
}
