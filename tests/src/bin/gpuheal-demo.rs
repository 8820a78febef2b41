//! The demo: a fleet on this machine, ten scenes, a live timeline, tables at the end. Ends with 1 when an outcome is not the
//! scripted one, with 2 when it was called wrongly.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use gpuheal_tests::{
    cluster::Kind,
    fleet::Fleet,
    script::{self, SCENES, Stage},
    show::{Screen, Timeline},
};

/// Plays ten ways in which a GPU fault may come, on a fleet of three clusters on this machine.
#[derive(Parser)]
#[command(name = "gpuheal-demo", version)]
struct Args {
    /// What serves the first cluster.
    #[arg(long, value_enum, default_value_t = Kube::Sim)]
    kube: Kube,
    /// Names, GPUs, models and timing come from it; drawn and printed when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these scenes, as letters: --scenes=abj.
    #[arg(long, default_value = "abcdefghij")]
    scenes: String,
    /// Stay up at the end, and print how to look around.
    #[arg(long)]
    keep: bool,
    /// The outcomes as JSON instead of the tables.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kube {
    /// kubesim
    Sim,
    /// Kubernetes' own control plane
    Real,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(unknown) = args.scenes.chars().find(|letter| SCENES.iter().all(|scene| scene.letter != *letter)) {
        eprintln!("error: there is no scene {unknown:?}: they go from a to j");
        return ExitCode::from(2);
    }
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: starting: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ u64::from(chrono::Utc::now().timestamp_subsec_micros()));
    let screen = Screen::stdout();
    let quiet = args.output == Output::Json;
    let line = |place: &str, stage: &str, text: &str| {
        if !quiet {
            screen.line(place, stage, text);
        }
    };
    line("", "seed", &format!("{seed} (play it again: make demo ARGS=--seed={seed})"));
    let kind = if args.kube == Kube::Real { Kind::Real } else { Kind::Sim };
    let fleet = Fleet::start(script::plan(seed, kind), |what| line("", "start", what)).await?;
    let mut stage = Stage::new(fleet, seed);
    let timeline = (!quiet).then(|| Timeline::start(screen, stage.fleet.pool.clone()));
    for scene in SCENES.iter().filter(|scene| args.scenes.contains(scene.letter)) {
        line("", "scene", &format!("({}) {}", scene.letter, scene.title));
        if let Err(error) = stage.play(scene.letter).await {
            stage.fleet.place.keep();
            let logs = stage.fleet.place.dir.display().to_string();
            return Err(error).with_context(|| format!("seed {seed}; logs are in {logs}"));
        }
    }
    // What the last scene led to may still be on its way to the screen.
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(timeline);
    if quiet {
        screen.print(&serde_json::to_string_pretty(&stage.outcomes)?);
    } else {
        screen.tables(&stage.outcomes);
        screen.postgres(&stage.fleet.pool).await?;
        screen.print(&format!("\nAll {} scenes ended as scripted (seed {seed}).", stage.outcomes.len()));
    }
    if args.keep {
        look_around(screen, &stage);
        tokio::signal::ctrl_c().await?;
    }
    stage.fleet.stop()
}

fn look_around(screen: Screen, stage: &Stage) {
    let fleet = &stage.fleet;
    let pki = fleet.place.dir.join("pki/users/admin");
    screen.print("\nIt stays up until Ctrl-C. Look around:");
    for cluster in &fleet.clusters {
        screen.print(&format!("  kubectl --kubeconfig {} get nodes,healactions -A", cluster.kubeconfig.display()));
    }
    screen.print(&format!("  psql '{}' -c 'SELECT * FROM audit.incidents'", fleet.database_url));
    screen.print(&format!("  curl http://{}/metrics", fleet.http_address));
    screen.print(&format!(
        "  target/debug/gpuhealctl --hub https://{} --identity {} incidents",
        fleet.fleet_address,
        pki.display()
    ));
}
