//! An error with all its causes on one line: each level says what was attempted, and only the last one why.

use std::{error::Error, fmt};

/// The error and its causes, for a field of a log line.
pub(crate) const fn chain<E: Error>(error: &E) -> Chain<'_, E> {
    Chain(error)
}

/// See [`chain`].
pub(crate) struct Chain<'a, E>(&'a E);

impl<E: Error> fmt::Display for Chain<'_, E> {
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
    use crate::store::Labelled as _;

    #[test]
    fn a_failed_statement_is_told_with_its_cause() {
        let error = Err::<(), _>(sqlx::Error::PoolTimedOut).label("sign.begin").unwrap_err();
        let told = chain(&error).to_string();
        assert!(told.contains("sign.begin") && told.contains("timed out"), "{told}");
    }
}
