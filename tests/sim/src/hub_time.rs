//! The hub's clock as a spoke knows it: what Welcome said, and boot time since. Pure: the caller reads its own clock.

use std::time::Duration;

use gpuheal_proto::time::Timestamp;

use gpuheal_spoke_core::verify::HubNow;

/// Drift that two good clocks may have against each other: 200 ppm is four times what a cheap crystal has.
const DRIFT_PPM: u32 = 200;

/// One reading of the hub's clock.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    server: Timestamp,
    boot: Duration,
    /// Half of the round trip in which it was read.
    error: Duration,
}

impl Reading {
    /// `server` was the hub's time, read over a round trip of `rtt` that ended at `boot` by our clock. The answer was
    /// written about half a round trip before it was read.
    #[must_use]
    pub fn of(server: Timestamp, rtt: Duration, boot: Duration) -> Self {
        Self { server: server.after(rtt / 2), boot, error: rtt / 2 }
    }

    /// The hub's time at `boot`, and how wrong it may be.
    #[must_use]
    pub fn at(&self, boot: Duration) -> HubNow {
        let age = boot.saturating_sub(self.boot);
        HubNow { at: self.server.after(age), uncertainty: self.error + age * DRIFT_PPM / 1_000_000 }
    }
}
