//! `make bench`: measures on this machine what docs/numbers.md states targets for, and prints both side by side.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use gpuheal_tests::{
    cluster::Kind,
    measure::{self, Figures, attached, ingest, memory, stops, storm, takeover},
    output::{self, Format},
};
use serde_json::{Map, Value, json};

/// The policy of the measurement: the script's, with rates and budgets that do not stand in the way.
const POLICY: &str = include_str!("../measure/policy.yaml");

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Measure {
    /// From a fault to the taint, and a drain, on a simulated and on a real API server.
    Way,
    /// Many simulated spokes on one hub: memory, idle CPU, all back after the hub was killed.
    Attached,
    /// New faults a second into Postgres, beside a bare INSERT of the same rows.
    Ingest,
    /// Many faulty nodes at once, of ten clusters on kubesim or of Kubernetes' own API server.
    Storm,
    /// The stop switches: the fleet's, a cluster's own, a revoked identity.
    Stops,
    /// How long nobody leads a cluster whose leader is killed, or told to end.
    Takeover,
    /// What a large cluster costs its spoke.
    Memory,
}

/// What serves a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kube {
    /// kubesim
    Sim,
    /// Kubernetes' own control plane
    Real,
}

/// Measures what a fault, a crowd of spokes, many faults and a storm cost.
#[derive(Parser)]
#[command(name = "gpuheal-bench", version)]
struct Args {
    /// Only this, and what else is named so; all of it when nothing is.
    #[arg(long, value_enum)]
    only: Vec<Measure>,
    /// way: how many faults.
    #[arg(long, default_value_t = 500)]
    faults: usize,
    /// attached: how many spokes.
    #[arg(long, default_value_t = 2000)]
    spokes: usize,
    /// attached: how long nothing happens, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    idle_s: u64,
    /// ingest: sessions that send.
    #[arg(long, default_value_t = 20)]
    sessions: usize,
    /// ingest: GPU nodes of each session's cluster.
    #[arg(long, default_value_t = 200)]
    nodes: usize,
    /// ingest: faults a second over all sessions.
    #[arg(long, default_value_t = 5000)]
    rate: u64,
    /// ingest: for how long, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rate_s: u64,
    /// ingest: faults that then come as fast as they may, and are inserted bare.
    #[arg(long, default_value_t = 100_000)]
    flood: u64,
    /// storm: faulty nodes.
    #[arg(long, default_value_t = 1000, value_parser = at_least_one)]
    faulty: usize,
    /// storm: what serves its clusters.
    #[arg(long, value_enum, default_value_t = Kube::Sim)]
    kube: Kube,
    /// storm: its clusters; ten on kubesim and one on Kubernetes when left out, each of which is a control plane of its own.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=10))]
    clusters: Option<u16>,
    /// stops: drains that are under way at each stop.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    drains: u16,
    /// takeover: how often a leader is killed, and told to end.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    takeovers: u16,
    /// memory: nodes of the cluster.
    #[arg(long, default_value_t = 5000)]
    large_nodes: usize,
    /// memory: nodes of them with GPUs and an exporter.
    #[arg(long, default_value_t = 1000)]
    gpu_nodes: usize,
    /// memory: pods, eight with a GPU on each GPU node among them.
    #[arg(long, default_value_t = 100_000)]
    pods: usize,
    /// Seed of what is drawn: spans between faults, waits of spokes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the figures are written.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| format!("{text:?} is no number from 1 on"))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = tokio::runtime::Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(run(&args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<()> {
    let wanted = |measure| args.only.is_empty() || args.only.contains(&measure);
    let mut figures = Map::new();
    // A table is printed as soon as it is whole: a later measure that breaks takes none of it away.
    let mut keep = |name: &str, value: Value, table: Table| {
        figures.insert(name.to_owned(), value);
        if args.output == Format::Table {
            output::print(&format!("{table}\n\n"));
        }
    };
    if wanted(Measure::Way) {
        let columns = way(args).await?;
        keep("way", json!(columns), table(args.faults, &columns));
    }
    if wanted(Measure::Attached) {
        let plan = attached::Plan { spokes: args.spokes, idle: Duration::from_secs(args.idle_s), seed: args.seed };
        let figures = attached::run(plan, POLICY, |what| eprintln!("attached: {what}")).await?;
        keep("attached", json!(figures), rows(format!("{} spokes on one hub", args.spokes), figures.rows()));
    }
    if wanted(Measure::Ingest) {
        let (sessions, nodes, rate, flood, seed) = (args.sessions, args.nodes, args.rate, args.flood, args.seed);
        let plan = ingest::Plan { sessions, nodes, rate, span: Duration::from_secs(args.rate_s), flood, seed };
        let figures = ingest::run(plan, POLICY, |what| eprintln!("ingest: {what}")).await?;
        keep("ingest", json!(figures), rows(format!("new faults from {sessions} sessions"), figures.rows()));
    }
    if wanted(Measure::Storm) {
        let (kind, clusters, on) = match args.kube {
            Kube::Sim => (Kind::Sim, 10, "kubesim"),
            Kube::Real => (Kind::Real, 1, "the real API server"),
        };
        let clusters = args.clusters.map_or(clusters, usize::from);
        let plan = storm::Plan { nodes: args.faulty, clusters, kind, seed: args.seed };
        let figures = storm::run(plan, POLICY, |what| eprintln!("storm: {what}")).await?;
        keep("storm", json!(figures), rows(format!("a storm, on {on}"), figures.rows()));
    }
    if wanted(Measure::Stops) {
        let figures = stops::run(args.drains.into(), args.seed, POLICY, |what| eprintln!("stops: {what}")).await?;
        keep("stops", json!(figures), rows("until a stop has its effect, on kubesim".to_owned(), figures.rows()));
    }
    if wanted(Measure::Takeover) {
        let figures = takeover::run(args.takeovers.into(), args.seed, POLICY, |what| eprintln!("takeover: {what}")).await?;
        keep("takeover", json!(figures), rows("until another leads, on kubesim".to_owned(), figures.rows()));
    }
    if wanted(Measure::Memory) {
        let plan = memory::Plan {
            nodes: args.large_nodes,
            gpu_nodes: args.gpu_nodes.min(args.large_nodes),
            pods: args.pods,
            seed: args.seed,
        };
        let figures = memory::run(plan, POLICY, |what| eprintln!("memory: {what}")).await?;
        keep("memory", json!(figures), rows("a large cluster, on kubesim".to_owned(), figures.rows()));
    }
    if let Some(text) = args.output.text(&figures)? {
        output::print(&text);
    }
    output::written()
}

