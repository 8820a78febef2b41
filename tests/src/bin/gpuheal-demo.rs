//! The demo: a fleet on this machine, ten scenes, a live timeline, tables at the end. Ends with 1 when an outcome is not the
//! scripted one, with 2 when it was called wrongly.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use gpuheal_tests::{
    cluster::Kind,
    fleet::Fleet,
    invariants,
    output::{self, Format},
    program,
    script::{self, SCENES, Stage},
    show::Screen,
    timeline::Timeline,
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
    /// How the outcomes are written; without tables there is no timeline either.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kube {
    /// kubesim
    Sim,
    /// Kubernetes' own control plane
    Real,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(unknown) = args.scenes.chars().find(|letter| SCENES.iter().all(|scene| scene.letter != *letter)) {
        eprintln!("error: there is no scene {unknown:?}: they go from a to j");
        return ExitCode::from(2);
    }
    program::run(run(&args))
}

async fn run(args: &Args) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ u64::from(chrono::Utc::now().timestamp_subsec_micros()));
    let screen = Screen::stdout();
    let quiet = args.output != Format::Table;
    let line = |place: &str, stage: &str, text: &str| {
        if !quiet {
            screen.line(place, stage, text);
        }
    };
    line("", "seed", &format!("{seed} (play it again: make demo ARGS=--seed={seed})"));
    let kind = if args.kube == Kube::Real { Kind::Real } else { Kind::Sim };
    let fleet = Fleet::start(script::plan(seed, kind), |what| line("", "start", what)).await?;
    let mut stage = Stage::new(fleet, seed);
    let timeline = (!quiet).then(|| Timeline::start(screen, stage.fleet.pool.clone(), &stage.fleet.clusters));
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
    if let Some(text) = args.output.text(&stage.outcomes)? {
        output::print(&text);
    } else {
        screen.tables(&stage.outcomes);
        screen.postgres(&stage.fleet.pool).await?;
        screen.print(&format!("\nAll {} scenes ended as scripted (seed {seed}).", stage.outcomes.len()));
    }
    invariants::check(&stage.fleet).await.with_context(|| format!("seed {seed}: an invariant does not hold"))?;
    line("", "check", "every invariant holds");
    if args.keep {
        look_around(screen, &mut stage);
        std::future::pending::<()>().await;
    }
    stage.fleet.stop()
}

fn look_around(screen: Screen, stage: &mut Stage) {
    let fleet = &mut stage.fleet;
    let dir = fleet.place.dir.display().to_string();
    screen.print("\nIt stays up until Ctrl-C. Look around:");
    for cluster in &fleet.clusters {
        let kubeconfig = cluster.kubeconfig.display();
        screen.print(&format!("  kubectl --kubeconfig {kubeconfig} get nodes,healactions -A"));
        screen.print(&format!("  kubectl --kubeconfig {kubeconfig} get events -A --field-selector reason=GPUSelfHealing"));
    }
    screen.print(&format!("  psql '{}' -c 'SELECT * FROM audit.incidents'", fleet.database_url));
    screen.print(&format!("  curl http://{}/metrics    # the hub's", fleet.http_address));
    for cluster in &fleet.clusters {
        for address in cluster.webhooks() {
            screen.print(&format!("  curl http://{address}/metrics    # a spoke's, in {}", cluster.id));
        }
    }
    screen.print(&format!("  # webhooks and /api/v1/process take the token in {dir}/webhook.token"));
    let ctl = format!("gpuhealctl --hub https://{} --identity {dir}/pki/users/admin", fleet.fleet_address);
    for verb in ["incidents", "commands", "audit verify"] {
        screen.print(&format!("  target/debug/{ctl} {verb}"));
    }
}
