//! How far a run over many seeds is. On a terminal one short line, written over itself and gone at the end; in a log a line
//! now and then. What a failing seed has to say goes between, whole.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What is over sooner needs no line.
const FIRST: Duration = Duration::from_secs(2);
/// A line that is written over itself.
const ON_TERMINAL: Duration = Duration::from_secs(1);
/// A line in a log.
const IN_LOG: Duration = Duration::from_secs(30);
/// Back to the line's begin, and nothing on it.
const BLANK: &str = "\r\x1b[K";

/// The line.
pub(crate) struct Progress {
    seeds: u64,
    began: Instant,
    terminal: bool,
    now: Mutex<Now>,
}

struct Now {
    done: u64,
    failed: u64,
    next: Instant,
    shown: bool,
}

impl Progress {
    /// Of a run over so many seeds that begins now.
    pub(crate) fn new(seeds: u64) -> Self {
        let began = Instant::now();
        let now = Mutex::new(Now { done: 0, failed: 0, next: began + FIRST, shown: false });
        Self { seeds, began, terminal: io::stderr().is_terminal(), now }
    }

    /// One more is done; with `words` it has failed, and they say how.
    pub(crate) fn done(&self, words: Option<&str>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.done += 1;
        if let Some(words) = words {
            now.failed += 1;
            self.blank(&mut now);
            let _ = writeln!(io::stdout(), "{words}");
        }
        if Instant::now() < now.next {
            return;
        }
        now.next = Instant::now() + if self.terminal { ON_TERMINAL } else { IN_LOG };
        let line = line(now.done, self.seeds, now.failed, self.began.elapsed());
        // Who cannot be told how far we are still gets the result.
        let _ = if self.terminal {
            now.shown = true;
            write!(io::stderr(), "{BLANK}{line}").and_then(|()| io::stderr().flush())
        } else {
            writeln!(io::stderr(), "{line}")
        };
    }

    /// How many are done and how many have failed, with the line gone.
    pub(crate) fn end(&self) -> (u64, u64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        self.blank(&mut now);
        (now.done, now.failed)
    }

    fn blank(&self, now: &mut Now) {
        if std::mem::take(&mut now.shown) {
            let _ = write!(io::stderr(), "{BLANK}").and_then(|()| io::stderr().flush());
        }
    }
}

/// At most 40 columns for any number of seeds that anybody waits for: a line that wraps cannot be written over.
fn line(done: u64, seeds: u64, failed: u64, elapsed: Duration) -> String {
    let left = elapsed.as_secs_f64() / done.max(1) as f64 * seeds.saturating_sub(done) as f64;
    let left = if left < 100.0 { format!("{left:.0} s") } else { format!("{:.0} min", left / 60.0) };
    format!("{done} of {seeds}, {failed} failed, {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_a_narrow_terminal() {
        let line = line(123_456, 200_000, 99, Duration::from_secs(12_345));
        assert_eq!(line, "123456 of 200000, 99 failed, 128 min left");
        assert!(super::line(9_999, 10_000, 3, Duration::from_secs(600)).len() <= 40);
    }
}
