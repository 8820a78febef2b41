//! A page of a node's exporter, or the lack of one. Says which start of the exporter the page belongs to, whether its
//! readings move at all, which GPUs it has and lacks; the detectors below it then look at each GPU.
//!
//! A whole page that is lost, empty or frozen is a fault of the source and never one of its GPUs.

mod health;
mod idle;
mod links;
mod look;
mod lost;
mod memory;
mod readings;
mod thermal;
mod xid;

use gpuheal_proto::{
    bytes_text::clip,
    fault::{FaultClass, Onset, Witness},
    ids::GpuPlace,
    limits::SOURCE_BYTES_MAX,
    time::Timestamp,
};

use super::held::{NodePart, is_exporters};
use super::known::{Context, Found};
use super::outcome::{EvidenceState, Skip, SourceHealth, SourceView};
use super::settings::Settings;
use super::workload;
use crate::scrape::{dcgm::Page, metric::Metric};
pub(super) use lost::LOST;

use look::{Look, Unseen};
use readings::Readings;

/// Code of a source fault: no usable page for too long.
pub(super) const BROKEN: &str = "exporter_broken";
/// Code of a source fault: pages whose readings do not move.
pub(super) const FROZEN: &str = "exporter_frozen";
/// Signals whose absence is worth telling: an exporter without them cannot show the fault.
const WANTED: [Metric; 6] =
    [Metric::XidLast, Metric::XidCount, Metric::GpuTemp, Metric::Energy, Metric::RowRemapFailure, Metric::EccUncorrectedVolatile];

/// Who was asked.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// For people: `exporter 10.0.3.7:9400`.
    pub name: &'a str,
    /// Tells one start of its process from the next, such as the pod's UID with its restarts; empty where nobody knows.
    /// Then any scrape that failed counts as a restart.
    pub start: &'a str,
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPage {
    /// Nobody answered, or not in time.
    Unreachable,
    /// The answer was another than 200.
    Status(u16),
    /// 200, and no row that names a GPU.
    Empty,
    /// More bytes than are read, or cut off.
    Unreadable,
}

impl std::fmt::Display for NoPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable => f.write_str("no answer"),
            Self::Status(status) => write!(f, "answers {status}"),
            Self::Empty => f.write_str("answers with a page that names no GPU"),
            Self::Unreadable => f.write_str("answers with a page that cannot be read"),
        }
    }
}

/// Takes a page in.
pub(super) fn take(part: &mut NodePart, source: &Source<'_>, page: &Page<'_>, context: &mut Context<'_>) {
    if page.gpus.is_empty() {
        return take_none(part, source, NoPage::Empty, context);
    }
    let now = context.now;
    let places: Vec<Option<usize>> = page.gpus.iter().map(|row| part.place(row, now)).collect();
    let all = Readings::of(page);
    if is_new_start(part, source, &places, &all, context) {
        part.forget_predecessors();
    }
    remember(part, source, page);
    let pulse = pulse(&all);
    part.exporter.date_users(pulse, context.settings.stale_after, now);
    if is_frozen(part, pulse, context) {
        context.out.skip(Skip::PageFrozen);
        return;
    }
    part.exporter.page_at = Some(now);
    part.exporter.none_since = None;
    remember_users(part, &places, page);
    page_is_good(part, context);
    let mut later = Vec::new();
    for ((at, row), readings) in places.iter().zip(&page.gpus).zip(&all) {
        match at {
            Some(at) => look_at(part, *at, source, &workload::of(row), readings, &mut later, context),
            None => context.out.skip(Skip::TooManyGpus),
        }
    }
    part.give_slots_up(now);
    lost::end_of_replaced(part, context);
    lost::judge(part, source, context);
    look::settle_later(&mut part.known, later, context);
    settle(part, context);
    part.keep(context);
}

/// Takes the page's GPUs in and nothing else.
pub(super) fn learn(part: &mut NodePart, page: &Page<'_>, context: &mut Context<'_>) {
    let places: Vec<Option<usize>> = page.gpus.iter().map(|row| part.place(row, context.now)).collect();
    places.iter().flatten().for_each(|&at| part.gpus[at].seen_at = context.now);
    part.exporter.date_users(pulse(&Readings::of(page)), context.settings.stale_after, context.now);
    remember_users(part, &places, page);
    part.give_slots_up(context.now);
}

/// Which pods use which GPU. One that the page does not show has no users that anybody knows of.
fn remember_users(part: &mut NodePart, places: &[Option<usize>], page: &Page<'_>) {
    let mut shown = places.iter().zip(&page.gpus).filter_map(|(at, row)| Some(((*at)?, row))).collect::<Vec<_>>();
    shown.sort_by_key(|(at, _)| *at);
    let mut shown = shown.into_iter().peekable();
    for (at, gpu) in part.gpus.iter_mut().enumerate() {
        match shown.next_if(|(place, _)| *place == at) {
            Some((_, row)) => gpu.used_by(row),
            None => gpu.users = Box::default(),
        }
    }
}

