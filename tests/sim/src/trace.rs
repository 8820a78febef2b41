//! A run in words, when somebody asked for them.

use std::collections::VecDeque;

use gpuheal_proto::time::Timestamp;

use crate::world::START;

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
        if !self.all {
            return;
        }
        let ms = now.since(START).as_millis();
        self.lines.push_back(format!("{:>5}.{:03} {}", ms / 1000, ms % 1000, words()));
    }

    /// Whether anything is kept at all.
    #[must_use]
    pub const fn told(&self) -> bool {
        self.all
    }

    /// All that was kept.
    #[must_use]
    pub fn lines(self) -> Vec<String> {
        self.lines.into()
    }
}
