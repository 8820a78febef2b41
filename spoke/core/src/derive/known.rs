//! What is known of one node's faults, and the one place that tells new from seen again.
//!
//! New is: a fault nobody knew, a witness it did not have, an edge where only standing was known, the same after it had
//! cleared, a count that reached the threshold, and of events an occurrence after the window has passed without one told.
//! All else is a repeat: it moves evidence and no fault. States of one fault's witnesses are kept apart and joined by [`state`].

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    bytes_text::clip_storable,
    fault::{Asked, Fault, FaultClass, GpuRef, NodeRef, Onset, Witness},
    ids::{ClusterId, FaultKey, GpuPlace},
    limits::{CODE_BYTES_MAX, DETAIL_BYTES_MAX, SOURCE_BYTES_MAX},
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

use super::outcome::{Evidence, EvidenceState, Outcome};
use super::settings::Settings;
use crate::verify::Standing;

/// Most faults of one node that are known at once: 16 GPUs with 24 codes each, and as many of the node. Beyond, the one
/// that was silent longest is forgotten, cleared ones first.
pub const KNOWN_MAX: usize = 512;
/// Most occurrences whose times are kept for one witness; a threshold above it is never reached by counting edges.
const TIMES_MAX: usize = 32;
/// That a fault is still seen is told no more often than this.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What every taking needs.
pub(super) struct Context<'a> {
    cluster: &'a ClusterId,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    pub(super) out: Outcome,
}

/// A sighting.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub(super) class: FaultClass,
    pub(super) code: &'a str,
    pub(super) gpu: Option<&'a GpuRef>,
    pub(super) onset: Onset,
    pub(super) witness: Witness,
    pub(super) value: f64,
    pub(super) threshold: f64,
    /// How many the source counted; `None`: one occurrence, to be counted here.
    pub(super) count: Option<u32>,
    pub(super) source: &'a str,
    pub(super) detail: &'a str,
    pub(super) workload: &'a str,
}

/// The known faults of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Faults {
    known: Vec<Known>,
}

/// One known fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) key: FaultKey,
    pub(super) class: FaultClass,
    pub(super) code: String,
    /// Of which GPU; `None`: of the node, or of one that nobody named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<GpuPlace>,
    pub(super) sights: BTreeMap<Witness, Sight>,
    first: Timestamp,
    last: Timestamp,
    count: u32,
    told: EvidenceState,
    told_at: Timestamp,
}

/// One witness of a fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sight {
    pub(super) onset: Onset,
    pub(super) state: EvidenceState,
    /// When it was last seen.
    pub(super) last: Timestamp,
    /// When its source last said anything about it.
    pub(super) checked: Timestamp,
    /// When it was last put into a fault.
    emitted: Timestamp,
    /// With which count.
    emitted_count: u32,
    value: f64,
    count: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    times: Vec<Timestamp>,
}

impl<'a> Context<'a> {
    pub(super) fn new(cluster: &'a ClusterId, settings: &'a Settings, now: Timestamp) -> Self {
        Self { cluster, settings, now, out: Outcome::default() }
    }
}

