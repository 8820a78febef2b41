//! DCGM's health watches, and what the driver itself wants done.
//!
//! A watch also fails for what an application did (Xid 31 fails MEM), and goes back to pass with its host engine: where
//! it only repeats an application's Xid it is skipped, and a pass in another start clears nothing.

use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::super::held::HeldGpu;
use super::super::outcome::{EvidenceState, Skip};
use super::look::{Look, Seen};
use super::readings::Readings;
use crate::scrape::metric::Metric;

/// Xids that an application causes by itself.
const APPLICATION_XIDS: [u16; 6] = [13, 31, 32, 43, 45, 68];
/// Most watches that are held: DCGM has 11.
const WATCHES_MAX: usize = 32;
/// Code of the fault that the driver's wanted action makes.
const RECOVERY_ACTION: &str = "recovery_action";
/// Verdict of a watch that fails; 10 is a warning.
const FAIL: u8 = 20;

pub(super) fn judge(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    let mut verdicts: Vec<(&str, &str, u8)> = Vec::new();
    for &(watch, code, verdict) in readings.health.iter().filter(|(watch, ..)| !watch.is_empty()) {
        // A watch may have a row for each of its codes: the worst is its verdict.
        match verdicts.iter_mut().find(|(other, ..)| *other == watch) {
            Some(known) if known.2 >= verdict => {}
            Some(known) => *known = (watch, code, verdict),
            None => verdicts.push((watch, code, verdict)),
        }
    }
    for (watch, code, verdict) in verdicts.into_iter().take(WATCHES_MAX) {
        one(gpu, watch, code, verdict, look);
    }
    wanted_action(gpu, readings, look);
}

fn one(gpu: &mut HeldGpu, watch: &str, code: &str, verdict: u8, look: &mut Look<'_, '_>) {
    let before = gpu.health.get(watch).copied();
    if gpu.health.len() < WATCHES_MAX || before.is_some() {
        gpu.health.insert(watch.into(), verdict);
    }
    if verdict == 0 {
        match before {
            None => look.unseen(FaultClass::HealthWatch, watch, Witness::DcgmHealth, EvidenceState::Stale),
            Some(0) => look.still(FaultClass::HealthWatch, watch, Witness::DcgmHealth),
            Some(_) => look.clear(FaultClass::HealthWatch, watch, Witness::DcgmHealth),
        }
        return;
    }
    if repeats_application(gpu, code) {
        look.context.out.skip(Skip::HealthOfApplication);
        return;
    }
    let onset = if before.is_some_and(|before| before < verdict) { Onset::Edge } else { Onset::Standing };
    let detail = format!("{} {code}", if verdict >= FAIL { "fail" } else { "warn" });
    let seen = Seen::new(FaultClass::HealthWatch, watch, onset, Witness::DcgmHealth, verdict.into());
    look.seen(Seen { threshold: 10.0, detail: detail.trim_end(), ..seen });
}

/// The watch's code says no more than "an Xid", and the GPU's Xids are the application's.
fn repeats_application(gpu: &HeldGpu, code: &str) -> bool {
    let says_xid_only = code.is_empty() || code.contains("XID");
    let gauge = gpu.xid.values().copied();
    let counts = gpu.xid_counts.iter().filter(|(_, count)| **count > 0).map(|(code, _)| *code);
    let mut xids = gauge.chain(counts).filter(|&code| code > 0).peekable();
    says_xid_only && xids.peek().is_some() && xids.all(|code| APPLICATION_XIDS.contains(&code))
}

fn wanted_action(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    let metric = Metric::RecoveryAction;
    let Some(value) = readings.value(metric) else { return };
    let before = gpu.values.insert(metric, value);
    if value == 0.0 {
        look.clear(FaultClass::Driver, RECOVERY_ACTION, Witness::ExporterGauge);
        return;
    }
    let onset = if before.is_some_and(|before| before != value) { Onset::Edge } else { Onset::Standing };
    let detail = match value as u32 {
        1 => "the driver wants a reset",
        2 => "the driver wants a reboot",
        3 => "the driver wants peer-to-peer traffic drained",
        4 => "the driver wants a drain and a reset",
        _ => "the driver wants something that is not known here",
    };
    look.seen(Seen { detail, ..Seen::new(FaultClass::Driver, RECOVERY_ACTION, onset, Witness::ExporterGauge, value) });
}
