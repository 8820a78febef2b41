//! Stage `derive`: `(held, signals, settings, now) -> (held, faults, evidence)`. Signals of every source become faults with
//! a key, a witness and an onset; what is seen again becomes evidence, and nothing is told twice. No IO, no clock.
//!
//! The memory is [`Held`], a part per node. A part is serialised on its own, so that the caller can journal it in the same
//! record as the faults that it led to, and take it back when the journal refuses. What comes after a restart then has a
//! predecessor; one older than the stale limit is none, and a change found without predecessor is `standing`, never an
//! edge. Silence is never recovery: a source that says nothing makes evidence stale, and an Xid's gauge that goes back to
//! 0 proves nothing. Called by the spoke's `derive` task, once per page, alert body, node change and kernel record.

mod alert;
mod clock;
mod exporter;
mod held;
mod kernel;
mod known;
mod node;
mod outcome;
mod packed;
mod settings;
mod sorted;
mod workload;

use std::{collections::BTreeMap, net::IpAddr};

use gpuheal_proto::{
    fault::{Asked, Fault, GpuRef, NodeRef, Witness},
    ids::{ClusterId, FaultKey, NodeUid},
    time::Timestamp,
};

use crate::drain::{Unknown, Users};
use crate::scrape::{allocatable::Offer, conditions::Condition, dcgm::Page, kernel::KernelEvent, webhook::Webhook};
pub use crate::verify::Standing;
pub use exporter::{NoPage, Source};
pub use held::{GPUS_MAX, NODES_MAX, NodePart, RestoreError};
pub use known::KNOWN_MAX;
pub use outcome::{Evidence, EvidenceState, Outcome, Skip, SourceHealth, SourceView};
pub use settings::{Error as SettingsError, Settings, Thermal};

use clock::Clock;
use known::Context;

/// What is remembered of one cluster. Everything in it is bounded: nodes by [`NODES_MAX`], their GPUs by [`GPUS_MAX`],
/// their faults by [`KNOWN_MAX`].
#[derive(Clone, Debug)]
pub struct Held {
    cluster: ClusterId,
    nodes: BTreeMap<NodeUid, NodePart>,
    clock: Clock,
}

/// How alerts find their node: by the caller's view of the cluster. Every answer must be certain or nothing.
pub trait Nodes {
    /// The node of that name.
    fn named(&self, name: &str) -> Option<NodeRef>;
    /// The node that has this address, or on which the pod with this address runs.
    fn at(&self, address: IpAddr) -> Option<NodeRef>;
    /// The node on which the exporter pod of that name runs.
    fn of_pod(&self, name: &str) -> Option<NodeRef>;
}

/// A node object as far as faults are read from it. To be given at each change, and again at least once a minute, for
/// what must last before it counts.
#[derive(Clone, Debug)]
pub struct NodeView<'a> {
    /// Which node.
    pub node: &'a NodeRef,
    /// Its conditions.
    pub conditions: &'a [Condition<'a>],
    /// Its GPU resources, by [`crate::scrape::allocatable::offers`].
    pub offers: &'a [Offer],
    /// When its device plugin pod last started, where that is known.
    pub plugin_started_at: Option<Timestamp>,
}

impl Held {
    /// Remembers nothing yet.
    #[must_use]
    pub const fn new(cluster: ClusterId) -> Self {
        Self { cluster, nodes: BTreeMap::new(), clock: Clock::new() }
    }

