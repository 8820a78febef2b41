//! Whether the hub gets on with what was sent to it. Pure: time is an argument. An ack is progress; a heartbeat that says busy
//! stands for one, but not without end: a hub that hangs says so for ever.

use std::time::Duration;

use tokio::time::Instant;

/// Faults in flight this long without an ack, and no heartbeat that says busy: the session is dead.
pub(super) const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
/// So long a hub is believed that it is busy with what was sent: it tries to commit it three times, and gives up an answer of
/// its database after 30 s each time. With [`PROGRESS_WITHIN`] after it, a session without an ack ends after 2 minutes.
pub(super) const BUSY_MAX: Duration = Duration::from_secs(3 * 30);

/// When the hub last showed that it works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    acked: Instant,
    /// It has said so in each heartbeat since.
    busy_since: Option<Instant>,
}

impl Progress {
    pub(super) const fn new(now: Instant) -> Self {
        Self { acked: now, busy_since: None }
    }

    /// An ack came.
    pub(super) fn acked(&mut self, now: Instant) {
        self.acked = now;
        self.busy_since = self.busy_since.map(|_| now);
    }

    /// A heartbeat came.
    pub(super) fn heard(&mut self, busy: bool, now: Instant) {
        self.busy_since = busy.then(|| self.busy_since.unwrap_or(now));
    }

    /// Whether what is in flight has waited too long.
    pub(super) fn is_stuck(&mut self, in_flight: u64, now: Instant) -> bool {
        if in_flight == 0 {
            self.acked(now);
        }
        if self.busy_since.is_some_and(|since| now.saturating_duration_since(since) <= BUSY_MAX) {
            self.acked = now;
        }
        now.saturating_duration_since(self.acked) > PROGRESS_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_secs(15);

    /// After how long the session ends when each heartbeat says `busy` and an ack comes where `acks` says so.
    fn ends_after(busy: bool, in_flight: u64, acks: impl Fn(u32) -> bool) -> Option<Duration> {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        (1..=40).find_map(|beat| {
            let now = start + BEAT * beat;
            progress.heard(busy, now);
            if acks(beat) {
                progress.acked(now);
            }
            progress.is_stuck(in_flight, now).then(|| now - start)
        })
    }

    #[test]
    fn a_hub_that_says_busy_and_acks_nothing_is_believed_for_two_minutes() {
        let ended = ends_after(true, 5, |_| false).unwrap();
        assert!(ended > BUSY_MAX + PROGRESS_WITHIN && ended <= BUSY_MAX + PROGRESS_WITHIN + BEAT * 3, "{ended:?}");
        assert_eq!(ends_after(true, 5, |beat| beat % 5 == 0), None, "it is busy and gets on");
    }

    #[test]
    fn without_a_word_of_being_busy_thirty_seconds_are_enough_and_with_nothing_in_flight_none_are() {
        assert_eq!(ends_after(false, 5, |_| false), Some(BEAT * 3));
        assert_eq!(ends_after(true, 0, |_| false), None);
        assert_eq!(ends_after(false, 0, |_| false), None);
    }
}
