//! One node as the hub knows it. Pure: object, pods and inventory in, message out.

use std::{collections::BTreeMap, sync::Arc};

use gpuheal_proto::{
    bytes_text::clip,
    kubernetes::{ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PROCESS_ID, LABEL_OPT_OUT, LABEL_STATUS, STATUS_FAULTY},
    link::v1,
    time::parse_rfc3339,
};
use gpuheal_spoke_core::{
    mark::{NodeFacts, is_ours},
    release::{Cordon, cordon},
    verify::marker,
};

use crate::watch::{NodeEntry, PodEntry};

/// Labels that policy may use in any cluster: where a node is, what it is, whose pool it is in.
const LABELS: [&str; 17] = [
    "kubernetes.io/hostname",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/rack",
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.count",
    "nvidia.com/gpu.clique",
    "nvidia.com/gpu.present",
    "nvidia.com/mig.strategy",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "pool",
    "rack",
];
/// Said by the GPU operator's feature discovery.
const GPU_PRESENT: &str = "nvidia.com/gpu.present";
/// Pods told per node.
const PODS_MAX: usize = 256;
/// Labels told per node.
const LABELS_MAX: usize = 64;
/// GPUs told per node: eight times what the largest have.
const GPUS_MAX: usize = 128;
/// Texts that no API server bounds, of a node and of a pod's owner: a kind and a name are 317 bytes at most. With 256 pods of 800 bytes each a
/// node is 256 KiB at most, half of what a part may hold.
const TEXT_BYTES_MAX: usize = 320;

/// A node with GPUs, or with a mark of ours.
#[must_use]
pub fn is_gpu_node(node: &NodeEntry) -> bool {
    let ours = || node.facts().is_some_and(|facts| mark(node, &facts, None).is_some());
    node.label(GPU_PRESENT) == Some("true") || node.capacity_gpus > 0 || node.allocatable_gpus > 0 || ours()
}

/// The node's state. `ours`: whether the undo record of a mark that stands says that the cordon is ours. The field's manager
/// may deny it, and tells where there is no record: as a release judges.
#[must_use]
pub fn node_state(
    node: &NodeEntry,
    pods: &[Arc<PodEntry>],
    mut gpus: Vec<v1::GpuRef>,
    extra_labels: &[String],
    ours: Option<bool>,
) -> v1::NodeState {
    let facts = node.facts();
    let manager = node.unschedulable_by().first().map(ToString::to_string);
    let mut pods: Vec<_> = pods.iter().map(|pod| pod_summary(pod)).collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    pods.truncate(PODS_MAX);
    gpus.truncate(GPUS_MAX);
    v1::NodeState {
        name: node.name.to_string(),
        uid: node.uid.to_string(),
        boot_id: clip(&node.boot_id, TEXT_BYTES_MAX).to_owned(),
        created_unix_ms: node.created_unix_ms,
        labels: labels(node, extra_labels),
        gpus,
        capacity_gpus: node.capacity_gpus,
        allocatable_gpus: node.allocatable_gpus,
        ready: ready(node).into(),
        unschedulable: node.unschedulable(),
        unschedulable_by: manager.unwrap_or_default(),
        mark: facts.as_ref().and_then(|facts| mark(node, facts, ours)),
        plan_revision: node.plan_revision(),
        opted_out: node.label(LABEL_OPT_OUT).is_some_and(|value| value != "false"),
        foreign_markers: facts.as_ref().map(marker::all).unwrap_or_default(),
        gpu_pods: pods,
    }
}

