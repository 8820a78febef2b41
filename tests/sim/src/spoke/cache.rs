//! What a replica's watches show: nodes, pods, HealActions, the owner's ConfigMap. It lags, and it may stall.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use gpuheal_proto::{
    fault::NodeRef,
    ids::{NodeName, NodeUid},
};
use gpuheal_spoke::healaction::HealAction;
use gpuheal_spoke_core::{ceiling, mark::NodeFacts};

use super::Spoke;
use crate::api::{Api, Change, NodeObject, Pod};

/// The view.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// All was listed once.
    pub listed: bool,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Rc<NodeObject>>,
    /// Pods by UID.
    pub pods: BTreeMap<String, Pod>,
    /// HealActions by name.
    pub actions: BTreeMap<String, Rc<HealAction>>,
    /// When the watch of nodes was last heard of, by boot time.
    pub heard: Duration,
}

impl Cache {
    /// Keeps it unless what is kept is newer: our own write may be ahead of the watch.
    pub fn put_action(&mut self, action: Rc<HealAction>) {
        let version = |action: &HealAction| -> u64 {
            action.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        match self.actions.get(action.id()) {
            Some(kept) if kept.metadata.uid == action.metadata.uid && version(kept) > version(&action) => {}
            Some(_) | None => drop(self.actions.insert(action.id().to_owned(), action)),
        }
    }

    pub(super) fn facts(&self, name: &str) -> Option<NodeFacts> {
        self.nodes.get(name).map(|node| shown(node))
    }

    pub(super) fn node_ref(&self, name: &str) -> Option<NodeRef> {
        let facts = &self.nodes.get(name)?.facts;
        Some(NodeRef {
            name: NodeName::parse(&facts.name).ok()?,
            uid: NodeUid::parse(&facts.uid).ok()?,
            boot_id: facts.boot_id.clone(),
        })
    }
}

/// A node with who wrote its cordon, which a real server tells in its managedFields.
pub(super) fn shown(node: &NodeObject) -> NodeFacts {
    let by = Some(node.unschedulable_by.clone()).filter(|by| !by.is_empty());
    NodeFacts { unschedulable_by: by.into_iter().collect(), ..node.facts.clone() }
}

impl Spoke {
    /// All that there is was listed.
    pub fn listed(&mut self, api: &Api) {
        self.cache.listed = true;
        self.told.dirty = true;
        self.cache.nodes.clone_from(&api.nodes);
        self.cache.pods.clone_from(&api.pods);
        api.actions.values().for_each(|action| self.cache.put_action(Rc::clone(action)));
        self.cache.heard = self.now.boot;
        self.configured(&api.config);
        self.resume();
        self.runs_tick();
        self.state_tick();
    }

    /// A watch shows a change.
    pub fn watched(&mut self, change: &Change) {
        if !self.cache.listed {
            return;
        }
        self.cache.heard = self.now.boot;
        self.told.dirty = true;
        match change {
            Change::Node(name, Some(node)) => {
                let before = self.cache.nodes.insert(name.clone(), Rc::clone(node));
                if let Some(before) = before.filter(|before| before.facts.uid != node.facts.uid) {
                    self.forget(&before.facts.uid);
                }
            }
            Change::Node(name, None) => {
                if let Some(before) = self.cache.nodes.remove(name) {
                    self.forget(&before.facts.uid);
                }
            }
            Change::Action(_, action) => self.cache.put_action(Rc::clone(action)),
            Change::Pod(uid, Some(pod)) => drop(self.cache.pods.insert(uid.clone(), pod.clone())),
            Change::Pod(uid, None) => drop(self.cache.pods.remove(uid)),
            Change::Config(yaml) => self.configured(yaml),
        }
        self.runs_tick();
        self.state_tick();
    }

    /// A bookmark: nothing has changed.
    pub fn heard(&mut self) {
        if self.cache.listed {
            self.cache.heard = self.now.boot;
        }
    }

    fn configured(&mut self, yaml: &str) {
        // The last good one stays.
        if let Ok(config) = ceiling::parse(yaml) {
            self.config = config;
        }
        self.told.config = yaml.to_owned();
    }
}
