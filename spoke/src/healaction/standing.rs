//! What the records of a cluster say is ours on its nodes now. Pure. The latest mark's counts, unless a later release has
//! undone it.

use std::collections::BTreeMap;

use gpuheal_proto::command::{CommandState, Undo};
use gpuheal_spoke_core::mark::NodeFacts;

use super::{HealAction, StepRecord, state, undo_of};

/// The record of the mark that stands on each node, by the node's UID.
#[must_use]
pub fn standing_marks<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone) -> BTreeMap<&'a str, &'a HealAction> {
    let mut released: BTreeMap<&str, u64> = BTreeMap::new();
    for action in actions.clone() {
        if action.spec.action == "release" && state(action) == CommandState::Succeeded {
            let known = released.entry(&action.spec.node_uid).or_default();
            *known = (*known).max(action.spec.plan_revision);
        }
    }
    let mut latest: BTreeMap<&str, &HealAction> = BTreeMap::new();
    for action in actions.filter(|action| marked_node(action)) {
        let node = action.spec.node_uid.as_str();
        let stands = released.get(node).is_none_or(|released| action.spec.plan_revision > *released);
        let newer = latest.get(node).is_none_or(|known| action.spec.plan_revision > known.spec.plan_revision);
        if stands && newer {
            latest.insert(node, action);
        }
    }
    latest
}

/// What is ours on a node by its standing mark's record. One that is not of the node's own plan revision is out of date:
/// another command has written to the node since, and its record is gone.
#[must_use]
pub fn standing_undo<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone, node: &NodeFacts) -> Undo {
    let of_node = actions.filter(|action| action.spec.node_uid == node.uid);
    let standing = standing_marks(of_node).into_values().next();
    let current = |action: &&HealAction| node.plan_revision().is_none_or(|seen| seen == action.spec.plan_revision);
    standing.filter(current).map(undo_of).unwrap_or_default()
}

/// It has changed its node: its undo record is needed until the release.
#[must_use]
pub fn marked_node(action: &HealAction) -> bool {
    let done = |step: &StepRecord| step.name == "mark" && step.state == "done";
    let unclear = matches!(state(action), CommandState::Unknown | CommandState::Started | CommandState::Received);
    let has_undo = !undo_of(action).fields.is_empty();
    has_undo && (unclear || action.status.as_ref().is_some_and(|status| status.steps.iter().any(done)))
}
