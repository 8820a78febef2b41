//! What is thrown away of each object before it is kept: a node of a real cluster is 20 KiB, and 3 are used.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Node, Pod, ResourceRequirements},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};

/// Prefixes of resources that make a pod a GPU pod.
const GPU_PREFIXES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];
/// In managedFields, the mark of who wrote `spec.unschedulable`. Entries without it are dropped, and of those with it the
/// emptied but for this name in `subresource`'s place: the manager's name is what is wanted.
pub const UNSCHEDULABLE_FIELD: &str = "f:unschedulable";
/// kubectl's copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn is_gpu(resource: &str) -> bool {
    GPU_PREFIXES.iter().any(|prefix| resource.starts_with(prefix))
}

/// GPUs in a resource map. MIG slices count each for one.
#[must_use]
pub fn gpu_count(resources: Option<&BTreeMap<String, Quantity>>) -> u32 {
    let count = |(name, quantity): (&String, &Quantity)| is_gpu(name).then(|| quantity.0.parse::<u32>().unwrap_or(0));
    resources.into_iter().flatten().filter_map(count).sum()
}

/// Whether a pod asks for GPUs, by resource or by claim.
#[must_use]
pub fn holds_gpu(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let names = |resources: &Option<ResourceRequirements>| {
        let both = resources.iter().flat_map(|both| [both.limits.as_ref(), both.requests.as_ref()]);
        both.flatten().any(|map| map.keys().any(|name| is_gpu(name)))
    };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || containers.map(|container| &container.resources).any(names)
}

fn metadata(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// A node, with the field manager of `unschedulable` alone in its managedFields.
pub(super) fn node(node: &mut Node) -> bool {
    let mut managers = node.metadata.managed_fields.take().unwrap_or_default();
    managers.retain(|entry| entry.fields_v1.as_ref().is_some_and(|fields| fields.0.to_string().contains(UNSCHEDULABLE_FIELD)));
    managers.iter_mut().for_each(|entry| entry.fields_v1 = None);
    metadata(&mut node.metadata);
    node.metadata.managed_fields = (!managers.is_empty()).then_some(managers);
    if let Some(status) = &mut node.status {
        status.images = None;
        status.volumes_in_use = None;
        status.volumes_attached = None;
        status.daemon_endpoints = None;
        status.config = None;
    }
    true
}

/// A GPU pod, without what its containers run.
pub(super) fn gpu_pod(pod: &mut Pod) -> bool {
    if !holds_gpu(pod) {
        return false;
    }
    metadata(&mut pod.metadata);
    if let Some(spec) = &mut pod.spec {
        let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
        containers.for_each(container);
        spec.affinity = None;
    }
    if let Some(status) = &mut pod.status {
        status.container_statuses = None;
        status.init_container_statuses = None;
    }
    true
}

fn container(container: &mut Container) {
    *container = Container {
        name: std::mem::take(&mut container.name),
        resources: container.resources.take(),
        volume_mounts: container.volume_mounts.take(),
        ..Container::default()
    };
}

/// A pod of an exporter or a device plugin: where it is, on which port it listens and since when it runs.
pub(super) fn service_pod(pod: &mut Pod) -> bool {
    metadata(&mut pod.metadata);
    if let Some(spec) = &mut pod.spec {
        for container in &mut spec.containers {
            *container =
                Container { name: std::mem::take(&mut container.name), ports: container.ports.take(), ..Container::default() };
        }
        spec.init_containers = None;
        spec.volumes = None;
        spec.affinity = None;
        spec.tolerations = None;
    }
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn gpu_pods_are_those_that_ask_for_gpus_slices_or_claims() {
        let asks = |name: &str| pod(json!({"containers": [{"name": "c", "resources": {"limits": {name: "1"}}}]}));
        assert!(holds_gpu(&asks("nvidia.com/gpu")));
        assert!(holds_gpu(&asks("nvidia.com/mig-1g.10gb")));
        assert!(!holds_gpu(&asks("cpu")));
        assert!(holds_gpu(&pod(json!({"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]}))));
    }

    #[test]
    fn a_trimmed_node_still_tells_who_cordoned_it() {
        let mut kept: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "managedFields": [
                {"manager": "kubelet", "fieldsV1": {"f:status": {}}},
                {"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
            ]},
            "status": {"images": [{"sizeBytes": 1}], "capacity": {"nvidia.com/gpu": "8", "cpu": "96"}},
        }))
        .unwrap();
        assert!(node(&mut kept));
        let managers = kept.metadata.managed_fields.unwrap();
        assert_eq!(managers.len(), 1);
        assert_eq!(managers[0].manager.as_deref(), Some("kubectl-cordon"));
        let status = kept.status.unwrap();
        assert_eq!(status.images, None);
        assert_eq!(gpu_count(status.capacity.as_ref()), 8);
    }
}