fn labels(node: &NodeEntry, extra: &[String]) -> BTreeMap<String, String> {
    let wanted = |key: &str| LABELS.contains(&key) || extra.iter().any(|extra| extra == key);
    let all = node.labels().filter(|(key, _)| wanted(key)).take(LABELS_MAX);
    all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn ready(node: &NodeEntry) -> v1::Readiness {
    match node.condition("Ready") {
        Some("True") => v1::Readiness::Ready,
        Some("False") => v1::Readiness::NotReady,
        _ => v1::Readiness::Unknown,
    }
}

/// Our mark, when any of label, taint and a cordon of ours is on the node. Who takes label and taint off by hand may leave
/// our cordon, and nobody else would tell of it.
fn mark(node: &NodeEntry, facts: &NodeFacts, ours: Option<bool>) -> Option<v1::Mark> {
    let labelled = node.label(LABEL_STATUS) == Some(STATUS_FAULTY);
    let tainted = facts.taints.iter().any(is_ours);
    let cordoned_by_us = node.unschedulable() && cordon(&facts.unschedulable_by, ours) == Cordon::Ours;
    let last_process = node.annotation(ANNOTATION_LAST_PROCESS_TIME).and_then(|text| parse_rfc3339(text).ok());
    (labelled || tainted || cordoned_by_us).then(|| v1::Mark {
        labelled,
        tainted,
        cordoned_by_us,
        incident_id: clip(node.annotation(ANNOTATION_PROCESS_ID).unwrap_or_default(), TEXT_BYTES_MAX).to_owned(),
        last_process_unix_ms: last_process.map_or(0, gpuheal_proto::time::Timestamp::unix_ms),
    })
}

fn pod_summary(pod: &PodEntry) -> v1::PodSummary {
    let owner = pod.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default();
    v1::PodSummary {
        namespace: pod.namespace.to_string(),
        name: pod.name.to_string(),
        uid: pod.uid.to_string(),
        owner: clip(&owner, TEXT_BYTES_MAX).to_owned(),
        gpus: pod.gpus,
    }
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::kubernetes::{ANNOTATION_PLAN_REVISION, FIELD_MANAGER, TAINT_FAULTY};
    use serde_json::json;

    use super::*;

    fn node(json: serde_json::Value) -> Arc<NodeEntry> {
        crate::testing::node_entry(json)
    }

    #[test]
    fn a_marked_node_tells_whose_mark_it_is_and_since_when() {
        let node = node(json!({
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "5",
                "labels": {LABEL_STATUS: "faulty", "pool": "train", "secret": "x", LABEL_OPT_OUT: "true"},
                "annotations": {ANNOTATION_PROCESS_ID: "i1", ANNOTATION_PLAN_REVISION: "7", ANNOTATION_LAST_PROCESS_TIME: "2026-11-29T19:05:00Z"},
                "managedFields": [{"manager": FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}],
            },
            "spec": {"unschedulable": true, "taints": [
                {"key": TAINT_FAULTY, "effect": "NoSchedule"}, {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"},
            ]},
            "status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }));
        let state = node_state(&node, &[], vec![], &[], None);
        let mark = state.mark.unwrap();
        assert!(mark.labelled && mark.tainted && mark.cordoned_by_us);
        assert_eq!((mark.incident_id.as_str(), mark.last_process_unix_ms), ("i1", 1_795_979_100_000));
        assert_eq!((state.capacity_gpus, state.allocatable_gpus, state.plan_revision), (8, 7, 7));
        assert_eq!(state.foreign_markers, ["taint ToBeDeletedByClusterAutoscaler"]);
        assert!(state.opted_out && state.ready == i32::from(v1::Readiness::Ready));
        assert_eq!(state.labels.keys().collect::<Vec<_>>(), ["pool"], "no more than policy may use");
    }

    #[test]
    fn a_cordon_is_ours_only_when_neither_the_record_nor_the_field_manager_denies_it() {
        let marked = |manager: &str| {
            node(json!({
                "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5", "labels": {LABEL_STATUS: "faulty"},
                    "managedFields": [{"manager": manager, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]},
                "spec": {"unschedulable": true},
            }))
        };
        let told = |manager: &str, ours| node_state(&marked(manager), &[], vec![], &[], ours).mark.unwrap().cordoned_by_us;
        assert!(told(FIELD_MANAGER, Some(true)) && !told(FIELD_MANAGER, Some(false)));
        // Uncordoned and cordoned again since.
        assert!(!told("kubectl-cordon", Some(true)));
        assert!(told(FIELD_MANAGER, None) && !told("kubectl-cordon", None));
    }

    #[test]
    fn a_cordon_of_ours_that_is_left_alone_is_told() {
        let node = node(json!({
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5",
                "managedFields": [{"manager": FIELD_MANAGER, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]},
            "spec": {"unschedulable": true},
        }));
        let mark = node_state(&node, &[], vec![], &[], Some(true)).mark.unwrap();
        assert!(mark.cordoned_by_us && !mark.labelled && !mark.tainted);
        assert_eq!(node_state(&node, &[], vec![], &[], Some(false)).mark, None, "it was there before our mark");
    }

    #[test]
    fn anothers_cordon_is_not_ours() {
        let node = node(json!({
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5",
                "managedFields": [{"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]},
            "spec": {"unschedulable": true},
        }));
        let state = node_state(&node, &[], vec![], &[], None);
        assert_eq!((state.unschedulable_by.as_str(), state.mark), ("kubectl-cordon", None));
        assert!(!is_gpu_node(&node));
    }
}