    /// Takes up a node's part as [`Self::node_bytes`] gave it, before anything else is taken in.
    ///
    /// # Errors
    /// When it does not parse; the node then begins anew and its faults come as standing.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let part = NodePart::from_bytes(bytes)?;
        self.put(part);
        Ok(())
    }

    /// A node's part, to be journaled. Empty for a node that is gone, which removes it from the journal too.
    #[must_use]
    pub fn node_bytes(&self, uid: &NodeUid) -> Vec<u8> {
        self.nodes.get(uid).map(NodePart::to_bytes).unwrap_or_default()
    }

    /// A copy of a node's part, taken before signals are. See [`Self::roll_back`].
    #[must_use]
    pub fn checkpoint(&self, uid: &NodeUid) -> Option<NodePart> {
        self.nodes.get(uid).cloned()
    }

    /// Forgets what was taken in for the node since `before`: the journal refused the faults, and they must be found again.
    pub fn roll_back(&mut self, uid: &NodeUid, before: Option<NodePart>) {
        match before {
            Some(mut part) => {
                part.set_clock(self.clock.set_ms());
                self.nodes.insert(uid.clone(), part);
            }
            None => {
                self.nodes.remove(uid);
            }
        }
    }

    /// Forgets that these were told, so that they are found and told again: for what [`Self::tick`] found and the journal
    /// refused, where no checkpoint was taken.
    pub fn untell(&mut self, faults: &[Fault]) {
        for fault in faults {
            if let Some(part) = self.nodes.get_mut(&fault.node.uid) {
                part.known.forget(&fault.key, fault.witness);
            }
        }
    }

    /// The node's object was seen deleted. A failed read is never that.
    pub fn gone(&mut self, uid: &NodeUid) {
        self.nodes.remove(uid);
    }

    /// Takes a page of the node's exporter. The names on the page are hints; which node it is, the caller knows.
    pub fn take_page(
        &mut self,
        node: &NodeRef,
        source: &Source<'_>,
        page: &Page<'_>,
        settings: &Settings,
        now: Timestamp,
    ) -> Outcome {
        if settings.scrape_off {
            return Outcome::skipped(Skip::SourceOff);
        }
        self.with(node, settings, now, |part, context| exporter::take(part, source, page, context))
    }

    /// Takes a page for its inventory alone: which GPUs sit where, and who uses them. For a replica that does not lead and takes webhooks,
    /// whose alerts name GPUs by UUID.
    pub fn take_inventory(&mut self, node: &NodeRef, page: &Page<'_>, settings: &Settings, now: Timestamp) {
        let _ = self.with(node, settings, now, |part, context| exporter::learn(part, page, context));
    }

    /// The node's exporter gave no page.
    pub fn take_no_page(
        &mut self,
        node: &NodeRef,
        source: &Source<'_>,
        why: NoPage,
        settings: &Settings,
        now: Timestamp,
    ) -> Outcome {
        if settings.scrape_off {
            return Outcome::skipped(Skip::SourceOff);
        }
        self.with(node, settings, now, |part, context| exporter::take_none(part, source, why, context))
    }

    /// Takes the alerts of one webhook body, each by its own status.
    pub fn take_alerts(&mut self, body: &Webhook, nodes: &dyn Nodes, settings: &Settings, now: Timestamp) -> Outcome {
        if settings.webhook_off {
            return Outcome::skipped(Skip::SourceOff);
        }
        let mut out = Outcome::default();
        for alert in &body.alerts {
            match alert::node_of(alert, nodes) {
                Ok(node) => out.absorb(self.with(&node, settings, now, |part, context| alert::take(part, alert, context))),
                Err(skip) => out.skip(skip),
            }
        }
        out
    }

    /// Takes a node object.
    pub fn take_node(&mut self, view: &NodeView<'_>, settings: &Settings, now: Timestamp) -> Outcome {
        self.with(view.node, settings, now, |part, context| node::take(part, view, context))
    }

    /// Takes kernel events of a node; `source` names who read them.
    pub fn take_kernel(
        &mut self,
        node: &NodeRef,
        source: &str,
        events: &[KernelEvent],
        settings: &Settings,
        now: Timestamp,
    ) -> Outcome {
        self.with(node, settings, now, |part, context| kernel::take(part, source, events, context))
    }

    /// Looks at what time alone changes: sources that fell silent. To be called every few seconds.
    pub fn tick(&mut self, settings: &Settings, now: Timestamp) -> Outcome {
        let mut out = Outcome::default();
        for part in self.nodes.values_mut() {
            let mut context = Context::new(&self.cluster, settings, now);
            part.age(&mut context);
            let mut aged = context.out;
            if aged.changed {
                aged.touched.insert(part.node.uid.clone());
            }
            out.absorb(aged);
        }
        out
    }

    /// Everything that is known of a node and has not cleared, as standing, age unknown: after faults were lost on their
    /// way, of which later parts remember that they were told. `tells` says for which witnesses this replica speaks.
    pub fn again(&mut self, uid: &NodeUid, tells: impl Fn(Witness) -> bool) -> Outcome {
        let faults = self.nodes.get_mut(uid).map(|part| part.again(tells)).unwrap_or_default();
        let touched = faults.iter().map(|fault| fault.node.uid.clone()).collect();
        Outcome { faults, touched, ..Outcome::default() }
    }

    /// Takes up faults of a node of which the hub asks how they stand, since nobody has told it for long. Those that another replica
    /// found and that are not known here stand as they were told, age unknown, until their sources say more: whoever has not seen a
    /// fault sees nothing end. Those that are known are told as they stand: what was told of them may have been lost. Nothing is
    /// found by it.
    pub fn take_up(&mut self, node: &NodeRef, asked: &[Asked], settings: &Settings, now: Timestamp) -> Outcome {
        self.with(node, settings, now, |part, context| asked.iter().for_each(|asked| part.take_up(asked, context)))
    }

    /// Nodes of which any fault is known.
    #[must_use]
    pub fn nodes_with_faults(&self) -> Vec<NodeUid> {
        let ill = |part: &&NodePart| part.known.evidence().next().is_some();
        self.nodes.values().filter(ill).map(|part| part.node.uid.clone()).collect()
    }

    /// How a fault stands by its own source.
    #[must_use]
    pub fn standing(&self, key: &FaultKey, settings: &Settings, now: Timestamp) -> Standing {
        let known = self.nodes.values().find_map(|part| part.known.by_key(key));
        known.map_or(Standing::Unknown, |known| known.standing(settings, now))
    }

    /// How all known faults stand, to be told to a hub that asks anew.
    #[must_use]
    pub fn evidence(&self) -> Vec<Evidence> {
        self.nodes.values().flat_map(|part| part.known.evidence()).collect()
    }

    /// How a node's known faults stand but those that were told as cleared before `cleared`, to be told to a hub that may have
    /// missed what was told since.
    #[must_use]
    pub fn evidence_of(&self, uid: &NodeUid, cleared: Timestamp) -> Vec<Evidence> {
        self.nodes.get(uid).into_iter().flat_map(|part| part.known.evidence_since(cleared)).collect()
    }

    /// The GPUs whose rows the node's last page had.
    #[must_use]
    pub fn gpus(&self, uid: &NodeUid) -> Vec<GpuRef> {
        self.nodes.get(uid).map(NodePart::present).unwrap_or_default()
    }

    /// Which pods use which GPU of a node, by its exporter.
    ///
    /// # Errors
    /// Why it is not known.
    pub fn users(&self, uid: &NodeUid, settings: &Settings, now: Timestamp) -> Result<Users, Unknown> {
        self.nodes.get(uid).ok_or(Unknown::NoPage)?.users(settings, now)
    }

    /// How each node's exporter is.
    #[must_use]
    pub fn sources(&self, settings: &Settings, now: Timestamp) -> Vec<SourceView> {
        self.nodes.values().filter_map(|part| exporter::view(part, settings, now)).collect()
    }

    /// How many nodes are remembered.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn with(
        &mut self,
        node: &NodeRef,
        settings: &Settings,
        now: Timestamp,
        take: impl FnOnce(&mut NodePart, &mut Context<'_>),
    ) -> Outcome {
        if !self.nodes.contains_key(&node.uid) {
            self.put(NodePart::new(node.clone()));
        }
        let part = self.nodes.get_mut(&node.uid).expect("it was put there");
        part.meet(node, now);
        let mut context = Context::new(&self.cluster, settings, now);
        take(part, &mut context);
        let mut out = context.out;
        if out.changed {
            out.touched.insert(node.uid.clone());
        }
        out
    }

    /// Makes room for a node by forgetting the one that was silent longest.
    fn put(&mut self, mut part: NodePart) {
        part.clock_set_ms = self.clock.set_ms();
        if self.nodes.len() >= NODES_MAX
            && !self.nodes.contains_key(&part.node.uid)
            && let Some(uid) = self.nodes.values().min_by_key(|part| part.met_at).map(|part| part.node.uid.clone())
        {
            self.nodes.remove(&uid);
        }
        self.nodes.insert(part.node.uid.clone(), part);
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
