//! Measuring a takeover with the spans that ship: how long nobody leads a cluster after its leader was killed, how long until a
//! fault that shows at that very moment is marked, and how long nobody leads after a leader that was told to end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::{GPUS, break_gpu, quantile};
use crate::{
    cluster::{Kind, Machine},
    fleet::{ClusterPlan, Fleet, Plan},
    wait,
};

const CLUSTER: &str = "takeover";
/// Lease duration, renew deadline and retry, as a spoke has them by default.
const SHIPPED: [&str; 3] = ["15s", "10s", "2s"];
/// How long anything may take before the run is called broken.
const WITHIN: Duration = Duration::from_secs(120);

/// What was seen, in seconds, sorted.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// From the kill of a leader until the Lease was another's.
    pub killed_s: Vec<f64>,
    /// From the same moment, at which a fault began, until its node's taint was seen.
    pub marked_s: Vec<f64>,
    /// From the word to end until the Lease was another's.
    pub told_s: Vec<f64>,
}

impl Figures {
    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let of = |sorted: &[f64]| format!("{:.1} / {:.1} s", quantile(sorted, 0.5), quantile(sorted, 1.0));
        let times = self.killed_s.len();
        vec![
            // The Lease runs out 15 s after a renewal that was at most 2 s old, as the other sees it at a look of its own: each comes
            // 2.4 s after the one before at the latest.
            [format!("leader killed {times} times: another leads, P50 / worst"), "17.4 s".into(), of(&self.killed_s)],
            ["a fault at the moment of the kill: its node marked".into(), String::new(), of(&self.marked_s)],
            [format!("leader told to end {times} times: another leads, P50 / worst"), "2.4 s".into(), of(&self.told_s)],
        ]
    }
}

/// Has the leader killed, and told to end, `times` times each, and measures.
///
/// # Errors
/// When anything of it breaks.
pub async fn run(times: usize, seed: u64, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    let machine = |n: usize| Machine { name: format!("n{n:04}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
    let plan = ClusterPlan { id: CLUSTER, kind: Kind::Sim, machines: (0..times).map(machine).collect() };
    let plan = Plan { seed, policy: policy.to_owned(), clusters: vec![plan], lease: SHIPPED };
    let mut fleet = Fleet::start(plan, &say).await?;
    match measured(&mut fleet, &say).await {
        Ok(figures) => fleet.stop().map(|()| figures),
        Err(error) => Err(fleet.place.left_for(error, "measuring takeovers")),
    }
}

async fn measured(fleet: &mut Fleet, say: &impl Fn(&str)) -> Result<Figures> {
    let mut figures = Figures::default();
    let nodes = fleet.cluster(CLUSTER)?.gpu_nodes();
    for (at, node) in nodes.iter().enumerate() {
        say(&format!("takeover {} of {}", at + 1, nodes.len()));
        let leader = fleet.cluster(CLUSTER)?.leader().await?;
        let since = Instant::now();
        let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
        cluster.replicas().get_mut(&leader).context("the leader is one of ours")?.process.kill()?;
        break_gpu(fleet, CLUSTER, node)?;
        figures.killed_s.push(another_leads(fleet, &leader, since).await?);
        let cluster = fleet.cluster(CLUSTER)?;
        let tainted =
            wait::until(&format!("the taint of {node}"), WITHIN, || async { Ok(cluster.observer.tainted_at(node, since)) }).await?;
        figures.marked_s.push(tainted.saturating_duration_since(since).as_secs_f64());
        back(fleet, &leader).await?;

        let leader = fleet.cluster(CLUSTER)?.leader().await?;
        let since = Instant::now();
        let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
        cluster.replicas().get_mut(&leader).context("the leader is one of ours")?.process.terminate()?;
        figures.told_s.push(another_leads(fleet, &leader, since).await?);
        let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
        cluster.replicas().get_mut(&leader).context("the leader is one of ours")?.process.stop()?;
        back(fleet, &leader).await?;
    }
    for sorted in [&mut figures.killed_s, &mut figures.marked_s, &mut figures.told_s] {
        sorted.sort_by(f64::total_cmp);
    }
    Ok(figures)
}

/// Seconds from `since` until the Lease is another's.
async fn another_leads(fleet: &Fleet, leader: &str, since: Instant) -> Result<f64> {
    let cluster = fleet.cluster(CLUSTER)?;
    wait::until("another replica to lead", WITHIN, || async { Ok((cluster.leader().await? != leader).then_some(())) }).await?;
    Ok(since.elapsed().as_secs_f64())
}

/// Starts a replica again, and waits until it is ready: it stands by.
async fn back(fleet: &mut Fleet, name: &str) -> Result<()> {
    let (cluster, settings) = fleet.cluster_mut(CLUSTER)?;
    let replica = name.rsplit('-').next().unwrap_or_default().to_owned();
    cluster.start_replica(&replica, &settings).await
}
