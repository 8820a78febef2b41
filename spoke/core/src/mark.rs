//! Marking a node: one JSON patch that carries label, taint, annotations and cordon, bound to UID and resourceVersion;
//! and the undo record that must be stored before it is sent. Pure: builds values, sends nothing. Only our own keys are
//! ever written. On a conflict the caller reads the node again and calls [`mark`] again: that is the rebase.
//!
//! `replace /metadata/resourceVersion` makes a lost race a clean 409; `test /metadata/uid` refuses another machine under
//! the same name; taints go as a whole array, since `add /spec/taints/-` fails on a node that has none.

pub mod node;
mod patch;

use gpuheal_proto::{
    command::{Others, Undo, UndoField, UndoKind},
    ids::IncidentId,
    kubernetes::{
        ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PLAN_REVISION, ANNOTATION_PROCESS_ID, LABEL_STATUS, STATUS_FAULTY, TAINT_EFFECT,
        TAINT_FAULTY, TAINT_VALUE,
    },
    time::Timestamp,
};
use serde_json::{Value, json};

pub use self::node::{NodeFacts, is_ours};
pub(crate) use self::patch::Patch;

/// Who writes, and when: what the three annotations say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The incident; `process-id`.
    pub incident: IncidentId,
    /// The command's revision; `plan-revision`.
    pub plan_rev: u64,
    /// Now; `last-process-time`.
    pub at: Timestamp,
}

/// What a mark step asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// Our label.
    pub label: bool,
    /// Our taint.
    pub taint: bool,
    /// `spec.unschedulable`.
    pub cordon: bool,
}

impl Want {
    /// What the mark that stands on a node has set: by its undo record, and by the node itself where that tells nothing. Nothing
    /// when nothing is set.
    #[must_use]
    pub fn standing(record: &Undo, node: &NodeFacts) -> Option<Self> {
        let has = |kind| record.fields.iter().any(|field| field.kind == kind);
        let want = if record.fields.is_empty() {
            Self {
                label: node.label(LABEL_STATUS) == Some(STATUS_FAULTY),
                taint: node.has_taint(TAINT_FAULTY),
                cordon: node.unschedulable == Some(true),
            }
        } else {
            Self { label: has(UndoKind::Label), taint: has(UndoKind::Taint), cordon: has(UndoKind::Unschedulable) }
        };
        (want.label || want.taint || want.cordon).then_some(want)
    }

    /// What of it a person has taken off the node, in words. Only judged once the write of `plan_rev` shows, so that a
    /// watch that lags behind it is not taken for a person; nor is a program that policy calls an automation, where the node says that
    /// it was its hand.
    #[must_use]
    pub fn taken_away(self, node: &NodeFacts, plan_rev: u64, others: &Others) -> Option<&'static str> {
        if node.plan_revision() != Some(plan_rev) {
            return None;
        }
        if self.label && node.label(LABEL_STATUS) != Some(STATUS_FAULTY) {
            return Some("the label");
        }
        if self.taint && !node.has_taint(TAINT_FAULTY) {
            return Some("the taint");
        }
        let automatic = node.unschedulable_by.iter().any(|by| others.automations.contains(by));
        (self.cordon && node.unschedulable != Some(true) && !automatic).then_some("the cordon")
    }
}

/// What to do about a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Marking {
    /// The node already is as asked and carries this plan revision: nothing to write.
    Done {
        /// The record that stands.
        undo: Undo,
    },
    /// Store `undo`, then send `patch`.
    Write {
        /// Before and after of each field, earlier records of ours inherited.
        undo: Undo,
        /// The whole JSON patch.
        patch: Value,
    },
}

impl Marking {
    /// The undo record, written or standing.
    #[must_use]
    pub const fn undo(&self) -> &Undo {
        match self {
            Self::Done { undo } | Self::Write { undo, .. } => undo,
        }
    }
}

