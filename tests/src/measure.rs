//! Measuring one cluster: how long from a fault's first page to the taint, what a drain adds to the pods' own time, what it
//! costs in requests and memory. Figures only; judging them is the reader's. Below: what a crowd of spokes, many faults and a
//! storm of them cost.

mod alone;
pub mod attached;
pub mod ingest;
pub mod memory;
mod simulated;
pub mod stages;
pub mod stops;
pub mod storm;
pub mod takeover;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use testkube::AuditEntry;

use crate::{
    cluster::{Kind, Machine},
    fleet::{ClusterPlan, Fleet, Plan},
    record,
    script::LEASE,
    seed::Seeded,
    wait, workload,
};
use stages::Seen;

/// The cluster's id.
const CLUSTER: &str = "bench";
/// GPUs of each node: a page of eight GPUs is 30 kB, as a real one.
const GPUS: u32 = 8;
/// Nodes that carry a pod and are drained, after the others were only marked.
const DRAINED: usize = 20;
/// How long those pods take to end.
const EXIT: Duration = Duration::from_millis(200);
/// Mean span between two faults: ten a second, far below what the hub can do, so that each is measured alone.
const SPACING_MS: (u64, u64) = (60, 140);
/// After how many faults it is said how far we are: every five seconds.
const TOLD_EVERY: usize = 50;
/// How long the slowest may take before the run is called broken.
const WITHIN: Duration = Duration::from_secs(120);

/// What one cluster showed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// From the page served that the leader read to the taint seen by a watch, in milliseconds, sorted.
    pub taint_ms: Vec<f64>,
    /// The same by the spans of [`stages::SPANS`], each sorted.
    pub stages_ms: Vec<Vec<f64>>,
    /// Patches of the node per node that was only marked, lost races among them.
    pub node_writes: f64,
    /// From the taint to the last GPU pod gone, less the pods' own time to end.
    pub drain_overhead_ms: Vec<f64>,
    /// Granted and refused eviction requests per pod.
    pub evictions_per_pod: f64,
    /// Requests of the spokes per drained node, by verb and resource; watches and the Lease not counted.
    pub requests: BTreeMap<String, f64>,
    /// Resident memory in KiB of the hub and of the leading spoke.
    pub resident_kib: (u64, u64),
}

impl Figures {
    /// The value below which this share of the taints came.
    #[must_use]
    pub fn taint_at(&self, share: f64) -> f64 {
        quantile(&self.taint_ms, share)
    }

    /// The same of one span of the way.
    #[must_use]
    pub fn stage_at(&self, span: usize, share: f64) -> f64 {
        self.stages_ms.get(span).map_or(f64::NAN, |sorted| quantile(sorted, share))
    }

    /// The same of the drains.
    #[must_use]
    pub fn drain_at(&self, share: f64) -> f64 {
        quantile(&self.drain_overhead_ms, share)
    }
}

