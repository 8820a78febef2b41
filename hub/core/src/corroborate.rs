//! No single number decides harm: which witnesses a fault has, on its own and among the other faults of the same GPU and
//! node, and whether they are enough. Time makes nothing of one number: what waits, waits however long it lasts.

use std::collections::BTreeSet;

use gpuheal_proto::{
    fault::{FaultClass, GpuRef, Onset, Witness},
    time::Timestamp,
    words::Level,
};

use crate::{
    classify::{Classified, XID_COUNT, classify},
    gpu::same_place,
    policy::Settings,
    snapshot::{EvidenceState, KnownFault, Seen},
};

/// Whether a fault may lead to harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may, and why.
    Stands(String),
    /// It waits, and for what.
    Waits(String),
}

/// Judges `fault` among `all` faults of its node.
#[must_use]
pub fn corroborate(
    fault: &KnownFault,
    classified: &Classified,
    all: &[KnownFault],
    settings: &Settings,
    now: Timestamp,
) -> Standing {
    if let Some(why) = alone(fault, classified, settings) {
        return Standing::Stands(why);
    }
    let scene = Scene { fault, all, settings, now };
    let own = own_groups(fault);
    let others = scene.other_groups(&own);
    let edge = fault.witnesses.iter().any(|seen| seen.onset == Onset::Edge);
    let agreed = own.len() + others.len() >= 2;
    if agreed {
        let all: BTreeSet<_> = own.union(&others).copied().collect();
        return Standing::Stands(format!("{} agree", listed(all, "and")));
    }
    let age = if edge { "" } else { ", found standing with its age unknown" };
    let wanted = wanted(fault.class, &own);
    Standing::Waits(format!("only {} says so{age}: waits for {wanted}", listed(own, "and")))
}

/// What needs no second witness.
fn alone(fault: &KnownFault, classified: &Classified, settings: &Settings) -> Option<String> {
    let has = |kind| fault.witnesses.iter().any(|seen| seen.kind == kind);
    let risen = |kinds: &[Witness]| fault.witnesses.iter().any(|seen| kinds.contains(&seen.kind) && seen.onset == Onset::Edge);
    match fault.class {
        FaultClass::Xid if classified.says_action => Some("the driver's own recovery action".to_owned()),
        FaultClass::Xid if has(Witness::KernelLine) => Some("a decoded kernel line".to_owned()),
        FaultClass::Xid if classified.rule == XID_COUNT => counted(fault, settings),
        FaultClass::Ecc | FaultClass::RowRemap if risen(&[Witness::ExporterCounter]) => {
            Some("the counter rose between two scrapes of one exporter start".to_owned())
        }
        FaultClass::GpuLost if has(Witness::KernelLine) => Some("the kernel says that it fell off the bus".to_owned()),
        FaultClass::Thermal if classified.level < Level::P0 => Some("held past its dwell time".to_owned()),
        FaultClass::NodeCondition if settings.corroboration.trusted_conditions.contains(&fault.code) => {
            Some(format!("the policy trusts condition {}", fault.code))
        }
        FaultClass::Alert if settings.corroboration.trusted_alerts.contains(&fault.code) => {
            Some(format!("the policy trusts alert {}", fault.code))
        }
        _ => None,
    }
}

/// A count is its own reason only when it was counted where it happened: an alert may carry any number.
fn counted(fault: &KnownFault, settings: &Settings) -> Option<String> {
    let threshold = settings.detection.xid_errors;
    let counts = |seen: &&Seen| matches!(seen.kind, Witness::ExporterCounter | Witness::KernelLine) && seen.count >= threshold;
    fault.witnesses.iter().find(counts).map(|seen| format!("{} where it happened, {threshold} are the threshold", seen.count))
}

/// Witnesses that could err together count as one: gauge and counter come from one exporter.
fn group(kind: Witness) -> &'static str {
    match kind {
        Witness::ExporterGauge | Witness::ExporterCounter => "exporter",
        Witness::DcgmHealth => "DCGM health",
        Witness::KernelLine => "kernel line",
        Witness::Allocatable => "allocatable",
        Witness::NodeCondition => "node condition",
        Witness::Alert => "alert",
        Witness::PodFailure => "pod failure",
        Witness::MissingRows => "missing rows",
        Witness::SecondField => "second field",
    }
}

fn own_groups(fault: &KnownFault) -> BTreeSet<&'static str> {
    let counts =
        |seen: &&Seen| !matches!(fault.class, FaultClass::Thermal) || accepts(fault.class, seen.kind) || is_reading(seen.kind);
    fault.witnesses.iter().filter(counts).map(|seen| group(seen.kind)).collect()
}

fn is_reading(kind: Witness) -> bool {
    matches!(kind, Witness::ExporterGauge | Witness::ExporterCounter)
}

