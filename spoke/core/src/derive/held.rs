//! What is remembered of one node, and how it goes to the journal and comes back. Bounded: GPUs, readings per GPU, alerts
//! and faults each have a limit, and what was silent longest makes room.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::{
    bytes_text::clip_storable,
    fault::{Asked, Fault, FaultClass, GpuRef, NodeRef, Witness},
    ids::{GpuPlace, GpuSlot, GpuUuid},
    limits::SOURCE_BYTES_MAX,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::known::{Context, Faults};
use super::outcome::EvidenceState;
use super::packed;
use super::settings::Settings;
use super::sorted::Sorted;
use super::workload;
use crate::drain::{Unknown, Users};
use crate::scrape::{conditions::FirstBad, dcgm::GpuRow, metric::Metric};

/// Most nodes of a cluster: Kubernetes is made for 5,000; three times that for those that come and go.
pub const NODES_MAX: usize = 15_000;
/// Most GPUs of one node that are remembered: as many as one page can name.
pub const GPUS_MAX: usize = crate::scrape::dcgm::GPUS_MAX;
/// Most Xid codes of one GPU whose counts are held.
pub(super) const CODES_MAX: usize = 64;
/// Most alerts of one node whose repeats are known.
pub(super) const ALERTS_MAX: usize = 256;
/// An event is no longer seen when nothing told of it for so long. Longer than Alertmanager's group interval of 5 min.
const EVENT_LIFE: Duration = Duration::from_secs(360);
/// So long an alert is taken to fire that nobody repeated or resolved, where nothing else measures what it says. Longer
/// than Alertmanager's repeat interval of 4 h; a resolve may be lost.
const ALERT_LIFE: Duration = Duration::from_secs(16_200);
/// The least by which one moment is before another.
const AN_INSTANT: Duration = Duration::from_millis(1);
/// Version of what is written. [`BY_SLOT`] is read too; any other is not, and the node begins anew.
const FORMAT: u32 = 2;
/// The version that knew faults by their slot alone.
const BY_SLOT: u32 = 1;

/// Why bytes are no part.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// They do not parse.
    #[error("what was held of a node does not parse")]
    Parse(#[from] serde_json::Error),
    /// They do not unpack.
    #[error("what was held of a node does not unpack")]
    Unpack(#[from] std::io::Error),
    /// Written by another version.
    #[error("what was held of a node has format {got}, {FORMAT} is known")]
    Format {
        /// Which.
        got: u32,
    },
}

/// One node's part of the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodePart {
    pub(super) format: u32,
    pub(super) node: NodeRef,
    /// When anything was last heard of it.
    pub(super) met_at: Timestamp,
    /// When it was last worth journaling.
    pub(super) kept_at: Timestamp,
    /// When its boot id was first seen changed; the epoch: never.
    pub(super) rebooted_at: Timestamp,
    pub(super) exporter: Exporter,
    pub(super) gpus: Vec<HeldGpu>,
    pub(super) known: Faults,
    pub(super) object: HeldObject,
    /// Fingerprint and start of alerts, with when each was last received.
    pub(super) alerts: BTreeMap<String, Timestamp>,
    /// How far the clock by which it is dated had been set in this process, in ms: see [`super::clock`].
    #[serde(skip)]
    pub(super) clock_set_ms: i64,
}

/// The node's exporter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Exporter {
    pub(super) source: String,
    /// What tells one start of its process from the next, as far as the caller knows.
    pub(super) start: String,
    /// Its last usable page.
    pub(super) page_at: Option<Timestamp>,
    /// It has been without a usable page since.
    pub(super) none_since: Option<Timestamp>,
    /// Why.
    pub(super) none_why: String,
    /// Readings that always move have not moved since.
    pub(super) frozen_since: Option<Timestamp>,
    /// Those readings in one number.
    pub(super) pulse: Option<u64>,
    /// Signals that it does not have.
    pub(super) lacks: Vec<Metric>,
    /// When the page that says which pods use which GPU was new, if that is known. Not journaled: after a restart the next
    /// page says it.
    #[serde(skip)]
    pub(super) users_at: Option<Timestamp>,
    /// The [`Self::pulse`] of the last page and when it was taken, also of one that was taken while another replica led.
    #[serde(skip)]
    pub(super) users_pulse: Option<(u64, Timestamp)>,
}

