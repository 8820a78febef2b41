//! The only place that reads a clock. Wall time is for people and records; deadlines of commands are judged by hub
//! time: the database's clock as of Welcome plus CLOCK_BOOTTIME since, which neither a clock step nor a suspend stops.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gpuheal_proto::time::Timestamp;
use tokio::sync::watch;

/// Drift that two good clocks may have against each other: 200 ppm is four times what a cheap crystal has.
const DRIFT_PPM: u32 = 200;

/// This machine's wall clock: for records and people, never for a deadline.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH.after(since)
}

/// How far a wall clock that now shows `wall` is ahead of the hub's, which showed `server` within a round trip of `rtt`: for
/// people, who mend it. Right to half the round trip.
#[must_use]
pub fn ahead_s(wall: Timestamp, server: Timestamp, rtt: Duration) -> f64 {
    let hub = server.after(rtt / 2);
    wall.since(hub).as_secs_f64() - hub.since(wall).as_secs_f64()
}

/// Time since boot, suspend included.
#[must_use]
pub fn boottime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let secs = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(secs, nanos)
}

/// One reading of the hub's clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    server: Timestamp,
    boot: Duration,
    /// Half of the round trip in which it was read.
    error: Duration,
}

/// The hub's clock as this spoke knows it. Shared; set by the link, read by many, and lost when it is seen that this
/// machine's own clock stood still.
#[derive(Debug, Default)]
pub struct HubClock {
    reading: watch::Sender<Option<Reading>>,
}

impl HubClock {
    /// A clock that has not been set.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes `server` as the hub's time now, read over a round trip of `rtt`.
    pub fn set(&self, server: Timestamp, rtt: Duration) {
        self.set_at(server, rtt, boottime());
    }

    /// The hub's time and how wrong it may be either way; nothing before the first Welcome.
    #[must_use]
    pub fn now(&self) -> Option<(Timestamp, Duration)> {
        self.now_at(boottime())
    }

    /// What was read counts no longer: until the next [`HubClock::set`] the time is not known.
    pub fn lose(&self) {
        self.reading.send_if_modified(|reading| reading.take().is_some());
    }

    /// Waits until the time is not known.
    pub async fn lost(&self) {
        let mut reading = self.reading.subscribe();
        // The sender is our own: it cannot be gone.
        let _ = reading.wait_for(Option::is_none).await;
    }

    fn set_at(&self, server: Timestamp, rtt: Duration, boot: Duration) {
        // The answer was written about half a round trip before it was read.
        let reading = Reading { server: server.after(rtt / 2), boot, error: rtt / 2 };
        self.reading.send_replace(Some(reading));
    }

    /// The same as of a time since boot.
    #[must_use]
    pub fn now_at(&self, boot: Duration) -> Option<(Timestamp, Duration)> {
        let reading = (*self.reading.borrow())?;
        let age = boot.saturating_sub(reading.boot);
        Some((reading.server.after(age), reading.error + age * DRIFT_PPM / 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn hub_time_is_unknown_until_it_is_told() {
        assert_eq!(HubClock::new().now(), None);
    }

    /// Failure table, row 22.
    #[test]
    fn hub_time_goes_on_by_boottime_and_grows_uncertain_with_age() {
        let clock = HubClock::new();
        let server = Timestamp::from_unix_ms(1_000_000);
        clock.set_at(server, secs(2), secs(10));
        assert_eq!(clock.now_at(secs(10)), Some((server.after(secs(1)), secs(1))));
        // 200 ppm of 10,000 s are 2 s.
        assert_eq!(clock.now_at(secs(10_010)), Some((server.after(secs(10_001)), secs(3))));
    }

    #[tokio::test]
    async fn a_lost_time_is_unknown_until_it_is_told_again() {
        let clock = HubClock::new();
        clock.set(Timestamp::from_unix_ms(1_000_000), secs(0));
        clock.lose();
        clock.lost().await;
        assert_eq!(clock.now(), None);
        clock.set(Timestamp::from_unix_ms(2_000_000), secs(0));
        assert!(clock.now().is_some());
    }

    #[test]
    fn a_wall_clock_is_ahead_or_behind_by_what_is_left_after_half_the_round_trip() {
        let at = |s: i64| Timestamp::from_unix_ms(s * 1000);
        assert_eq!(ahead_s(at(1075), at(1000), secs(0)).to_string(), "75");
        assert_eq!(ahead_s(at(1000), at(1060), secs(4)).to_string(), "-62");
        assert_eq!(ahead_s(at(1002), at(1000), secs(4)).to_string(), "0");
    }

    #[test]
    fn boottime_never_goes_back() {
        let first = boottime();
        assert!(boottime() >= first);
    }
}
