//! Measuring a storm: every node of one or of many clusters turns faulty in one moment. How long until the last carries the taint, and
//! what does it cost their API servers? On kubesim, or on Kubernetes' own API server, where the spokes act as the account that ships
//! with them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::{GPUS, alone::allow_files, break_gpu, quantile, requests_each};
use crate::{
    cluster::{Kind, Machine},
    fleet::{ClusterPlan, Fleet, Plan as FleetPlan},
    script::LEASE,
    wait,
};

/// Its clusters: the first of these.
pub const CLUSTERS: [&str; 10] =
    ["storm-0", "storm-1", "storm-2", "storm-3", "storm-4", "storm-5", "storm-6", "storm-7", "storm-8", "storm-9"];
/// Open files of the harness for each node: its exporter, and the connections of both spokes to it.
const FILES_EACH: usize = 4;
/// How long the last node may take before the run is called broken.
const WITHIN: Duration = Duration::from_secs(600);

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Faulty nodes, over all clusters.
    pub nodes: usize,
    /// Clusters; as many as there are names at most.
    pub clusters: usize,
    /// What serves each of them.
    pub kind: Kind,
    /// Seed of what is drawn.
    pub seed: u64,
}

/// What the fleet showed.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Faulty nodes and clusters.
    pub nodes: (usize, usize),
    /// The clusters were Kubernetes' own.
    pub real: bool,
    /// Seconds from the moment at which all turned faulty to each taint, sorted. The spokes' scrape interval is within.
    pub from_fault: Vec<f64>,
    /// Seconds from the first moment at which an exporter served the fault to each taint, sorted.
    pub from_seen: Vec<f64>,
    /// Requests of the spokes for each faulty node until its command was settled, by verb and resource; watches and the Lease not counted.
    pub requests: BTreeMap<String, f64>,
}

impl Figures {
    /// Nodes a second, from the first page that was served with a fault to the last taint.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.nodes.0 as f64 / quantile(&self.from_seen, 1.0)
    }

    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let of = |sorted: &[f64]| [0.5, 0.99, 1.0].map(|share| format!("{:.2}", quantile(sorted, share))).join(" / ") + " s";
        let (nodes, clusters) = self.nodes;
        let of_clusters = if clusters == 1 { "one cluster".to_owned() } else { format!("{clusters} clusters") };
        // The target is of ten API servers.
        let target = if self.real { "" } else { "2 s" };
        let all: f64 = self.requests.values().sum();
        let mut rows = vec![
            [
                format!("{nodes} faulty nodes of {of_clusters}, first page served to taint, P50 / P99 / last"),
                target.into(),
                of(&self.from_seen),
            ],
            ["the same from the faults themselves, a scrape interval of 1 s within".into(), String::new(), of(&self.from_fault)],
            ["nodes quarantined a second".into(), String::new(), format!("{:.1}", self.rate())],
            ["API requests per faulty node".into(), String::new(), format!("{all:.2}")],
        ];
        rows.extend(self.requests.iter().map(|(what, each)| [format!("of which {what}"), String::new(), format!("{each:.2}")]));
        rows
    }
}

/// Breaks all nodes of all clusters at once and measures.
pub async fn run(plan: Plan, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    allow_files(plan.nodes * FILES_EACH)?;
    let ids = &CLUSTERS[..plan.clusters.clamp(1, CLUSTERS.len())];
    let each = plan.nodes.div_ceil(ids.len());
    let machine = |n: usize| Machine { name: format!("n{n:04}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
    let cluster = |id: &&'static str| ClusterPlan { id, kind: plan.kind, machines: (0..each).map(machine).collect() };
    let clusters = ids.iter().map(cluster).collect();
    let fleet_plan = FleetPlan { seed: plan.seed, policy: policy.to_owned(), clusters, lease: LEASE };
    let mut fleet = Fleet::without_spokes(fleet_plan, None, &say).await?;
    match played(&mut fleet, plan.kind, &say).await {
        Ok(figures) => fleet.stop().map(|()| figures),
        Err(error) => Err(fleet.place.left_for(error, "measuring a storm")),
    }
}

async fn played(fleet: &mut Fleet, kind: Kind, say: &impl Fn(&str)) -> Result<Figures> {
    if kind == Kind::Real {
        for cluster in &mut fleet.clusters {
            cluster.act_as_account().await?;
        }
    }
    fleet.start_spokes(say).await?;
    let mut before = vec![];
    for cluster in &fleet.clusters {
        before.push(cluster.requests().await.len());
    }
    let mut figures = measured(fleet, say).await?;
    figures.real = kind == Kind::Real;
    settled(fleet, figures.nodes.0).await?;
    let mut requests = vec![];
    for (cluster, before) in fleet.clusters.iter().zip(before) {
        requests.extend(cluster.requests().await.split_off(before));
    }
    figures.requests = requests_each(&requests, figures.nodes.0);
    Ok(figures)
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
    let nodes = (broken.len(), fleet.clusters.len());
    Ok(Figures { nodes, from_fault: sorted(since), from_seen: sorted(first), ..Figures::default() })
}

/// Waits until each node's command is settled, so that the requests of its report are counted too.
async fn settled(fleet: &Fleet, nodes: usize) -> Result<()> {
    let want = i64::try_from(nodes)?;
    wait::until("the commands to be settled", WITHIN, || async {
        let sql = "SELECT count(DISTINCT (cluster_id, node_name)) FROM commands WHERE state = 'SUCCEEDED'";
        let done: i64 = sqlx::query_scalar(sql).fetch_one(&fleet.pool).await?;
        Ok((done >= want).then_some(()))
    })
    .await?;
    // The last request takes the finalizer off, after the hub's ack.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_of_all_nodes_until_the_last_taint_and_each_kind_of_request_has_its_row() {
        let requests = [("create events".to_owned(), 2.0), ("patch nodes".to_owned(), 1.0)].into();
        let figures = Figures {
            nodes: (4, 1),
            real: true,
            from_fault: vec![1.0, 2.0, 3.0, 4.0],
            from_seen: vec![0.5, 1.0, 1.5, 2.0],
            requests,
        };
        assert!((figures.rate() - 2.0).abs() < 1e-9);
        let rows = figures.rows();
        assert_eq!(rows[0][2], "1.00 / 2.00 / 2.00 s");
        let last: Vec<_> = rows[2..].iter().map(|[what, _, measured]| format!("{what}: {measured}")).collect();
        let per_node = ["API requests per faulty node: 3.00", "of which create events: 2.00", "of which patch nodes: 1.00"];
        assert_eq!(last, [&["nodes quarantined a second: 2.0"][..], &per_node].concat());
    }
}