impl Exporter {
    /// Dates who uses which GPU by when its page was new: one whose readings have moved since the page before it. One that says
    /// the same again is that page once more. Of the first one, of one in which nothing moves, and of one that follows after more
    /// than `stale_after` without any, nobody knows how old it is: it may have moved once while nobody asked, and stood still since.
    pub(super) fn date_users(&mut self, pulse: Option<u64>, stale_after: Duration, now: Timestamp) {
        let young = |at: &Timestamp| now.since(*at) <= stale_after;
        let held = self.pulse.zip(self.page_at);
        let before = self.users_pulse.or(held).filter(|(_, at)| young(at)).map(|(before, _)| before);
        self.users_pulse = pulse.map(|pulse| (pulse, now));
        if pulse.is_none() {
            self.users_at = None;
        } else if before.is_some() && before != pulse {
            self.users_at = Some(now);
        }
    }
}

/// The node object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldObject {
    pub(super) first_bad: FirstBad,
    /// Conditions that were seen good: their turning bad is an edge.
    pub(super) good: BTreeSet<String>,
    pub(super) offers: Vec<HeldOffer>,
    /// Until then a smaller number is no loss.
    pub(super) relayout_until: Option<Timestamp>,
}

/// One GPU resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldOffer {
    pub(super) resource: String,
    pub(super) capacity: Option<u64>,
    pub(super) low_since: Option<Timestamp>,
    pub(super) was_full: bool,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct HeldGpu {
    pub(super) gpu: GpuRef,
    pub(super) index_hint: Option<u16>,
    /// On how many usable pages in a row it was missing.
    pub(super) missing: u32,
    pub(super) seen_at: Timestamp,
    /// When it was first seen; the epoch: before that was written down.
    #[serde(default)]
    pub(super) came_at: Timestamp,
    /// The node was booted since a page told which board sits where: a boot may number the bus anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) in_doubt: bool,
    /// The slot in which it was before a boot numbered the bus anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) was_at: Option<GpuSlot>,
    /// When another board was first seen in its slot; the epoch: never.
    pub(super) swapped_at: Timestamp,
    /// Last Xid by MIG instance: 0 is the whole GPU, n + 1 instance n.
    pub(super) xid: Sorted<u16, u16>,
    /// Windowed counts by Xid.
    pub(super) xid_counts: Sorted<u16, u32>,
    /// Last values of counters and flags.
    pub(super) values: Sorted<Metric, f64>,
    /// Counters judged by their rise within a span: value and time at its start.
    pub(super) bases: Sorted<Metric, (f64, Timestamp)>,
    /// Health watches and their last verdict.
    pub(super) health: Sorted<Box<str>, u8>,
    pub(super) warm_since: Option<Timestamp>,
    pub(super) hot_since: Option<Timestamp>,
    /// It was seen cooler than the warning in this exporter start.
    pub(super) was_cool: bool,
    /// Clock of its multiprocessors when it became hot.
    pub(super) clock_when_hot: Option<f64>,
    pub(super) idle_since: Option<Timestamp>,
    /// Pods that use it, as `namespace/name`, by the last page. Not journaled, as above.
    #[serde(skip)]
    pub(super) users: Box<[Box<str>]>,
}

impl NodePart {
    pub(super) fn new(node: NodeRef) -> Self {
        Self {
            format: FORMAT,
            node,
            met_at: Timestamp::EPOCH,
            kept_at: Timestamp::EPOCH,
            rebooted_at: Timestamp::EPOCH,
            exporter: Exporter::default(),
            gpus: Vec::new(),
            known: Faults::default(),
            object: HeldObject::default(),
            alerts: BTreeMap::new(),
            clock_set_ms: 0,
        }
    }

