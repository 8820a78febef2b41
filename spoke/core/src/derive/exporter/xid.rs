//! Xids: the gauge of the last one, and the counts within the exporter's window.
//!
//! The gauge is a level without time: a change to N is an event, N at first sight is of unknown age, and back to 0 is a
//! restart of something and no repair. A row that was absent until its first Xid counts as 0 before. A count that rises
//! is an event; that it falls is the window sliding.

use std::collections::BTreeMap;

use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::super::held::{CODES_MAX, HeldGpu};
use super::look::{Look, Seen};
use super::readings::Readings;

/// Stands in the held counts for "there were counts before", since an empty map cannot say that.
const COUNTED: u16 = 0;
/// Instances of one GPU whose Xids are held: 7 and the whole, as often again for those of an older layout.
const INSTANCES_MAX: usize = 16;

pub(super) fn gauge(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    let had_predecessor = !gpu.xid.is_empty();
    let mut shown: BTreeMap<u16, Onset> = BTreeMap::new();
    for &(instance, code) in &readings.xids {
        let before = gpu.xid.get(&instance).copied().or(had_predecessor.then_some(0));
        let onset = match before {
            Some(before) if before != code => Onset::Edge,
            _ => Onset::Standing,
        };
        if code > 0 {
            let known = shown.entry(code).or_insert(onset);
            *known = (*known).max(onset);
        }
        if gpu.xid.len() < INSTANCES_MAX || gpu.xid.contains_key(&instance) {
            gpu.xid.insert(instance, code);
        }
    }
    if readings.xids.is_empty() && !readings.xid_in_doubt {
        gpu.xid.get_or_insert(0, 0);
    }
    for (code, onset) in shown {
        let text = code.to_string();
        let count = None;
        look.seen(Seen { count, ..Seen::new(FaultClass::Xid, &text, onset, Witness::ExporterGauge, code.into()) });
    }
}

pub(super) fn counts(gpu: &mut HeldGpu, readings: &Readings<'_>, look: &mut Look<'_, '_>) {
    if !readings.has_counts {
        return;
    }
    let had_predecessor = gpu.xid_counts.contains_key(&COUNTED);
    let threshold = look.context.settings.xid_errors.into();
    for &(code, count) in readings.counts.iter().filter(|(_, count)| *count > 0) {
        let before = gpu.xid_counts.get(&code).copied().unwrap_or(0);
        let onset = if had_predecessor && count > before { Onset::Edge } else { Onset::Standing };
        let text = code.to_string();
        let seen = Seen::new(FaultClass::Xid, &text, onset, Witness::ExporterCounter, count.into());
        look.seen(Seen { count: Some(count), threshold, ..seen });
    }
    gpu.xid_counts.clear();
    gpu.xid_counts.insert(COUNTED, 0);
    for &(code, count) in readings.counts.iter().take(CODES_MAX) {
        gpu.xid_counts.insert(code, count);
    }
}
