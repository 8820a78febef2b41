//! What the records of a cluster say is ours on its nodes now, and which of them nobody needs any more. Pure. The latest
//! mark's counts, unless a later release has undone it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use gpuheal_proto::command::{CommandState, Undo};
use gpuheal_spoke_core::mark::NodeFacts;

use super::{HealAction, StepRecord, is_final, state, undo_of};

/// Records of drains that are kept for each node while a mark stands there: a node has 16 GPUs at most, each with a drain of its own,
/// and an owner is left alone after three commands. At 16 KiB each they are 768 KiB of what etcd holds.
const COUNTED_MAX: usize = 48;

/// The record of the mark that stands on each node, by the node's UID.
#[must_use]
pub fn standing_marks<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone) -> BTreeMap<&'a str, &'a HealAction> {
    let released = released(actions.clone());
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

/// Up to which plan revision each node was released.
#[must_use]
pub fn released<'a>(actions: impl Iterator<Item = &'a HealAction>) -> BTreeMap<&'a str, u64> {
    let mut released: BTreeMap<&str, u64> = BTreeMap::new();
    for action in actions.filter(|action| is_release(action)) {
        let known = released.entry(&action.spec.node_uid).or_default();
        *known = (*known).max(action.spec.plan_revision);
    }
    released
}

/// It has undone the marks before it.
fn is_release(action: &HealAction) -> bool {
    action.spec.action == "release" && state(action) == CommandState::Succeeded
}

/// Those that may be let go now: what has ended and the hub has acked. A mark only when its release is acked too; that
/// release only when no mark before it is held any more, since nobody else says that they may go.
#[must_use]
pub fn may_go<'a>(
    actions: impl Iterator<Item = &'a HealAction> + Clone,
    acked: impl Fn(&HealAction) -> bool,
) -> Vec<&'a HealAction> {
    // One that is not held was let go, and was acked then, perhaps to another leader.
    let released = released(actions.clone().filter(|action| !action.held() || acked(action)));
    let held_marks: Vec<_> = actions.clone().filter(|action| action.held() && marked_node(action)).collect();
    let marks_before = |release: &HealAction| {
        let mut before = held_marks.iter();
        before.any(|mark| mark.spec.node_uid == release.spec.node_uid && mark.spec.plan_revision < release.spec.plan_revision)
    };
    let over = actions.filter(|action| action.held() && is_final(action) && acked(action));
    over.filter(|action| {
        if marked_node(action) {
            released.get(action.spec.node_uid.as_str()).is_some_and(|upto| action.spec.plan_revision < *upto)
        } else {
            !is_release(action) || !marks_before(action)
        }
    })
    .collect()
}

/// Ids of the drains by which it is told whose pods keep coming back to a node: of each node that a mark of ours stands on the latest
/// that evicted anybody, until the release. However long a repair takes, what has come back three times is not evicted once more.
#[must_use]
pub fn counted<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone) -> BTreeSet<&'a str> {
    let (standing, released) = (standing_marks(actions.clone()), released(actions.clone()));
    let mut drains: BTreeMap<&str, Vec<&HealAction>> = BTreeMap::new();
    for action in actions.filter(|action| has_evicted(action)) {
        let node = action.spec.node_uid.as_str();
        let counts = released.get(node).is_none_or(|released| action.spec.plan_revision > *released);
        if counts && standing.contains_key(node) {
            drains.entry(node).or_default().push(action);
        }
    }
    let latest = drains.into_values().flat_map(|mut drains| {
        drains.sort_by_key(|action| Reverse(action.spec.plan_revision));
        drains.truncate(COUNTED_MAX);
        drains
    });
    latest.map(HealAction::id).collect()
}

fn has_evicted(action: &HealAction) -> bool {
    let pods = action.status.iter().flat_map(|status| &status.steps).flat_map(|step| &step.pods);
    pods.into_iter().any(|pod| pod.eviction_calls > 0)
}