    /// Whose part this is.
    #[must_use]
    pub const fn node(&self) -> &NodeRef {
        &self.node
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let json = packed::unpack(bytes)?;
        match serde_json::from_slice::<Head>(&json)?.format {
            FORMAT => Ok(serde_json::from_slice(&json)?),
            BY_SLOT => Ok(serde_json::from_value(of_slots(serde_json::from_slice(&json)?))?),
            got => Err(RestoreError::Format { got }),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        packed::pack(&serde_json::to_vec(self).expect("every key of a map in it is text or a number, and no number is NaN"))
    }

    /// Takes what the caller knows of the node. Another boot is another start of everything on it.
    pub(super) fn meet(&mut self, node: &NodeRef, now: Timestamp) {
        let rebooted = !node.boot_id.is_empty() && !self.node.boot_id.is_empty() && node.boot_id != self.node.boot_id;
        if rebooted {
            self.rebooted_at = now;
            self.forget_predecessors();
            self.exporter.users_at = None;
            self.gpus.iter_mut().for_each(|gpu| gpu.in_doubt = true);
        }
        if self.node != *node {
            let boot_id = if node.boot_id.is_empty() { self.node.boot_id.clone() } else { node.boot_id.clone() };
            self.node = NodeRef { boot_id, ..node.clone() };
        }
        self.met_at = now;
    }

    /// Has the part journaled now and then though nothing is new in it, so that after a restart the last readings are still
    /// young enough to be a predecessor: twice within the stale limit.
    pub(super) fn keep(&mut self, context: &mut Context<'_>) {
        context.out.changed |= context.now.since(self.kept_at) >= context.settings.stale_after / 2;
        if context.out.changed {
            self.kept_at = context.now;
        }
    }

    /// See [`super::Held::again`].
    pub(super) fn again(&mut self, tells: impl Fn(Witness) -> bool) -> Vec<Fault> {
        let gpus: Vec<GpuRef> = self.gpus.iter().map(HeldGpu::sure).collect();
        let gpu = |place: &GpuPlace| {
            let named = || match place.clone() {
                GpuPlace::Slot(slot) => GpuRef { slot: Some(slot), ..GpuRef::default() },
                GpuPlace::Uuid(uuid) => GpuRef { uuid: Some(uuid), ..GpuRef::default() },
            };
            gpus.iter().find(|gpu| gpu.is_at(place)).cloned().unwrap_or_else(named)
        };
        self.known.again(&self.node, self.rebooted_at, tells, gpu)
    }

    /// See [`super::Held::take_up`]. What was seen before the node's last boot, or of the board that was in the GPU's slot before this
    /// one, is of another life, though nobody here saw that end.
    pub(super) fn take_up(&mut self, asked: &Asked, context: &mut Context<'_>) {
        let fault = &asked.fault;
        let last = fault.observed_at.min(context.now.before(AN_INSTANT));
        if !self.known.take_up(asked, last, context) {
            return;
        }
        let ended = last.after(AN_INSTANT);
        if !fault.node.boot_id.is_empty() && !self.node.boot_id.is_empty() && fault.node.boot_id != self.node.boot_id {
            self.rebooted_at = self.rebooted_at.max(ended);
        }
        let Some((slot, uuid)) = fault.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref().zip(gpu.uuid.as_ref())) else { return };
        let others =
            |gpu: &&mut HeldGpu| gpu.gpu.slot.as_ref() == Some(slot) && gpu.gpu.uuid.as_ref().is_some_and(|here| here != uuid);
        for gpu in self.gpus.iter_mut().filter(others) {
            gpu.swapped_at = gpu.swapped_at.max(ended);
        }
    }

