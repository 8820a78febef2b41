//! Which resources are GPUs. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Prefixes of resources that make a pod a GPU pod, and a node a GPU node.
const GPU_PREFIXES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];

/// Whether a resource is GPUs.
pub(crate) fn is_gpu(resource: &str) -> bool {
    GPU_PREFIXES.iter().any(|prefix| resource.starts_with(prefix))
}

/// GPUs in a resource map. MIG slices count each for one.
pub(crate) fn gpu_count(resources: Option<&BTreeMap<String, Quantity>>) -> u32 {
    let count = |(name, quantity): (&String, &Quantity)| is_gpu(name).then(|| quantity.0.parse::<u32>().unwrap_or(0));
    resources.into_iter().flatten().filter_map(count).sum()
}
