//! A person's hand on the node is an order. Here it is recognised: a mark of ours that is gone without a command of ours,
//! a cordon of ours taken off, an opt-out label put on; and the opposite, a mark of ours that no incident knows.

use std::time::Duration;

use gpuheal_proto::{command::UndoKind, time::Timestamp, words::Action};

use super::progress::{Progress, Stage};
use crate::{incident::IncidentState, policy::Settings, snapshot::Snapshot};

/// After this long a view of the cluster is newer than our own write, whatever the annotation says: a deleted annotation
/// must not blind us. Watches lag by seconds; two minutes are beyond any relist.
const VIEW_LAG: Duration = Duration::from_secs(120);

/// What a person did, in words, if so.
pub(super) fn overridden(snapshot: &Snapshot, progress: &Progress<'_>, settings: &Settings) -> Option<String> {
    if adopted_mark_gone(snapshot) {
        return Some("our mark, found without an incident, was removed".to_owned());
    }
    if progress.mark != Stage::Done || progress.release != Stage::None && progress.release_failed.is_none() {
        return None;
    }
    let node = &snapshot.node;
    if node.opted_out {
        return Some("the opt-out label was put on the node".to_owned());
    }
    let marking = progress.marking?;
    let after_ours = node.plan_revision >= marking.plan_rev || node.seen_at.since(marking.state_at) > VIEW_LAG;
    if !after_ours {
        return None;
    }
    let ours = Ours::of(snapshot);
    let seen = node.mark.clone().unwrap_or_default();
    if ours.label && !seen.labelled {
        return Some("our label was removed".to_owned());
    }
    if ours.taint && !seen.tainted {
        return Some("our taint was removed".to_owned());
    }
    let by = &node.unschedulable_by;
    if ours.cordon && !node.unschedulable && !settings.automations.contains(by) {
        let by = if by.is_empty() { "somebody" } else { by };
        return Some(format!("the node was uncordoned by {by}"));
    }
    None
}

/// An adopted incident never had a command that marked: it stands on what the cluster shows alone. A cordon of ours by itself
/// is what somebody left who took the mark off, since we never set one without the label.
fn adopted_mark_gone(snapshot: &Snapshot) -> bool {
    let harmed = snapshot.commands.iter().any(|command| matches!(command.action, Action::Mark | Action::Evict));
    let resting = snapshot.incident.as_ref().is_some_and(|incident| incident.state == IncidentState::Validating);
    resting && !harmed && !labelled_or_tainted(snapshot)
}

/// What our record says that we set.
struct Ours {
    label: bool,
    taint: bool,
    cordon: bool,
}

impl Ours {
    fn of(snapshot: &Snapshot) -> Self {
        let fields = snapshot.incident.as_ref().map(|incident| incident.undo.fields.as_slice()).unwrap_or_default();
        if fields.is_empty() {
            // No record came: only a node without label and taint is sure to have been undone.
            return Self { label: !labelled_or_tainted(snapshot), taint: false, cordon: false };
        }
        let has = |kind| fields.iter().any(|field| field.kind == kind);
        let cordon = |field: &gpuheal_proto::command::UndoField| field.kind == UndoKind::Unschedulable && field.before != "true";
        Self { label: has(UndoKind::Label), taint: has(UndoKind::Taint), cordon: fields.iter().any(cordon) }
    }
}

fn labelled_or_tainted(snapshot: &Snapshot) -> bool {
    snapshot.node.mark.as_ref().is_some_and(|mark| mark.labelled || mark.tainted)
}

/// Something of ours is on the node.
pub(super) fn mark_seen(snapshot: &Snapshot) -> bool {
    snapshot.node.mark.as_ref().is_some_and(|mark| mark.labelled || mark.tainted || mark.cordoned_by_us)
}

/// Whether a mark that no open incident knows is really there, and not a view older than our own last release.
pub(super) enum Orphan {
    /// None.
    None,
    /// It is there.
    Found,
    /// The view may be older than our last write: look again then.
    Unsure(Timestamp),
}

/// Looks for one.
pub(super) fn orphan(snapshot: &Snapshot, now: Timestamp) -> Orphan {
    let node = &snapshot.node;
    if snapshot.incident.is_some() || !mark_seen(snapshot) {
        return Orphan::None;
    }
    if node.plan_revision >= node.plan_rev_floor {
        return Orphan::Found;
    }
    // Somebody may have deleted the annotation, or the view is one from before our last write: that lags by seconds, and in
    // a cluster that is cut off by as long as it takes.
    let settled_at = node.written_at.after(VIEW_LAG);
    if now < settled_at {
        Orphan::Unsure(settled_at)
    } else if node.seen_at > node.written_at {
        Orphan::Found
    } else {
        Orphan::Unsure(now.after(VIEW_LAG))
    }
}