    /// What follows is the first sight of another start: no change against what was is an edge.
    pub(super) fn forget_predecessors(&mut self) {
        for gpu in &mut self.gpus {
            gpu.forget();
        }
    }

    /// The GPUs that the last page had.
    pub(super) fn present(&self) -> Vec<GpuRef> {
        self.gpus.iter().filter(|gpu| gpu.missing == 0).map(HeldGpu::sure).collect()
    }

    /// Which pods use which GPU, by a page that was new not long ago.
    pub(super) fn users(&self, settings: &Settings, now: Timestamp) -> Result<Users, Unknown> {
        let page = self.exporter.users_at.filter(|page| now.since(*page) <= settings.stale_after).ok_or(Unknown::NoPage)?;
        let mut users = Users::new(page);
        for gpu in &self.gpus {
            let Some(uuid) = &gpu.gpu.uuid else { continue };
            // One that is lost is known, and who used it is not.
            users.shows(uuid.as_str());
            let shown = gpu.missing == 0 && !gpu.in_doubt;
            gpu.users.iter().filter(|_| shown).for_each(|pod| users.uses(pod, uuid.as_str()));
        }
        if users.is_empty() { Err(Unknown::NamesNoPods) } else { Ok(users) }
    }

    /// The GPU that another source names. By slot or UUID and never by index, which a reboot may change. What the source says of it
    /// counts; only what it does not say is added, and that only while it is known which board sits where.
    pub(super) fn named(&self, uuid: Option<&str>, slot: Option<&GpuSlot>) -> Option<GpuRef> {
        let uuid = uuid.and_then(|uuid| GpuUuid::parse(uuid).ok());
        let known = |gpu: &&HeldGpu| match (&uuid, slot) {
            (Some(uuid), _) => gpu.gpu.uuid.as_ref() == Some(uuid),
            (None, Some(slot)) => gpu.gpu.slot.as_ref() == Some(slot) && !gpu.in_doubt,
            (None, None) => false,
        };
        let held = self.gpus.iter().find(known).map(HeldGpu::sure).unwrap_or_default();
        let named = GpuRef { slot: slot.cloned().or(held.slot), uuid: uuid.or(held.uuid), model: held.model };
        named.is_placed().then_some(named)
    }

    /// The place of a page's GPU, added if it is new; `None` when there is no room.
    pub(super) fn place(&mut self, row: &GpuRow<'_>, now: Timestamp) -> Option<usize> {
        let slot: Option<GpuSlot> = row.slot.map(Into::into);
        let uuid = row.uuid.and_then(|uuid| GpuUuid::parse(uuid).ok());
        let at = self.find(uuid.as_ref(), slot.as_ref(), row.index_hint);
        let at = match at {
            Some(at) => at,
            None => self.add(now)?,
        };
        self.gpus[at].identify(uuid, slot, row, now);
        Some(at)
    }

    fn find(&self, uuid: Option<&GpuUuid>, slot: Option<&GpuSlot>, index: Option<u16>) -> Option<usize> {
        let by = |test: &dyn Fn(&GpuRef, &HeldGpu) -> bool| self.gpus.iter().position(|held| test(&held.gpu, held));
        by(&|gpu, _| uuid.is_some() && gpu.uuid.as_ref() == uuid)
            .or_else(|| by(&|gpu, _| slot.is_some() && gpu.slot.as_ref() == slot))
            .or_else(|| {
                let anonymous = uuid.is_none() && slot.is_none() && index.is_some();
                by(&|gpu, held| anonymous && gpu.uuid.is_none() && gpu.slot.is_none() && held.index_hint == index)
            })
    }

    fn add(&mut self, now: Timestamp) -> Option<usize> {
        if self.gpus.len() >= GPUS_MAX {
            let oldest = (0..self.gpus.len()).min_by_key(|&at| self.gpus[at].seen_at)?;
            if self.gpus[oldest].seen_at >= now {
                return None;
            }
            self.gpus.swap_remove(oldest);
        }
        self.gpus.reserve_exact(1);
        self.gpus.push(HeldGpu { swapped_at: Timestamp::EPOCH, came_at: now, ..HeldGpu::default() });
        Some(self.gpus.len() - 1)
    }

