//! Memory: counters of uncorrectable errors, and the flags that say that a repair failed or waits.
//!
//! Counters since driver load tell by being above 0; lifetime counters only by rising, since what stood before is history.

use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::super::held::HeldGpu;
use super::super::outcome::Skip;
use super::look::{Look, Seen};
use super::readings::Readings;
use crate::scrape::metric::Metric;

/// Uncorrectable errors, however they were counted: one error moves several of these counters, and is one fault.
pub(super) const UNCORRECTABLE: &str = "uncorrectable";
/// A repair that takes effect with the next reset.
pub(super) const PENDING: &str = "pending";

/// Flags: metric, class, code, and the witness. One that says "failed" is worth as much as a counter that rose.
const FLAGS: [(Metric, FaultClass, &str, Witness); 4] = [
    (Metric::RowRemapFailure, FaultClass::RowRemap, "failure", Witness::ExporterCounter),
    (Metric::RowRemapPending, FaultClass::RowRemap, PENDING, Witness::ExporterGauge),
    (Metric::SramThresholdExceeded, FaultClass::Ecc, "sram_threshold", Witness::ExporterCounter),
    (Metric::MemoryUnrepairable, FaultClass::Ecc, "unrepairable", Witness::ExporterCounter),
];
/// Lifetime counters: metric, class, code.
const LIFETIME: [(Metric, FaultClass, &str); 3] = [
    (Metric::EccUncorrectedLifetime, FaultClass::Ecc, UNCORRECTABLE),
    (Metric::RetiredDoubleBit, FaultClass::Ecc, UNCORRECTABLE),
    // A row was remapped, which takes effect with the next reset.
    (Metric::RemappedUncorrectable, FaultClass::RowRemap, PENDING),
];

pub(super) fn judge(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    for (metric, class, code, witness) in FLAGS {
        let Some(value) = readings.value(metric) else { continue };
        let before = gpu.values.insert(metric, value);
        if value > 0.0 {
            let onset = if before == Some(0.0) { Onset::Edge } else { Onset::Standing };
            look.seen(Seen { threshold: 1.0, ..Seen::new(class, code, onset, witness, value) });
        } else {
            look.clear(class, code, witness);
        }
    }
    let volatile = since_driver_load(gpu, readings, look);
    for (metric, class, code) in LIFETIME {
        let Some(value) = readings.value(metric) else { continue };
        match gpu.values.insert(metric, value) {
            Some(before) if value > before => look.seen(rose(class, code, before, value)),
            None if value > 0.0 => look.context.out.skip(Skip::CounterHistory),
            _ => {}
        }
    }
    // The driver was loaded anew and has counted nothing since.
    if volatile == Some(0.0) {
        look.clear(FaultClass::Ecc, UNCORRECTABLE, Witness::ExporterCounter);
    }
}

fn since_driver_load(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) -> Option<f64> {
    let metric = Metric::EccUncorrectedVolatile;
    let value = readings.value(metric)?;
    match gpu.values.insert(metric, value) {
        Some(before) if value > before => look.seen(rose(FaultClass::Ecc, UNCORRECTABLE, before, value)),
        _ if value > 0.0 => {
            look.seen(Seen::new(FaultClass::Ecc, UNCORRECTABLE, Onset::Standing, Witness::ExporterCounter, value));
        }
        _ => {}
    }
    Some(value)
}

fn rose(class: FaultClass, code: &str, before: f64, value: f64) -> Seen<'_> {
    let count = Some((value - before).clamp(1.0, f64::from(u32::MAX)) as u32);
    Seen { count, ..Seen::new(class, code, Onset::Edge, Witness::ExporterCounter, value) }
}
