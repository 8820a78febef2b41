//! One node as the hub knows it. Pure: object, pods and inventory in, message out.

use std::{collections::BTreeMap, sync::Arc};

use gpuheal_proto::{
    kubernetes::{
        ANNOTATION_LAST_PROCESS_TIME, ANNOTATION_PLAN_REVISION, ANNOTATION_PROCESS_ID, LABEL_OPT_OUT, LABEL_STATUS, STATUS_FAULTY,
        TAINT_EFFECT, TAINT_FAULTY,
    },
    link::v1,
    time::parse_rfc3339,
};
use gpuheal_spoke_core::{
    mark::NodeFacts,
    release::{Cordon, cordon},
    verify::marker,
};
use k8s_openapi::api::core::v1::{Node, Pod};

use crate::watch::gpu_count;

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

/// A node with GPUs, or with a mark of ours.
#[must_use]
pub fn is_gpu_node(node: &Node) -> bool {
    let status = node.status.as_ref();
    let labels = node.metadata.labels.as_ref();
    let present = labels.and_then(|labels| labels.get(GPU_PRESENT)).is_some_and(|value| value == "true");
    present
        || status.is_some_and(|status| gpu_count(status.capacity.as_ref()) > 0 || gpu_count(status.allocatable.as_ref()) > 0)
        || mark(node, None).is_some()
}

/// The node's state. `ours`: whether the undo record of a mark that stands says that the cordon is ours. The field's manager
/// may deny it, and tells where there is no record: as a release judges.
#[must_use]
pub fn node_state(
    node: &Node,
    pods: &[Arc<Pod>],
    gpus: Vec<v1::GpuRef>,
    extra_labels: &[String],
    ours: Option<bool>,
) -> v1::NodeState {
    let meta = &node.metadata;
    let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
    let facts = serde_json::to_value(node).ok().and_then(|json| NodeFacts::from_json(&json).ok());
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
    let manager = meta.managed_fields.iter().flatten().find_map(|entry| entry.manager.clone());
    let unschedulable = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    let mut pods: Vec<_> = pods.iter().map(|pod| pod_summary(pod)).collect();
    pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    pods.truncate(PODS_MAX);
    v1::NodeState {
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        boot_id: status.and_then(|status| status.node_info.as_ref()).map(|info| info.boot_id.clone()).unwrap_or_default(),
        created_unix_ms: meta.creation_timestamp.as_ref().map_or(0, |at| at.0.as_millisecond()),
        labels: labels(node, extra_labels),
        gpus,
        capacity_gpus: gpu_count(status.and_then(|status| status.capacity.as_ref())),
        allocatable_gpus: gpu_count(status.and_then(|status| status.allocatable.as_ref())),
        ready: ready(node).into(),
        unschedulable,
        unschedulable_by: manager.filter(|_| unschedulable).unwrap_or_default(),
        mark: mark(node, ours),
        plan_revision: annotation(node, ANNOTATION_PLAN_REVISION).and_then(|text| text.parse().ok()).unwrap_or(0),
        opted_out: label(LABEL_OPT_OUT).is_some_and(|value| value != "false"),
        foreign_markers: facts.as_ref().and_then(marker::foreign).into_iter().collect(),
        gpu_pods: pods,
    }
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn labels(node: &Node, extra: &[String]) -> BTreeMap<String, String> {
    let all = node.metadata.labels.iter().flatten();
    let wanted = |key: &str| LABELS.contains(&key) || extra.iter().any(|extra| extra == key);
    all.filter(|(key, _)| wanted(key)).take(LABELS_MAX).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn ready(node: &Node) -> v1::Readiness {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    match conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready").map(|ready| ready.status.as_str()) {
        Some("True") => v1::Readiness::Ready,
        Some("False") => v1::Readiness::NotReady,
        _ => v1::Readiness::Unknown,
    }
}

/// Our mark, when any of label, taint and a cordon of ours is on the node. Who takes label and taint off by hand may leave
/// our cordon, and nobody else would tell of it.
fn mark(node: &Node, ours: Option<bool>) -> Option<v1::Mark> {
    let labelled =
        node.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL_STATUS)).is_some_and(|value| value == STATUS_FAULTY);
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    let tainted = taints.into_iter().any(|taint| taint.key == TAINT_FAULTY && taint.effect == TAINT_EFFECT);
    let managers = node.metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.clone()).collect();
    let cordoned = spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
    let cordoned_by_us = cordoned && cordon(&managers, ours) == Cordon::Ours;
    let last_process = annotation(node, ANNOTATION_LAST_PROCESS_TIME).and_then(|text| parse_rfc3339(text).ok());
    (labelled || tainted || cordoned_by_us).then(|| v1::Mark {
        labelled,
        tainted,
        cordoned_by_us,
        incident_id: annotation(node, ANNOTATION_PROCESS_ID).unwrap_or_default().to_owned(),
        last_process_unix_ms: last_process.map_or(0, gpuheal_proto::time::Timestamp::unix_ms),
    })
}

fn pod_summary(pod: &Pod) -> v1::PodSummary {
    let meta = &pod.metadata;
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let limits = |resources: &Option<k8s_openapi::api::core::v1::ResourceRequirements>| {
        gpu_count(resources.as_ref().and_then(|resources| resources.limits.as_ref()))
    };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    v1::PodSummary {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        owner: owner.map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default(),
        gpus: containers.map(|container| limits(&container.resources)).sum(),
    }
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::kubernetes::FIELD_MANAGER;
    use serde_json::json;

    use super::*;

    fn node(json: serde_json::Value) -> Node {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_marked_node_tells_whose_mark_it_is_and_since_when() {
        let node = node(json!({
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "5",
                "labels": {LABEL_STATUS: "faulty", "pool": "train", "secret": "x", LABEL_OPT_OUT: "true"},
                "annotations": {ANNOTATION_PROCESS_ID: "i1", ANNOTATION_PLAN_REVISION: "7", ANNOTATION_LAST_PROCESS_TIME: "2026-11-29T19:05:00Z"},
                "managedFields": [{"manager": FIELD_MANAGER}],
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
                "metadata": {"name": "n1", "uid": "u1", "labels": {LABEL_STATUS: "faulty"}, "managedFields": [{"manager": manager}]},
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
            "metadata": {"name": "n1", "uid": "u1", "managedFields": [{"manager": FIELD_MANAGER}]}, "spec": {"unschedulable": true},
        }));
        let mark = node_state(&node, &[], vec![], &[], Some(true)).mark.unwrap();
        assert!(mark.cordoned_by_us && !mark.labelled && !mark.tainted);
        assert_eq!(node_state(&node, &[], vec![], &[], Some(false)).mark, None, "it was there before our mark");
    }

    #[test]
    fn anothers_cordon_is_not_ours() {
        let node = node(json!({
            "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5", "managedFields": [{"manager": "kubectl-cordon"}]},
            "spec": {"unschedulable": true},
        }));
        let state = node_state(&node, &[], vec![], &[], None);
        assert_eq!((state.unschedulable_by.as_str(), state.mark), ("kubectl-cordon", None));
        assert!(!is_gpu_node(&node));
    }
}
