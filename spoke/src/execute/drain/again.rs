//! Workloads that are evicted from one node again and again, command after command: their owner tolerates the taint, or names
//! the node, and evicting them for ever helps nobody. Pure: counts what the cluster's records say, and holds back.
//!
//! Within one drain [`returns`](super::jobs::returns) does the same.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_spoke_core::drain::{Plan, PodFacts, pod::Owner};

use crate::healaction::{self, HealAction, PodRecord};

/// Commands that may evict pods of one owner from a node before it is released. The first moves its work. The second meets what
/// came before the scheduler saw the taint, or what an escalation found there. The third is for a drain that was cut short.
/// Nothing explains a fourth but an owner that puts its pods there whatever we do.
const COMMANDS_MAX: usize = 3;

/// By how many commands pods of each owner were evicted from a node since it was last released, this command's own left out.
pub(super) fn evicted<'a>(
    actions: impl Iterator<Item = &'a HealAction> + Clone,
    node_uid: &str,
    command: &str,
) -> BTreeMap<String, usize> {
    let of_node = actions.filter(|action| action.spec.node_uid == node_uid);
    let released = healaction::released(of_node.clone()).get(node_uid).copied().unwrap_or(0);
    let since = of_node.filter(|action| action.spec.plan_revision > released && action.id() != command);
    let mut counts = BTreeMap::new();
    for action in since {
        let steps = action.status.iter().flat_map(|status| &status.steps);
        let left = steps.flat_map(|step| &step.pods).filter(|pod| was_evicted(pod));
        let owners: BTreeSet<&str> = left.map(|pod| pod.owner_uid.as_str()).filter(|owner| !owner.is_empty()).collect();
        owners.into_iter().for_each(|owner| *counts.entry(owner.to_owned()).or_default() += 1);
    }
    counts
}

/// One whose eviction was refused to the end was not, nor one that had done its work before it was asked for.
fn was_evicted(pod: &PodRecord) -> bool {
    pod.eviction_calls > 0 && matches!(pod.state.as_str(), "gone" | "evicting" | "failed")
}

/// Takes from the plan whose owner has had its evictions: they stay, and the node is not called drained. Gives what to tell people,
/// with the owner's UID.
pub(super) fn hold_back(plan: &mut Plan, evicted: &BTreeMap<String, usize>) -> Vec<(String, String)> {
    let had_enough = |pod: &PodFacts| {
        let owner = pod.owner.as_ref()?;
        let count = evicted.get(&owner.uid).filter(|count| **count >= COMMANDS_MAX)?;
        Some((owner.uid.clone(), words(owner, &pod.namespace, *count)))
    };
    let told: BTreeMap<String, String> = plan.planned().filter_map(|planned| had_enough(&planned.pod)).collect();
    plan.hold_back(|pod| had_enough(pod).map(|(_, why)| why));
    told.into_iter().collect()
}

fn words(owner: &Owner, namespace: &str, count: usize) -> String {
    format!(
        "{count} commands have evicted pods of {} {namespace}/{} from this node since it was last released, and they come back: \
         stop it, or keep it off the node",
        owner.kind, owner.name
    )
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::command::CommandState;
    use gpuheal_spoke_core::drain::Planned;

    use super::*;
    use crate::healaction::{HealActionSpec, HealActionStatus, StepRecord};

    fn drained(plan_revision: u64, states: &[&str]) -> HealAction {
        let pod = |state: &&str| PodRecord {
            state: (*state).to_owned(),
            eviction_calls: 1,
            owner_uid: "o1".into(),
            ..PodRecord::default()
        };
        let spec = HealActionSpec { node_uid: "u1".into(), plan_revision, ..HealActionSpec::default() };
        let mut action = HealAction::named(&format!("c{plan_revision}"), "ns", spec);
        let step = StepRecord { pods: states.iter().map(pod).collect(), ..StepRecord::default() };
        action.status = Some(HealActionStatus { steps: vec![step], ..HealActionStatus::default() });
        action
    }

    fn count(actions: &[HealAction], node: &str, command: &str) -> Option<usize> {
        evicted(actions.iter(), node, command).get("o1").copied()
    }

    #[test]
    fn a_command_counts_once_however_many_pods_it_evicted_and_one_that_evicted_none_does_not() {
        let all = [drained(1, &["gone", "gone"]), drained(2, &["blocked", "skipped", "waiting"]), drained(3, &["failed"])];
        assert_eq!(count(&all, "u1", "c9"), Some(2));
        assert_eq!(count(&all, "u1", "c3"), Some(1), "its own evictions are no return");
        assert_eq!(count(&all, "u2", "c9"), None, "another machine");
    }

    #[test]
    fn a_release_lets_workloads_come_back() {
        let mut release = drained(3, &[]);
        release.spec.action = "release".into();
        release.status.as_mut().unwrap().state = CommandState::Succeeded.to_string();
        let all = [drained(1, &["gone"]), drained(2, &["gone"]), release, drained(4, &["gone"])];
        assert_eq!(count(&all, "u1", "c9"), Some(1));
    }

    #[test]
    fn whose_owner_has_had_its_evictions_stays_and_others_go() {
        let planned = |owner: &str| {
            let owner = Owner { kind: "CloneSet".into(), name: "web".into(), uid: owner.into() };
            let pod = PodFacts { namespace: "ml".into(), name: owner.uid.clone(), owner: Some(owner), ..PodFacts::default() };
            Planned { pod, after_completion: false }
        };
        let alone = Planned { pod: PodFacts::default(), after_completion: false };
        let mut plan = Plan { stateless: vec![planned("o1"), planned("o2"), alone], ..Plan::default() };
        let counts = BTreeMap::from([("o1".to_owned(), COMMANDS_MAX), ("o2".to_owned(), COMMANDS_MAX - 1)]);
        let told = hold_back(&mut plan, &counts);
        assert_eq!(plan.stateless.len(), 2);
        assert_eq!(plan.leftovers().map(|left| left.pod.name.as_str()).collect::<Vec<_>>(), ["o1"]);
        assert!(told[0].1.starts_with("3 commands have evicted pods of CloneSet ml/web from this node"), "{told:?}");
    }
}
