//! A node as far as marking, releasing and verifying look at it. Taints stay raw JSON: whole arrays are written back,
//! so that a field which this version does not know must survive the round trip.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{
    command::Command,
    kubernetes::{ANNOTATION_PLAN_REVISION, LABEL_STATUS, STATUS_FAULTY, TAINT_EFFECT, TAINT_FAULTY},
};
use serde_json::Value;

/// What we read of a node, at one resourceVersion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion` that all of this was read at.
    pub resource_version: String,
    /// `metadata.labels`; `None` when the object has no such map, which matters to a JSON patch.
    pub labels: Option<BTreeMap<String, String>>,
    /// `metadata.annotations`, likewise.
    pub annotations: Option<BTreeMap<String, String>>,
    /// `spec.taints`, raw and in order; empty when absent.
    pub taints: Vec<Value>,
    /// `spec.unschedulable` as it stands; `None` when absent.
    pub unschedulable: Option<bool>,
    /// Field managers of `spec.unschedulable`: who set it as it stands. Empty when nobody is known.
    pub unschedulable_by: BTreeSet<String>,
    /// `status.nodeInfo.bootID`.
    pub boot_id: String,
    /// The Ready condition is True.
    pub ready: bool,
}

impl NodeFacts {
    /// From the node's JSON as the API server gives it.
    ///
    /// # Errors
    /// When what identifies the node is missing: it is then no node to act on.
    pub fn from_json(node: &Value) -> Result<Self, Error> {
        let text = |pointer: &'static str| {
            node.pointer(pointer)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(ToOwned::to_owned)
                .ok_or(Error { pointer })
        };
        let map = |pointer: &str| node.pointer(pointer).and_then(Value::as_object).map(texts);
        Ok(Self {
            name: text("/metadata/name")?,
            uid: text("/metadata/uid")?,
            resource_version: text("/metadata/resourceVersion")?,
            labels: map("/metadata/labels"),
            annotations: map("/metadata/annotations"),
            taints: node.pointer("/spec/taints").and_then(Value::as_array).cloned().unwrap_or_default(),
            unschedulable: node.pointer("/spec/unschedulable").and_then(Value::as_bool),
            unschedulable_by: unschedulable_by(node),
            boot_id: node.pointer("/status/nodeInfo/bootID").and_then(Value::as_str).unwrap_or_default().to_owned(),
            ready: is_ready(node),
        })
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// The highest plan revision that wrote to this node; `None` when none has, or nobody can read it.
    #[must_use]
    pub fn plan_revision(&self) -> Option<u64> {
        self.annotation(ANNOTATION_PLAN_REVISION)?.parse().ok()
    }

    /// Whether it shows that this command has written to it, whatever the command's record says: the patch may have been the last
    /// thing that a leader did.
    #[must_use]
    pub fn written_by(&self, command: &Command) -> bool {
        command.writes_node() && self.uid == command.target.node.uid.as_str() && self.plan_revision() == Some(command.plan_rev)
    }

    /// Whether a taint of this key is on it, whatever its effect.
    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        self.taints.iter().any(|taint| taint.get("key").and_then(Value::as_str) == Some(key))
    }

    /// Whether somebody has seen to it that no new pods are to come: by our label or taint, or by a cordon, whoever set that.
    #[must_use]
    pub fn quarantined(&self) -> bool {
        self.marked() || self.unschedulable == Some(true)
    }

    /// Whether our label or our taint is on it.
    #[must_use]
    pub fn marked(&self) -> bool {
        self.label(LABEL_STATUS) == Some(STATUS_FAULTY) || self.taints.iter().any(is_ours)
    }
}

/// Whether a taint is ours: key and effect are a taint's identity, its value is not.
#[must_use]
pub fn is_ours(taint: &Value) -> bool {
    let text = |field: &str| taint.get(field).and_then(Value::as_str);
    text("key") == Some(TAINT_FAULTY) && text("effect") == Some(TAINT_EFFECT)
}

/// An entry without fields is one of a node that was trimmed to those of this field.
fn unschedulable_by(node: &Value) -> BTreeSet<String> {
    let entries = node.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let names_it = |entry: &&Value| {
        entry.get("fieldsV1").is_none_or(|fields| fields.is_null() || fields.pointer("/f:spec/f:unschedulable").is_some())
    };
    entries.filter(names_it).filter_map(|entry| Some(entry.get("manager")?.as_str()?.to_owned())).collect()
}

fn texts(map: &serde_json::Map<String, Value>) -> BTreeMap<String, String> {
    map.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// A node without what identifies it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node has no {pointer}")]
pub struct Error {
    pointer: &'static str,
}
