//! Marks by which others say that they are at work on a node, or that it is not to be touched. Data, not code: a new one
//! is a line here. The words are other projects' interfaces.

use gpuheal_proto::kubernetes::LABEL_OPT_OUT;

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

/// Who else is at work on the node, by its mark.
#[must_use]
pub fn foreign(node: &NodeFacts) -> Option<String> {
    if let Some(taint) = TAINTS.iter().find(|key| node.has_taint(key)) {
        return Some(format!("taint {taint}"));
    }
    let value = |key: &str| node.label(key).or_else(|| node.annotation(key));
    if let Some((key, value)) = KEYS.iter().find(|(key, word)| value(key) == Some(word)) {
        return Some(format!("{key}={value}"));
    }
    let upgrade = node.label(DRIVER_UPGRADE).unwrap_or_default();
    (!DRIVER_UPGRADE_AT_REST.contains(&upgrade)).then(|| format!("{DRIVER_UPGRADE}={upgrade}"))
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
