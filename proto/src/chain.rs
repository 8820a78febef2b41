//! An error with all its causes on one line: each level says what was attempted, and only the last one why. For log lines
//! and for people, of every program.

use std::{error::Error, fmt};

/// The error and its causes, for a field of a log line.
#[must_use]
pub const fn chain<E: Error + ?Sized>(error: &E) -> Chain<'_, E> {
    Chain(error)
}

/// See [`chain`].
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a, E: ?Sized>(&'a E);

impl<E: Error + ?Sized> fmt::Display for Chain<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            let words = cause.to_string();
            // Some libraries repeat their cause in their own words.
            if !said.contains(&words) {
                write!(f, ": {words}")?;
                said = words;
            }
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Told {
        said: &'static str,
        source: Option<Box<Told>>,
    }

    #[test]
    fn every_cause_is_told_and_none_twice() {
        let told = |said, source: Option<Told>| Told { said, source: source.map(Box::new) };
        let error = told("sign.begin failed", Some(told("pool: timed out", Some(told("timed out", None)))));
        assert_eq!(chain(&error).to_string(), "sign.begin failed: pool: timed out");
        let either: &dyn Error = &error;
        assert_eq!(chain(either).to_string(), chain(&error).to_string());
    }
}