    /// A slot has one board: those that the page does not show give theirs up to those that it shows there. What is left without
    /// any name was the same GPU, told by less.
    pub(super) fn give_slots_up(&mut self, now: Timestamp) {
        let taken: BTreeSet<GpuSlot> =
            self.gpus.iter().filter(|gpu| gpu.seen_at == now).filter_map(|gpu| gpu.gpu.slot.clone()).collect();
        self.gpus.retain_mut(|gpu| {
            let gives = gpu.seen_at < now && gpu.gpu.slot.as_ref().is_some_and(|slot| taken.contains(slot));
            if gives {
                (gpu.gpu.slot, gpu.was_at) = (None, None);
            }
            !gives || gpu.gpu.is_placed()
        });
    }

    /// The slot that a GPU was in before a boot numbered the bus anew, while nobody is known to be there.
    pub(super) fn left_by(&self, at: usize) -> Option<GpuRef> {
        let slot = self.gpus[at].was_at.clone()?;
        let empty = self.gpus.iter().all(|gpu| gpu.gpu.slot.as_ref() != Some(&slot));
        empty.then(|| GpuRef { slot: Some(slot), ..GpuRef::default() })
    }

    /// Forgets boards that others have replaced, and tells which: of a board that has no slot nobody says who sits there now. It is
    /// replaced when it was not seen since a boot on `pages` pages, and as many boards came since that boot as are missing in all:
    /// with fewer nobody can tell which of them are lost.
    pub(super) fn take_replaced(&mut self, pages: u32, now: Timestamp) -> BTreeSet<GpuUuid> {
        let booted = self.rebooted_at;
        let came = self.gpus.iter().filter(|gpu| gpu.seen_at == now && gpu.came_at >= booted).count();
        let missing = self.gpus.iter().filter(|gpu| gpu.seen_at < now).count();
        let mut replaced = BTreeSet::new();
        if missing > 0 && came >= missing {
            self.gpus.retain(|gpu| {
                let gone = gpu.missing >= pages && gpu.seen_at < booted && gpu.gpu.slot.is_none();
                let uuid = gpu.gpu.uuid.as_ref().filter(|_| gone);
                replaced.extend(uuid.cloned());
                uuid.is_none()
            });
        }
        replaced
    }

    /// What time alone changes: an exporter that fell silent makes stale what it told, an event ends being seen.
    pub(super) fn age(&mut self, context: &mut Context<'_>) {
        let (now, stale_after) = (context.now, context.settings.stale_after);
        for known in self.known.iter_mut() {
            let measured = known.sights.keys().any(|witness| super::known::measures(*witness));
            let due: Vec<Witness> = known
                .sights
                .iter()
                .filter(|(witness, sight)| {
                    let life = match witness {
                        _ if is_exporters(**witness, known.class) => stale_after,
                        Witness::Alert if !measured => ALERT_LIFE,
                        _ => EVENT_LIFE,
                    };
                    let ages = !matches!(witness, Witness::NodeCondition | Witness::Allocatable);
                    ages && sight.state != EvidenceState::Stale
                        && now.since(sight.checked) > life
                        && is_live(sight.state, **witness)
                })
                .map(|(witness, _)| *witness)
                .collect();
            for witness in due {
                let checked = known.sights[&witness].checked;
                known.turn(witness, EvidenceState::Stale, context);
                // Nothing was said: only the state changes.
                if let Some(sight) = known.sights.get_mut(&witness) {
                    sight.checked = checked;
                }
            }
        }
        super::exporter::judge_silence(self, context);
    }
}

