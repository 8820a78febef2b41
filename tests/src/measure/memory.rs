//! Measuring what a large cluster costs the one spoke that leads it: the shipping program beside a hub, on a simulated API server
//! with thousands of nodes and a hundred thousand pods, as large and as wordy as real ones. Every object is put there once and
//! stays; exporters answer over real HTTP. Resident memory as the kernel counts it.

mod objects;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use gpuheal_proto::kubernetes::NAMESPACE;
use kubesim::{Controllers, KubeSim};

use super::{
    GPUS,
    alone::{Alone, allow_files},
};
use crate::{
    exporter::Exporters,
    process::{Process, Programs},
    wait,
};

/// The clusters' ids: one without a node, to see what a spoke takes by itself, and the one that is measured.
const EMPTY: &str = "empty";
const LARGE: &str = "large";
/// The GPUs' model.
const MODEL: &str = "NVIDIA H100 80GB HBM3";
/// How long the spoke may take to know all of it, and the hub to be told.
const WITHIN: Duration = Duration::from_secs(15 * 60);
/// For how long it is then looked at: every exporter is asked again, and each look at all nodes comes round.
const LOOKED_AT: Duration = Duration::from_secs(90);
/// A second list of everything takes less: the watches are cut, and what they knew is too old to go on from.
const LISTED_AGAIN: Duration = Duration::from_secs(60);
/// How often memory is read.
const EVERY: Duration = Duration::from_millis(250);
/// GPU pods of a GPU node: eight GPUs in pods of one, as inference has them, cost the most.
const GPU_PODS_EACH: usize = 8;
/// Open files for each exporter: its port, and a connection.
const FILES_EACH: usize = 2;

/// What is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Nodes.
    pub nodes: usize,
    /// Of them with eight GPUs and an exporter.
    pub gpu_nodes: usize,
    /// Pods, those with GPUs among them.
    pub pods: usize,
    /// Seed of the GPUs' names.
    pub seed: u64,
}

/// What the spoke showed.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// Nodes, GPU nodes, pods, GPU pods.
    pub cluster: [usize; 4],
    /// Resident KiB before the cluster had a node.
    pub empty_kib: u64,
    /// The most that was resident while the cluster was looked at, in KiB.
    pub resident_kib: u64,
    /// Of what is resident at the end, pages of the program's own file.
    pub program_kib: u64,
    /// Of what is resident at the end, what it has allocated.
    pub allocated_kib: u64,
    /// The most that was ever resident, first list and snapshot included.
    pub peak_kib: u64,
    /// The most while all was listed again, in KiB.
    pub again_kib: u64,
    /// Seconds from the spoke's start until the hub knew every GPU.
    pub known_seconds: f64,
}

impl Figures {
    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
        let [nodes, gpu_nodes, pods, gpu_pods] = self.cluster;
        let grown = self.allocated_kib.saturating_sub(self.empty_kib.saturating_sub(self.program_kib));
        vec![
            [
                format!("spoke resident: {nodes} nodes, {gpu_nodes} with {GPUS} GPUs each; {pods} pods, {gpu_pods} with GPUs"),
                "64 MiB".into(),
                mib(self.resident_kib),
            ],
            ["of which pages of its own program".into(), String::new(), mib(self.program_kib)],
            ["of which allocated".into(), String::new(), mib(self.allocated_kib)],
            [
                "allocated for each node, beyond an empty cluster".into(),
                String::new(),
                format!("{:.1} KiB", grown as f64 / nodes.max(1) as f64),
            ],
            ["resident without a cluster".into(), String::new(), mib(self.empty_kib)],
            ["the most ever, its first list and snapshot included".into(), String::new(), mib(self.peak_kib)],
            ["the most while all was listed again".into(), "64 MiB".into(), mib(self.again_kib)],
            ["from its start until the hub knew every GPU".into(), String::new(), format!("{:.1} s", self.known_seconds)],
        ]
    }
}

/// Puts the cluster there, starts the spoke and measures.
pub async fn run(plan: Plan, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    allow_files(plan.gpu_nodes * FILES_EACH)?;
    // A second of scraping interval, as other measurements have it, would measure the exporters.
    let policy = policy.replace("scrapeInterval: 1s", "scrapeInterval: 30s");
    let alone = Alone::start(&policy, &[EMPTY.to_owned(), LARGE.to_owned()], &say).await?;
    let outcome = measured(&alone, plan, &say).await;
    alone.end(outcome)
}

