//! Odd utilisation: a pod holds the GPU and nothing runs on it for a while. Worth a record, and no more than that.

use std::time::Duration;

use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::super::held::HeldGpu;
use super::look::{Look, Seen};
use super::readings::Readings;
use crate::scrape::metric::Metric;

/// A job that loads data or waits for its peers is idle for minutes; half an hour is odd.
const IDLE_FOR: Duration = Duration::from_secs(1_800);
const CODE: &str = "idle_with_workload";

pub(super) fn judge(gpu: &mut HeldGpu, readings: &Readings<'_>, workload: &str, look: &mut Look<'_, '_>) {
    let uses = [Metric::GpuUtil, Metric::EngineActive].map(|metric| readings.value(metric));
    let measured = uses.iter().flatten().count() > 0;
    if !measured || workload.is_empty() || uses.iter().flatten().any(|&use_| use_ > 0.0) {
        gpu.idle_since = None;
        if measured {
            look.clear(FaultClass::Utilisation, CODE, Witness::ExporterGauge);
        }
        return;
    }
    let now = look.context.now;
    let since = *gpu.idle_since.get_or_insert(now);
    if now.since(since) >= IDLE_FOR {
        let seen = Seen::new(FaultClass::Utilisation, CODE, Onset::Edge, Witness::ExporterGauge, 0.0);
        look.seen(Seen { threshold: IDLE_FOR.as_secs_f64(), ..seen });
    }
}
