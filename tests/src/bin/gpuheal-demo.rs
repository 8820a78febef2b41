//! The demo: a fleet on this machine, ten scenes, a live timeline, tables at the end. Ends with 1 when an outcome is not the
//! scripted one, with 2 when it was called wrongly.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use gpuheal_tests::{
    cluster::Kind,
    fleet::Fleet,
    invariants,
    output::{self, Format},
    program::{self, Stay},
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
    #[arg(long, default_value = ALL, value_parser = scenes)]
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
    program::run_staying(|stay| run(&args, stay))
}

/// Every scene.
const ALL: &str = "abcdefghij";

fn scenes(text: &str) -> Result<String, String> {
    let unknown = text.chars().find(|letter| SCENES.iter().all(|scene| scene.letter != *letter));
    match unknown {
        Some(unknown) => Err(format!("there is no scene {unknown:?}: they go from a to j")),
        None if text.is_empty() => Err("no scene is named: they go from a to j".to_owned()),
        None => Ok(text.to_owned()),
    }
}

/// How to play it once more.
fn replay(args: &Args, seed: u64) -> String {
    let kube = if args.kube == Kube::Real { " KUBE=real" } else { "" };
    let seed = format!("--seed={seed}");
    let flags = if args.scenes == ALL { seed } else { format!("\"{seed} --scenes={}\"", args.scenes) };
    format!("make demo{kube} ARGS={flags}")
}

async fn run(args: &Args, stay: Stay) -> Result<()> {
    let seed = args.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ u64::from(chrono::Utc::now().timestamp_subsec_micros()));
    let screen = Screen::stdout();
    let quiet = args.output != Format::Table;
    let line = |place: &str, stage: &str, text: &str| {
        if !quiet {
            screen.line(place, stage, text);
        }
    };
    line("", "seed", &format!("{seed} (play it again: {})", replay(args, seed)));
    let kind = if args.kube == Kube::Real { Kind::Real } else { Kind::Sim };
    let fleet = Fleet::start(script::plan(seed, kind), |what| line("", "start", what)).await?;
    let mut stage = Stage::new(fleet, seed);
    let timeline = (!quiet).then(|| Timeline::start(screen, stage.fleet.pool.clone(), &stage.fleet.clusters));
    for scene in SCENES.iter().filter(|scene| args.scenes.contains(scene.letter)) {
        if let Some(timeline) = &timeline {
            timeline.told().await;
        }
        line("", "scene", &format!("({}) {}", scene.letter, scene.title));
        if let Err(error) = stage.play(scene.letter).await {
            stage.fleet.place.keep();
            let logs = stage.fleet.place.dir.display().to_string();
            return Err(error).with_context(|| format!("seed {seed}; logs are in {logs}"));
        }
    }
    if let Some(timeline) = timeline {
        timeline.told().await;
    }
    if let Some(text) = args.output.text(&serde_json::json!({"seed": seed, "outcomes": stage.outcomes}))? {
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
        stay.until_told().await;
    }
    stage.fleet.stop()?;
    if args.keep {
        screen.print("stopped, data removed");
    }
    output::written()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_played_again_with_all_that_it_was_played_with() {
        let of = |args: &[&str]| replay(&Args::try_parse_from([&["gpuheal-demo"], args].concat()).unwrap(), 7);
        assert_eq!(of(&[]), "make demo ARGS=--seed=7");
        assert_eq!(of(&["--kube", "real", "--scenes=ab"]), "make demo KUBE=real ARGS=\"--seed=7 --scenes=ab\"");
    }

    #[test]
    fn scenes_that_are_not_there_or_none_at_all_are_wrong_use() {
        for scenes in ["--scenes=", "--scenes=abz"] {
            let error = Args::try_parse_from(["gpuheal-demo", scenes]).err().unwrap();
            assert_eq!(error.exit_code(), 2, "{error}");
        }
    }
}
