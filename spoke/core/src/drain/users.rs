//! Which pods use which GPU, as far as somebody has told: an exporter by the pod labels of its rows, a ResourceClaim by the
//! devices that it was given. Pure.
//!
//! Of a pod either every GPU is known or nothing: one of which a part is missing may well use the faulty one. What nobody
//! has told, or told before the pod began, is not known; who does not know must take a pod for one that uses the GPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::{ids::GpuUuid, time::Timestamp};
use serde_json::Value;

use super::{PodFacts, device};
use crate::gpu_resources::GpuResources;

/// A page says of a pod what was so for its predecessor of that name until the kubelet has given the GPUs out, the exporter has
/// asked it, and both clocks are taken for one.
const SETTLED_AFTER: Duration = Duration::from_secs(60);
/// Where a slice of a GPU names the whole one, and where a GPU names itself.
const ATTRIBUTES: [&str; 2] = ["parentUUID", "uuid"];

/// Pods by what an exporter says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Of which moment it is.
    as_of: Timestamp,
    /// UUIDs by `namespace/name`.
    by_pod: BTreeMap<String, BTreeSet<String>>,
    /// UUIDs of all GPUs that the node has, used or not.
    gpus: BTreeSet<String>,
}

/// Why it is not known who uses a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// No page of the node's exporter that is young enough.
    #[error("the node's exporter has given no page that is known to be fresh")]
    NoPage,
    /// No row names one: the exporter was started without the mapping, or no pod uses a GPU.
    #[error("the node's exporter names no pods")]
    NamesNoPods,
}

impl Users {
    /// Of this moment; nobody uses anything yet.
    #[must_use]
    pub const fn new(as_of: Timestamp) -> Self {
        Self { as_of, by_pod: BTreeMap::new(), gpus: BTreeSet::new() }
    }

    /// The node has this GPU, whoever uses it.
    pub fn shows(&mut self, gpu: &str) {
        self.gpus.insert(gpu.to_owned());
    }

    /// A pod, as `namespace/name`, uses a GPU.
    pub fn uses(&mut self, pod: &str, gpu: &str) {
        self.shows(gpu);
        self.by_pod.entry(pod.to_owned()).or_default().insert(gpu.to_owned());
    }

    /// Whether the node has this GPU.
    #[must_use]
    pub fn knows(&self, gpu: &GpuUuid) -> bool {
        self.gpus.contains(gpu.as_str())
    }

    /// Whether it names no pod at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_pod.is_empty()
    }

    /// The GPUs of a pod by its resources: all of them, or nothing.
    fn of(&self, pod: &PodFacts, count: u64) -> Option<BTreeSet<String>> {
        let began = pod.started?;
        if self.as_of < began.after(SETTLED_AFTER) {
            return None;
        }
        let known = self.by_pod.get(&format!("{}/{}", pod.namespace, pod.name))?;
        (known.len() as u64 == count).then(|| known.clone())
    }
}

/// GPUs that the node's ResourceSlices offer, whose driver is that of GPUs and which are of the newest generation of their pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// UUIDs by pool and device.
    uuids: BTreeMap<(String, String), String>,
}

impl Devices {
    /// By the slices. Those of other drivers name their pools and devices as they like: often as ours does. Those of an older
    /// generation tell what their pool had before: their driver has published it anew, and deletes them later. A slice of a GPU
    /// has the UUID of the whole.
    #[must_use]
    pub fn of(slices: &[Value]) -> Self {
        let pool = |slice: &Value| slice.pointer("/spec/pool/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let generation = |slice: &Value| slice.pointer("/spec/pool/generation").and_then(Value::as_i64).unwrap_or_default();
        let ours = || slices.iter().filter(|slice| device::is_of_gpus(&slice["spec"]));
        let mut newest: BTreeMap<String, i64> = BTreeMap::new();
        for slice in ours() {
            let known = newest.entry(pool(slice)).or_insert_with(|| generation(slice));
            *known = generation(slice).max(*known);
        }
        let mut uuids = BTreeMap::new();
        for slice in ours().filter(|slice| newest.get(&pool(slice)) == Some(&generation(slice))) {
            for device in slice.pointer("/spec/devices").and_then(Value::as_array).into_iter().flatten() {
                // v1beta1 has the attributes one deeper.
                let attributes = device.get("attributes").or_else(|| device.pointer("/basic/attributes"));
                let text = |name: &&str| attributes?.get(*name)?.get("string")?.as_str();
                if let (Some(name), Some(uuid)) = (device["name"].as_str(), ATTRIBUTES.iter().find_map(text)) {
                    uuids.insert((pool(slice), name.to_owned()), uuid.to_owned());
                }
            }
        }
        Self { uuids }
    }

    /// Whether the node has this GPU.
    fn knows(&self, gpu: &GpuUuid) -> bool {
        self.uuids.values().any(|uuid| uuid == gpu.as_str())
    }
}

/// ResourceClaims by what was allocated to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// `namespace/name` of those that are known to be for no GPU.
    pub other: BTreeSet<String>,
    /// UUIDs of the GPUs of those of which every device is known.
    gpus: BTreeMap<String, BTreeSet<String>>,
    /// What they could be given.
    devices: Devices,
}

impl Claims {
    /// None yet, to these devices.
    #[must_use]
    pub fn to(devices: Devices) -> Self {
        Self { devices, ..Self::default() }
    }

    /// Whether the node has this GPU, by its ResourceSlices.
    #[must_use]
    pub fn knows(&self, gpu: &GpuUuid) -> bool {
        self.devices.knows(gpu)
    }

    /// Whether they tell of any GPU of the node.
    #[must_use]
    pub fn tell(&self) -> bool {
        !self.devices.uuids.is_empty()
    }

    /// Takes a ResourceClaim in, `name` being its `namespace/name`.
    pub fn take(&mut self, name: &str, claim: &Value) {
        if device::is_other(claim) {
            self.other.insert(name.to_owned());
            return;
        }
        let given: Option<BTreeSet<String>> = device::gpus(claim).and_then(|gpus| {
            let uuid = |(pool, device): (&str, &str)| self.devices.uuids.get(&(pool.to_owned(), device.to_owned())).cloned();
            gpus.into_iter().map(uuid).collect()
        });
        if let Some(gpus) = given {
            self.gpus.insert(name.to_owned(), gpus);
        }
    }
}

/// Writes into a pod which GPUs it uses, if all of them are known.
pub fn tell(pod: &mut PodFacts, resources: &GpuResources, users: Option<&Users>, claims: &Claims) {
    let count = pod.amounts.iter().filter(|(resource, _)| resources.is_gpu(resource)).map(|(_, amount)| amount).sum();
    let mut gpus = match (count, users) {
        (0, _) => BTreeSet::new(),
        (_, Some(users)) => match users.of(pod, count) {
            Some(gpus) => gpus,
            None => return,
        },
        (_, None) => return,
    };
    for claim in pod.device_claims() {
        let Some(claim) = claim else { return };
        match claims.gpus.get(&claim) {
            Some(given) => gpus.extend(given.iter().cloned()),
            None if claims.other.contains(&claim) => {}
            None => return,
        }
    }
    pod.gpu_uuids = gpus;
}

#[cfg(test)]
mod tests;
