//! The simulation over fixed seeds, and over fresh ones that are printed: a failing one is replayed by its number.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use gpuheal_sim::world::{Options, Outcome, run};

/// Seeds that always run: the first ones,
const FIXED: std::ops::Range<u64> = 1..251;
/// and those that have once found something.
const FOUND: [u64; 14] = [306, 941, 985, 987, 1834, 2092, 2105, 2681, 4095, 4304, 4823, 5031, 7381, 7544];
/// Seeds of this very run.
const FRESH: u64 = 24;

fn all(seeds: impl Iterator<Item = u64>) -> Vec<Outcome> {
    let seeds: Vec<u64> = seeds.collect();
    let next = AtomicU64::new(0);
    let failed = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap()) {
                    let outcome = run(*seed, Options::default());
                    if outcome.broken.is_some() {
                        failed.lock().unwrap().push(outcome);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

fn told(failed: &[Outcome]) -> String {
    let line = |outcome: &Outcome| {
        let broken = outcome.broken.as_ref().unwrap();
        format!("{:?} is broken at {}: {}\n  replay: make sim SEED={}", broken.invariant, broken.at, broken.why, outcome.seed)
    };
    failed.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_invariant_holds_over_the_fixed_seeds() {
    let failed = all(FIXED.chain(FOUND));
    assert!(failed.is_empty(), "{}", told(&failed));
}

#[test]
fn every_invariant_holds_over_fresh_seeds() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let from = (now.as_secs() % 1_000_000) * 1000;
    println!("fresh seeds {from} to {}", from + FRESH - 1);
    let failed = all(from..from + FRESH);
    assert!(failed.is_empty(), "{}", told(&failed));
}

#[test]
fn one_seed_is_one_run() {
    let (one, other) =
        (run(7, Options { trace: true, ..Options::default() }), run(7, Options { trace: true, ..Options::default() }));
    assert_eq!((one.events, one.acts, one.closings), (other.events, other.acts, other.closings));
    assert_eq!(one.trace, other.trace);
    assert!(one.trace.len() > 100);
}
