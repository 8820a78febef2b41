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
        let causes: Vec<&(dyn Error + 'static)> =
            std::iter::successors(self.0.source(), |cause: &&(dyn Error + 'static)| (*cause).source()).collect();
        let mut said = in_words(self.0.to_string(), &causes);
        f.write_str(&said)?;
        for (index, cause) in causes.iter().enumerate() {
            let words = in_words(cause.to_string(), &causes[index + 1..]);
            // Some libraries repeat their cause in their own words.
            if !said.contains(&words) {
                write!(f, ": {words}")?;
                said = words;
            }
        }
        Ok(())
    }
}

/// Without what a library adds of its causes for programmers, in brackets, as it is in memory.
fn in_words(text: String, causes: &[&(dyn Error + 'static)]) -> String {
    causes.iter().fold(text, |text, cause| text.replace(&format!(" ({cause:?})"), ""))
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

    #[derive(Debug, thiserror::Error)]
    #[error("watch failed: {source} ({source:?})")]
    struct Raw {
        source: Told,
    }

    #[test]
    fn what_is_meant_for_programmers_alone_is_left_out() {
        let error = Raw { source: Told { said: "namespace not found", source: None } };
        assert_eq!(chain(&error).to_string(), "watch failed: namespace not found");
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
