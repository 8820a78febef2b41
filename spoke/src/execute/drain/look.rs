//! What the planner wants to know besides the pods: whether namespaces allow stateful eviction, whether claims are bound,
//! how many ready replicas an owner has. Asked only where a pod has storage. What cannot be read counts as no.

use std::collections::BTreeSet;

use gpuheal_proto::{command::Drain, kubernetes::LABEL_STATEFUL_EVICTION};
use gpuheal_spoke_core::{
    drain::{Claims, Devices, PodFacts, Ready, holds_gpu, volume::Volume},
    gpu_resources::GpuResources,
};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    super::api::{Error, Kube},
    volumes::Volumes,
};
use crate::watch::{NodeEntry, Nodes};

/// Put on a node by Kubernetes' node lifecycle controller when its kubelet has not been heard of for 50 s.
const TAINT_UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// ResourceClaims and ResourceSlices, in the one version that is asked for: Kubernetes serves it by default from 1.34 on, and the betas
/// before it only where somebody has turned them on.
pub const DRA_GROUP: &str = "resource.k8s.io";
/// See [`DRA_GROUP`].
pub const DRA_VERSION: &str = "v1";

/// ResourceSlices of one node that are read: a driver has one for 128 devices.
const SLICES_MAX: u32 = 64;

/// What is known of storage.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// Namespaces whose owner allows stateful eviction.
    pub(super) allowed: BTreeSet<String>,
    /// Bound claims, `namespace/name`.
    pub(super) bound: BTreeSet<String>,
    /// What they are bound to.
    pub(super) volumes: Volumes,
    /// The last thing that could not be read, and why.
    pub(super) unread: Option<String>,
}

/// Asks which devices the pods' ResourceClaims were given: each claim by its name, and once the node's own ResourceSlices, which
/// name the GPU behind a device. Asked only where a pod has a claim. A right that we were not given leaves it unknown.
pub(super) async fn claims(kube: &Kube, node: &str, pods: &[PodFacts]) -> Claims {
    let names: BTreeSet<(String, String)> = pods
        .iter()
        .flat_map(|pod| pod.device_claims.iter().flatten().map(|claim| (pod.namespace.clone(), claim.clone())))
        .collect();
    if names.is_empty() {
        return Claims::default();
    }
    let slices = slices(kube, node).await.unwrap_or_else(|error| {
        tracing::warn!(error = %gpuheal_proto::chain::chain(&error), "resource slices not read, GPUs behind claims are not known");
        Vec::new()
    });
    let mut known = Claims::to(Devices::of(&slices));
    for (namespace, name) in names {
        let api = Api::<DynamicObject>::namespaced_with(kube.client(), &namespace, &resource("ResourceClaim", "resourceclaims"));
        match kube.call("get resource claim", api.get(&name)).await {
            Ok(claim) => known.take(&format!("{namespace}/{name}"), &json(&claim)),
            Err(error) => {
                let error = gpuheal_proto::chain::chain(&error);
                tracing::warn!(namespace, claim = name, %error, "resource claim not read, it counts as one for a GPU");
            }
        }
    }
    known
}

