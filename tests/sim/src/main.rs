//! `gpuheal-sim`: runs seeds, or one seed with its trace.

mod progress;

use std::{
    io::{self, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Instant,
};

use clap::Parser;
use gpuheal_sim::{
    mutation::{Mutation, Mutations},
    world::{Options, Outcome, run},
};
use progress::Progress;

/// Simulates the whole system, seed by seed, and says which invariant broke.
#[derive(Debug, Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// This one alone, with its trace.
    #[arg(long)]
    seed: Option<u64>,
    /// How many run at once.
    #[arg(long, default_value_t = 2)]
    threads: u64,
    /// Goes on after a failing seed.
    #[arg(long)]
    all: bool,
    /// With this guard taken away, by its name in the code: to see that it is caught.
    #[arg(long)]
    without: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mutations = match &args.without {
        None => Mutations::default(),
        Some(name) => match Mutation::ALL.iter().find(|mutation| format!("{mutation:?}") == *name) {
            Some(mutation) => Mutations::only(*mutation),
            None => {
                eprintln!("error: no guard is called {name}; there are {:?}", Mutation::ALL);
                return ExitCode::from(2);
            }
        },
    };
    match args.seed {
        Some(seed) => one(seed, mutations, args.without.as_deref()),
        None => many(&args, mutations),
    }
}

fn one(seed: u64, mutations: Mutations, without: Option<&str>) -> ExitCode {
    let outcome = run(seed, Options { trace: true, mutations });
    let mut out = io::stdout().lock();
    // Who reads the first lines alone has read enough.
    let _ = outcome
        .trace
        .iter()
        .try_for_each(|line| writeln!(out, "{line}"))
        .and_then(|()| writeln!(out, "{}", words(&outcome, without)));
    if outcome.broken.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a run came to; one that failed with the command that replays it.
fn words(outcome: &Outcome, without: Option<&str>) -> String {
    match &outcome.broken {
        None => format!("seed {}: every invariant holds; {} events, {} effects", outcome.seed, outcome.events, outcome.acts),
        Some(broken) => {
            let args = without.map(|name| format!(" ARGS='--without {name}'")).unwrap_or_default();
            let (seed, invariant, at) = (outcome.seed, broken.invariant, broken.at);
            format!("seed {seed}: {invariant:?} is broken at {at}: {}\n  replay: make sim SEED={seed}{args}", broken.why)
        }
    }
}

fn many(args: &Args, mutations: Mutations) -> ExitCode {
    let (next, end) = (AtomicU64::new(args.from), args.from.saturating_add(args.seeds));
    let (events, acts, closings) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed = AtomicBool::new(false);
    let (began, progress) = (Instant::now(), Progress::new(args.seeds));
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || (!args.all && failed.load(Ordering::Relaxed)) {
                        return;
                    }
                    let outcome = run(seed, Options { trace: false, mutations });
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    acts.fetch_add(outcome.acts, Ordering::Relaxed);
                    closings.fetch_add(outcome.closings, Ordering::Relaxed);
                    failed.fetch_or(outcome.broken.is_some(), Ordering::Relaxed);
                    progress.done(outcome.broken.as_ref().map(|_| words(&outcome, args.without.as_deref())).as_deref());
                }
            });
        }
    });
    let (done, failed) = progress.end();
    let span = began.elapsed().as_secs_f64();
    println!(
        "{done} of {} seeds from {}, {failed} failed; {} events, {} effects, {} incidents closed; {span:.1} s, {:.1} seeds/s",
        args.seeds,
        args.from,
        events.into_inner(),
        acts.into_inner(),
        closings.into_inner(),
        done as f64 / span.max(0.001)
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
