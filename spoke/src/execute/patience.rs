//! How long an overloaded API server is left alone, and who comes back when: all at the same instant would overload it again.
//! Pure: time and chance are told.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use tokio::time::Instant;

/// Longest patience that one answer of the server gets, whatever it asks for: a command's own deadlines are minutes away, and
/// whoever is still overloaded then says so again.
pub(super) const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// Over as long as it was asked for those who waited come back, and over so much at most: of 256 commands (`RUNNING_MAX`) 51 a second,
/// a quarter of the 200 writes that an API server takes at once if it is not told otherwise.
pub(super) const SPREAD_MAX: Duration = Duration::from_secs(5);

/// What was asked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    until: Instant,
    spread: Duration,
    /// Drawn anew each time, so that nobody is always the last.
    salt: u64,
}

impl Patience {
    /// The server has asked for so much, after what it had asked for before. The longer one counts.
    pub(super) fn asked(before: Option<Self>, wait: Duration, salt: u64, now: Instant) -> Self {
        let wait = wait.min(PATIENCE_MAX);
        let asked = Self { until: now + wait, spread: wait.min(SPREAD_MAX), salt };
        before.filter(|before| before.until >= asked.until).unwrap_or(asked)
    }

    /// Until when nobody asks.
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    /// From when on this one asks again: the same moment however often it is looked up.
    pub(super) fn of(&self, who: impl std::hash::Hash) -> Instant {
        let mut hasher = DefaultHasher::new();
        (who, self.salt).hash(&mut hasher);
        let share = hasher.finish() as f64 / u64::MAX as f64;
        self.until + self.spread.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_waited_come_back_one_after_the_other_and_none_before_its_time() {
        let now = Instant::now();
        let wait = Duration::from_secs(10);
        let patience = Patience::asked(None, wait, 7, now);
        let back: Vec<_> = (0..256).map(|who| patience.of(who)).collect();
        assert!(back.iter().all(|at| (now + wait..=now + wait + SPREAD_MAX).contains(at)));
        for tenth in 0..10 {
            let from = now + wait + SPREAD_MAX / 10 * tenth;
            let at_once = back.iter().filter(|at| (from..from + SPREAD_MAX / 10).contains(at)).count();
            assert!((5..=60).contains(&at_once), "{at_once} of 256 in half a second");
        }
        assert_eq!(back[3], patience.of(3));
        let again = Patience::asked(None, wait, 8, now);
        assert!((0..256).filter(|who| again.of(*who) < patience.of(*who)).count() > 64, "another order");
    }

    #[test]
    fn a_short_patience_is_spread_as_short_and_of_two_the_longer_counts() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let long = Patience::asked(None, 30 * second, 1, now);
        assert_eq!(Patience::asked(Some(long), second, 2, now), long);
        assert_eq!(Patience::asked(None, second, 2, now).spread, second);
        assert_eq!(Patience::asked(Some(long), 3600 * second, 3, now).until(), now + PATIENCE_MAX);
    }
}
