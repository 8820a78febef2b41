//! Nodes as the detectors ask for them. Pure but for the watches' tables that it reads.

use std::{collections::BTreeSet, net::IpAddr, sync::Mutex};

use gpuheal_proto::{
    fault::NodeRef,
    ids::{NodeName, NodeUid},
    time::Timestamp,
};
use gpuheal_spoke_core::{
    derive,
    scrape::{allocatable::Offer, conditions::Condition},
};

use crate::watch::{NodeEntry, Nodes, ServicePods};

/// Name, UID and boot id of a node object.
pub(super) fn node_ref(node: &NodeEntry) -> Option<NodeRef> {
    Some(NodeRef {
        name: NodeName::parse(&node.name).ok()?,
        uid: NodeUid::parse(&node.uid).ok()?,
        boot_id: node.boot_id.to_string(),
    })
}

/// What a node object says, held in the shapes that the detectors borrow.
pub(super) struct Parts<'a> {
    conditions: Vec<Condition<'a>>,
    offers: &'a [Offer],
    plugin_started_at: Option<Timestamp>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(node: &'a NodeEntry, plugin_started_at: Option<Timestamp>) -> Self {
        Self { conditions: node.conditions().collect(), offers: node.offers(), plugin_started_at }
    }

    pub(super) fn view<'b>(&'b self, node: &'b NodeRef) -> derive::NodeView<'b> {
        derive::NodeView { node, conditions: &self.conditions, offers: self.offers, plugin_started_at: self.plugin_started_at }
    }
}

/// Finds an alert's node, and remembers which were found.
pub(super) struct Lookup<'a> {
    nodes: &'a Nodes,
    exporters: &'a ServicePods,
    found: Mutex<BTreeSet<NodeUid>>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(nodes: &'a Nodes, exporters: &'a ServicePods) -> Self {
        Self { nodes, exporters, found: Mutex::default() }
    }

    /// UIDs of all nodes that were found so far.
    pub(super) fn named(&self) -> BTreeSet<NodeUid> {
        self.found.lock().expect("no holder of this lock panics").clone()
    }

    fn node(&self, name: &str) -> Option<NodeRef> {
        let node = node_ref(self.nodes.node(name)?.as_ref())?;
        self.found.lock().expect("no holder of this lock panics").insert(node.uid.clone());
        Some(node)
    }

    /// The node of the one pod that fits, by its name or its address.
    fn pod(&self, fits: impl Fn(&str, Option<IpAddr>) -> bool) -> Option<NodeRef> {
        let mut names: BTreeSet<String> = self.exporters.look(|all| {
            all.filter(|pod| !pod.node.is_empty() && fits(&pod.name, pod.ip)).map(|pod| pod.node.to_string()).collect()
        });
        let pods = self.nodes.pods();
        names.extend(pods.iter().filter(|pod| !pod.node.is_empty() && fits(&pod.name, pod.ip)).map(|pod| pod.node.to_string()));
        // Two pods of one name on two nodes: nothing is certain.
        let mut names = names.into_iter();
        match (names.next(), names.next()) {
            (Some(name), None) => self.node(&name),
            _ => None,
        }
    }
}

impl derive::Nodes for Lookup<'_> {
    fn named(&self, name: &str) -> Option<NodeRef> {
        self.node(name)
    }

    fn at(&self, address: IpAddr) -> Option<NodeRef> {
        match self.nodes.nodes().into_iter().find(|node| node.is_at(address)) {
            Some(node) => self.node(&node.name),
            None => self.pod(|_, ip| ip == Some(address)),
        }
    }

    fn of_pod(&self, name: &str) -> Option<NodeRef> {
        self.pod(|pod, _| pod == name)
    }
}
