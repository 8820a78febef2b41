//! A node as it is kept: what is used of it, labels and conditions shared with the nodes that have the same.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use gpuheal_proto::kubernetes::{ANNOTATION_PLAN_REVISION, PREFIX};
use gpuheal_spoke_core::{
    gpu_resources::GpuResources,
    mark::NodeFacts,
    scrape::{
        allocatable::{self, Offer},
        conditions,
    },
    verify::marker,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::{
    pool::Pool,
    resources::gpu_count,
    wire::{Condition, NodeSeen, moment},
};

/// A label or an annotation.
type Pair = (Box<str>, Box<str>);
/// A map of them, sorted by key.
type Pairs = Box<[Arc<Pair>]>;

/// What nodes have in common.
#[derive(Debug, Default)]
pub(super) struct Pools {
    names: Pool<str>,
    pairs: Pool<Pair>,
    conditions: Pool<Condition>,
    offers: Pool<Vec<Offer>>,
    gpus: GpuResources,
}

impl Pools {
    /// Of nodes that offer these.
    pub(super) fn of(gpus: &GpuResources) -> Self {
        Self { gpus: gpus.clone(), ..Self::default() }
    }
}

/// A node. About 1 KiB, and a twentieth of what the API server says of it.
#[derive(Debug, PartialEq)]
pub struct NodeEntry {
    /// Its name.
    pub name: Arc<str>,
    /// Its UID; empty where the object has none.
    pub uid: Box<str>,
    /// The version that all of this was read at.
    pub resource_version: Box<str>,
    /// When the object was made, in ms since 1970; 0 where it does not say.
    pub created_unix_ms: i64,
    /// `status.nodeInfo.bootID`; empty where it does not say.
    pub boot_id: Box<str>,
    /// GPUs by capacity, MIG slices each for one.
    pub capacity_gpus: u32,
    /// GPUs that may be given out.
    pub allocatable_gpus: u32,
    /// Some GPU resource is in its capacity and not 0: it has GPUs, healthy or not.
    pub has_gpus: bool,
    /// Its label or its taint is ours.
    pub marked: bool,
    /// Both absent and empty, which makes a difference to a JSON patch.
    unschedulable: Option<bool>,
    managers: Box<[Arc<str>]>,
    labels: Option<Pairs>,
    annotations: Option<Pairs>,
    /// As JSON text, whole and in order; empty when there is none.
    taints: Box<str>,
    conditions: Box<[Arc<Condition>]>,
    addresses: Box<[IpAddr]>,
    offers: Arc<Vec<Offer>>,
}

impl NodeEntry {
    /// What is kept of a node; nothing of one without a name.
    pub(super) fn of(seen: NodeSeen, pools: &mut Pools) -> Option<Self> {
        let NodeSeen { metadata, spec, status } = seen;
        let managed = metadata.managed_fields.into_iter().flatten();
        let wrote = managed.filter(|entry| {
            let spec = entry.fields_v1.as_ref().and_then(|fields| fields.spec.as_ref());
            spec.is_some_and(|spec| spec.unschedulable.is_some())
        });
        let capacity = status.capacity.as_ref();
        let (gpus, offered) = (pools.gpus.clone(), status.allocatable.as_ref());
        let has = |(name, amount): (&String, &Quantity)| gpus.is_gpu(name) && amount.0 != "0";
        let offers = allocatable::offers(&texts(capacity, &gpus), &texts(offered, &gpus), &gpus);
        let conditions = status.conditions.into_iter().flatten();
        let addresses = status.addresses.iter().flatten();
        let taints = spec.taints.filter(|taints| !taints.is_empty());
        let mut entry = Self {
            name: pools.names.share(metadata.name.as_deref().filter(|name| !name.is_empty())?),
            uid: boxed(metadata.uid),
            resource_version: boxed(metadata.resource_version),
            created_unix_ms: metadata.creation_timestamp.as_ref().map_or(0, |at| moment(at).unix_ms()),
            boot_id: boxed(status.node_info.boot_id),
            capacity_gpus: gpu_count(capacity, &gpus),
            allocatable_gpus: gpu_count(offered, &gpus),
            has_gpus: capacity.is_some_and(|all| all.iter().any(has)),
            marked: false,
            unschedulable: spec.unschedulable,
            managers: wrote.filter_map(|entry| Some(pools.names.share(entry.manager?.as_str()))).collect(),
            labels: metadata.labels.map(|all| pairs(all, &mut pools.pairs)),
            annotations: metadata.annotations.map(|mut all| {
                all.retain(|key, _| key.starts_with(PREFIX) || marker::is_looked_at(key));
                pairs(all, &mut pools.pairs)
            }),
            taints: taints.map(|taints| serde_json::Value::Array(taints).to_string()).unwrap_or_default().into(),
            conditions: conditions.map(|condition| pools.conditions.share(condition)).collect(),
            addresses: addresses.filter_map(|address| address.address.parse().ok()).collect(),
            offers: pools.offers.share(offers),
        };
        entry.marked = entry.read().marked();
        Some(entry)
    }

    /// The node as it is judged; nothing of one that lacks what identifies it.
    #[must_use]
    pub fn facts(&self) -> Option<NodeFacts> {
        let whole = ![&self.uid, &self.resource_version].iter().any(|text| text.is_empty());
        whole.then(|| self.read())
    }

    fn read(&self) -> NodeFacts {
        let taints = if self.taints.is_empty() { Vec::new() } else { serde_json::from_str(&self.taints).unwrap_or_default() };
        NodeFacts {
            name: self.name.to_string(),
            uid: self.uid.to_string(),
            resource_version: self.resource_version.to_string(),
            labels: self.labels.as_deref().map(map),
            annotations: self.annotations.as_deref().map(map),
            taints,
            unschedulable: self.unschedulable,
            unschedulable_by: self.managers.iter().map(|manager| manager.to_string()).collect(),
            boot_id: self.boot_id.to_string(),
            ready: self.condition("Ready") == Some("True"),
        }
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        find(self.labels.as_deref()?, key)
    }

    /// Every label, in the order of their keys.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().flatten().map(|pair| (&*pair.0, &*pair.1))
    }

    /// The value of an annotation of ours, or of one by which others say that they are at work.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        find(self.annotations.as_deref()?, key)
    }

    /// The highest plan revision that wrote to it; 0 when none has, or nobody can read it.
    #[must_use]
    pub fn plan_revision(&self) -> u64 {
        self.annotation(ANNOTATION_PLAN_REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Whether it is cordoned.
    #[must_use]
    pub fn unschedulable(&self) -> bool {
        self.unschedulable.unwrap_or(false)
    }

    /// Who set `spec.unschedulable` as it stands.
    #[must_use]
    pub fn unschedulable_by(&self) -> &[Arc<str>] {
        &self.managers
    }

    /// The status of a condition.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&str> {
        self.conditions.iter().find(|condition| condition.kind == kind).map(|condition| condition.status.as_str())
    }

    /// Its conditions as the detectors take them.
    pub fn conditions(&self) -> impl Iterator<Item = conditions::Condition<'_>> {
        self.conditions.iter().map(|condition| conditions::Condition {
            kind: &condition.kind,
            status: &condition.status,
            reason: condition.reason.as_deref().unwrap_or_default(),
            message: condition.message.as_deref().unwrap_or_default(),
        })
    }

    /// Its GPU resources.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Whether it has this address.
    #[must_use]
    pub fn is_at(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Whether a taint of this key is on it.
    #[must_use]
    pub fn has_taint(&self, key: &str) -> bool {
        !self.taints.is_empty() && self.read().has_taint(key)
    }
}

fn boxed(text: Option<String>) -> Box<str> {
    text.unwrap_or_default().into()
}

fn texts(map: Option<&BTreeMap<String, Quantity>>, gpus: &GpuResources) -> BTreeMap<String, String> {
    map.into_iter().flatten().filter(|(name, _)| gpus.is_gpu(name)).map(|(name, amount)| (name.clone(), amount.0.clone())).collect()
}

fn pairs(all: BTreeMap<String, String>, pool: &mut Pool<Pair>) -> Pairs {
    all.into_iter().map(|(key, value)| pool.share((key.into(), value.into()))).collect()
}

fn find<'a>(pairs: &'a [Arc<Pair>], key: &str) -> Option<&'a str> {
    let at = pairs.binary_search_by(|pair| (*pair.0).cmp(key)).ok()?;
    Some(&pairs[at].1)
}

fn map(pairs: &[Arc<Pair>]) -> BTreeMap<String, String> {
    pairs.iter().map(|pair| (pair.0.to_string(), pair.1.to_string())).collect()
}

#[cfg(test)]
mod tests;
