//! The only place that reads the wall clock. Decisions use the database's own, which `store::moment` reads; this one is
//! for certificates, log lines and for knowing how far the two are apart.

use std::time::{SystemTime, UNIX_EPOCH};

use gpuheal_proto::time::Timestamp;

/// This machine's clock. A clock before 1970 reads as 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// How far this machine's clock is ahead of the database's, in milliseconds; half of the question's round trip is in it.
#[must_use]
pub fn ahead_ms(asked: Timestamp, database: Timestamp, answered: Timestamp) -> i64 {
    let middle = asked.unix_ms().midpoint(answered.unix_ms());
    middle.saturating_sub(database.unix_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_round_trip_is_compared() {
        let at = Timestamp::from_unix_ms;
        assert_eq!(ahead_ms(at(1_000), at(1_005), at(1_010)), 0);
        assert_eq!(ahead_ms(at(31_000), at(1_005), at(31_010)), 30_000);
    }
}