/// Marks that are held though all of them has been told: whose release is still to come.
#[must_use]
pub fn await_release<'a>(
    actions: impl Iterator<Item = &'a HealAction>,
    acked: impl Fn(&HealAction) -> bool,
) -> Vec<&'a HealAction> {
    actions.filter(|action| action.held() && is_final(action) && marked_node(action) && acked(action)).collect()
}

/// What is ours on a node by its standing mark's record. One that is not of the node's own plan revision is out of date:
/// another command has written to the node since, and its record is gone.
#[must_use]
pub fn standing_undo<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone, node: &NodeFacts) -> Undo {
    let of_node = actions.filter(|action| action.spec.node_uid == node.uid);
    let standing = standing_marks(of_node.clone()).into_values().next();
    let current = |action: &&HealAction| node.plan_revision().is_none_or(|seen| seen == action.spec.plan_revision);
    let mut of_node = of_node;
    standing.filter(current).or_else(|| of_node.find(|action| wrote_unrecorded(action, node))).map(undo_of).unwrap_or_default()
}

/// Its leader died between the patch and the record of it, and the next one called it off or failed: that it was done the
/// node alone tells, by the revision that only its patch can have written. A person may have taken label and taint off since: the
/// cordon that is left is ours all the same.
fn wrote_unrecorded(action: &HealAction, node: &NodeFacts) -> bool {
    let over = matches!(state(action), CommandState::Cancelled | CommandState::Failed);
    let theirs = node.plan_revision() == Some(action.spec.plan_revision);
    over && theirs && action.spec.action != "release" && !undo_of(action).fields.is_empty()
}

