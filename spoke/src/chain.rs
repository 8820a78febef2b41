//! An error with all its causes on one line: each level says what was attempted, and only the last one why. For a field
//! of a log line or for words that people read.

use std::error::Error;

/// The error and its causes.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut said = text.clone();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        // Some libraries repeat their cause in their own words.
        if !said.contains(&words) {
            text = format!("{text}: {words}");
            said = words;
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Level {
        said: &'static str,
        #[source]
        cause: Option<Box<Level>>,
    }

    fn levels(said: &[&'static str]) -> Level {
        let cause = (said.len() > 1).then(|| Box::new(levels(&said[1..])));
        Level { said: said[0], cause }
    }

    #[test]
    fn an_error_is_told_with_every_cause_and_none_twice() {
        assert_eq!(chain(&levels(&["lease not written"])), "lease not written");
        let deep = ["lease not written", "request failed: timed out", "timed out", "deadline of 5 s"];
        assert_eq!(chain(&levels(&deep)), "lease not written: request failed: timed out: deadline of 5 s");
    }
}
