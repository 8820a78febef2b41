//! What is fuzzed: each target is a function over any bytes that panics when a promise about them is broken, with seeds to start
//! from. `engine.rs` gives them to libFuzzer (`make fuzz`), `tests/replay.rs` to every test run. No target reads a clock or rolls
//! dice, so that an input that failed once fails again.

// The files that are taken in below have fail points.
#[macro_use]
extern crate gpuheal_crash;

mod believable;
mod commands;
mod envelopes;
mod exposition;
mod frames;
mod journal;
mod journal_files;
mod kernel;
mod policy;
mod samples;
mod signed;
mod webhook;

/// Files of the spoke's that take what comes from outside, as they are. To build all of the spoke and the hub for fuzzing would
/// take longer than to fuzz.
#[path = "../../../spoke/src"]
pub mod spoke {
    pub mod clock;
    pub mod journal;
    pub mod settings;
}

/// Likewise the hub's.
#[path = "../../../hub/src"]
pub mod hub {
    pub mod fit;
    /// The first message of a stream.
    pub mod link {
        pub mod hello;
        pub mod skew;
    }
}

use spoke::clock;

/// What the hub's metrics are to `fit`: nobody counts here.
mod metrics {
    pub(crate) struct Uncounted;
    pub(crate) static TEXTS_MENDED: Uncounted = Uncounted;

    impl Uncounted {
        pub(crate) const fn add(&self, _kind: [&str; 1], _count: u64) {}
    }
}

/// One thing that is fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, as `make fuzz TARGET=` takes it and its folders are called.
    pub name: &'static str,
    /// Panics when `input` breaks a promise.
    pub run: fn(input: &[u8]),
    /// Inputs to start from, in an order that stays.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Longest input that the engine makes: some seeds in length, since what is longer only makes each try slower.
    pub bytes_max: u32,
}

/// All of them.
pub const TARGETS: [Target; 9] = [
    Target { name: "frames", run: frames::run, seeds: frames::seeds, bytes_max: 8 << 10 },
    Target { name: "envelopes", run: envelopes::run, seeds: envelopes::seeds, bytes_max: 4 << 10 },
    Target { name: "commands", run: commands::run, seeds: commands::seeds, bytes_max: 4 << 10 },
    Target { name: "journal", run: journal::run, seeds: journal::seeds, bytes_max: 8 << 10 },
    Target { name: "journal_files", run: journal_files::run, seeds: journal_files::seeds, bytes_max: 8 << 10 },
    Target { name: "exposition", run: exposition::run, seeds: exposition::seeds, bytes_max: 3 << 10 },
    Target { name: "webhook", run: webhook::run, seeds: webhook::seeds, bytes_max: 8 << 10 },
    Target { name: "policy", run: policy::run, seeds: policy::seeds, bytes_max: 4 << 10 },
    Target { name: "kernel", run: kernel::run, seeds: kernel::seeds, bytes_max: 4 << 10 },
];

/// The target of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
