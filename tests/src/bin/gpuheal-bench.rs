//! `make bench`: measures on this machine what docs/numbers.md states targets for, and prints both side by side.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use comfy_table::{ContentArrangement, Table, presets};
use gpuheal_tests::{
    cluster::Kind,
    measure::{self, Figures},
};

/// The policy of the measurement: the script's, with rates and budgets that do not stand in the way.
const POLICY: &str = include_str!("../measure/policy.yaml");

/// Measures the way of a fault on a simulated and on a real API server.
#[derive(Parser)]
#[command(name = "gpuheal-bench", version)]
struct Args {
    /// How many faults.
    #[arg(long, default_value_t = 500)]
    faults: usize,
    /// Seed of the spans between them.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The figures as JSON.
    #[arg(long)]
    json: bool,
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
    let mut kinds = vec![("kubesim", Kind::Sim)];
    if std::env::var("KUBE").as_deref() != Ok("off") {
        kinds.push(("real API server", Kind::Real));
    }
    let mut columns = vec![];
    for (name, kind) in kinds {
        let figures = measure::run(kind, args.faults, args.seed, POLICY, |what| eprintln!("{name}: {what}")).await?;
        columns.push((name, figures));
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&columns)?);
    } else {
        println!("{}", table(args.faults, &columns));
    }
    Ok(())
}

type Row = (&'static str, &'static str, fn(&Figures) -> String);

const ROWS: [Row; 9] = [
    ("fault visible to taint, P50", "10 ms", |f| format!("{:.1} ms", f.taint_at(0.5))),
    ("fault visible to taint, P99", "25 ms", |f| format!("{:.1} ms", f.taint_at(0.99))),
    ("fault visible to taint, worst", "", |f| format!("{:.1} ms", f.taint_at(1.0))),
    ("drain beyond the pods' own time, P50", "200 ms", |f| format!("{:.1} ms", f.drain_at(0.5))),
    ("drain beyond the pods' own time, worst", "", |f| format!("{:.1} ms", f.drain_at(1.0))),
    ("eviction calls per pod", "1.0", |f| format!("{:.2}", f.evictions_per_pod)),
    ("API requests per healed node", "7", |f| format!("{:.2}", f.requests.values().sum::<f64>())),
    ("hub resident", "512 MiB", |f| format!("{} MiB", f.resident_kib.0 / 1024)),
    ("leading spoke resident", "15 MiB", |f| format!("{} MiB", f.resident_kib.1 / 1024)),
];

fn table(faults: usize, columns: &[(&str, Figures)]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Dynamic);
    let names = columns.iter().map(|(name, _)| (*name).to_owned());
    table.set_header([format!("over {faults} faults"), "target".to_owned()].into_iter().chain(names));
    for (what, target, of) in ROWS {
        let figures = columns.iter().map(|(_, figures)| of(figures));
        table.add_row([what.to_owned(), target.to_owned()].into_iter().chain(figures));
    }
    for (span, what) in measure::stages::SPANS.iter().enumerate() {
        let figures = columns
            .iter()
            .map(|(_, figures)| format!("{:.1} / {:.1} ms", figures.stage_at(span, 0.5), figures.stage_at(span, 0.99)));
        table.add_row([format!("of which {what}"), "P50 / P99".to_owned()].into_iter().chain(figures));
    }
    let kinds: std::collections::BTreeSet<&String> = columns.iter().flat_map(|(_, figures)| figures.requests.keys()).collect();
    for kind in kinds {
        let counts = columns.iter().map(|(_, figures)| format!("{:.2}", figures.requests.get(kind).copied().unwrap_or_default()));
        table.add_row([format!("of which {kind}"), String::new()].into_iter().chain(counts));
    }
    table
}
