//! Pure: how far a replica's wall clock is from the database's, and what people are told of it. It decides nothing: a command
//! may begin by the hub's time and the time since boot, and of a wall clock no more hangs on it than whether a certificate
//! counts, which TLS sees to.

use std::time::{Duration, Instant};

use gpuheal_proto::{limits, time::Timestamp};

/// A clock that is further off is told as a problem: as much as a spoke's doubt of the hub's time may be. What it writes
/// into logs, records and faults cannot be put in order with anybody else's, and certificates begin to count five minutes early.
pub const CLOCK_SKEW_MAX: Duration = limits::CLOCK_UNCERTAINTY_MAX;
/// The last moment that a clock is believed to show: what is later, 8,900 years from now, counts as this.
const LATEST: Timestamp = Timestamp::from_unix_ms(1 << 48);

/// What a replica's wall clock showed, and when that was read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wall {
    told: Timestamp,
    heard: Instant,
}

impl Wall {
    /// As a Hello tells it; none when it does not.
    #[must_use]
    pub fn read(unix_ms: i64, heard: Instant) -> Option<Self> {
        (unix_ms > 0).then(|| Self { told: Timestamp::from_unix_ms(unix_ms).min(LATEST), heard })
    }

    /// What it shows by now: a Hello may have waited for its turn, or for the database.
    #[must_use]
    pub fn at(self, now: Instant) -> Timestamp {
        self.told.after(now.saturating_duration_since(self.heard))
    }
}

/// Whether a clock is that far off.
#[must_use]
pub fn apart(skew_ms: i64) -> bool {
    Duration::from_millis(skew_ms.unsigned_abs()) > CLOCK_SKEW_MAX
}

/// In words.
#[must_use]
pub fn words(replica: &str, skew_ms: i64) -> String {
    let way = if skew_ms > 0 { "ahead of" } else { "behind" };
    format!("clock of {replica} is {} s {way} the database's", skew_ms.unsigned_abs() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_off_from_more_than_30_s_on_either_way() {
        for (skew_ms, off) in [(0, false), (30_000, false), (-30_000, false), (30_001, true), (-30_001, true), (i64::MIN, true)] {
            assert_eq!(apart(skew_ms), off, "{skew_ms}");
        }
        assert_eq!(words("spoke-0", 75_400), "clock of spoke-0 is 75 s ahead of the database's");
        assert_eq!(words("spoke-0", -3_600_000), "clock of spoke-0 is 3600 s behind the database's");
    }

    #[test]
    fn what_a_hello_waited_here_is_no_skew() {
        let heard = Instant::now();
        let wall = Wall::read(1_000_000, heard).unwrap();
        assert_eq!(wall.at(heard + Duration::from_secs(40)), Timestamp::from_unix_ms(1_040_000));
    }

    #[test]
    fn a_clock_that_is_not_told_is_none_and_one_beyond_all_bounds_stays_within_them() {
        assert_eq!(Wall::read(0, Instant::now()), None);
        assert_eq!(Wall::read(i64::MIN, Instant::now()), None);
        let now = Instant::now();
        assert_eq!(Wall::read(i64::MAX, now).unwrap().at(now), LATEST);
    }
}
