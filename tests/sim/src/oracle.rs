//! The ten invariants of docs/architecture.md as named checks, and the rules of link.md that guard them. It sees what no
//! part of the system sees: every object in every cluster, every commit, every clock. The first broken one ends a run.

mod commit;
mod effect;
mod rest;
mod restore;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::{
    command::{CommandState, Times},
    ids::{ClusterId, CommandId, FaultKey, IncidentId},
    time::Timestamp,
    words::Action,
};

use crate::api::Api;
pub use effect::Acting;
use restore::Restored;

/// So long something may be ill before a silent source counts as stale, three minutes, and the hub has heard of it.
const SIGHT: Duration = Duration::from_secs(240);

/// What was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// What broke it.
    pub why: String,
    /// When.
    pub at: Timestamp,
}

/// A command as it was issued, kept whatever the database forgets.
#[derive(Clone, Debug)]
struct Issued {
    times: Times,
    action: Action,
    node: String,
    audited: bool,
    reasoned: bool,
}

/// Everything that is watched.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    /// The first broken invariant.
    pub broken: Option<Broken>,
    issued: BTreeMap<CommandId, Issued>,
    /// Cluster, term and number of every command.
    numbers: BTreeSet<(ClusterId, u64, u64)>,
    /// How often a command had each effect, and on which UID.
    effects: BTreeMap<(CommandId, String), (u32, String)>,
    /// What a cluster said of a command for ever, and since when.
    words: BTreeMap<(ClusterId, CommandId), (CommandState, Timestamp)>,
    acked: BTreeMap<(ClusterId, FaultKey), Timestamp>,
    closed: BTreeSet<IncidentId>,
    /// Most GPU nodes that each cluster ever had: what shares are of.
    most: BTreeMap<ClusterId, u32>,
    restored: Option<Restored>,
    /// How many effects there were.
    pub acts: u64,
    /// How many incidents were closed.
    pub closings: u64,
}

impl Oracle {
    /// Notes a broken invariant, if it is the first.
    pub fn breaks(&mut self, invariant: &'static str, at: Timestamp, why: impl Into<String>) {
        if self.broken.is_none() {
            self.broken = Some(Broken { invariant, why: why.into(), at });
        }
    }

    /// A fault's ack reached its spoke.
    pub fn fault_acked(&mut self, cluster: &ClusterId, key: FaultKey, now: Timestamp) {
        self.acked.insert((cluster.clone(), key), now);
    }

    /// A cluster says of a command how it ended.
    pub fn word(&mut self, cluster: &ClusterId, command: CommandId, state: CommandState, now: Timestamp) {
        self.words.entry((cluster.clone(), command)).or_insert((state, now));
    }

    /// When a command is to be done.
    #[must_use]
    pub fn times(&self, command: CommandId) -> Option<Times> {
        self.issued.get(&command).map(|issued| issued.times)
    }

    /// The node that a command is about.
    #[must_use]
    pub fn node(&self, command: CommandId) -> Option<&str> {
        self.issued.get(&command).map(|issued| issued.node.as_str())
    }
}

/// UIDs of nodes with a mark of ours.
fn marked(api: &Api) -> impl Iterator<Item = &str> {
    api.nodes.values().filter(|node| node.facts.marked()).map(|node| node.facts.uid.as_str())
}
