//! Releasing a node: restores exactly what the undo record says was ours, in one JSON patch. Pure: sends nothing.
//! A field that is no longer as we left it belongs to whoever changed it: it stays, and the answer says so. The three
//! annotations are written and stay, since the cooldown and the fence read them.
//!
//! Label and taint bear our name. A cordon bears nobody's, and the hub's record of it may be one of before its database was
//! restored: whose it is the cluster tells itself, see [`cordon`]. No record of a hub takes off what we did not set.

use std::collections::BTreeSet;

use gpuheal_proto::{
    command::{Undo, UndoField, UndoKind},
    kubernetes::{FIELD_MANAGER, LABEL_STATUS, TAINT_FAULTY},
};
use serde_json::Value;

use crate::mark::{NodeFacts, Patch, Stamp, node};

/// Under this name the API server keeps the oldest managers of an object that more than ten have written to.
const FORGOTTEN_MANAGERS: &str = "ancient-changes";

/// What a release does.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// The whole JSON patch.
    pub patch: Value,
    /// Fields put back, by name.
    pub restored: Vec<String>,
    /// Fields left alone, each with why.
    pub left: Vec<String>,
}

/// Whose a cordon is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cordon {
    /// We set it.
    Ours,
    /// We did not, or nobody can tell: it stays.
    Left {
        /// Why, for people.
        why: String,
    },
}

/// Whose the node's cordon is, by what the cluster itself shows: the field's manager, and what the record of the mark that
/// stands, `recorded`, says of it. Neither may deny it, and one must say it. The API server names a manager only for who
/// changed the field, and our patches write none that is set already.
#[must_use]
pub fn cordon(by: &BTreeSet<String>, recorded: Option<bool>) -> Cordon {
    let left = |why: &str| Cordon::Left { why: why.to_owned() };
    if let Some(other) = by.iter().find(|manager| !matches!(manager.as_str(), FIELD_MANAGER | FORGOTTEN_MANAGERS)) {
        return Cordon::Left { why: format!("set by {other}") };
    }
    match recorded {
        Some(false) => left("it was there before our mark"),
        Some(true) => Cordon::Ours,
        None if by.contains(FIELD_MANAGER) => Cordon::Ours,
        None => left("nothing in the cluster says that it is ours"),
    }
}

/// Whether a record says that a cordon is ours. One that does not name it says nothing.
#[must_use]
pub fn cordoned(record: &Undo) -> Option<bool> {
    let field = record.fields.iter().find(|field| field.kind == UndoKind::Unschedulable)?;
    Some(field.before != "true" && field.after == "true")
}

/// Plans the release of `node`. `record` is the cluster's own of the mark that stands, empty where none is left; `asked` is
/// the hub's, and tells only of what that one does not name.
///
/// # Errors
/// When a record names a field that is never ours, or holds no JSON: nothing is then done.
pub fn release(node: &NodeFacts, record: &Undo, asked: &Undo, stamp: Stamp) -> Result<Release, Error> {
    let mut patch = Patch::bound(node);
    let mut taints = node.taints.clone();
    let (mut restored, mut left) = (Vec::new(), Vec::new());
    let unnamed = |field: &&UndoField| record.fields.iter().all(|known| known.kind != field.kind);
    for field in record.fields.iter().chain(asked.fields.iter().filter(unnamed)) {
        let before = before(field)?;
        if current(node, field.kind) != after(field)? {
            left.push(format!("{}: changed by somebody else since", name(field.kind)));
            continue;
        }
        if field.kind == UndoKind::Unschedulable
            && let Cordon::Left { why } = cordon(&node.unschedulable_by, cordoned(record))
        {
            left.push(format!("{}: {why}", name(field.kind)));
            continue;
        }
        match field.kind {
            UndoKind::Label => patch.label(LABEL_STATUS, before.as_ref().and_then(Value::as_str)),
            UndoKind::Taint => restore_taint(&mut taints, before),
            UndoKind::Unschedulable => patch.unschedulable(before.as_ref().and_then(Value::as_bool)),
        }
        restored.push(name(field.kind).to_owned());
    }
    if taints != node.taints {
        patch.taints(taints);
    }
    Ok(Release { patch: patch.stamped(stamp).build(), restored, left })
}

/// The first of ours becomes what it was, or goes; any further one of ours goes.
fn restore_taint(taints: &mut Vec<Value>, mut before: Option<Value>) {
    *taints = std::mem::take(taints)
        .into_iter()
        .filter_map(|taint| if node::is_ours(&taint) { before.take() } else { Some(taint) })
        .collect();
}

fn current(node: &NodeFacts, kind: UndoKind) -> Option<Value> {
    match kind {
        UndoKind::Label => node.label(LABEL_STATUS).map(Value::from),
        UndoKind::Taint => node.taints.iter().find(|taint| node::is_ours(taint)).cloned(),
        UndoKind::Unschedulable => node.unschedulable.map(Value::from),
    }
}

fn before(field: &UndoField) -> Result<Option<Value>, Error> {
    let key = match field.kind {
        UndoKind::Label => LABEL_STATUS,
        UndoKind::Taint => TAINT_FAULTY,
        UndoKind::Unschedulable => "",
    };
    if field.key != key {
        return Err(Error::ForeignKey { kind: field.kind, key: field.key.clone() });
    }
    let value = json(field, &field.before)?;
    match (field.kind, &value) {
        (_, None) | (UndoKind::Label, Some(Value::String(_))) | (UndoKind::Unschedulable, Some(Value::Bool(_))) => Ok(value),
        (UndoKind::Taint, Some(taint)) if node::is_ours(taint) => Ok(value),
        (kind, Some(_)) => Err(Error::Value { kind }),
    }
}

fn after(field: &UndoField) -> Result<Option<Value>, Error> {
    json(field, &field.after)
}

fn json(field: &UndoField, text: &str) -> Result<Option<Value>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|source| Error::Json { kind: field.kind, detail: source.to_string() })
}

const fn name(kind: UndoKind) -> &'static str {
    kind.as_str()
}

/// Why an undo record is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It names something that we never write.
    #[error("undo record names the {kind} {key:?}, which is never ours")]
    ForeignKey {
        /// Kind of the field.
        kind: UndoKind,
        /// Its key.
        key: String,
    },
    /// A value that its field cannot have.
    #[error("undo record has a value that no {kind} of ours can have had")]
    Value {
        /// Kind of the field.
        kind: UndoKind,
    },
    /// No JSON.
    #[error("undo record of the {kind} holds no JSON: {detail}")]
    Json {
        /// Kind of the field.
        kind: UndoKind,
        /// What the parser says.
        detail: String,
    },
}

#[cfg(test)]
mod tests;
