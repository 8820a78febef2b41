//! Measuring a storm: every node of many clusters turns faulty in one moment. How long until the last carries the taint?

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{GPUS, alone::allow_files, break_gpu, quantile};
use crate::{
    cluster::{Kind, Machine},
    fleet::{ClusterPlan, Fleet, Plan},
    script::LEASE,
    wait,
};

/// Its clusters.
const CLUSTERS: [&str; 10] =
    ["storm-0", "storm-1", "storm-2", "storm-3", "storm-4", "storm-5", "storm-6", "storm-7", "storm-8", "storm-9"];
/// Open files of the harness for each node: its exporter, and the connections of both spokes to it.
const FILES_EACH: usize = 4;
/// How long the last node may take before the run is called broken.
const WITHIN: Duration = Duration::from_secs(600);

/// What the fleet showed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Faulty nodes and clusters.
    pub nodes: (usize, usize),
    /// Seconds from the moment at which all turned faulty to each taint, sorted. The spokes' scrape interval is within.
    pub from_fault: Vec<f64>,
    /// Seconds from the first moment at which an exporter served the fault to each taint, sorted.
    pub from_seen: Vec<f64>,
}

impl Figures {
    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let of = |sorted: &[f64]| format!("{:.2} / {:.2} s", quantile(sorted, 0.5), quantile(sorted, 1.0));
        let (nodes, clusters) = self.nodes;
        vec![
            [
                format!("{nodes} faulty nodes of {clusters} clusters, first page served to taint, P50 / last"),
                "2 s".into(),
                of(&self.from_seen),
            ],
            ["the same from the faults themselves, a scrape interval of 1 s within".into(), String::new(), of(&self.from_fault)],
        ]
    }
}

/// Breaks `nodes` nodes over all clusters at once and measures.
pub async fn run(nodes: usize, seed: u64, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    allow_files(nodes * FILES_EACH)?;
    let each = nodes.div_ceil(CLUSTERS.len());
    let machine = |n: usize| Machine { name: format!("n{n:04}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
    let plan = |id| ClusterPlan { id, kind: Kind::Sim, machines: (0..each).map(machine).collect() };
    let plan = Plan { seed, policy: policy.to_owned(), clusters: CLUSTERS.map(plan).into(), lease: LEASE };
    let mut fleet = Fleet::start(plan, &say).await?;
    match measured(&fleet, &say).await {
        Ok(figures) => fleet.stop().map(|()| figures),
        Err(error) => Err(fleet.place.left_for(error, "measuring a storm")),
    }
}

async fn measured(fleet: &Fleet, say: &impl Fn(&str)) -> Result<Figures> {
    let since = Instant::now();
    let mut broken = vec![];
    for cluster in &fleet.clusters {
        for node in cluster.gpu_nodes() {
            let version = break_gpu(fleet, &cluster.id, &node)?;
            broken.push((cluster, node, version));
        }
    }
    say(&format!("{} nodes turned faulty within {:.0} ms", broken.len(), since.elapsed().as_secs_f64() * 1000.0));
    let (mut visible, mut tainted) = (vec![], vec![]);
    for (cluster, node, version) in &broken {
        let what = format!("the taint of {node} in {}", cluster.id);
        tainted.push(wait::until(&what, WITHIN, || async { Ok(cluster.observer.tainted_at(node, since)) }).await?);
        visible.push(cluster.exporter(node).visible_at(*version).context("a node that was tainted had been scraped")?);
    }
    let first = visible.into_iter().min().unwrap_or(since);
    let sorted = |from: Instant| {
        let mut seconds: Vec<f64> = tainted.iter().map(|at| at.saturating_duration_since(from).as_secs_f64()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds
    };
    Ok(Figures { nodes: (broken.len(), fleet.clusters.len()), from_fault: sorted(since), from_seen: sorted(first) })
}