impl Faults {
    pub(super) fn by_key(&self, key: &FaultKey) -> Option<&Known> {
        self.known.iter().find(|known| known.key == *key)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.known.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Known> {
        self.known.iter_mut()
    }

    pub(super) fn evidence(&self) -> impl Iterator<Item = Evidence> {
        self.known.iter().map(Known::evidence)
    }

    pub(super) fn evidence_since(&self, cleared: Timestamp) -> impl Iterator<Item = Evidence> {
        let stands = |known: &&Known| state(&known.sights) != EvidenceState::Clear || known.told != EvidenceState::Clear;
        self.known.iter().filter(move |known| stands(known) || known.told_at >= cleared).map(Known::evidence)
    }

    /// What is known of a GPU's fault: the one of its place, and one that was told by its UUID before its slot was.
    pub(super) fn find(&mut self, class: FaultClass, code: &str, gpu: Option<&GpuRef>) -> impl Iterator<Item = &mut Known> {
        self.known.iter_mut().filter(move |known| known.is(class, code, gpu) || known.goes_on_by_uuid(class, code, gpu))
    }

    /// Takes a sighting in; puts out a fault if there is anything new in it.
    pub(super) fn report(&mut self, node: &NodeRef, found: &Found<'_>, context: &mut Context<'_>) {
        let code = &*clip_storable(found.code, CODE_BYTES_MAX);
        let now = context.now;
        let goes_on = self.known.iter().position(|known| known.goes_on_by_uuid(found.class, code, found.gpu));
        let at = match goes_on.or_else(|| self.known.iter().position(|known| known.is(found.class, code, found.gpu))) {
            Some(at) => at,
            None => {
                self.make_room();
                self.known.push(Known::new(context.cluster, node, found.class, code, found.gpu, now));
                self.known.len() - 1
            }
        };
        let known = &mut self.known[at];
        if known.see(found, context.settings, now) {
            context.out.changed = true;
            context.out.faults.push(known.fault(node, found, now));
        } else {
            context.out.repeats += 1;
        }
        known.tell(context);
    }

    /// A witness's source spoke and does not show the fault: clear or stale, as the caller knows.
    pub(super) fn unseen(
        &mut self,
        class: FaultClass,
        code: &str,
        gpu: Option<&GpuRef>,
        witness: Witness,
        state: EvidenceState,
        context: &mut Context<'_>,
    ) {
        for known in self.find(class, &clip_storable(code, CODE_BYTES_MAX), gpu) {
            known.turn(witness, state, context);
        }
    }

    /// All that is known and has not cleared, each witness a fault of its own, as standing: it may be that nobody was told of
    /// any. `tells` says for whom this replica speaks, `gpu` finds a GPU by its place. What was last seen before `booted` is of a
    /// boot that has no name here any more: under this one's nobody would know that a boot has ended it.
    pub(super) fn again(
        &mut self,
        node: &NodeRef,
        booted: Timestamp,
        tells: impl Fn(Witness) -> bool,
        gpu: impl Fn(&GpuPlace) -> GpuRef,
    ) -> Vec<Fault> {
        let stands = |known: &&mut Known| state(&known.sights) != EvidenceState::Clear;
        let known = self.known.iter_mut().filter(stands);
        known.flat_map(|known| known.again(node, booted, &tells, known.place.as_ref().map(&gpu))).collect()
    }

    /// Takes up a fault that somebody else found and told: it stands as it was told until its source says more. One that is known here
    /// is told as it stands. False: it is known, or its key is of another fault.
    pub(super) fn take_up(&mut self, asked: &Asked, last: Timestamp, context: &mut Context<'_>) -> bool {
        let Asked { fault, witnesses } = asked;
        if let Some(known) = self.by_key(&fault.key) {
            context.out.evidence.push(known.evidence());
            return false;
        }
        let mut known = Known::new(context.cluster, &fault.node, fault.class, &fault.code, fault.gpu.as_ref(), last);
        if known.key != fault.key {
            return false;
        }
        self.make_room();
        (known.count, known.told, known.told_at) = (fault.count, EvidenceState::Seen, context.now);
        let sight = Sight {
            onset: Onset::Standing,
            state: EvidenceState::Seen,
            last,
            checked: context.now,
            emitted: last,
            emitted_count: fault.count,
            value: fault.value,
            count: fault.count,
            times: Vec::new(),
        };
        known.sights = witnesses.iter().map(|witness| (*witness, sight.clone())).collect();
        self.known.push(known);
        context.out.changed = true;
        true
    }

    /// Forgets one witness of a fault.
    pub(super) fn forget(&mut self, key: &FaultKey, witness: Witness) {
        if let Some(known) = self.known.iter_mut().find(|known| known.key == *key) {
            known.sights.remove(&witness);
        }
    }

    fn make_room(&mut self) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let rank = |known: &Known| (known.told == EvidenceState::Seen, known.last);
        if let Some(at) = (0..self.known.len()).min_by_key(|&at| rank(&self.known[at])) {
            self.known.swap_remove(at);
        }
    }
}

impl Known {
    fn new(cluster: &ClusterId, node: &NodeRef, class: FaultClass, code: &str, gpu: Option<&GpuRef>, now: Timestamp) -> Self {
        let place = gpu.and_then(GpuRef::place);
        Self {
            key: FaultKey::derive(cluster, &node.uid, place.as_ref(), class.as_str(), code),
            class,
            code: code.to_owned(),
            place,
            sights: BTreeMap::new(),
            first: now,
            last: now,
            count: 0,
            told: EvidenceState::Stale,
            told_at: Timestamp::EPOCH,
        }
    }

    fn is(&self, class: FaultClass, code: &str, gpu: Option<&GpuRef>) -> bool {
        self.class == class
            && self.code == code
            && match &self.place {
                Some(place) => gpu.is_some_and(|gpu| gpu.is_at(place)),
                None => gpu.is_none_or(|gpu| !gpu.is_placed()),
            }
    }

