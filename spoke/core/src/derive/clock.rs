//! The wall clock is set now and then: by NTP after a start without network, by a person, with a machine that was moved. What is held is
//! dated by it, since it must mean something to the next process, and every span of a detector lies between two such dates. Set back by an
//! hour, and what was last seen clear stays fresh for that hour, though its exporter is silent; what must last begins to last an hour
//! late. So each reading is compared with the time since boot, which nobody sets, and what is held is moved with the clock.

use std::time::Duration;

use gpuheal_proto::time::Timestamp;

use super::Held;
use super::held::{Exporter, HeldGpu, HeldObject, HeldOffer, NodePart, is_exporters};

/// By less a clock may differ from the time since boot without having been set: NTP slews by at most 500 ppm, which is 90 ms in the three
/// minutes after which a source counts as silent, and sets what is off by more than 128 ms.
const SET_MIN_MS: i64 = 1_000;

/// The last reading.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    last: Option<(Timestamp, Duration)>,
    set_ms: i64,
}

impl Clock {
    pub(super) const fn new() -> Self {
        Self { last: None, set_ms: 0 }
    }

    /// By how much it was set in all.
    pub(super) const fn set_ms(&self) -> i64 {
        self.set_ms
    }

    /// Takes a reading; by how much the clock was set since the one before, 0 if it was not.
    fn read(&mut self, wall: Timestamp, boot: Duration) -> i64 {
        let Some((wall_before, boot_before)) = self.last.replace((wall, boot)) else { return 0 };
        let went = i64::try_from(boot.saturating_sub(boot_before).as_millis()).unwrap_or(i64::MAX);
        let by = wall.unix_ms().saturating_sub(wall_before.unix_ms()).saturating_sub(went);
        if by.abs() < SET_MIN_MS {
            return 0;
        }
        self.set_ms = self.set_ms.saturating_add(by);
        by
    }
}

impl Held {
    /// Takes a reading of the wall clock and of the time since boot, to be given before anything that is dated by it. Gives back by how
    /// many milliseconds the wall clock was set since the reading before; 0: it was not. What is held was moved by as much. Nobody
    /// knows how old it is what an earlier process has dated later than now: its readings count as those of a silent source.
    pub fn read_clock(&mut self, wall: Timestamp, boot: Duration) -> i64 {
        let first = self.clock.last.is_none();
        let by = self.clock.read(wall, boot);
        // Read for each page and node object: only a reading that changes something looks at all the parts.
        if first {
            self.nodes.values_mut().filter(|part| part.met_at > wall).for_each(|part| part.of_unknown_age(wall));
        }
        if by != 0 {
            self.nodes.values_mut().for_each(|part| part.set_clock(self.clock.set_ms));
        }
        by
    }
}

impl NodePart {
    /// Moves its dates along with a clock that was set by so much in all.
    pub(super) fn set_clock(&mut self, set_ms: i64) {
        let by = set_ms.saturating_sub(self.clock_set_ms);
        self.clock_set_ms = set_ms;
        if by != 0 {
            self.shift(by);
        }
    }

    fn shift(&mut self, by: i64) {
        // The epoch stands for never.
        for moment in self.moments().filter(|moment| **moment != Timestamp::EPOCH) {
            *moment = moment.moved(by);
        }
    }

    fn of_unknown_age(&mut self, now: Timestamp) {
        self.shift(now.unix_ms().saturating_sub(self.met_at.unix_ms()));
        self.exporter.page_at = None;
        for known in self.known.iter_mut() {
            let class = known.class;
            for (_, sight) in known.sights.iter_mut().filter(|(witness, _)| is_exporters(**witness, class)) {
                sight.checked = Timestamp::EPOCH;
            }
        }
    }

    /// All times in it. A new field does not compile until it is said here what it is.
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { format: _, node: _, met_at, kept_at, rebooted_at, exporter, gpus, known, object, alerts, clock_set_ms: _ } =
            self;
        [met_at, kept_at, rebooted_at]
            .into_iter()
            .chain(exporter.moments())
            .chain(gpus.iter_mut().flat_map(HeldGpu::moments))
            .chain(known.iter_mut().flat_map(super::known::Known::moments))
            .chain(object.moments())
            .chain(alerts.values_mut())
    }
}

impl Exporter {
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { source: _, start: _, page_at, none_since, none_why: _, frozen_since, pulse: _, lacks: _, users_at, users_pulse } =
            self;
        let pulse_at = users_pulse.as_mut().map(|(_, at)| at);
        [page_at, none_since, frozen_since, users_at].into_iter().flatten().chain(pulse_at)
    }
}

impl HeldGpu {
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self {
            gpu: _,
            index_hint: _,
            missing: _,
            seen_at,
            came_at,
            in_doubt: _,
            was_at: _,
            swapped_at,
            xid: _,
            xid_counts: _,
            values: _,
            bases,
            health: _,
            warm_since,
            hot_since,
            was_cool: _,
            clock_when_hot: _,
            idle_since,
            users: _,
        } = self;
        let since = [warm_since, hot_since, idle_since].into_iter().flatten();
        [seen_at, came_at, swapped_at].into_iter().chain(bases.values_mut().map(|(_, at)| at)).chain(since)
    }
}

impl HeldObject {
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { first_bad, good: _, offers, relayout_until } = self;
        first_bad.moments().chain(relayout_until).chain(offers.iter_mut().flat_map(HeldOffer::moments))
    }
}

impl HeldOffer {
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { resource: _, capacity: _, low_since, was_full: _ } = self;
        low_since.iter_mut()
    }
}
