//! How long to wait before something is tried again: full jitter, so that what failed together does not come back in
//! step. A span doubles with each failure in a row up to its limit, and the wait is a part of it that chance tells.

use std::time::Duration;

/// A span that doubles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// After the first failure.
    pub(crate) base: Duration,
    /// Never more.
    pub(crate) max: Duration,
}

impl Backoff {
    /// The wait after `failures` in a row before this one.
    pub(crate) fn wait(&self, failures: u32, chance: f64) -> Duration {
        let span = self.base.saturating_mul(1 << failures.min(16)).min(self.max);
        span.mul_f64(chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_limit_and_jitter_reaches_down_to_nothing() {
        let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(30) };
        let waits: Vec<_> = (0..7).map(|failures| backoff.wait(failures, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.wait(u32::MAX, 1.0), backoff.max);
        assert_eq!(backoff.wait(5, 0.0), Duration::ZERO);
    }
}
