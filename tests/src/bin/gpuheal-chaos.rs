//! The chaos run: everything that may fail does, by a seed; then it must come to rest, and nothing may be lost, doubled or
//! late. Ends with 1 when a check does not hold, with 2 when it was called wrongly.

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Parser;
use gpuheal_tests::{
    chaos::{self, Options, schedule::Force},
    program,
    script::LEASE,
    show::Screen,
};

/// The first span of [`LEASE`].
const LEASE_LASTS: Duration = Duration::from_secs(8);
/// A half-open stream is dead after 45 s, attaching again may wait 30 s, and a drain follows; five times that.
const REST_WITHIN: Duration = Duration::from_secs(400);

/// Kills, stops, cuts and puts back whatever may fail, on a fleet on this machine, and checks what is left.
#[derive(Parser)]
#[command(name = "gpuheal-chaos", version)]
struct Args {
    /// Everything that is drawn comes from it; drawn and printed when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// How long things go wrong.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Clusters.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3))]
    clusters: u64,
    /// GPU nodes of each.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u64).range(2..=60))]
    nodes: u64,
    /// Never put Postgres back as it was backed up a while ago. What a restore may break is then checked too: budgets, and that what was
    /// released stays so.
    #[arg(long)]
    no_restore: bool,
    /// Nothing that takes long to be noticed: no pauses, no half-open or dropping network, no restore.
    #[arg(long, conflicts_with = "no_restore")]
    mild: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    program::run(run(&args))
}

async fn run(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ u64::from(chrono::Utc::now().timestamp_subsec_micros()));
    let screen = Screen::stdout();
    let force = match (args.mild, args.no_restore) {
        (true, _) => Force::Mild,
        (false, false) => Force::WithRestore,
        (false, true) => Force::Full,
    };
    let more = [(args.mild, " --mild"), (args.no_restore, " --no-restore")];
    let more: String = more.iter().filter_map(|(on, flag)| on.then_some(*flag)).collect();
    let again = format!("--seed={seed} --minutes={} --clusters={} --nodes={}{more}", args.minutes, args.clusters, args.nodes);
    screen.line("", "seed", &format!("{seed} (the same again: make chaos ARGS=\"{again}\")"));
    chaos::run(Options {
        seed,
        span: Duration::from_secs(args.minutes * 60),
        rest_within: REST_WITHIN,
        clusters: usize::try_from(args.clusters)?,
        nodes: usize::try_from(args.nodes)?,
        force,
        lease: LEASE,
        lease_lasts: LEASE_LASTS,
        screen: Some(screen),
    })
    .await?;
    screen.print(&format!("\nNothing lost, nothing doubled, nothing late (seed {seed})."));
    Ok(())
}
