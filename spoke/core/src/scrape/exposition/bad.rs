//! What a page had that could not be read: a count per reason, and the first few places to look at.

use std::collections::BTreeMap;

/// How many bad lines are kept with their number. Eight show a pattern; a page of garbage must not cost memory.
pub const BAD_LINES_KEPT: usize = 8;

/// Why a line was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Bytes that are no UTF-8.
    NotUtf8,
    /// Longer than any row can be.
    LineTooLong,
    /// The page ended within the line.
    HalfLine,
    /// No metric name where one must be.
    BadName,
    /// An opening brace without its other half.
    LabelsUnclosed,
    /// Labels that cannot be told apart.
    LabelsMalformed,
    /// A name and nothing behind it.
    ValueMissing,
    /// Text where the value belongs, such as `ERROR - FAILED TO CONVERT TO STRING`.
    ValueNotNumber,
    /// Something behind the value that is no time stamp.
    TimestampNotNumber,
}

/// One line that was not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Line number, from 1.
    pub line: u32,
    /// Why.
    pub reason: Reason,
}

/// All lines that were not used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadLines {
    counts: BTreeMap<Reason, u32>,
    first: Vec<BadLine>,
}

impl BadLines {
    pub(super) fn note(&mut self, line: u32, reason: Reason) {
        *self.counts.entry(reason).or_default() += 1;
        if self.first.len() < BAD_LINES_KEPT {
            self.first.push(BadLine { line, reason });
        }
    }

    /// How many lines were not used.
    pub fn total(&self) -> u32 {
        self.counts.values().sum()
    }

    /// How many lines were not used for this reason.
    pub fn count(&self, reason: Reason) -> u32 {
        self.counts.get(&reason).copied().unwrap_or_default()
    }

    /// The counts by reason.
    pub fn counts(&self) -> &BTreeMap<Reason, u32> {
        &self.counts
    }

    /// The first few, in the order of the page.
    pub fn first(&self) -> &[BadLine] {
        &self.first
    }
}
