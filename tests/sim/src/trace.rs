//! A run in words: the last lines always, all of them when asked.

use std::collections::VecDeque;

use gpuheal_proto::time::Timestamp;

use crate::world::START;

/// Lines that are kept of a run that nobody asked about.
const KEPT: usize = 0;

/// The lines.
#[derive(Clone, Debug)]
pub struct Trace {
    all: bool,
    lines: VecDeque<String>,
}

impl Trace {
    /// Of a run that is to be told whole, or not.
    #[must_use]
    pub const fn new(all: bool) -> Self {
        Self { all, lines: VecDeque::new() }
    }

    /// Adds a line. Nothing is formatted when nothing is kept: a failing seed is run again with a trace.
    pub fn say(&mut self, now: Timestamp, words: impl FnOnce() -> String) {
        if !self.all && KEPT == 0 {
            return;
        }
        let ms = now.since(START).as_millis();
        self.lines.push_back(format!("{:>5}.{:03} {}", ms / 1000, ms % 1000, words()));
    }

    /// All that was kept.
    #[must_use]
    pub fn lines(self) -> Vec<String> {
        self.lines.into()
    }
}