    /// It was told by the GPU's UUID alone, stands still, and now the GPU's slot is told too: the fault goes on under the key that it
    /// has. Once it is over, the next is of the slot.
    fn goes_on_by_uuid(&self, class: FaultClass, code: &str, gpu: Option<&GpuRef>) -> bool {
        let slotted = gpu.filter(|gpu| gpu.slot.is_some()).and_then(|gpu| gpu.uuid.as_ref());
        let same = matches!((&self.place, slotted), (Some(GpuPlace::Uuid(known)), Some(uuid)) if known == uuid);
        same && self.class == class && self.code == code && state(&self.sights) != EvidenceState::Clear
    }

    /// The GPU as the fault's key names it.
    fn named(&self, gpu: &GpuRef) -> GpuRef {
        let by_uuid = matches!(self.place, Some(GpuPlace::Uuid(_)));
        GpuRef { slot: gpu.slot.clone().filter(|_| !by_uuid), ..gpu.clone() }
    }

    /// Takes the sighting in and tells whether anything is new in it.
    fn see(&mut self, found: &Found<'_>, settings: &Settings, now: Timestamp) -> bool {
        if !self.sights.is_empty() && state(&self.sights) == EvidenceState::Clear {
            // A new episode: what was seen in the one before says nothing of this one.
            self.sights.clear();
            self.first = now;
            self.count = 0;
        }
        self.last = self.last.max(now);
        let new_witness = !self.sights.contains_key(&found.witness);
        let sight = self.sights.entry(found.witness).or_insert_with(|| Sight {
            onset: found.onset,
            state: EvidenceState::Seen,
            last: now,
            checked: now,
            emitted: Timestamp::EPOCH,
            emitted_count: 0,
            value: found.value,
            count: 0,
            times: Vec::new(),
        });
        sight.count = sight.counted(found, settings, now, new_witness);
        let became_edge = sight.onset == Onset::Standing && found.onset == Onset::Edge;
        let reached =
            found.class == FaultClass::Xid && sight.emitted_count < settings.xid_errors && sight.count >= settings.xid_errors;
        let again =
            found.onset == Onset::Edge && is_event(found.class, found.witness) && now.since(sight.emitted) >= settings.xid_window;
        let worse = found.class == FaultClass::HealthWatch && found.value > sight.value;
        let new = new_witness || became_edge || reached || again || worse;
        if became_edge {
            sight.onset = Onset::Edge;
        }
        (sight.state, sight.last, sight.checked, sight.value) = (EvidenceState::Seen, now, now, found.value);
        if new {
            (sight.emitted, sight.emitted_count) = (now, sight.count);
        }
        self.count = self.sights.values().map(|sight| sight.count).max().unwrap_or_default();
        new
    }

    fn fault(&self, node: &NodeRef, found: &Found<'_>, now: Timestamp) -> Fault {
        let sight = &self.sights[&found.witness];
        Fault {
            key: self.key,
            node: node.clone(),
            gpu: found.gpu.map(|gpu| self.named(gpu)),
            class: self.class,
            code: self.code.clone(),
            onset: sight.onset,
            witness: found.witness,
            observed_at: now,
            value: found.value,
            threshold: found.threshold,
            count: sight.count,
            source: clip_storable(found.source, SOURCE_BYTES_MAX).into_owned(),
            detail: clip_storable(found.detail, DETAIL_BYTES_MAX).into_owned(),
            workload: clip_storable(found.workload, DETAIL_BYTES_MAX).into_owned(),
        }
    }

    fn again(&mut self, node: &NodeRef, booted: Timestamp, tells: impl Fn(Witness) -> bool, gpu: Option<GpuRef>) -> Vec<Fault> {
        let mut out = Vec::new();
        let standing = |(witness, sight): &(&Witness, &mut Sight)| tells(**witness) && sight.state != EvidenceState::Clear;
        for (witness, sight) in self.sights.iter_mut().filter(standing) {
            // The next edge is news again: the one before may never have been told.
            sight.onset = Onset::Standing;
            out.push(Fault {
                key: self.key,
                node: if sight.last < booted { NodeRef { boot_id: String::new(), ..node.clone() } } else { node.clone() },
                gpu: gpu.clone(),
                class: self.class,
                code: self.code.clone(),
                onset: Onset::Standing,
                witness: *witness,
                observed_at: sight.last,
                value: sight.value,
                threshold: 0.0,
                count: sight.count,
                source: String::new(),
                detail: "told again as it stands: what was told before may have been lost".to_owned(),
                workload: String::new(),
            });
        }
        out
    }