/// Which kinds may be the second witness of a class.
fn accepts(class: FaultClass, kind: Witness) -> bool {
    match class {
        FaultClass::Thermal => matches!(kind, Witness::SecondField | Witness::Alert),
        FaultClass::GpuLost => !matches!(kind, Witness::SecondField | Witness::MissingRows),
        FaultClass::Xid
        | FaultClass::Ecc
        | FaultClass::RowRemap
        | FaultClass::Nvlink
        | FaultClass::Pcie
        | FaultClass::Driver
        | FaultClass::NodeCondition
        | FaultClass::Alert
        | FaultClass::Allocatable
        | FaultClass::Utilisation
        | FaultClass::PodFailure
        | FaultClass::Source
        | FaultClass::HealthWatch => kind != Witness::SecondField,
    }
}

/// Kinds that can be the other one, the likeliest first.
const OTHERS: [Witness; 8] = [
    Witness::ExporterCounter,
    Witness::KernelLine,
    Witness::Allocatable,
    Witness::MissingRows,
    Witness::NodeCondition,
    Witness::Alert,
    Witness::PodFailure,
    Witness::DcgmHealth,
];

/// What would be enough, without the kinds that are there.
fn wanted(class: FaultClass, own: &BTreeSet<&'static str>) -> String {
    let missing = |kind: Witness| !own.contains(group(kind));
    if class == FaultClass::Thermal {
        let offered = [
            (Witness::ExporterCounter, "the exporter's own reading"),
            (Witness::SecondField, "a second field of that GPU (thermal clock event, memory temperature, clocks)"),
            (Witness::Alert, "an alert"),
        ];
        return listed(offered.into_iter().filter(|(kind, _)| missing(*kind)).map(|(_, words)| words), "or");
    }
    let kinds = OTHERS.into_iter().filter(|kind| accepts(class, *kind) && missing(*kind)).map(group);
    let kind = format!("one other kind ({})", listed(kinds, "or"));
    if class == FaultClass::Xid { format!("{kind}, or its count") } else { format!("{kind}, or a person") }
}

/// `a, b and c`.
fn listed(words: impl IntoIterator<Item = &'static str>, last: &str) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}

struct Scene<'a> {
    fault: &'a KnownFault,
    all: &'a [KnownFault],
    settings: &'a Settings,
    now: Timestamp,
}

impl Scene<'_> {
    fn other_groups(&self, own: &BTreeSet<&'static str>) -> BTreeSet<&'static str> {
        let standing = !self.fault.witnesses.iter().any(|seen| seen.onset == Onset::Edge);
        self.all
            .iter()
            .filter(|other| other.key != self.fault.key && self.near(other) && self.related(other) && self.fresh(other, standing))
            .flat_map(|other| &other.witnesses)
            .filter(|seen| accepts(self.fault.class, seen.kind))
            .map(|seen| group(seen.kind))
            .filter(|group| !own.contains(group))
            .collect()
    }

    /// On the same GPU, or on the node as a whole.
    fn near(&self, other: &KnownFault) -> bool {
        match (&self.fault.gpu, &other.gpu) {
            (Some(ours), Some(theirs)) => same_gpu(ours, theirs),
            (None, _) | (_, None) => true,
        }
    }

    /// Speaks of a GPU's health at all. An ill observer, an application's own error and a disk say nothing of it.
    fn related(&self, other: &KnownFault) -> bool {
        let class = self.fault.class;
        match other.class {
            FaultClass::Source | FaultClass::Utilisation => false,
            FaultClass::Thermal => class == FaultClass::Thermal,
            _ if class == FaultClass::Thermal => false,
            FaultClass::Xid => {
                let theirs = classify(other, self.settings, None);
                !theirs.user_app && theirs.level > Level::P2
            }
            FaultClass::NodeCondition | FaultClass::Alert => {
                (class == other.class && self.fault.code == other.code) || speaks_of_gpus(&other.code)
            }
            FaultClass::Ecc
            | FaultClass::RowRemap
            | FaultClass::GpuLost
            | FaultClass::Nvlink
            | FaultClass::Pcie
            | FaultClass::Driver
            | FaultClass::Allocatable
            | FaultClass::PodFailure => true,
            FaultClass::HealthWatch => !self.explained(other),
        }
    }

    /// DCGM fails its memory watch for an application's page fault (Xid 31): such a watch says nothing of the hardware.
    fn explained(&self, watch: &KnownFault) -> bool {
        let on_it = |xid: &KnownFault| match (&watch.gpu, &xid.gpu) {
            (Some(watched), Some(gpu)) => same_gpu(watched, gpu),
            (None, _) | (_, None) => true,
        };
        let app = |xid: &&KnownFault| xid.class == FaultClass::Xid && classify(xid, self.settings, None).user_app && on_it(xid);
        self.all.iter().any(|xid| app(&xid))
    }

    /// Seen now; for a change seen live, also what was seen within the merge window and has not been seen to clear.
    fn fresh(&self, other: &KnownFault, standing: bool) -> bool {
        match other.evidence.state {
            EvidenceState::Seen => true,
            EvidenceState::Clear => false,
            EvidenceState::Stale => !standing && self.now.since(other.last_at) <= self.settings.windows.merge,
        }
    }
}

fn same_gpu(a: &GpuRef, b: &GpuRef) -> bool {
    same_place(a, b) == Some(true)
}

fn speaks_of_gpus(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["gpu", "xid", "accelerat", "nvidia", "dcgm", "nvlink"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests;