/// The node's ResourceSlices: one or two of each driver. A part of them tells nothing: the newest of a pool may be in the rest.
async fn slices(kube: &Kube, node: &str) -> Result<Vec<Value>, Error> {
    let api = Api::<DynamicObject>::all_with(kube.client(), &resource("ResourceSlice", "resourceslices"));
    let params = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(SLICES_MAX);
    let list = kube.call("list resource slices", api.list(&params)).await?;
    if list.metadata.continue_.is_some_and(|rest| !rest.is_empty()) {
        tracing::warn!(node.name = node, max = SLICES_MAX, "more resource slices than are read, GPUs behind claims are not known");
        return Ok(Vec::new());
    }
    Ok(list.items.iter().map(json).collect())
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: DRA_GROUP.to_owned(),
        version: DRA_VERSION.to_owned(),
        api_version: format!("{DRA_GROUP}/{DRA_VERSION}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

fn json(object: &DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// Asks about the storage of those pods that have some.
pub(super) async fn storage(
    kube: &Kube,
    pods: &[PodFacts],
    (drain, gpus): (&Drain, &GpuResources),
    other_devices: &BTreeSet<String>,
) -> Storage {
    let mut known = Storage::default();
    if !drain.include_stateful {
        return known;
    }
    let stateful = pods.iter().filter(|pod| !pod.claims.is_empty() && holds_gpu(pod, gpus, other_devices));
    let claims: BTreeSet<_> =
        stateful.flat_map(|pod| pod.claims.iter().map(|claim| (pod.namespace.clone(), claim.clone()))).collect();
    let namespaces: BTreeSet<_> = claims.iter().map(|(namespace, _)| namespace.clone()).collect();
    for namespace in namespaces {
        let api: Api<Namespace> = Api::all(kube.client());
        match kube.call("get namespace", api.get(&namespace)).await {
            Ok(found) if found.metadata.labels.iter().flatten().any(|(k, v)| k == LABEL_STATEFUL_EVICTION && v == "allowed") => {
                known.allowed.insert(namespace);
            }
            Ok(_) => {}
            Err(error) => {
                let error = gpuheal_proto::chain::chain(&error).to_string();
                tracing::warn!(namespace, error, "namespace not read, its stateful pods stay");
                known.unread = Some(error);
            }
        }
    }
    for (namespace, claim) in claims {
        if !known.allowed.contains(&namespace) {
            continue;
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(kube.client(), &namespace);
        match kube.call("get claim", api.get(&claim)).await {
            Ok(found) if found.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") => {
                let claim = format!("{namespace}/{claim}");
                let volume = found
                    .spec
                    .and_then(|spec| Some(Volume::of_claim(spec.volume_name?, spec.access_modes.as_deref().unwrap_or_default())));
                known.volumes.extend(volume.map(|volume| (claim.clone(), volume)));
                known.bound.insert(claim);
            }
            Ok(_) => {}
            Err(error) => {
                let error = gpuheal_proto::chain::chain(&error).to_string();
                tracing::warn!(namespace, claim, error, "claim not read, its pod stays");
                known.unread = Some(error);
            }
        }
    }
    known
}

/// Ready pods per controlling owner, as far as our watch shows, but for those of which it is known that they go.
pub(super) fn ready_by_owner(nodes: &Nodes, going: &BTreeSet<String>) -> Ready {
    let mut ready = Ready::new();
    for pod in nodes.pods() {
        if let (true, Some(owner)) = (pod.ready && !pod.deleting && !going.contains(&*pod.uid), &pod.owner) {
            ready.entry(owner.uid.clone()).or_default().insert(pod.uid.to_string());
        }
    }
    ready
}

/// Whether the node's kubelet is not heard of: its pods do not go, however long they are waited for. One that says of itself
/// that it is not ready lives, and ends its pods as any other.
pub(super) fn kubelet_silent(node: &NodeEntry) -> bool {
    node.condition("Ready") == Some("Unknown") || node.has_taint(TAINT_UNREACHABLE)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn node(ready: &str, taints: Value) -> Arc<NodeEntry> {
        let conditions = json!([{"type": "DiskPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]);
        crate::testing::node_entry(
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints}, "status": {"conditions": conditions}}),
        )
    }

    #[test]
    fn a_kubelet_that_says_that_it_is_not_ready_is_none_that_is_silent() {
        let taint = |key: &str| json!([{"key": key, "effect": "NoExecute"}]);
        assert!(!kubelet_silent(&node("True", json!([]))));
        assert!(!kubelet_silent(&node("False", taint("node.kubernetes.io/not-ready"))));
        assert!(kubelet_silent(&node("Unknown", json!([]))));
        assert!(kubelet_silent(&node("False", taint(TAINT_UNREACHABLE))));
        let silent = crate::testing::node_entry(json!({"metadata": {"name": "n"}}));
        assert!(!kubelet_silent(&silent), "a node that says nothing of itself yet");
    }
}