async fn measured(alone: &Alone, plan: Plan, say: &impl Fn(&str)) -> Result<Figures> {
    let mut figures =
        Figures { cluster: [plan.nodes, plan.gpu_nodes, plan.pods, plan.gpu_nodes * GPU_PODS_EACH], ..Figures::default() };
    let empty = api_server(alone, EMPTY).await?;
    let mut spoke = start(alone, EMPTY).await?;
    // Longer than anything that is only done at the start.
    tokio::time::sleep(Duration::from_secs(20)).await;
    figures.empty_kib = spoke.resident_kib().context("the spoke runs")?;
    spoke.stop()?;
    drop(empty);

    let sim = api_server(alone, LARGE).await?;
    say(&format!("{} nodes and {} pods on kubesim", plan.nodes, plan.pods));
    let mut exporters = Exporters::default();
    fill(&sim, plan, &mut exporters).await?;
    say(&format!("{} MiB of objects; the spoke", sim.store().bytes().0 >> 20));
    let since = Instant::now();
    let mut spoke = start(alone, LARGE).await?;
    known(alone, plan.gpu_nodes).await?;
    figures.known_seconds = since.elapsed().as_secs_f64();
    say(&format!("the hub knows it after {:.0} s; looking at it for {} s", figures.known_seconds, LOOKED_AT.as_secs()));
    figures.resident_kib = most(&spoke, LOOKED_AT).await?;
    say("listing all again");
    sim.store().compact();
    for resource in ["nodes", "pods", "configmaps"] {
        sim.faults().drop_watches(resource);
    }
    figures.again_kib = most(&spoke, LISTED_AGAIN).await?;
    let read = |line: &str| spoke.memory_kib(line).with_context(|| format!("{line} of the spoke"));
    (figures.allocated_kib, figures.program_kib, figures.peak_kib) = (read("RssAnon")?, read("RssFile")?, read("VmHWM")?);
    spoke.stop()?;
    Ok(figures)
}

/// An API server in which a spoke may be installed. Nothing runs in it: objects stay as they are put.
async fn api_server(alone: &Alone, name: &str) -> Result<KubeSim> {
    let sim =
        KubeSim::start(kubesim::Config { name: name.to_owned(), controllers: Controllers::NONE, ..kubesim::Config::default() })
            .await?;
    std::fs::write(alone.place.dir.join(format!("{name}.kubeconfig")), sim.kubeconfig_yaml())?;
    let client = testkube::connect::connect(&sim.kubeconfig_yaml(), "gpuheal-harness").await?;
    crate::cluster::install(&client).await?;
    Ok(sim)
}

async fn fill(sim: &KubeSim, plan: Plan, exporters: &mut Exporters) -> Result<()> {
    let name = |n: usize| format!("gpu-node-{n:05}.example.internal");
    for n in 0..plan.nodes {
        let gpus = if n < plan.gpu_nodes { GPUS } else { 0 };
        sim.store().create(objects::node(&name(n), n, gpus, MODEL))?;
    }
    let mut left = plan.pods;
    for n in 0..plan.gpu_nodes {
        let address = exporters.add(plan.seed, &name(n), MODEL, GPUS).await?;
        sim.store().create(objects::exporter(&name(n), n, address.port()))?;
        for pod in 0..GPU_PODS_EACH {
            sim.store().create(objects::pod(&name(n), n, pod, 1))?;
        }
        left = left.saturating_sub(GPU_PODS_EACH + 1);
    }
    for pod in 0..left {
        let n = pod % plan.nodes;
        sim.store().create(objects::pod(&name(n), n, GPU_PODS_EACH + pod / plan.nodes, 0))?;
    }
    Ok(())
}

async fn start(alone: &Alone, name: &str) -> Result<Process> {
    let dir = &alone.place.dir;
    let path = |file: &str| dir.join(file).display().to_string();
    let args: Vec<String> = [
        "run",
        "--hub",
        &format!("https://{}", alone.link()),
        "--identity",
        &alone.identity(name).display().to_string(),
        "--kubeconfig",
        &path(&format!("{name}.kubeconfig")),
        "--replica-id",
        &format!("{name}-a"),
        "--namespace",
        NAMESPACE,
        "--journal",
        &path(&format!("{name}-journal")),
        "--listen-http",
        "127.0.0.1:0",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut process = Process::start(dir, &format!("spoke-{name}"), &Programs::built()?.spoke, &args)?;
    process.ready().await?;
    Ok(process)
}

/// Waits until the hub has been told of every GPU.
async fn known(alone: &Alone, gpu_nodes: usize) -> Result<()> {
    let want = i64::try_from(gpu_nodes)?;
    wait::until(&format!("the hub to know {want} GPU nodes"), WITHIN, || async {
        let known: i64 = sqlx::query_scalar("SELECT count(*) FROM nodes WHERE gone_at IS NULL AND jsonb_array_length(gpus) = $1")
            .bind(i32::try_from(GPUS)?)
            .fetch_one(&alone.pool)
            .await?;
        Ok((known >= want).then_some(()))
    })
    .await
}

/// The most that is resident within a span.
async fn most(spoke: &Process, span: Duration) -> Result<u64> {
    let until = Instant::now() + span;
    let mut most = 0;
    while Instant::now() < until {
        most = most.max(spoke.resident_kib().context("the spoke runs")?);
        tokio::time::sleep(EVERY).await;
    }
    Ok(most)
}
