//! The spoke's view of its cluster: reflectors kept small. Reads only; who acts reads the object again.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{ObjectRef, Store};

/// Nodes, and those pods that hold or ask for GPUs, trimmed to what is used. Cheap to clone.
/// Kept of a node: name, UID, resourceVersion, creation, labels, annotations, taints, unschedulable and its field
/// manager, conditions, addresses, capacity, allocatable, nodeInfo.bootID. Of a pod: metadata without managedFields,
/// owners, nodeName, resources of containers, volumes, tolerations, phase, conditions, deletionTimestamp.
#[derive(Clone)]
pub struct Nodes {
    nodes: Store<Node>,
    pods: Store<Pod>,
    changes: tokio::sync::watch::Receiver<u64>,
}

impl Nodes {
    /// Wraps reflector stores; `changes` is bumped at each event of either.
    #[must_use]
    pub const fn new(nodes: Store<Node>, pods: Store<Pod>, changes: tokio::sync::watch::Receiver<u64>) -> Self {
        Self { nodes, pods, changes }
    }

    /// The node of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Every node.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.state()
    }

    /// The GPU pod of that name.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(name).within(namespace))
    }

    /// Every GPU pod.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.state()
    }

    /// GPU pods bound to that node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let here = |pod: &Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        self.pods.state().into_iter().filter(here).collect()
    }

    /// Bumped at each event: wait on it instead of polling.
    #[must_use]
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changes.clone()
    }
}
