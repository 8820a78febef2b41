//! GPUs whose rows are gone while the rows of their neighbours are there and move.

use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    ids::GpuPlace,
};

use super::super::held::{HeldGpu, NodePart};
use super::super::known::{Context, Found, Known};
use super::super::outcome::EvidenceState;
use super::Source;
use super::look::Look;

/// Code of a lost GPU, whoever says so.
pub(in super::super) const LOST: &str = "lost";

/// Called for each GPU that the page has.
pub(super) fn is_back(gpu: &mut HeldGpu, look: &mut Look<'_, '_>) {
    gpu.missing = 0;
    look.clear(FaultClass::GpuLost, LOST, Witness::MissingRows);
}

/// A board that another has replaced is no longer lost, and whatever was told of it by its UUID alone has ended with it: no page
/// will ever show it again. What the node object says of it ends with what that says.
pub(super) fn end_of_replaced(part: &mut NodePart, context: &mut Context<'_>) {
    let replaced = part.take_replaced(context.settings.gpu_lost_scrapes, context.now);
    let of_them = |fault: &&mut Known| matches!(&fault.place, Some(GpuPlace::Uuid(uuid)) if replaced.contains(uuid));
    for fault in part.known.iter_mut().filter(of_them) {
        let told: Vec<Witness> = fault.sights.keys().copied().collect();
        for witness in told.into_iter().filter(|witness| !matches!(witness, Witness::NodeCondition | Witness::Allocatable)) {
            fault.turn(witness, EvidenceState::Clear, context);
        }
    }
}

/// Counts, after the page's GPUs were looked at, those that it lacks.
pub(super) fn judge(part: &mut NodePart, source: &Source<'_>, context: &mut Context<'_>) {
    let now = context.now;
    let limit = context.settings.gpu_lost_scrapes;
    let neighbours = part.gpus.iter().filter(|gpu| gpu.seen_at == now).count();
    for gpu in part.gpus.iter_mut().filter(|gpu| gpu.seen_at < now) {
        gpu.missing = gpu.missing.saturating_add(1);
        if gpu.missing < limit {
            continue;
        }
        // Readings are held only within one start: then the rows were seen to go.
        let onset = if gpu.values.is_empty() && gpu.xid.is_empty() { Onset::Standing } else { Onset::Edge };
        let detail = format!("no rows on {} pages, {neighbours} other GPUs are fresh", gpu.missing);
        let found = Found {
            class: FaultClass::GpuLost,
            code: LOST,
            gpu: Some(&gpu.gpu),
            onset,
            witness: Witness::MissingRows,
            value: gpu.missing.into(),
            threshold: limit.into(),
            count: Some(1),
            source: source.name,
            detail: &detail,
            workload: "",
        };
        part.known.report(&part.node, &found, context);
    }
}
