//! Which pod used the GPU, as `namespace/pod`: for people, and never a part of what a fault is.

use crate::scrape::dcgm::GpuRow;

/// The first of the GPU's pods; empty where the exporter names none.
pub(super) fn of(row: &GpuRow<'_>) -> String {
    row.workloads.first().map(|workload| join(workload.namespace, workload.pod)).unwrap_or_default()
}

/// Both parts, or the pod alone where its namespace is not known.
pub(super) fn join(namespace: &str, pod: &str) -> String {
    if namespace.is_empty() || pod.is_empty() { pod.to_owned() } else { format!("{namespace}/{pod}") }
}
