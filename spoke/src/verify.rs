//! Gathers what `gpuheal_spoke_core::verify` judges by: the node as our watch shows it, how each fault stands, what is
//! left of the Lease, how many nodes are out. Judges nothing itself, and asks the API server nothing: a storm of commands
//! costs no reads.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{
    command::Command,
    ids::FaultKey,
    kubernetes::{LABEL_STATUS, STATUS_FAULTY, TAINT_EFFECT, TAINT_FAULTY},
    time::Timestamp,
};
use gpuheal_spoke_core::{
    ceiling::Out,
    mark::NodeFacts,
    verify::{HubNow, Standing},
};
use k8s_openapi::api::core::v1::Node;

use crate::{
    clock::HubClock,
    ports::{self, FaultView},
    watch::Nodes,
};

/// The hub's time as the checks take it.
#[must_use]
pub fn hub_now(clock: &HubClock) -> Option<HubNow> {
    clock.now().map(|(at, uncertainty)| HubNow { at, uncertainty })
}

/// Hub time where it is known, else the wall clock: for records and annotations, never for a deadline.
#[must_use]
pub fn record_now(clock: &HubClock) -> Timestamp {
    clock.now().map_or_else(crate::clock::wall, |(at, _)| at)
}

/// A node from the API's type.
#[must_use]
pub fn node_facts(node: &Node) -> Option<NodeFacts> {
    NodeFacts::from_json(&serde_json::to_value(node).ok()?).ok()
}

/// The target as our watch shows it.
#[must_use]
pub fn cached_node(nodes: &Nodes, name: &str) -> Option<NodeFacts> {
    node_facts(nodes.node(name)?.as_ref())
}

/// How each fault of the command stands by its own source.
#[must_use]
pub fn standing(faults: &dyn FaultView, command: &Command) -> BTreeMap<FaultKey, Standing> {
    let word = |key| match faults.standing(key) {
        ports::Standing::Present => Standing::Present,
        ports::Standing::Cleared => Standing::Cleared,
        ports::Standing::Unknown => Standing::Unknown,
    };
    command.fault_keys.iter().map(|key| (*key, word(key))).collect()
}

/// Whether our label or our taint is on a node, as [`NodeFacts::marked`] says, without a copy of the node: it is asked of every
/// node for every command.
fn marked(node: &Node) -> bool {
    let labelled =
        node.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_STATUS)).is_some_and(|value| value == STATUS_FAULTY);
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    labelled || taints.iter().any(|taint| taint.key == TAINT_FAULTY && taint.effect == TAINT_EFFECT)
}

/// How many GPU nodes are out: marked by us, or about to be by a command that is admitted already.
#[must_use]
pub fn out(nodes: &Nodes, admitted: &BTreeSet<String>, target: &str) -> Out {
    let (mut gpu_nodes, mut others, mut target_out) = (0, 0, false);
    for node in nodes.nodes() {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let marked = marked(&node);
        let gpus = has_gpus(&node);
        gpu_nodes += u32::from(gpus);
        if name == target {
            target_out = marked;
        } else {
            others += u32::from(marked || (gpus && admitted.contains(name)));
        }
    }
    Out { others, gpu_nodes, target: target_out }
}

/// Whether a node has GPUs by its capacity, healthy or not.
#[must_use]
pub fn has_gpus(node: &Node) -> bool {
    let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
    capacity.is_some_and(|all| {
        all.iter()
            .any(|(name, amount)| (name.starts_with("nvidia.com/gpu") || name.starts_with("nvidia.com/mig-")) && amount.0 != "0")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mark_is_seen_on_the_node_itself_as_it_is_in_what_is_read_of_it() {
        let taint =
            |key: &str, effect: &str| json!({"taints": [{"key": "other", "effect": "NoExecute"}, {"key": key, "effect": effect}]});
        let label = |value: &str| json!({LABEL_STATUS: value});
        let cases = [
            (json!({}), json!({}), false),
            (label(STATUS_FAULTY), json!({}), true),
            (label("healthy"), json!({}), false),
            (json!({}), taint(TAINT_FAULTY, TAINT_EFFECT), true),
            (json!({}), taint(TAINT_FAULTY, "NoExecute"), false),
            (json!({}), taint("somebody.io/faulty", TAINT_EFFECT), false),
        ];
        for (labels, spec, want) in cases {
            let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels}, "spec": spec});
            let node: Node = serde_json::from_value(node).unwrap();
            assert_eq!((marked(&node), node_facts(&node).unwrap().marked()), (want, want), "{node:?}");
        }
    }
}
