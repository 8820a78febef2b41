//! What taking signals in came to: faults to journal, evidence to send, what was skipped and why.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::{
    fault::Fault,
    ids::{FaultKey, NodeName, NodeUid},
    link::v1,
    time::Timestamp,
};

/// Everything that one taking came to. Faults must be journaled before anything else is done with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Something new: to be journaled and sent.
    pub faults: Vec<Fault>,
    /// How known faults stand now; only the last of each key counts.
    pub evidence: Vec<Evidence>,
    /// Nodes whose part changed in a way worth journaling: with the faults, or alone.
    pub touched: BTreeSet<NodeUid>,
    /// What led to nothing, by reason.
    pub skips: BTreeMap<Skip, u32>,
    /// Sightings of what was known already.
    pub repeats: u32,
    /// The node's part says something else than before.
    pub(super) changed: bool,
}

/// Why something led to no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// Settings turned the source off.
    SourceOff,
    /// A resolved alert starts nothing and proves nothing.
    AlertResolved,
    /// The same alert again, by fingerprint and start.
    AlertRepeated,
    /// No label names a node.
    AlertNamesNoNode,
    /// No node is where the labels say.
    AlertNodeUnknown,
    /// No alert name and nothing that tells what it is.
    AlertNamesNothing,
    /// The agent itself says that nothing is to be done.
    ConditionActionNone,
    /// A health watch that repeats an application's Xid.
    HealthOfApplication,
    /// A lifetime counter that is not 0 at first sight: history, no event.
    CounterHistory,
    /// Readings that have not moved for too long: not used.
    PageFrozen,
    /// A smaller number right after the GPUs were laid out anew.
    AllocatableRelayout,
    /// Fewer GPUs while their device plugin restarts.
    AllocatablePluginRestart,
    /// An event that a person injected for a test.
    KernelInjected,
    /// The driver wants nothing any more.
    KernelActionNone,
    /// More GPUs than a node can have.
    TooManyGpus,
}

impl Skip {
    /// The reason in one word, for a metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SourceOff => "source_off",
            Self::AlertResolved => "alert_resolved",
            Self::AlertRepeated => "alert_repeated",
            Self::AlertNamesNoNode => "alert_names_no_node",
            Self::AlertNodeUnknown => "alert_node_unknown",
            Self::AlertNamesNothing => "alert_names_nothing",
            Self::ConditionActionNone => "condition_action_none",
            Self::HealthOfApplication => "health_of_application",
            Self::CounterHistory => "counter_history",
            Self::PageFrozen => "page_frozen",
            Self::AllocatableRelayout => "allocatable_relayout",
            Self::AllocatablePluginRestart => "allocatable_plugin_restart",
            Self::KernelInjected => "kernel_injected",
            Self::KernelActionNone => "kernel_action_none",
            Self::TooManyGpus => "too_many_gpus",
        }
    }
}

/// How a known fault stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum EvidenceState {
    /// A fresh source shows it.
    Seen,
    /// Its own source is fresh and shows it no longer.
    Clear,
    /// Nobody can tell.
    Stale,
}

/// One known fault as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Which.
    pub key: FaultKey,
    /// How.
    pub state: EvidenceState,
    /// First sight of this episode.
    pub first: Timestamp,
    /// Last sight.
    pub last: Timestamp,
    /// Highest count within the window.
    pub count: u32,
}

impl From<&Evidence> for v1::Evidence {
    fn from(evidence: &Evidence) -> Self {
        let state = match evidence.state {
            EvidenceState::Seen => v1::EvidenceState::Seen,
            EvidenceState::Clear => v1::EvidenceState::Clear,
            EvidenceState::Stale => v1::EvidenceState::Stale,
        };
        Self {
            fault_key: evidence.key.to_string(),
            state: state.into(),
            first_unix_ms: evidence.first.unix_ms(),
            last_unix_ms: evidence.last.unix_ms(),
            count: evidence.count,
        }
    }
}

/// How a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceHealth {
    /// It speaks and its readings move.
    Fresh,
    /// Nothing new for the stale limit, or readings that do not move.
    Stale,
    /// Nothing for so long that people are told.
    Broken,
}

/// A node's exporter as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceView {
    /// Its name.
    pub source: String,
    /// Whose.
    pub node: NodeName,
    /// Its last usable page; the epoch when there was none.
    pub last_seen: Timestamp,
    /// How it is.
    pub health: SourceHealth,
    /// Why it is not fresh, or which signals it does not have.
    pub reason: String,
}

impl From<&SourceView> for v1::SourceState {
    fn from(view: &SourceView) -> Self {
        let state = match view.health {
            SourceHealth::Fresh => "fresh",
            SourceHealth::Stale => "stale",
            SourceHealth::Broken => "broken",
        };
        Self {
            source: view.source.clone(),
            node: view.node.to_string(),
            last_seen_unix_ms: view.last_seen.unix_ms(),
            state: state.to_owned(),
            reason: view.reason.clone(),
        }
    }
}

impl Outcome {
    pub(super) fn skipped(reason: Skip) -> Self {
        let mut out = Self::default();
        out.skip(reason);
        out
    }

    pub(super) fn skip(&mut self, reason: Skip) {
        *self.skips.entry(reason).or_default() += 1;
    }

    pub(super) fn absorb(&mut self, other: Self) {
        self.faults.extend(other.faults);
        self.evidence.extend(other.evidence);
        self.touched.extend(other.touched);
        for (reason, count) in other.skips {
            *self.skips.entry(reason).or_default() += count;
        }
        self.repeats += other.repeats;
    }
}