/// Plans the patch that brings `node` to `want`. `earlier` is the record of what is ours on it already.
#[must_use]
pub fn mark(node: &NodeFacts, want: Want, stamp: Stamp, earlier: &Undo) -> Marking {
    let mut undo = Undo::default();
    let mut record = |kind, key: &str, before: String, after: String| {
        undo.fields.push(inherit(
            earlier,
            UndoField { kind, key: key.to_owned(), before, after, resource_version: node.resource_version.clone() },
        ));
    };
    let mut patch = Patch::bound(node);
    let mut changed = false;
    if want.label {
        record(UndoKind::Label, LABEL_STATUS, shown(node, UndoKind::Label), json!(STATUS_FAULTY).to_string());
        changed |= node.label(LABEL_STATUS) != Some(STATUS_FAULTY);
        patch.label(LABEL_STATUS, Some(STATUS_FAULTY));
    }
    if want.taint {
        record(UndoKind::Taint, TAINT_FAULTY, shown(node, UndoKind::Taint), taint().to_string());
        let taints = with_taint(&node.taints, taint());
        changed |= taints != node.taints;
        patch.taints(taints);
    }
    if want.cordon {
        record(UndoKind::Unschedulable, "", shown(node, UndoKind::Unschedulable), "true".to_owned());
        // A cordon that is there is not written again: whoever set it stays its manager.
        if node.unschedulable != Some(true) {
            changed = true;
            patch.unschedulable(Some(true));
        }
    }
    // What a mark before this one has set, and this one does not ask for, is ours all the same.
    let unnamed = |old: &&UndoField| undo.fields.iter().all(|field| field.kind != old.kind);
    let kept: Vec<_> = earlier.fields.iter().filter(unnamed).filter(|old| shown(node, old.kind) == old.after).cloned().collect();
    undo.fields.extend(kept);
    let stamped =
        node.plan_revision() == Some(stamp.plan_rev) && node.annotation(ANNOTATION_PROCESS_ID) == Some(&stamp.incident.to_string());
    if !changed && stamped {
        return Marking::Done { undo };
    }
    patch.stamp(stamp);
    Marking::Write { undo, patch: patch.build() }
}

/// Our taint.
#[must_use]
pub fn taint() -> Value {
    json!({"key": TAINT_FAULTY, "value": TAINT_VALUE, "effect": TAINT_EFFECT})
}

/// A field as the node has it, as JSON text; empty when absent.
fn shown(node: &NodeFacts, kind: UndoKind) -> String {
    match kind {
        UndoKind::Label => node.label(LABEL_STATUS).map(|value| json!(value).to_string()),
        UndoKind::Taint => node.taints.iter().find(|taint| node::is_ours(taint)).map(Value::to_string),
        UndoKind::Unschedulable => node.unschedulable.map(|value| value.to_string()),
    }
    .unwrap_or_default()
}

/// A field that still is as we left it keeps the record of how it was before us; anything else is recorded afresh.
fn inherit(earlier: &Undo, field: UndoField) -> UndoField {
    let same = |old: &&UndoField| old.kind == field.kind && old.key == field.key && old.after == field.before;
    earlier.fields.iter().find(same).map_or(field.clone(), |old| UndoField { after: field.after, ..old.clone() })
}

/// The array with exactly one taint of ours: in place of the first one, else at the end. Foreign ones keep their order
/// and every field.
fn with_taint(taints: &[Value], ours: Value) -> Vec<Value> {
    let mut ours = Some(ours);
    let mut all: Vec<Value> =
        taints.iter().filter_map(|taint| if node::is_ours(taint) { ours.take() } else { Some(taint.clone()) }).collect();
    all.extend(ours);
    all
}

impl Patch {
    fn stamp(&mut self, stamp: Stamp) {
        self.annotation(ANNOTATION_LAST_PROCESS_TIME, &stamp.at.to_string());
        self.annotation(ANNOTATION_PROCESS_ID, &stamp.incident.to_string());
        self.annotation(ANNOTATION_PLAN_REVISION, &stamp.plan_rev.to_string());
    }

    /// For a release: it writes the same annotations.
    pub(crate) fn stamped(mut self, stamp: Stamp) -> Self {
        self.stamp(stamp);
        self
    }
}

#[cfg(test)]
mod tests;
