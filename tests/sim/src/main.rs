//! `gpuheal-sim`: runs seeds, or one seed with its trace.

use std::{
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use clap::Parser;
use gpuheal_sim::{
    mutation::{Mutation, Mutations},
    world::{Options, Outcome, run},
};

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
        Some(seed) => one(seed, mutations),
        None => many(&args, mutations),
    }
}

fn one(seed: u64, mutations: Mutations) -> ExitCode {
    let outcome = run(seed, Options { trace: true, mutations });
    for line in &outcome.trace {
        println!("{line}");
    }
    tell(&outcome)
}

fn tell(outcome: &Outcome) -> ExitCode {
    match &outcome.broken {
        None => {
            println!("seed {}: every invariant holds; {} events, {} effects", outcome.seed, outcome.events, outcome.acts);
            ExitCode::SUCCESS
        }
        Some(broken) => {
            println!("seed {}: {:?} is broken at {}: {}", outcome.seed, broken.invariant, broken.at, broken.why);
            println!("  make sim SEED={}", outcome.seed);
            ExitCode::FAILURE
        }
    }
}

fn many(args: &Args, mutations: Mutations) -> ExitCode {
    let (next, end) = (AtomicU64::new(args.from), args.from + args.seeds);
    let (events, acts, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let closings = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || (!args.all && failed.load(Ordering::Relaxed) > 0) {
                        return;
                    }
                    let outcome = run(seed, Options { trace: false, mutations });
                    events.fetch_add(outcome.events, Ordering::Relaxed);
                    acts.fetch_add(outcome.acts, Ordering::Relaxed);
                    closings.fetch_add(outcome.closings, Ordering::Relaxed);
                    if outcome.broken.is_some() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        tell(&outcome);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    println!(
        "{} seeds from {}, {failed} failed; {} events, {} effects, {} incidents closed, {:.1} s",
        args.seeds,
        args.from,
        events.into_inner(),
        acts.into_inner(),
        closings.into_inner(),
        began.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