async fn way(args: &Args) -> Result<Vec<(&'static str, Figures)>> {
    let mut kinds = vec![("kubesim", Kind::Sim)];
    if std::env::var("KUBE").as_deref() != Ok("off") {
        kinds.push(("real API server", Kind::Real));
    }
    let mut columns = vec![];
    for (name, kind) in kinds {
        let figures = measure::run(kind, args.faults, args.seed, POLICY, |what| eprintln!("{name}: {what}")).await?;
        columns.push((name, figures));
    }
    Ok(columns)
}

/// A table of one column of figures beside their targets.
fn rows(title: String, rows: Vec<[String; 3]>) -> Table {
    let mut table = empty();
    table.set_header([title, "target".to_owned(), "measured".to_owned()]);
    for row in rows {
        table.add_row(row);
    }
    table
}

fn empty() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Dynamic);
    table
}

type Row = (&'static str, &'static str, fn(&Figures) -> String);

const ROWS: [Row; 10] = [
    ("fault visible to taint, P50", "10 ms", |f| format!("{:.1} ms", f.taint_at(0.5))),
    ("fault visible to taint, P99", "25 ms", |f| format!("{:.1} ms", f.taint_at(0.99))),
    ("fault visible to taint, worst", "", |f| format!("{:.1} ms", f.taint_at(1.0))),
    ("node writes per quarantined node", "1", |f| format!("{:.2}", f.node_writes)),
    ("drain beyond the pods' own time, P50", "200 ms", |f| format!("{:.1} ms", f.drain_at(0.5))),
    ("drain beyond the pods' own time, worst", "", |f| format!("{:.1} ms", f.drain_at(1.0))),
    ("eviction calls per pod", "1.0", |f| format!("{:.2}", f.evictions_per_pod)),
    ("API requests per healed node", "8", |f| format!("{:.2}", f.requests.values().sum::<f64>())),
    ("hub resident", "512 MiB", |f| format!("{} MiB", f.resident_kib.0 / 1024)),
    ("leading spoke resident", "15 MiB", |f| format!("{} MiB", f.resident_kib.1 / 1024)),
];

fn table(faults: usize, columns: &[(&str, Figures)]) -> Table {
    let mut table = empty();
    let names = columns.iter().map(|(name, _)| (*name).to_owned());
    table.set_header([format!("over {faults} faults"), "target".to_owned()].into_iter().chain(names));
    for (what, target, of) in ROWS {
        let figures = columns.iter().map(|(_, figures)| of(figures));
        table.add_row([what.to_owned(), target.to_owned()].into_iter().chain(figures));
    }
    for (span, what) in measure::stages::SPANS.iter().enumerate() {
        let of =
            |figures: &measure::Figures| [0.5, 0.99, 1.0].map(|share| format!("{:.1}", figures.stage_at(span, share))).join(" / ");
        let figures = columns.iter().map(|(_, figures)| format!("{} ms", of(figures)));
        table.add_row([format!("of which {what}"), "P50 / P99 / worst".to_owned()].into_iter().chain(figures));
    }
    let kinds: std::collections::BTreeSet<&String> = columns.iter().flat_map(|(_, figures)| figures.requests.keys()).collect();
    for kind in kinds {
        let counts = columns.iter().map(|(_, figures)| format!("{:.2}", figures.requests.get(kind).copied().unwrap_or_default()));
        table.add_row([format!("of which {kind}"), String::new()].into_iter().chain(counts));
    }
    table
}
