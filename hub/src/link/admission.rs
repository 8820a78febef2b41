//! How many new sessions a hub takes: a bucket that fills at a steady rate, so that a fleet that comes back all at once is
//! let in as fast as the database bears, and the rest is told when to come again.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// New sessions a second: 5,000 clusters of two replicas are back in 25 s.
const PER_SECOND: u32 = 400;
/// Over how long those who are not let in are spread. A hub lets 6,000 in meanwhile, more than its half of the largest fleet;
/// who comes too early again is sent away once more, which costs a handshake.
pub(super) const SPREAD: Duration = Duration::from_secs(15);

/// The bucket of one hub process.
#[derive(Debug)]
pub struct Admission {
    per_second: u32,
    state: Mutex<Option<(f64, Instant)>>,
}

impl Default for Admission {
    fn default() -> Self {
        Self::new(PER_SECOND)
    }
}

impl Admission {
    /// With one second's worth at hand.
    #[must_use]
    pub const fn new(per_second: u32) -> Self {
        Self { per_second, state: Mutex::new(None) }
    }

    /// Whether one more may come in at this moment, which then counts.
    pub(super) fn admit(&self, now: Instant) -> bool {
        let full = f64::from(self.per_second);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, at) = state.unwrap_or((full, now));
        let tokens = now.saturating_duration_since(at).as_secs_f64().mul_add(full, tokens).min(full);
        let admitted = tokens >= 1.0;
        *state = Some((if admitted { tokens - 1.0 } else { tokens }, now.max(at)));
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(admission: &Admission, tries: u32, at: Instant) -> usize {
        (0..tries).filter(|_| admission.admit(at)).count()
    }

    #[test]
    fn four_hundred_new_sessions_a_second_are_let_in_and_no_more() {
        let (admission, start) = (Admission::default(), Instant::now());
        assert_eq!(admitted(&admission, 1000, start), 400);
        assert_eq!(admitted(&admission, 1000, start + Duration::from_millis(250)), 100);
        assert_eq!(admitted(&admission, 1000, start + Duration::from_secs(600)), 400, "rest gathers no more than a second");
    }

    #[test]
    fn a_fleet_of_ten_thousand_replicas_is_back_in_25_seconds() {
        let (admission, start) = (Admission::default(), Instant::now());
        let in_25_s: usize = (0..250).map(|tenth| admitted(&admission, 10_000, start + Duration::from_millis(100) * tenth)).sum();
        assert!(in_25_s >= 10_000, "{in_25_s}");
    }
}
