//! PCIe and NVLink counters that rise fast. A few replays are ordinary; what counts is the rise within a span.

use std::time::Duration;

use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::super::held::HeldGpu;
use super::look::{Look, Seen};
use super::readings::Readings;
use crate::scrape::metric::Metric;

/// How much within which span, as public rules have it: a thousand PCIe replays an hour, a hundred NVLink errors in a
/// quarter of one; a link recovery is never ordinary.
const LIMITS: [(Metric, FaultClass, &str, f64, Duration); 5] = [
    (Metric::PcieReplay, FaultClass::Pcie, "replay", 1_000.0, Duration::from_secs(3_600)),
    (Metric::NvlinkCrcFlit, FaultClass::Nvlink, "crc_flit", 100.0, Duration::from_secs(900)),
    (Metric::NvlinkCrcData, FaultClass::Nvlink, "crc_data", 100.0, Duration::from_secs(900)),
    (Metric::NvlinkReplay, FaultClass::Nvlink, "replay", 100.0, Duration::from_secs(900)),
    (Metric::NvlinkRecovery, FaultClass::Nvlink, "recovery", 1.0, Duration::from_secs(900)),
];

pub(super) fn judge(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    let now = look.context.now;
    for (metric, class, code, limit, span) in LIMITS {
        let Some(value) = readings.value(metric) else { continue };
        let (base, at) = *gpu.bases.get_or_insert(metric, (value, now));
        let rise = value - base;
        if rise >= limit {
            let count = Some(rise.min(f64::from(u32::MAX)) as u32);
            let seen = Seen::new(class, code, Onset::Edge, Witness::ExporterCounter, value);
            look.seen(Seen { threshold: limit, count, ..seen });
        }
        if rise < 0.0 || rise >= limit || now.since(at) >= span {
            gpu.bases.insert(metric, (value, now));
        }
    }
}
