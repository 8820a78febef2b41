//! Workloads that are evicted from one node again and again, command after command: their owner tolerates the taint, or names
//! the node, and evicting them for ever helps nobody. Pure: reads what the cluster's records say, and holds back. A pod that
//! an earlier command has met, and that a budget kept there, has not come back.
//!
//! Within one drain `jobs::returns` does the same.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_spoke_core::drain::{Plan, PodFacts, pod::Owner};

use crate::healaction::{self, HealAction, PodRecord};

/// Commands that may evict pods of one owner from a node, with new ones there after each, before it is released. The first moves its
/// work. The second meets what came before the scheduler saw the taint, the third what an escalation found there. Nothing
/// explains a fourth but an owner that puts its pods there whatever we do.
const COMMANDS_MAX: usize = 3;

/// What an earlier command did on the node.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Owners of the pods that it evicted, by UID.
    evicted: BTreeSet<String>,
    /// Pods that were there when it began.
    there: BTreeSet<String>,
}

/// The commands since the node was last released, this one left out.
pub(super) fn earlier<'a>(actions: impl Iterator<Item = &'a HealAction> + Clone, node_uid: &str, command: &str) -> Vec<Earlier> {
    let of_node = actions.filter(|action| action.spec.node_uid == node_uid);
    let released = healaction::released(of_node.clone()).get(node_uid).copied().unwrap_or(0);
    let since = of_node.filter(|action| action.spec.plan_revision > released && action.id() != command);
    since.map(of).collect()
}

fn of(action: &HealAction) -> Earlier {
    let pods = || action.status.iter().flat_map(|status| &status.steps).flat_map(|step| &step.pods);
    let owners = pods().filter(|pod| was_evicted(pod)).map(|pod| pod.owner_uid.clone()).filter(|owner| !owner.is_empty());
    let there = pods().chain(&action.spec.pods).filter(|pod| !pod.came_later).map(|pod| pod.uid.clone());
    Earlier { evicted: owners.collect(), there: there.collect() }
}

/// One whose eviction was refused to the end was not, nor one that had done its work before it was asked for.
fn was_evicted(pod: &PodRecord) -> bool {
    pod.eviction_calls > 0 && matches!(pod.state.as_str(), "gone" | "evicting" | "failed")
}

/// Takes from the plan what has come back too often: it stays, and the node is not called drained. Gives what to tell people, with
/// the owner's UID.
pub(super) fn hold_back(plan: &mut Plan, earlier: &[Earlier]) -> Vec<(String, String)> {
    let had_enough = |pod: &PodFacts| {
        let owner = pod.owner.as_ref()?;
        let came_back = |one: &&Earlier| one.evicted.contains(&owner.uid) && !one.there.contains(&pod.uid);
        let count = earlier.iter().filter(came_back).count();
        (count >= COMMANDS_MAX).then(|| (owner.uid.clone(), words(owner, &pod.namespace, count)))
    };
    let told: BTreeMap<String, String> = plan.planned().filter_map(|planned| had_enough(&planned.pod)).collect();
    plan.hold_back(|pod| had_enough(pod).map(|(_, why)| why));
    told.into_iter().collect()
}

fn words(owner: &Owner, namespace: &str, count: usize) -> String {
    format!(
        "{count} commands have evicted pods of {} {namespace}/{} from this node since it was last released, and others came in their \
         place: stop it, or keep it off the node",
        owner.kind, owner.name
    )
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::command::CommandState;
    use gpuheal_spoke_core::drain::Planned;

    use super::*;
    use crate::healaction::{HealActionSpec, HealActionStatus, StepRecord};

    /// A command that met these pods of the owner `o1`, by UID and state.
    fn drained(plan_revision: u64, pods: &[(&str, &str)]) -> HealAction {
        let pod = |(uid, state): &(&str, &str)| PodRecord {
            uid: (*uid).to_owned(),
            state: (*state).to_owned(),
            eviction_calls: 1,
            owner_uid: "o1".into(),
            ..PodRecord::default()
        };
        let spec = HealActionSpec { node_uid: "u1".into(), plan_revision, ..HealActionSpec::default() };
        let mut action = HealAction::named(&format!("c{plan_revision}"), "ns", spec);
        let step = StepRecord { pods: pods.iter().map(pod).collect(), ..StepRecord::default() };
        action.status = Some(HealActionStatus { steps: vec![step], ..HealActionStatus::default() });
        action
    }

    fn planned(owner: &str, uid: &str) -> Planned {
        let owner = Owner { kind: "CloneSet".into(), name: "web".into(), uid: owner.into() };
        let pod = PodFacts { namespace: "ml".into(), uid: uid.into(), owner: Some(owner), ..PodFacts::default() };
        Planned { pod, after_completion: false }
    }

    /// UIDs of those of a plan that are held back, by the command `c9` on `u1`.
    fn held(actions: &[HealAction], pods: &[Planned]) -> Vec<String> {
        let mut plan = Plan { stateless: pods.to_vec(), ..Plan::default() };
        let told = hold_back(&mut plan, &earlier(actions.iter(), "u1", "c9"));
        assert_eq!(told.is_empty(), plan.skipped.is_empty());
        plan.leftovers().map(|left| left.pod.uid.clone()).collect()
    }

    #[test]
    fn what_came_in_the_place_of_what_three_commands_evicted_stays_and_others_go() {
        let all = [drained(1, &[("a", "gone"), ("b", "gone")]), drained(2, &[("c", "failed")]), drained(3, &[("d", "gone")])];
        let pods = [planned("o1", "e"), planned("o2", "f"), Planned { pod: PodFacts::default(), after_completion: false }];
        assert_eq!(held(&all, &pods), ["e"]);
        assert_eq!(held(&all[..2], &pods), [""; 0], "two are not yet too many");
        let mut elsewhere = all.clone();
        elsewhere[0].spec.node_uid = "u2".into();
        assert_eq!(held(&elsewhere, &pods), [""; 0], "one was on another machine");
        let mut own = all.clone();
        own[2].metadata.name = Some("c9".into());
        assert_eq!(held(&own, &pods), [""; 0], "its own evictions are no return");
    }

    #[test]
    fn a_pod_that_a_budget_kept_there_all_along_has_not_come_back() {
        let all: Vec<_> = (1..=4).map(|n| drained(n, &[(&format!("gone-{n}"), "gone"), ("kept", "blocked")])).collect();
        assert_eq!(held(&all, &[planned("o1", "kept"), planned("o1", "new")]), ["new"]);
    }

    #[test]
    fn one_that_was_seen_to_come_later_has_come_back_and_a_refused_eviction_is_none() {
        let mut all: Vec<_> = (1..=3).map(|n| drained(n, &[(&format!("gone-{n}"), "gone"), ("back", "skipped")])).collect();
        for action in &mut all {
            action.status.as_mut().unwrap().steps[0].pods[1].came_later = true;
        }
        assert_eq!(held(&all, &[planned("o1", "back")]), ["back"]);
        let refused: Vec<_> = (1..=3).map(|n| drained(n, &[("a", "blocked")])).collect();
        assert_eq!(held(&refused, &[planned("o1", "new")]), [""; 0]);
    }

    #[test]
    fn a_release_lets_workloads_come_back() {
        let mut release = drained(3, &[]);
        release.spec.action = "release".into();
        release.status.as_mut().unwrap().state = CommandState::Succeeded.to_string();
        let all = [drained(1, &[("a", "gone")]), drained(2, &[("b", "gone")]), release, drained(4, &[("c", "gone")])];
        assert_eq!(held(&all, &[planned("o1", "d")]), [""; 0]);
    }
}