/// Takes in that there is no page.
pub(super) fn take_none(part: &mut NodePart, source: &Source<'_>, why: NoPage, context: &mut Context<'_>) {
    // Before anything else: a restart that shows itself first as silence.
    if part.exporter.source != source.name {
        part.exporter.source = clip(source.name, SOURCE_BYTES_MAX).to_owned();
    }
    part.exporter.none_since.get_or_insert(context.now);
    part.exporter.none_why = why.to_string();
    judge_silence(part, context);
}

/// Tells people of an exporter without a usable page for too long.
pub(super) fn judge_silence(part: &mut NodePart, context: &mut Context<'_>) {
    let limit = context.settings.broken_after;
    let (code, since) = match (part.exporter.none_since, part.exporter.frozen_since) {
        (Some(since), _) => (BROKEN, since),
        (None, Some(since)) => (FROZEN, since),
        (None, None) => return,
    };
    let lasted = context.now.since(since);
    if lasted < limit {
        return;
    }
    let why = if code == FROZEN { "its readings do not move" } else { &part.exporter.none_why };
    let onset = if part.exporter.page_at.is_some() { Onset::Edge } else { Onset::Standing };
    let found = Found {
        class: FaultClass::Source,
        code,
        gpu: None,
        onset,
        witness: Witness::ExporterGauge,
        value: lasted.as_secs_f64(),
        threshold: limit.as_secs_f64(),
        count: Some(1),
        source: &part.exporter.source,
        detail: why,
        workload: "",
    };
    part.known.report(&part.node, &found, context);
}

/// How the node's exporter is; nothing for a node that none was asked for.
pub(super) fn view(part: &NodePart, settings: &Settings, now: Timestamp) -> Option<SourceView> {
    let exporter = &part.exporter;
    if exporter.source.is_empty() {
        return None;
    }
    let last_seen = exporter.page_at.unwrap_or(Timestamp::EPOCH);
    let silent = now.since(last_seen);
    let health = if silent > settings.broken_after {
        SourceHealth::Broken
    } else if silent > settings.stale_after || exporter.frozen_since.is_some_and(|since| now.since(since) >= settings.stale_after) {
        SourceHealth::Stale
    } else {
        SourceHealth::Fresh
    };
    let reason = match (exporter.none_since, exporter.frozen_since) {
        (Some(_), _) => exporter.none_why.clone(),
        (None, Some(_)) if health != SourceHealth::Fresh => "its readings do not move".to_owned(),
        _ if exporter.lacks.is_empty() => String::new(),
        _ => format!("without {}", exporter.lacks.iter().map(|metric| metric.name()).collect::<Vec<_>>().join(", ")),
    };
    Some(SourceView { source: exporter.source.clone(), node: part.node.name.clone(), last_seen, health, reason })
}

