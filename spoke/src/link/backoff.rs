//! How long to wait before attaching again: full jitter, so that a fleet does not come back in step.

use std::time::Duration;

use gpuheal_proto::limits::{RECONNECT_BASE, RECONNECT_MAX};

/// A session that lived this long was healthy: the next wait starts small again.
pub(super) const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// The wait after `failures` in a row: a part, told by `chance`, of a span that doubles up to its limit.
pub(super) fn wait(failures: u32, chance: f64) -> Duration {
    let span = RECONNECT_BASE.saturating_mul(1 << failures.min(16)).min(RECONNECT_MAX);
    span.mul_f64(chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_thirty_seconds_and_jitter_reaches_down_to_nothing() {
        let waits: Vec<_> = (0..7).map(|failures| wait(failures, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(wait(u32::MAX, 1.0), RECONNECT_MAX);
        assert_eq!(wait(5, 0.0), Duration::ZERO);
    }
}
