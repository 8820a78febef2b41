//! Gathers what `gpuheal_spoke_core::verify` judges by: the node as our watch shows it, how each fault stands, what is
//! left of the Lease, how many nodes are out. Judges nothing itself, and asks the API server nothing: a storm of commands
//! costs no reads.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{command::Command, ids::FaultKey, time::Timestamp};
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
    nodes.node(name)?.facts()
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

/// How many GPU nodes are out: marked by us, or about to be by a command that is admitted already.
#[must_use]
pub fn out(nodes: &Nodes, admitted: &BTreeSet<String>, target: &str) -> Out {
    let (mut gpu_nodes, mut others, mut target_out) = (0, 0, false);
    for node in nodes.nodes() {
        gpu_nodes += u32::from(node.has_gpus);
        if *node.name == *target {
            target_out = node.marked;
        } else {
            others += u32::from(node.marked || (node.has_gpus && admitted.contains(&*node.name)));
        }
    }
    Out { others, gpu_nodes, target: target_out }
}