/// The nearest-rank quantile of sorted values; NaN when there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil().max(1.0) as usize;
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Plays `faults` faults one after another on one cluster and measures.
pub async fn run(kind: Kind, faults: usize, seed: u64, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    let nodes = faults + DRAINED;
    let machines = (0..nodes).map(|n| Machine { name: format!("n{n:04}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" }).collect();
    let plan = Plan { seed, policy: policy.to_owned(), clusters: vec![ClusterPlan { id: CLUSTER, kind, machines }], lease: LEASE };
    let mut fleet = Fleet::start(plan, &say).await?;
    match measured(&mut fleet, faults, seed, &say).await {
        Ok(figures) => fleet.stop().map(|()| figures),
        Err(error) => Err(fleet.place.left_for(error, "measuring")),
    }
}

async fn measured(fleet: &mut Fleet, faults: usize, seed: u64, say: &impl Fn(&str)) -> Result<Figures> {
    let mut figures = Figures::default();
    let names = fleet.cluster(CLUSTER)?.gpu_nodes();
    say(&format!("{faults} faults, one at a time"));
    let seen = marks(fleet, &names[DRAINED..], seed, &say).await?;
    (figures.taint_ms, figures.stages_ms) = stages::stages(&fleet.pool, &seen).await?;
    let requests = fleet.cluster(CLUSTER)?.requests().await;
    let writes: usize = seen.iter().map(|fault| record::node_writes(&requests, &fault.node).len()).sum();
    figures.node_writes = writes as f64 / seen.len() as f64;
    say(&format!("{DRAINED} drains of one pod each"));
    drains(fleet, &names[..DRAINED], &mut figures).await?;
    let leader = fleet.cluster(CLUSTER)?.leader().await?;
    let hub = fleet.hub.resident_kib().unwrap_or_default();
    let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
    let spoke = cluster.replicas().get(&leader).and_then(|replica| replica.process.resident_kib()).unwrap_or_default();
    figures.resident_kib = (hub, spoke);
    Ok(figures)
}

/// A fault that one page proves: the Xid and its count at the threshold.
fn break_gpu(fleet: &Fleet, cluster: &str, node: &str) -> Result<u64> {
    let exporter = fleet.cluster(cluster)?.exporter(node);
    Ok(exporter.change(|gpus| {
        gpus[0].xid = 79;
        gpus[0].xid_counts.insert(79, 5);
    }))
}

async fn marks(fleet: &Fleet, nodes: &[String], seed: u64, say: &impl Fn(&str)) -> Result<Vec<Seen>> {
    let mut seeded = Seeded::new(seed);
    let since = Instant::now();
    let mut broken = vec![];
    for node in nodes {
        broken.push((node, break_gpu(fleet, CLUSTER, node)?));
        tokio::time::sleep(Duration::from_millis(seeded.between(SPACING_MS.0, SPACING_MS.1))).await;
        if broken.len().is_multiple_of(TOLD_EVERY) {
            say(&format!("{} of {} faults shown", broken.len(), nodes.len()));
        }
    }
    let cluster = fleet.cluster(CLUSTER)?;
    let mut taken = vec![];
    for (node, version) in broken {
        let tainted =
            wait::until(&format!("the taint of {node}"), WITHIN, || async { Ok(cluster.observer.tainted_at(node, since)) }).await?;
        taken.push(Seen { node: node.clone(), served: cluster.exporter(node).servings(version), tainted });
    }
    Ok(taken)
}

async fn drains(fleet: &Fleet, nodes: &[String], figures: &mut Figures) -> Result<()> {
    let cluster = fleet.cluster(CLUSTER)?;
    for node in nodes {
        cluster.create(workload::gpu_pod(&format!("job-{node}"), node, EXIT)).await?;
    }
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), workload::JOBS);
    wait::until("the pods to run", WITHIN, || async {
        let ready = pods.list(&ListParams::default()).await?.items.iter().filter(|pod| crate::cluster::ready(pod)).count();
        Ok((ready == nodes.len()).then_some(()))
    })
    .await?;
    let before = cluster.requests().await.len();
    let since = Instant::now();
    for node in nodes {
        break_gpu(fleet, CLUSTER, node)?;
        tokio::time::sleep(Duration::from_millis(SPACING_MS.1)).await;
    }
    for node in nodes {
        let tainted =
            wait::until(&format!("the taint of {node}"), WITHIN, || async { Ok(cluster.observer.tainted_at(node, since)) }).await?;
        let gone = wait::until(&format!("the pod of {node} to go"), WITHIN, || async {
            let jobs = cluster.observer.pods_of(node).into_values().filter(|pod| pod.app == "job");
            Ok(jobs.map(|pod| pod.gone_at).collect::<Option<Vec<_>>>().and_then(|gone| gone.into_iter().max()))
        })
        .await?;
        let overhead = gone.saturating_duration_since(tainted).as_secs_f64() - EXIT.as_secs_f64();
        figures.drain_overhead_ms.push(overhead * 1000.0);
    }
    figures.drain_overhead_ms.sort_by(f64::total_cmp);
    settled(fleet, nodes.len()).await?;
    let requests = cluster.requests().await.split_off(before);
    count(&requests, nodes.len(), figures);
    Ok(())
}

/// Waits until every drain's command is settled, so that its report's requests are counted too.
async fn settled(fleet: &Fleet, drains: usize) -> Result<()> {
    let want = i64::try_from(drains)?;
    wait::until("the commands to be settled", WITHIN, || async {
        let done: i64 = sqlx::query_scalar("SELECT count(*) FROM commands WHERE state = 'SUCCEEDED' AND node_name < $1")
            .bind(format!("n{drains:04}"))
            .fetch_one(&fleet.pool)
            .await?;
        Ok((done >= want).then_some(()))
    })
    .await?;
    // The last request of a heal takes the finalizer off, after the hub's ack.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

fn count(requests: &[AuditEntry], nodes: usize, figures: &mut Figures) {
    figures.requests = requests_each(requests, nodes);
    // One pod each.
    figures.evictions_per_pod = figures.requests.get("create pods/eviction").copied().unwrap_or_default();
}

/// Requests of the spokes for each of so many nodes, by verb and resource; watches and the Lease not counted.
fn requests_each(requests: &[AuditEntry], nodes: usize) -> BTreeMap<String, f64> {
    let ours = requests.iter().filter(|r| r.user_agent.starts_with("gpuheal-spoke") && !r.is_watch() && r.resource != "leases");
    let mut counted: BTreeMap<String, u32> = BTreeMap::new();
    for request in ours {
        let what = if request.subresource.is_empty() {
            request.resource.clone()
        } else {
            format!("{}/{}", request.resource, request.subresource)
        };
        *counted.entry(format!("{} {what}", request.verb)).or_default() += 1;
    }
    counted.into_iter().map(|(what, count)| (what, f64::from(count) / nodes as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn a_quantile_is_a_value_that_was_measured() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&sorted, 0.5), 2.0);
        assert_eq!(quantile(&sorted, 0.99), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
