//! How far a long call is: one line on a terminal, written over itself and gone at the end. In a pipe or a log there is none.

use std::{
    io::{self, IsTerminal as _, Write},
    time::{Duration, Instant},
};

use crate::visible;

/// What is over sooner needs no line, and nobody reads faster than this.
const EVERY: Duration = Duration::from_millis(250);
/// Back to the line's begin, and nothing on it.
const BLANK: &str = "\r\x1b[K";

/// One line that says how far we are.
pub(crate) struct Progress<W: Write> {
    out: Option<W>,
    said: Instant,
    shown: bool,
}

impl Progress<io::Stderr> {
    /// On standard error, when that is a terminal.
    pub(crate) fn stderr() -> Self {
        Self::new(io::stderr().is_terminal().then(io::stderr))
    }
}

impl<W: Write> Progress<W> {
    /// On `out`; nowhere without one.
    fn new(out: Option<W>) -> Self {
        Self { out, said: Instant::now(), shown: false }
    }

    /// Says where we are, unless it was said just now.
    pub(crate) fn at(&mut self, what: &str) {
        if self.said.elapsed() >= EVERY {
            self.say(what);
        }
    }

    fn say(&mut self, what: &str) {
        let Some(out) = &mut self.out else { return };
        // Who cannot be told how far we are still gets the result.
        let _ = write!(out, "{BLANK}{}", visible::clean(what)).and_then(|()| out.flush());
        (self.said, self.shown) = (Instant::now(), true);
    }
}

impl<W: Write> Drop for Progress<W> {
    fn drop(&mut self) {
        if let Some(out) = self.out.as_mut().filter(|_| self.shown) {
            let _ = write!(out, "{BLANK}").and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_over_the_one_before_and_is_gone_at_the_end() {
        let mut seen = Vec::new();
        {
            let mut progress = Progress::new(Some(&mut seen));
            progress.say("0 of 2 chains checked, at a\u{202e}b");
            progress.say("1 of 2 chains checked, at c");
        }
        let seen = String::from_utf8(seen).unwrap();
        assert!(seen.starts_with("\r\x1b[K0 of 2") && seen.contains("\r\x1b[K1 of 2") && seen.ends_with(BLANK), "{seen:?}");
        assert!(!seen.contains('\u{202e}'), "a name from elsewhere steers no terminal");
    }

    #[test]
    fn what_is_over_at_once_says_nothing() {
        let mut seen = Vec::new();
        drop(Progress::new(Some(&mut seen)));
        assert!(seen.is_empty());
    }
}
