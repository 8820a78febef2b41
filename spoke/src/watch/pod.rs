//! A GPU pod as it is kept: what an intent, a plan and the hub are told of it. Who evicts reads the pod itself again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use gpuheal_proto::{kubernetes::LABEL_EVICT, time::Timestamp};
use gpuheal_spoke_core::{
    drain::{PodFacts, pod},
    gpu_resources::GpuResources,
};

use super::{
    pool::Pool,
    wire::{ClaimReference, Container, OwnerReference, PodSeen, moment},
};

/// What pods have in common.
#[derive(Debug, Default)]
pub(super) struct Pools {
    texts: Pool<str>,
    owners: Pool<Owner>,
    resources: Pool<BTreeMap<String, u64>>,
    gpus: GpuResources,
}

impl Pools {
    /// Of pods that ask for these.
    pub(super) fn of(gpus: &GpuResources) -> Self {
        Self { gpus: gpus.clone(), ..Self::default() }
    }
}

/// The owner that controls a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A GPU pod. About 300 bytes.
#[derive(Debug, PartialEq)]
pub struct PodEntry {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Box<str>,
    /// The node that it is bound to; empty while there is none.
    pub node: Arc<str>,
    /// Its address.
    pub ip: Option<IpAddr>,
    /// Who controls it.
    pub owner: Option<Arc<Owner>>,
    /// GPUs that its containers have at once, sidecars included; slices each for one.
    pub gpus: u32,
    /// Its Ready condition is True.
    pub ready: bool,
    /// It is on its way out.
    pub deleting: bool,
    mirror: bool,
    phase: Arc<str>,
    evict: Option<Arc<str>>,
    /// What its containers ask for of extended resources.
    resources: Arc<BTreeMap<String, u64>>,
    started: Option<Timestamp>,
    device_claims: Box<[Option<Box<str>>]>,
    claims: Box<[Box<str>]>,
}

impl PodEntry {
    /// What is kept of a pod; nothing of one that asks for no GPU, by resource or by claim.
    pub(super) fn of(seen: PodSeen, pools: &mut Pools) -> Option<Self> {
        if !holds_gpu(&seen, &pools.gpus) {
            return None;
        }
        let PodSeen { metadata, spec, status } = seen;
        let containers = spec.containers.as_deref().unwrap_or_default();
        let resources = together(containers, spec.init_containers.as_deref().unwrap_or_default());
        let gpus: u64 = resources.iter().filter(|(name, _)| pools.gpus.is_gpu(name)).map(|(_, amount)| amount).sum();
        let owner = metadata.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
        let made = status.resource_claim_statuses.unwrap_or_default();
        let ready = |all: &Vec<super::wire::Condition>| all.iter().any(|one| one.kind == "Ready" && one.status == "True");
        Some(Self {
            namespace: pools.texts.share(metadata.namespace.as_deref().unwrap_or_default()),
            name: metadata.name.filter(|name| !name.is_empty())?.into(),
            uid: metadata.uid.filter(|uid| !uid.is_empty())?.into(),
            node: pools.texts.share(spec.node_name.as_deref().unwrap_or_default()),
            ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
            owner: owner.map(|OwnerReference { kind, name, uid, .. }| pools.owners.share(Owner { kind, name, uid })),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            ready: status.conditions.as_ref().is_some_and(ready),
            deleting: metadata.deletion_timestamp.is_some(),
            mirror: metadata.annotations.is_some_and(|all| all.mirror.is_some()),
            phase: pools.texts.share(status.phase.as_deref().unwrap_or_default()),
            evict: metadata.labels.and_then(|labels| labels.evict).map(|word| pools.texts.share(word.as_str())),
            resources: pools.resources.share(resources),
            started: status.start_time.as_ref().map(moment),
            device_claims: spec.resource_claims.into_iter().flatten().map(|claim| device_claim(claim, &made)).collect(),
            claims: volume_claims(spec.volumes.unwrap_or_default()),
        })
    }

    /// The pod as a drain is planned by. Its grace, its finalizers and its other labels are not kept.
    #[must_use]
    pub fn facts(&self) -> PodFacts {
        let owner = |owner: &Arc<Owner>| pod::Owner { kind: owner.kind.clone(), name: owner.name.clone(), uid: owner.uid.clone() };
        PodFacts {
            namespace: self.namespace.to_string(),
            name: self.name.to_string(),
            uid: self.uid.to_string(),
            node: self.node.to_string(),
            phase: self.phase.to_string(),
            owner: self.owner.as_ref().map(owner),
            mirror: self.mirror,
            deleting: self.deleting,
            grace: None,
            labels: self.evict.iter().map(|word| (LABEL_EVICT.to_owned(), word.to_string())).collect(),
            resources: self.resources.keys().cloned().collect(),
            amounts: BTreeMap::clone(&self.resources),
            started: self.started,
            device_claims: self.device_claims.iter().map(|claim| claim.as_deref().map(str::to_owned)).collect(),
            claims: self.claims.iter().map(|claim| claim.to_string()).collect(),
            ready: self.ready,
            finalizers: Vec::new(),
            gpu_uuids: BTreeSet::new(),
        }
    }
}

/// Whether a pod asks for GPUs, by resource or by claim.
fn holds_gpu(pod: &PodSeen, gpus: &GpuResources) -> bool {
    let names = |container: &Container| {
        let both = container.resources.iter().flat_map(|both| [both.limits.as_ref(), both.requests.as_ref()]);
        both.flatten().any(|map| map.keys().any(|name| gpus.is_gpu(name)))
    };
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers).flatten();
    pod.spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) || containers.into_iter().any(names)
}

/// What a pod asks for of extended resources at once.
fn together(containers: &[Container], init: &[Container]) -> BTreeMap<String, u64> {
    let sidecar = |container: &Container| container.restart_policy.as_deref() == Some("Always");
    let init = init.iter().map(|one| pod::Init { sidecar: sidecar(one), amounts: asked(one) });
    pod::at_once(containers.iter().map(asked), init)
}

/// Extended resources have a domain in their name; a request of 0 is none, and one that cannot be read is one of 0.
fn asked(container: &Container) -> BTreeMap<String, u64> {
    let both = container.resources.iter().flat_map(|both| [both.limits.as_ref(), both.requests.as_ref()]).flatten();
    let extended = both.flat_map(BTreeMap::iter).filter(|(name, amount)| name.contains('/') && amount.0 != "0");
    extended.map(|(name, amount)| (name.clone(), amount.0.parse().unwrap_or(0))).collect()
}

/// The ResourceClaim behind an entry of the spec: named there, or in the status once it was made from its template.
fn device_claim(claim: ClaimReference, made: &[ClaimReference]) -> Option<Box<str>> {
    let of_template = || made.iter().find(|status| status.name == claim.name).and_then(|status| status.resource_claim_name.clone());
    claim.resource_claim_name.clone().or_else(of_template).map(Into::into)
}

fn volume_claims(volumes: Vec<super::wire::Volume>) -> Box<[Box<str>]> {
    volumes.into_iter().filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name.into())).collect()
}

#[cfg(test)]
mod tests;