/// It has changed its node: its undo record is needed until the release.
#[must_use]
pub fn marked_node(action: &HealAction) -> bool {
    let done = |step: &StepRecord| step.name == "mark" && step.state == "done";
    let unclear = matches!(state(action), CommandState::Unknown | CommandState::Started | CommandState::Received);
    let has_undo = !undo_of(action).fields.is_empty();
    has_undo && (unclear || action.status.as_ref().is_some_and(|status| status.steps.iter().any(done)))
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::{
        command::{UndoField, UndoKind},
        kubernetes::{ANNOTATION_PLAN_REVISION, LABEL_STATUS},
    };
    use serde_json::json;

    use super::*;
    use crate::healaction::{HealActionSpec, HealActionStatus, PodRecord, UndoEntry};

    fn mark(plan_revision: u64, state: CommandState) -> HealAction {
        let field = UndoField {
            kind: UndoKind::Label,
            key: LABEL_STATUS.to_owned(),
            before: String::new(),
            after: "\"faulty\"".to_owned(),
            resource_version: "1".to_owned(),
        };
        let spec = HealActionSpec {
            action: "mark".to_owned(),
            node_uid: "u".to_owned(),
            plan_revision,
            undo: vec![UndoEntry::from(&field)],
            ..HealActionSpec::default()
        };
        let mut action = HealAction::named("m", "gpu-selfhealing", spec);
        action.status = Some(HealActionStatus { state: state.to_string(), ..HealActionStatus::default() });
        action
    }

    fn named(name: &str, action: HealAction) -> HealAction {
        let mut action = action;
        action.metadata.name = Some(name.to_owned());
        action
    }

    fn release(plan_revision: u64, state: CommandState) -> HealAction {
        let mut action = named("r", mark(plan_revision, state));
        action.spec.action = "release".to_owned();
        action.spec.undo.clear();
        action
    }

    fn done(plan_revision: u64) -> HealAction {
        let mut action = mark(plan_revision, CommandState::Succeeded);
        let step = StepRecord { name: "mark".into(), state: "done".into(), ..StepRecord::default() };
        action.status.as_mut().unwrap().steps.push(step);
        action
    }

    fn go(actions: &[HealAction], acked: &[&str]) -> Vec<String> {
        may_go(actions.iter(), |action| acked.contains(&action.id())).into_iter().map(|action| action.id().to_owned()).collect()
    }

    #[test]
    fn a_release_goes_after_the_marks_that_it_has_undone() {
        let mut all = [done(1), release(2, CommandState::Succeeded)];
        assert_eq!(go(&all, &["m"]), [""; 0], "its release has not reached the hub");
        assert_eq!(go(&all, &["r"]), [""; 0], "the mark's own outcome has not");
        assert_eq!(go(&all, &["m", "r"]), ["m"]);
        all[0].metadata.finalizers = None;
        assert_eq!(go(&all, &["m", "r"]), ["r"]);
    }

    #[test]
    fn a_mark_whose_release_went_first_is_let_go_all_the_same() {
        let mut all = [done(1), release(2, CommandState::Succeeded)];
        all[1].metadata.finalizers = None;
        assert_eq!(go(&all, &["m"]), ["m"], "as an older version left it");
    }

    #[test]
    fn a_release_that_failed_lets_no_mark_go_and_one_before_the_mark_neither() {
        assert_eq!(go(&[done(1), release(2, CommandState::Failed)], &["m", "r"]), ["r"]);
        assert_eq!(go(&[done(3), release(2, CommandState::Succeeded)], &["m", "r"]), ["r"]);
    }

    fn drained(name: &str, plan_revision: u64) -> HealAction {
        let mut action = named(name, mark(plan_revision, CommandState::Succeeded));
        action.spec.undo.clear();
        let pod = PodRecord { eviction_calls: 1, ..PodRecord::default() };
        let step = StepRecord { name: "drain".into(), pods: vec![pod], ..StepRecord::default() };
        action.status.as_mut().unwrap().steps.push(step);
        action
    }

    #[test]
    fn drains_count_while_the_mark_stands_and_the_latest_of_too_many() {
        let some = vec![done(1), drained("a", 2), drained("b", 3), release(9, CommandState::Failed)];
        let ids = |actions: &[HealAction]| counted(actions.iter()).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>();
        assert_eq!(ids(&some), ["a", "b"]);
        assert_eq!(ids(&some[1..]), [""; 0], "there is no mark");
        assert_eq!(ids(&[some.clone(), vec![release(4, CommandState::Succeeded)]].concat()), [""; 0]);
        let again = [some, vec![release(4, CommandState::Succeeded), named("m2", done(5)), drained("c", 6)]].concat();
        assert_eq!(ids(&again), ["c"], "a release counts anew");
        let many: Vec<_> = (2..62).map(|n| drained(&format!("d{n:02}"), n)).chain([done(1)]).collect();
        let kept = ids(&many);
        assert_eq!((kept.len(), kept[0].as_str(), kept[47].as_str()), (COUNTED_MAX, "d14", "d61"));
    }

    fn node(plan_revision: &str) -> NodeFacts {
        let metadata = json!({
            "name": "n", "uid": "u", "resourceVersion": "5", "labels": {LABEL_STATUS: "faulty"},
            "annotations": {ANNOTATION_PLAN_REVISION: plan_revision},
        });
        NodeFacts::from_json(&json!({"metadata": metadata, "spec": {}})).unwrap()
    }

    #[test]
    fn a_mark_that_was_written_and_not_recorded_before_its_command_was_called_off_is_still_ours() {
        for state in [CommandState::Cancelled, CommandState::Failed] {
            assert_eq!(standing_undo([mark(1, state)].iter(), &node("1")).fields.len(), 1, "{state}");
            assert!(standing_undo([mark(1, state)].iter(), &node("2")).fields.is_empty(), "{state}: another has written since");
            let unmarked = NodeFacts { labels: None, ..node("1") };
            assert_eq!(standing_undo([mark(1, state)].iter(), &unmarked).fields.len(), 1, "{state}: a person took the label off");
        }
        assert!(standing_undo([mark(1, CommandState::Refused)].iter(), &node("1")).fields.is_empty(), "it did nothing");
    }
}
