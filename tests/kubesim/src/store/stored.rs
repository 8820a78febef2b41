//! One version of one object, as the store keeps it: JSON text without `apiVersion` and `kind`,
//! and beside it what lists filter by most. Text, because a node as a tree of maps takes five times the memory.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::obj;
use crate::registry::{ResourceKind, View};

/// Namespace and name; cluster-wide objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjKey {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl ObjKey {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: Arc::from(namespace), name: Arc::from(name) }
    }

    pub(crate) fn of(object: &Value) -> Self {
        Self::new(obj::namespace(object), obj::name(object))
    }
}

#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) rv: u64,
    text: Box<str>,
    labels: Box<[(Box<str>, Box<str>)]>,
    /// `spec.nodeName`, the selector that every drain uses.
    pub(crate) node: Option<Box<str>>,
    /// UIDs of the owners, for the collectors.
    owners: Box<[Box<str>]>,
    /// Being deleted, and held by a finalizer.
    pub(crate) is_held: bool,
}

impl Stored {
    pub(crate) fn new(mut object: Value, rv: u64) -> Self {
        obj::metadata(&mut object).insert("resourceVersion".into(), json!(rv.to_string()));
        let map = object.as_object_mut().expect("metadata() made it an object");
        map.remove("kind");
        map.remove("apiVersion");
        let labels = obj::entries(&object, "/metadata/labels").map(|(k, v)| (k.into(), v.into())).collect();
        let node = Some(obj::text(&object, "/spec/nodeName")).filter(|node| !node.is_empty()).map(Into::into);
        let is_held = obj::terminating(&object) && !obj::finalizers(&object).is_empty();
        let owners = obj::list(&object, "/metadata/ownerReferences").iter().map(|owner| obj::text(owner, "/uid").into()).collect();
        Self { rv, text: object.to_string().into(), labels, node, owners, is_held }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| &**known == key).map(|(_, value)| &**value)
    }

    pub(crate) fn owned_by(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| &**owner == uid)
    }

    /// The object as this kind shows it.
    pub(crate) fn value(&self, kind: &ResourceKind) -> Value {
        let mut object: Value = serde_json::from_str(&self.text).expect("the text was written by serde_json");
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind);
        match kind.view {
            View::Same => object,
            View::EventsV1 => super::events::to_events_v1(object),
        }
    }

    /// The JSON text as this kind shows it.
    pub(crate) fn json(&self, kind: &ResourceKind) -> String {
        match kind.view {
            View::Same => format!("{}{}", kind.prefix, &self.text[1..]),
            View::EventsV1 => self.value(kind).to_string(),
        }
    }

    /// The text as it stands in a list: built-in lists leave the type out of their items.
    pub(crate) fn json_in_list(&self, kind: &ResourceKind) -> String {
        match (kind.view, &kind.custom) {
            (View::Same, None) => self.text.to_string(),
            (View::Same, Some(_)) => self.json(kind),
            (View::EventsV1, _) => {
                let mut object = self.value(kind);
                let map = object.as_object_mut().expect("a stored object is a map");
                map.remove("kind");
                map.remove("apiVersion");
                object.to_string()
            }
        }
    }

    /// The bare tree, without types, for field selectors and comparisons.
    pub(crate) fn bare(&self) -> Value {
        serde_json::from_str(&self.text).expect("the text was written by serde_json")
    }

    pub(crate) fn bytes(&self) -> usize {
        self.text.len()
    }
}
