//! The garbage collector: dependents go when their last owner has gone; foreground and orphaning deletions are finished.

use serde_json::{Value, json};

use crate::obj;
use crate::rest::DeleteOptions;
use crate::store::{ObjKey, Store};

/// How long pods outlive their node's object, as with the real pod collector.
pub(super) const LOST_NODE_AFTER: chrono::Duration = chrono::Duration::seconds(40);

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Deletes what belonged to an owner that is gone, unless another owner still holds it.
pub(super) fn collect(store: &Store, uid: &str) {
    for (storage, key) in store.everywhere(|_, stored| stored.owned_by(uid)) {
        let Some(object) = store.load(&storage, &key).map(|stored| stored.bare()) else { continue };
        let held = obj::list(&object, "/metadata/ownerReferences")
            .iter()
            .any(|owner| obj::text(owner, "/uid") != uid && alive(store, obj::text(owner, "/uid")));
        if !held && !obj::terminating(&object) {
            let options = DeleteOptions { uid: Some(obj::uid(&object).to_owned()), ..DeleteOptions::default() };
            super::settle(store.delete_with(&storage, &key.namespace, &key.name, &options), "collect a dependent");
        }
    }
}

fn alive(store: &Store, uid: &str) -> bool {
    let all = store.everywhere(|_, _| true);
    all.iter().any(|(storage, key)| store.load(storage, key).is_some_and(|stored| obj::uid(&stored.bare()) == uid))
}

/// Pods of a node that is gone and did not come back are gone as well.
pub(super) fn forget_node(store: &Store, name: &str) {
    if store.load(super::NODES, &ObjKey::new("", name)).is_some() {
        return;
    }
    for pod in store.keys(super::PODS, |_, pod| pod.node.as_deref() == Some(name)) {
        super::settle(store.delete_now("pods", &pod.namespace, &pod.name), "forget a pod of a lost node");
    }
}

/// An owner that waits for its dependents: deletes or releases them, then lets the owner go.
pub(super) fn finish_owner(store: &Store, storage: &str, key: &ObjKey) {
    let Some(owner) = store.load(storage, key).map(|stored| stored.bare()) else { return };
    let has = |finalizer: &str| obj::finalizers(&owner).contains(&json!(finalizer));
    let uid = obj::uid(&owner).to_owned();
    let dependents = store.everywhere(|_, stored| stored.owned_by(&uid));
    if has(ORPHAN) {
        for (storage, key) in &dependents {
            super::settle(
                store.edit(storage, &key.namespace, &key.name, |dependent| disown(dependent, &uid)),
                "release a dependent",
            );
        }
        drop_finalizer(store, storage, key, ORPHAN);
    } else if has(FOREGROUND) {
        for (storage, key) in &dependents {
            super::settle(store.delete(storage, &key.namespace, &key.name), "delete a dependent");
        }
        if store.everywhere(|_, stored| stored.owned_by(&uid)).is_empty() {
            drop_finalizer(store, storage, key, FOREGROUND);
        }
    }
}

fn disown(dependent: &mut Value, uid: &str) {
    if let Some(owners) = obj::metadata(dependent).get_mut("ownerReferences").and_then(Value::as_array_mut) {
        owners.retain(|owner| obj::text(owner, "/uid") != uid);
    }
}

fn drop_finalizer(store: &Store, storage: &str, key: &ObjKey, finalizer: &str) {
    let dropped = store.edit(storage, &key.namespace, &key.name, |owner| {
        if let Some(finalizers) = obj::metadata(owner).get_mut("finalizers").and_then(Value::as_array_mut) {
            finalizers.retain(|known| known.as_str() != Some(finalizer));
        }
    });
    super::settle(dropped, "let an owner go");
}
