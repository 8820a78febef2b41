//! How many GPUs a resource map tells of. Pure.

use std::collections::BTreeMap;

use gpuheal_spoke_core::gpu_resources::GpuResources;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// GPUs in a resource map. MIG slices count each for one.
pub(crate) fn gpu_count(resources: Option<&BTreeMap<String, Quantity>>, gpus: &GpuResources) -> u32 {
    let count = |(name, quantity): (&String, &Quantity)| gpus.is_gpu(name).then(|| quantity.0.parse::<u32>().unwrap_or(0));
    resources.into_iter().flatten().filter_map(count).sum()
}
