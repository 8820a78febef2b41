//! A JSON patch of one node, bound to its UID and resourceVersion. Collects our changes and writes them as whole values,
//! so that the same code works whether or not a map or array exists yet.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::NodeFacts;

/// A patch in the making.
pub(crate) struct Patch {
    ops: Vec<Value>,
    labels_exist: bool,
    annotations_exist: bool,
    labels_new: BTreeMap<String, String>,
    annotations_new: BTreeMap<String, String>,
    unschedulable_exists: bool,
    taints_exist: bool,
}

impl Patch {
    /// Bound to the node as it was read.
    pub(crate) fn bound(node: &NodeFacts) -> Self {
        Self {
            ops: vec![
                json!({"op": "test", "path": "/metadata/uid", "value": node.uid}),
                json!({"op": "replace", "path": "/metadata/resourceVersion", "value": node.resource_version}),
            ],
            labels_exist: node.labels.is_some(),
            annotations_exist: node.annotations.is_some(),
            labels_new: BTreeMap::new(),
            annotations_new: BTreeMap::new(),
            unschedulable_exists: node.unschedulable.is_some(),
            taints_exist: !node.taints.is_empty(),
        }
    }

    /// Sets a label, or takes it away. The caller knows that a label which it takes away is there.
    pub(crate) fn label(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) if self.labels_exist => self.ops.push(json!({"op": "add", "path": path("labels", key), "value": value})),
            Some(value) => drop(self.labels_new.insert(key.to_owned(), value.to_owned())),
            None => self.ops.push(json!({"op": "remove", "path": path("labels", key)})),
        }
    }

    /// Sets an annotation.
    pub(crate) fn annotation(&mut self, key: &str, value: &str) {
        if self.annotations_exist {
            self.ops.push(json!({"op": "add", "path": path("annotations", key), "value": value}));
        } else {
            self.annotations_new.insert(key.to_owned(), value.to_owned());
        }
    }

    /// Writes the whole array of taints; an empty one goes away.
    pub(crate) fn taints(&mut self, taints: Vec<Value>) {
        if !taints.is_empty() {
            self.ops.push(json!({"op": "add", "path": "/spec/taints", "value": taints}));
        } else if self.taints_exist {
            self.ops.push(json!({"op": "remove", "path": "/spec/taints"}));
        }
    }

    /// Sets or takes away the cordon.
    pub(crate) fn unschedulable(&mut self, value: Option<bool>) {
        match value {
            Some(value) => self.ops.push(json!({"op": "add", "path": "/spec/unschedulable", "value": value})),
            None if self.unschedulable_exists => self.ops.push(json!({"op": "remove", "path": "/spec/unschedulable"})),
            None => {}
        }
    }

    /// The patch's JSON.
    pub(crate) fn build(mut self) -> Value {
        if !self.labels_new.is_empty() {
            self.ops.push(json!({"op": "add", "path": "/metadata/labels", "value": self.labels_new}));
        }
        if !self.annotations_new.is_empty() {
            self.ops.push(json!({"op": "add", "path": "/metadata/annotations", "value": self.annotations_new}));
        }
        Value::Array(self.ops)
    }
}

/// RFC 6901: `~` is `~0`, `/` is `~1`.
fn path(map: &str, key: &str) -> String {
    format!("/metadata/{map}/{}", key.replace('~', "~0").replace('/', "~1"))
}
