//! People and other programs: what they want of each node is remembered, since a release must leave it as it is.

use gpuheal_proto::{
    kubernetes::{LABEL_OPT_OUT, LABEL_STATUS, TAINT_FAULTY},
    time::Timestamp,
};
use serde_json::{Value, json};

use super::World;

/// What others have put on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Theirs {
    cordoned: bool,
    taints: Vec<String>,
    labels: Vec<String>,
}

impl World {
    pub(super) fn cordons(&mut self, cluster: usize, node: &str, on: bool) {
        let place = &mut self.clusters[cluster];
        let Some(object) = place.api.nodes.get(node) else { return };
        let is = object.facts.unschedulable == Some(true);
        // Who cordons what is cordoned, or the other way round, changes nothing: whose it is stays.
        if is == on {
            return;
        }
        place.theirs.entry(node.to_owned()).or_default().cordoned = on;
        place.api.by_hand(node, "kubectl-cordon", |json| {
            if on {
                json["spec"]["unschedulable"] = json!(true);
            } else if let Some(spec) = json["spec"].as_object_mut() {
                spec.remove("unschedulable");
            }
        });
        self.spread(cluster);
    }

    pub(super) fn taints(&mut self, cluster: usize, node: &str, key: &str) {
        let place = &mut self.clusters[cluster];
        let theirs = place.theirs.entry(node.to_owned()).or_default();
        if theirs.taints.iter().any(|known| known == key) || !place.api.nodes.contains_key(node) {
            return;
        }
        theirs.taints.push(key.to_owned());
        place.api.by_hand(node, "kubectl-taint", |json| {
            let mut taints = json["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.push(json!({"key": key, "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}));
            json["spec"]["taints"] = Value::Array(taints);
        });
        self.spread(cluster);
    }

    pub(super) fn labels(&mut self, cluster: usize, node: &str, key: &str) {
        let place = &mut self.clusters[cluster];
        if !place.api.nodes.contains_key(node) {
            return;
        }
        let theirs = place.theirs.entry(node.to_owned()).or_default();
        if !theirs.labels.iter().any(|known| known == key) {
            theirs.labels.push(key.to_owned());
        }
        place.api.by_hand(node, "kubectl-label", |json| json["metadata"]["labels"][key] = json!("theirs"));
        self.spread(cluster);
    }

    pub(super) fn opts_out(&mut self, cluster: usize, node: &str, on: bool) {
        self.clusters[cluster].api.by_hand(node, "kubectl-label", |json| {
            if on {
                json["metadata"]["labels"][LABEL_OPT_OUT] = json!("true");
            } else if let Some(labels) = json["metadata"]["labels"].as_object_mut() {
                labels.remove(LABEL_OPT_OUT);
            }
        });
        self.spread(cluster);
    }

    /// Somebody takes our taint or label away: an order.
    pub(super) fn unmarks(&mut self, cluster: usize, node: &str, label: bool) {
        self.clusters[cluster].api.by_hand(node, "kubectl-edit", |json| {
            if label {
                if let Some(labels) = json["metadata"]["labels"].as_object_mut() {
                    labels.remove(LABEL_STATUS);
                }
            } else if let Some(taints) = json["spec"]["taints"].as_array_mut() {
                taints.retain(|taint| taint["key"] != TAINT_FAULTY);
            }
        });
        self.spread(cluster);
    }

    /// 6. Release restores exactly what we changed: a node without a mark is as its owners left it.
    pub(super) fn release_leaves_what_was_theirs(&mut self, at: usize, now: Timestamp) {
        let place = &self.clusters[at];
        let mut wrong = Vec::new();
        for (name, node) in place.api.nodes.iter().filter(|(_, node)| !node.facts.marked()) {
            let theirs = place.theirs.get(name).cloned().unwrap_or_default();
            let cordoned = node.facts.unschedulable == Some(true);
            let open = gpuheal_proto::ids::NodeUid::parse(&node.facts.uid).ok();
            let open = open.and_then(|uid| self.db.clusters.get(&place.id).and_then(|rows| rows.open_incident(&uid)));
            if cordoned != theirs.cordoned && open.is_none() {
                wrong.push(format!("{}/{name} is cordoned: {cordoned}, its owners left it: {}", place.id, theirs.cordoned));
            }
            let taints: Vec<&str> = node.facts.taints.iter().filter_map(|taint| taint["key"].as_str()).collect();
            if taints != theirs.taints {
                wrong.push(format!("{}/{name} has taints {taints:?}, its owners left {:?}", place.id, theirs.taints));
            }
            let timeless = node.facts.taints.iter().any(|taint| taint["timeAdded"].is_null());
            if timeless {
                wrong.push(format!("{}/{name} has a taint without the time that its owner gave it", place.id));
            }
            for label in &theirs.labels {
                if node.facts.label(label) != Some("theirs") {
                    wrong.push(format!("{}/{name} has lost its owners' label {label}", place.id));
                }
            }
        }
        if let Some(first) = wrong.first() {
            self.oracle.breaks("release restores exactly what we changed", now, first.clone());
        }
    }
}
