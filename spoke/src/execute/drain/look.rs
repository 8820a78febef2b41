//! What the planner wants to know besides the pods: whether namespaces allow stateful eviction, whether claims are bound,
//! how many ready replicas an owner has. Asked only where a pod has storage. What cannot be read counts as no.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{command::Drain, kubernetes::LABEL_STATEFUL_EVICTION};
use gpuheal_spoke_core::drain::{PodFacts, pod};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod};
use kube::Api;

use super::super::api::Kube;
use crate::watch::Nodes;

/// What is known of storage.
#[derive(Debug, Default)]
pub(super) struct Storage {
    /// Namespaces whose owner allows stateful eviction.
    pub(super) allowed: BTreeSet<String>,
    /// Bound claims, `namespace/name`.
    pub(super) bound: BTreeSet<String>,
}

/// A pod from the API's type.
pub(super) fn pod_facts(pod: &Pod) -> Option<PodFacts> {
    pod::PodFacts::from_json(&serde_json::to_value(pod).ok()?)
}

/// Asks about the storage of those pods that have some.
pub(super) async fn storage(kube: &Kube, pods: &[PodFacts], drain: &Drain) -> Storage {
    let mut known = Storage::default();
    if !drain.include_stateful {
        return known;
    }
    let stateful = pods.iter().filter(|pod| !pod.claims.is_empty() && gpuheal_spoke_core::drain::holds_gpu(pod, drain));
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
                tracing::warn!(namespace, error = %gpuheal_proto::chain::chain(&error), "namespace not read, its stateful pods stay")
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
                known.bound.insert(format!("{namespace}/{claim}"));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(namespace, claim, error = %gpuheal_proto::chain::chain(&error), "claim not read, its pod stays")
            }
        }
    }
    known
}

/// Ready pods per controlling owner, as far as our watch shows.
pub(super) fn ready_by_owner(nodes: &Nodes) -> BTreeMap<String, u32> {
    let mut ready = BTreeMap::new();
    for pod in nodes.pods() {
        let Some(facts) = pod_facts(&pod) else { continue };
        if let (true, Some(owner)) = (facts.ready && !facts.deleting, facts.owner) {
            *ready.entry(owner.uid).or_default() += 1;
        }
    }
    ready
}