    /// Sets how one witness stands, if it is one.
    pub(super) fn turn(&mut self, witness: Witness, to: EvidenceState, context: &mut Context<'_>) {
        let Some(sight) = self.sights.get_mut(&witness) else { return };
        sight.checked = context.now;
        if sight.state != to {
            sight.state = to;
            context.out.changed = true;
        }
        self.tell(context);
    }

    /// Tells how the fault stands when that changed, and now and then that it is still seen.
    pub(super) fn tell(&mut self, context: &mut Context<'_>) {
        let state = state(&self.sights);
        let due = state == EvidenceState::Seen && context.now.since(self.told_at) >= TELL_EVERY;
        if state != self.told || due {
            (self.told, self.told_at) = (state, context.now);
            context.out.evidence.push(self.evidence());
        }
    }

    /// All times in it.
    pub(super) fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { key: _, class: _, code: _, place: _, sights, first, last, count: _, told: _, told_at } = self;
        [first, last, told_at].into_iter().chain(sights.values_mut().flat_map(Sight::moments))
    }

    fn evidence(&self) -> Evidence {
        Evidence { key: self.key, state: state(&self.sights), first: self.first, last: self.last, count: self.count }
    }

    /// For a command's preconditions: what was last said must also be young.
    pub(super) fn standing(&self, settings: &Settings, now: Timestamp) -> Standing {
        let state = state(&self.sights);
        let fresh = self.sights.values().any(|sight| sight.state == state && now.since(sight.checked) <= settings.stale_after);
        match state {
            EvidenceState::Seen if fresh => Standing::Present,
            EvidenceState::Clear if fresh => Standing::Cleared,
            EvidenceState::Seen | EvidenceState::Clear | EvidenceState::Stale => Standing::Unknown,
        }
    }
}

impl Sight {
    fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let Self { onset: _, state: _, last, checked, emitted, emitted_count: _, value: _, count: _, times } = self;
        [last, checked, emitted].into_iter().chain(times)
    }

    /// The count within the window: the source's own, else the occurrences that we saw.
    fn counted(&mut self, found: &Found<'_>, settings: &Settings, now: Timestamp, new: bool) -> u32 {
        if let Some(count) = found.count {
            return count;
        }
        if new || found.onset == Onset::Edge {
            self.times.retain(|&at| now.since(at) < settings.xid_window);
            if self.times.len() >= TIMES_MAX {
                self.times.remove(0);
            }
            self.times.push(now);
        }
        u32::try_from(self.times.len()).unwrap_or(u32::MAX).max(1)
    }
}

/// How a fault stands by all its witnesses. One that sees it is enough. To be clear takes all that measure: alerts, kernel
/// lines and failed pods tell of a moment and never of its end, so they neither clear a fault nor keep it from clearing.
pub(super) fn state(sights: &BTreeMap<Witness, Sight>) -> EvidenceState {
    if sights.values().any(|sight| sight.state == EvidenceState::Seen) {
        return EvidenceState::Seen;
    }
    let mut measuring = sights.iter().filter(|(witness, _)| measures(**witness)).map(|(_, sight)| sight.state).peekable();
    let clear = if measuring.peek().is_some() {
        measuring.all(|state| state == EvidenceState::Clear)
    } else {
        !sights.is_empty() && sights.values().all(|sight| sight.state == EvidenceState::Clear)
    };
    if clear { EvidenceState::Clear } else { EvidenceState::Stale }
}

/// Whether a sighting is of something that happened, so that an edge seen again is another occurrence. The other kind is a
/// state: that it lasts is no news.
const fn is_event(class: FaultClass, witness: Witness) -> bool {
    if matches!(witness, Witness::Alert | Witness::KernelLine | Witness::PodFailure) {
        return true;
    }
    match class {
        FaultClass::Xid | FaultClass::Ecc | FaultClass::RowRemap | FaultClass::Nvlink | FaultClass::Pcie => true,
        FaultClass::Thermal
        | FaultClass::GpuLost
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

/// Whether a witness looks again and again, so that its silence can be told from its all-clear.
pub(super) const fn measures(witness: Witness) -> bool {
    match witness {
        Witness::ExporterGauge
        | Witness::ExporterCounter
        | Witness::DcgmHealth
        | Witness::Allocatable
        | Witness::NodeCondition
        | Witness::MissingRows
        | Witness::SecondField => true,
        Witness::Alert | Witness::KernelLine | Witness::PodFailure => false,
    }
}