/// Whether what was held is of another start of exporter or driver, or too old to be compared with.
fn is_new_start(
    part: &NodePart,
    source: &Source<'_>,
    places: &[Option<usize>],
    all: &[Readings<'_>],
    context: &Context<'_>,
) -> bool {
    let exporter = &part.exporter;
    let Some(page_at) = exporter.page_at else { return true };
    let known_start = !source.start.is_empty() && !exporter.start.is_empty();
    let restarted = if known_start { source.start != exporter.start } else { exporter.none_since.is_some() };
    let energy_back = places.iter().zip(all).any(|(at, readings)| {
        let held = at.and_then(|at| part.gpus[at].values.get(&Metric::Energy));
        matches!((held, readings.value(Metric::Energy)), (Some(&was), Some(is)) if is < was)
    });
    restarted || energy_back || context.now.since(page_at) > context.settings.stale_after
}

fn remember(part: &mut NodePart, source: &Source<'_>, page: &Page<'_>) {
    let exporter = &mut part.exporter;
    if exporter.source != source.name {
        exporter.source = clip(source.name, SOURCE_BYTES_MAX).to_owned();
    }
    if exporter.start != source.start {
        exporter.start = clip(source.start, SOURCE_BYTES_MAX).to_owned();
    }
    exporter.lacks.clear();
    exporter.lacks.extend(WANTED.iter().filter(|metric| page.rows_of(**metric) == 0));
}

/// Whether what must move has not moved for the stale limit. Energy always moves; where there is none, power, clocks and
/// temperatures together are taken for it; a page with nothing of the kind cannot be judged.
fn is_frozen(part: &mut NodePart, pulse: Option<u64>, context: &mut Context<'_>) -> bool {
    let exporter = &mut part.exporter;
    if pulse.is_none() || pulse != exporter.pulse {
        (exporter.pulse, exporter.frozen_since) = (pulse, None);
        return false;
    }
    let since = *exporter.frozen_since.get_or_insert(exporter.page_at.unwrap_or(context.now));
    let frozen = context.now.since(since) >= context.settings.stale_after;
    if frozen {
        exporter.none_since = None;
        judge_silence(part, context);
    }
    frozen
}

/// What must move, in one number.
fn pulse(all: &[Readings<'_>]) -> Option<u64> {
    const MOVING: [Metric; 5] = [Metric::Power, Metric::SmClock, Metric::MemClock, Metric::GpuTemp, Metric::MemoryTemp];
    let values = |metric: Metric| all.iter().filter_map(move |readings| readings.value(metric));
    let metrics: &[Metric] = if values(Metric::Energy).next().is_some() { &[Metric::Energy] } else { &MOVING };
    let mut moving = metrics.iter().copied().flat_map(values).peekable();
    moving.peek()?;
    // An Xid that changes is news even from an exporter whose clocks stand still.
    let xids = all.iter().flat_map(|readings| readings.xids.iter().map(|&(_, code)| f64::from(code)));
    // FNV-1a over whole words: it must be the same after a restart, and nobody gains by a collision.
    Some(moving.chain(xids).fold(0xcbf2_9ce4_8422_2325, |hash: u64, value| (hash ^ value.to_bits()).wrapping_mul(0x0100_0000_01b3)))
}

fn page_is_good(part: &mut NodePart, context: &mut Context<'_>) {
    for code in [BROKEN, FROZEN] {
        part.known.unseen(FaultClass::Source, code, None, Witness::ExporterGauge, EvidenceState::Clear, context);
    }
}

fn look_at(
    part: &mut NodePart,
    at: usize,
    source: &Source<'_>,
    workload: &str,
    readings: &Readings<'_>,
    later: &mut Vec<Unseen>,
    context: &mut Context<'_>,
) {
    let left = part.left_by(at);
    let NodePart { node, known, gpus, .. } = part;
    let gpu = &mut gpus[at];
    let name = std::mem::take(&mut gpu.gpu);
    let mut look = Look { node, known, gpu: &name, left, source: source.name, workload, context, later };
    lost::is_back(gpu, &mut look);
    xid::gauge(gpu, readings, &mut look);
    xid::counts(gpu, readings, &mut look);
    memory::judge(gpu, readings, &mut look);
    thermal::judge(gpu, readings, &mut look);
    health::judge(gpu, readings, &mut look);
    links::judge(gpu, readings, &mut look);
    idle::judge(gpu, readings, workload, &mut look);
    if let Some(energy) = readings.value(Metric::Energy) {
        gpu.values.insert(Metric::Energy, energy);
    }
    gpu.seen_at = look.context.now;
    gpu.gpu = name;
}

/// What this page did not show and nobody judged: an event's end is only told by a later boot or another board in the
/// slot, with the GPU there again and quiet; where the boot has left the slot empty, in another. Anything else that is no longer
/// shown is stale, for nobody can tell.
fn settle(part: &mut NodePart, context: &mut Context<'_>) {
    let now = context.now;
    let NodePart { known, gpus, rebooted_at, .. } = part;
    let all_there = gpus.iter().all(|gpu| gpu.missing == 0);
    let slotless = gpus.iter().all(|gpu| gpu.gpu.slot.is_none());
    for fault in known.iter_mut() {
        if matches!(fault.class, FaultClass::Alert | FaultClass::NodeCondition | FaultClass::Allocatable | FaultClass::Source) {
            continue;
        }
        let place = fault.place.as_ref();
        let gpu = place.and_then(|place| gpus.iter().find(|gpu| gpu.is_at(place)));
        let left = gpu.is_none() && place.is_some_and(|place| gpus.iter().any(|gpu| gpu.has_left(place)));
        let since = gpu.map_or(*rebooted_at, |gpu| gpu.swapped_at.max(*rebooted_at));
        let there = match (place, gpu) {
            (Some(_), Some(gpu)) => gpu.missing == 0,
            // The slot of a GPU whose exporter tells none is known to others alone: it is one of those that are there.
            (Some(GpuPlace::Slot(_)), None) => left || (slotless && all_there),
            (Some(GpuPlace::Uuid(_)), None) => false,
            (None, _) => all_there,
        };
        let due: Vec<(Witness, EvidenceState)> = fault
            .sights
            .iter()
            .filter(|(_, sight)| sight.last < now)
            .filter_map(|(witness, sight)| {
                let another_life = there && sight.last < since && ends_with_boot(fault.class, &fault.code, *witness);
                let unseen = sight.checked < now && is_exporters(*witness, fault.class) && sight.state == EvidenceState::Seen;
                let to = if another_life { EvidenceState::Clear } else { EvidenceState::Stale };
                (another_life || unseen).then_some((*witness, to))
            })
            .collect();
        for (witness, to) in due {
            fault.turn(witness, to, context);
        }
    }
}

/// Whether what was seen is an event of one boot and one board, rather than a state that is read anew.
fn ends_with_boot(class: FaultClass, code: &str, witness: Witness) -> bool {
    match class {
        FaultClass::Xid | FaultClass::Nvlink | FaultClass::Pcie => true,
        FaultClass::Ecc => code == memory::UNCORRECTABLE,
        FaultClass::RowRemap => code == memory::PENDING,
        FaultClass::GpuLost => witness == Witness::KernelLine,
        FaultClass::Thermal
        | FaultClass::Driver
        | FaultClass::NodeCondition
        | FaultClass::Alert
        | FaultClass::Allocatable
        | FaultClass::Utilisation
        | FaultClass::PodFailure
        | FaultClass::Source
        | FaultClass::HealthWatch => false,
    }
}
