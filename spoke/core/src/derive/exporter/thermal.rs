//! Heat: above a threshold for the dwell time. `high` also looks for a second field of the same GPU that agrees, since
//! one number alone harms nobody. It clears with a fresh reading under the threshold and with nothing else.

use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    time::Timestamp,
};

use super::super::held::HeldGpu;
use super::super::settings::Thermal;
use super::look::{Look, Seen};
use super::readings::Readings;
use crate::scrape::metric::Metric;

const WARN: &str = "warn";
const HIGH: &str = "high";
/// Clocks below nine tenths of what they were when it became warm are held back; less is the usual play of boost clocks.
const CLOCK_SHARE: f64 = 0.9;
/// Bits of the clock reasons: software and hardware slowdown for heat.
const THERMAL_REASONS: u64 = 0x20 | 0x40;

pub(super) fn judge(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    let slowed = violation_rose(gpu, readings);
    let Some(celsius) = readings.value(Metric::GpuTemp) else { return };
    let thermal = look.context.settings.thermal_of(&look.gpu.model);
    let now = look.context.now;
    let (warm, hot) = (celsius > thermal.warn_celsius, celsius > thermal.high_celsius);
    if warm && gpu.warm_since.is_none() {
        gpu.clock_when_hot = readings.value(Metric::SmClock);
    }
    gpu.warm_since = warm.then(|| gpu.warm_since.unwrap_or(now));
    gpu.hot_since = hot.then(|| gpu.hot_since.unwrap_or(now));
    gpu.was_cool |= !warm;
    let onset = if gpu.was_cool { Onset::Edge } else { Onset::Standing };
    let lasted = |since: Option<Timestamp>| since.is_some_and(|since| now.since(since) >= thermal.dwell);
    let is_high = lasted(gpu.hot_since);
    if is_high {
        let seen = Seen::new(FaultClass::Thermal, HIGH, onset, Witness::ExporterGauge, celsius);
        look.seen(Seen { threshold: thermal.high_celsius, ..seen });
        agree(gpu, readings, &thermal, slowed, onset, look);
    } else if !hot {
        look.clear(FaultClass::Thermal, HIGH, Witness::ExporterGauge);
        look.clear(FaultClass::Thermal, HIGH, Witness::SecondField);
    }
    // Where it went straight to high, a warning beside it says nothing more.
    if lasted(gpu.warm_since) && (!is_high || look.is_known(FaultClass::Thermal, WARN)) {
        let seen = Seen::new(FaultClass::Thermal, WARN, onset, Witness::ExporterGauge, celsius);
        look.seen(Seen { threshold: thermal.warn_celsius, ..seen });
    } else if !warm {
        look.clear(FaultClass::Thermal, WARN, Witness::ExporterGauge);
    }
}

fn agree(gpu: &HeldGpu, readings: &Readings<'_>, thermal: &Thermal, slowed: bool, onset: Onset, look: &mut Look<'_, '_>) {
    let memory = readings.value(Metric::MemoryTemp).filter(|&celsius| celsius > thermal.high_celsius);
    let reasons = readings.value(Metric::ClockReasons).map(|bits| bits as u64 & THERMAL_REASONS).filter(|&bits| bits != 0);
    let clock = readings.value(Metric::SmClock);
    let (value, detail) = if let Some(event) = readings.thermal_events.first() {
        (0.0, format!("clock event {event}"))
    } else if let Some(bits) = reasons {
        (0.0, format!("clocks held back for heat, reasons {bits:#x}"))
    } else if slowed {
        (0.0, "time held back for heat rises".to_owned())
    } else if let Some(celsius) = memory {
        (celsius, format!("memory at {celsius} °C"))
    } else if let (Some(before), Some(clock)) = (gpu.clock_when_hot, clock)
        && clock < before * CLOCK_SHARE
    {
        (clock, format!("clock fell from {before} to {clock} MHz"))
    } else {
        return;
    };
    let seen = Seen::new(FaultClass::Thermal, HIGH, onset, Witness::SecondField, value);
    look.seen(Seen { threshold: thermal.high_celsius, detail: &detail, ..seen });
}

/// Whether the time that was held back for heat grew since the page before.
fn violation_rose(gpu: &mut HeldGpu, readings: &Readings<'_>) -> bool {
    let metric = Metric::ThermalViolation;
    let Some(value) = readings.value(metric) else { return false };
    gpu.values.insert(metric, value).is_some_and(|before| value > before)
}