/// A part that knew faults by their slot alone, as it is written now. Their keys are the same. Were it forgotten, what only the kernel's
/// log or a pod has told would have no end any more: nothing finds it again.
fn of_slots(mut part: Value) -> Value {
    part["format"] = FORMAT.into();
    for known in part["known"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(slot) = known.remove("slot").filter(|slot| !slot.is_null()) {
            known.insert("place".to_owned(), json!({"slot": slot}));
        }
    }
    part
}

/// A cleared event stays cleared; a cleared reading is worth no more than its source is fresh.
fn is_live(state: EvidenceState, witness: Witness) -> bool {
    state == EvidenceState::Seen || super::known::measures(witness)
}

/// Whether a witness speaks through the exporter's page. A source fault is about the page itself and never ages.
pub(super) fn is_exporters(witness: Witness, class: FaultClass) -> bool {
    let page = matches!(
        witness,
        Witness::ExporterGauge | Witness::ExporterCounter | Witness::DcgmHealth | Witness::MissingRows | Witness::SecondField
    );
    page && class != FaultClass::Source
}

impl HeldGpu {
    /// Takes in which pods the page names on it.
    pub(super) fn used_by(&mut self, row: &GpuRow<'_>) {
        // A pod on two slices, or in two containers, is one.
        let pods: BTreeSet<String> = row.workloads.iter().map(|one| workload::join(one.namespace, one.pod)).collect();
        if !self.users.iter().map(|known| &**known).eq(pods.iter().map(String::as_str)) {
            self.users = pods.into_iter().map(Into::into).collect();
        }
    }

    pub(super) fn forget(&mut self) {
        self.xid.clear();
        self.xid_counts.clear();
        self.values.clear();
        self.bases.clear();
        self.health.clear();
        (self.warm_since, self.hot_since, self.idle_since, self.clock_when_hot) = (None, None, None, None);
        self.was_cool = false;
    }

    /// As it is known since the last boot: which board it is, and not where it sits, until a page has told that anew.
    fn sure(&self) -> GpuRef {
        let doubtful = self.in_doubt && self.gpu.uuid.is_some();
        GpuRef { slot: self.gpu.slot.clone().filter(|_| !doubtful), ..self.gpu.clone() }
    }

    /// Whether what is told of that place is about it, also where a source has told of it by its UUID alone.
    pub(super) fn is_at(&self, place: &GpuPlace) -> bool {
        match place {
            GpuPlace::Slot(slot) => self.gpu.slot.as_ref() == Some(slot),
            GpuPlace::Uuid(uuid) => self.gpu.uuid.as_ref() == Some(uuid),
        }
    }

    /// Whether it was in that place until a boot numbered the bus anew, and was seen elsewhere since.
    pub(super) fn has_left(&self, place: &GpuPlace) -> bool {
        matches!(place, GpuPlace::Slot(slot) if self.was_at.as_ref() == Some(slot)) && self.missing == 0 && !self.in_doubt
    }

    fn identify(&mut self, uuid: Option<GpuUuid>, slot: Option<GpuSlot>, row: &GpuRow<'_>, now: Timestamp) {
        let swapped = matches!((&self.gpu.uuid, &uuid), (Some(was), Some(is)) if was != is);
        if swapped {
            self.forget();
            (self.swapped_at, self.was_at) = (now, None);
        }
        // A page that tells less than is known leaves open whether the rest is still so.
        let all = (uuid.is_some() || self.gpu.uuid.is_none()) && (slot.is_some() || self.gpu.slot.is_none());
        self.in_doubt &= !all;
        if uuid.is_some() && self.gpu.uuid != uuid {
            self.gpu.uuid = uuid;
        }
        if slot.is_some() && self.gpu.slot != slot {
            self.was_at = std::mem::replace(&mut self.gpu.slot, slot);
        }
        if let Some(model) = row.model
            && self.gpu.model != model
        {
            self.gpu.model = clip_storable(model, SOURCE_BYTES_MAX).into_owned();
        }
        self.index_hint = row.index_hint.or(self.index_hint);
    }
}
