//! Nodes as the detectors ask for them. Pure but for the reflector stores that it reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex},
};

use gpuheal_proto::{
    fault::NodeRef,
    ids::{NodeName, NodeUid},
    time::Timestamp,
};
use gpuheal_spoke_core::{
    derive,
    scrape::{
        allocatable::{self, Offer},
        conditions::Condition,
    },
};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::runtime::reflector::Store;

use crate::watch::Nodes;

/// Name, UID and boot id of a node object.
pub(super) fn node_ref(node: &Node) -> Option<NodeRef> {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    Some(NodeRef {
        name: NodeName::parse(node.metadata.name.as_deref()?).ok()?,
        uid: NodeUid::parse(node.metadata.uid.as_deref()?).ok()?,
        boot_id: info.map(|info| info.boot_id.clone()).unwrap_or_default(),
    })
}

/// What a node object says, held in the shapes that the detectors borrow.
pub(super) struct Parts<'a> {
    conditions: Vec<Condition<'a>>,
    offers: Vec<Offer>,
    plugin_started_at: Option<Timestamp>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(node: &'a Node, plugin_started_at: Option<Timestamp>) -> Self {
        let status = node.status.as_ref();
        let all = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let conditions = all.map(|condition| Condition {
            kind: &condition.type_,
            status: &condition.status,
            reason: condition.reason.as_deref().unwrap_or_default(),
            message: condition.message.as_deref().unwrap_or_default(),
        });
        let texts = |map: Option<&BTreeMap<String, Quantity>>| -> BTreeMap<String, String> {
            map.into_iter().flatten().map(|(name, quantity)| (name.clone(), quantity.0.clone())).collect()
        };
        let capacity = texts(status.and_then(|status| status.capacity.as_ref()));
        let allocatable = texts(status.and_then(|status| status.allocatable.as_ref()));
        Self { conditions: conditions.collect(), offers: allocatable::offers(&capacity, &allocatable), plugin_started_at }
    }

    pub(super) fn view<'b>(&'b self, node: &'b NodeRef) -> derive::NodeView<'b> {
        derive::NodeView { node, conditions: &self.conditions, offers: &self.offers, plugin_started_at: self.plugin_started_at }
    }
}

/// Finds an alert's node, and remembers which were found.
pub(super) struct Lookup<'a> {
    nodes: &'a Nodes,
    exporters: &'a Store<Pod>,
    found: Mutex<BTreeSet<NodeUid>>,
}

impl<'a> Lookup<'a> {
    pub(super) fn new(nodes: &'a Nodes, exporters: &'a Store<Pod>) -> Self {
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

    fn pod(&self, fits: impl Fn(&Pod) -> bool) -> Option<NodeRef> {
        let pods = self.exporters.state().into_iter().chain(self.nodes.pods());
        let names: BTreeSet<String> = pods.filter(|pod| fits(pod)).filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
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
        let text = address.to_string();
        let has = |node: &Arc<Node>| {
            let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
            addresses.into_iter().flatten().any(|known| known.address == text)
        };
        let node = self.nodes.nodes().into_iter().find(has).and_then(|node| node.metadata.name.clone());
        match node {
            Some(name) => self.node(&name),
            None => self.pod(|pod| pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()) == Some(&text)),
        }
    }

    fn of_pod(&self, name: &str) -> Option<NodeRef> {
        self.pod(|pod| pod.metadata.name.as_deref() == Some(name))
    }
}
