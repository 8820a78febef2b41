//! Marks by which others say that they are at work on a node, or that it is not to be touched. Data, not code: a new one
//! is a line here. The words are other projects' interfaces.

use gpuheal_proto::{command::Others, kubernetes::LABEL_OPT_OUT};

use crate::mark::NodeFacts;

/// Taints that mean somebody is taking the node away.
const TAINTS: [&str; 4] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "node.cloudprovider.kubernetes.io/shutdown",
];
/// Labels or annotations with the value that means "hands off".
const KEYS: [(&str, &str); 4] = [
    ("remediation.medik8s.io/exclude-from-remediation", "true"),
    ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true"),
    ("karpenter.sh/do-not-disrupt", "true"),
    ("karpenter.sh/do-not-evict", "true"),
];
/// The GPU operator's state of a driver upgrade. While it runs, GPUs vanish and that is no fault.
const DRIVER_UPGRADE: &str = "nvidia.com/gpu-driver-upgrade-state";
/// States of it in which nothing goes on.
const DRIVER_UPGRADE_AT_REST: [&str; 3] = ["", "upgrade-done", "unknown"];

/// Who else is at work on the node, by all of their marks: policy may have one of them ignored, which hides none of the others.
#[must_use]
pub fn all(node: &NodeFacts) -> Vec<String> {
    let taints = TAINTS.iter().filter(|key| node.has_taint(key)).map(|key| format!("taint {key}"));
    let value = |key: &str| node.label(key).or_else(|| node.annotation(key));
    let keys = KEYS.iter().filter(|(key, word)| value(key) == Some(word)).map(|(key, word)| format!("{key}={word}"));
    let upgrade = Some(node.label(DRIVER_UPGRADE).unwrap_or_default()).filter(|state| !DRIVER_UPGRADE_AT_REST.contains(state));
    taints.chain(keys).chain(upgrade.map(|state| format!("{DRIVER_UPGRADE}={state}"))).collect()
}

/// The first of those that keep us off it, by what the command's policy says of others.
#[must_use]
pub fn foreign(node: &NodeFacts, others: &Others) -> Option<String> {
    all(node).into_iter().find(|mark| !others.markers_ignored.contains(mark))
}

/// Whether this annotation is one of those by which others say that they are at work. No other annotation of theirs is read.
#[must_use]
pub fn is_looked_at(annotation: &str) -> bool {
    KEYS.iter().any(|(key, _)| *key == annotation)
}

/// The node's owner keeps us off: the label with any value but `false`.
#[must_use]
pub fn opted_out(node: &NodeFacts) -> bool {
    node.label(LABEL_OPT_OUT).is_some_and(|value| value != "false")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ignoring(marks: &[&str]) -> Others {
        Others { markers_ignored: marks.iter().map(|&mark| mark.to_owned()).collect(), ..Others::default() }
    }

    #[test]
    fn a_mark_that_policy_ignores_hides_none_of_the_others() {
        let node = NodeFacts::from_json(&json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "1",
                "labels": {"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"},
                "annotations": {"karpenter.sh/do-not-disrupt": "true"}},
            "spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
        }))
        .unwrap();
        let marks = [
            "taint karpenter.sh/disrupted",
            "karpenter.sh/do-not-disrupt=true",
            "nvidia.com/gpu-driver-upgrade-state=pod-restart-required",
        ];
        assert_eq!(all(&node), marks);
        assert_eq!(foreign(&node, &Others::default()).as_deref(), Some(marks[0]), "an empty list is the careful one");
        assert_eq!(foreign(&node, &ignoring(&marks[..1])).as_deref(), Some(marks[1]));
        assert_eq!(
            foreign(&node, &ignoring(&["karpenter.sh/do-not-disrupt"])).as_deref(),
            Some(marks[0]),
            "as it is told, or not at all"
        );
        assert_eq!(foreign(&node, &ignoring(&marks)), None);
    }
}
