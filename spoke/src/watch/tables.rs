//! Nodes and GPU pods as they are kept: each once, pods also by their node. The watches write here, everybody reads.
//!
//! What a list brings is there at once; what it did not bring goes when it has ended, so that a read which breaks off
//! removes nothing, and nothing is kept twice while one goes on.

use std::{
    collections::BTreeMap,
    sync::{Arc, RwLock},
};

use gpuheal_spoke_core::gpu_resources::GpuResources;
use tokio::sync::watch;

use super::{
    Listed, Nodes, Touched,
    follow::Keep,
    node::{self, NodeEntry},
    pod::{self, PodEntry},
    wire::{NodeSeen, PodSeen},
};

/// Shared by the watches and their readers.
pub(super) type Shared<T> = Arc<RwLock<T>>;

/// An object, and the list in which it was last found.
#[derive(Debug)]
struct Kept<T> {
    entry: Arc<T>,
    list: u32,
}

/// Nodes by name.
#[derive(Debug, Default)]
pub(super) struct NodeTable {
    all: BTreeMap<Arc<str>, Kept<NodeEntry>>,
}

impl NodeTable {
    pub(super) fn get(&self, name: &str) -> Option<Arc<NodeEntry>> {
        self.all.get(name).map(|kept| Arc::clone(&kept.entry))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<NodeEntry>> {
        self.all.values().map(|kept| &kept.entry)
    }
}

/// Namespace and name.
type Key = (Arc<str>, Arc<str>);

/// GPU pods, by name and by node.
#[derive(Debug, Default)]
pub(super) struct PodTable {
    all: BTreeMap<Key, Kept<PodEntry>>,
    by_node: BTreeMap<Arc<str>, Vec<Arc<PodEntry>>>,
}

impl PodTable {
    pub(super) fn on(&self, node: &str) -> Vec<Arc<PodEntry>> {
        self.by_node.get(node).cloned().unwrap_or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<PodEntry>> {
        self.all.values().map(|kept| &kept.entry)
    }

    /// Gives back what was there under that name; what is as it was stays where it is.
    fn put(&mut self, entry: PodEntry, list: u32) -> Put {
        let key = (Arc::clone(&entry.namespace), Arc::clone(&entry.name));
        if let Some(known) = self.all.get_mut(&key).filter(|known| *known.entry == entry) {
            known.list = list;
            return Put::AsItWas;
        }
        let entry = Arc::new(entry);
        let before = self.remove(&key);
        self.by_node.entry(Arc::clone(&entry.node)).or_default().push(Arc::clone(&entry));
        self.all.insert(key, Kept { entry, list });
        Put::Instead(before)
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<PodEntry>> {
        let gone = self.all.remove(key)?.entry;
        if let Some(here) = self.by_node.get_mut(&gone.node) {
            here.retain(|pod| !Arc::ptr_eq(pod, &gone));
            if here.is_empty() {
                self.by_node.remove(&gone.node);
            }
        }
        Some(gone)
    }
}

/// What putting a pod in came to.
enum Put {
    /// Nothing of it is new.
    AsItWas,
    /// It is there instead of this one.
    Instead(Option<Arc<PodEntry>>),
}

/// Who hears of what changed.
#[derive(Clone)]
pub(crate) struct Ears {
    pub(crate) touched: Arc<[Arc<Touched>]>,
    pub(crate) changed: watch::Sender<u64>,
    pub(crate) listed: watch::Sender<Listed>,
}

impl Ears {
    /// For these sets.
    pub(crate) fn new(touched: Vec<Arc<Touched>>) -> Self {
        let (changed, _) = watch::channel(0);
        let (listed, _) = watch::channel(Listed::default());
        Self { touched: touched.into(), changed, listed }
    }

    fn about(&self, node: &str) {
        if !node.is_empty() {
            self.touched.iter().for_each(|set| set.add(node));
        }
        self.changed.send_modify(|n| *n += 1);
    }

    /// Whoever waits for a first list hears of an empty one too.
    fn listed(&self, mark: impl FnOnce(&mut Listed)) {
        self.listed.send_modify(mark);
        self.touched.iter().for_each(|set| set.ring());
        self.changed.send_modify(|n| *n += 1);
    }
}

/// Keepers of nodes and of GPU pods, and the view of both.
pub(crate) fn keepers(ears: Ears, gpus: &GpuResources) -> (KeepNodes, KeepPods, Nodes) {
    let (nodes, pods) = (Shared::<NodeTable>::default(), Shared::<PodTable>::default());
    let view = Nodes::new(Arc::clone(&nodes), Arc::clone(&pods), ears.changed.subscribe(), ears.listed.subscribe(), gpus.clone());
    let pods = KeepPods { table: pods, pools: pod::Pools::of(gpus), ears: ears.clone(), list: 0 };
    (KeepNodes { table: nodes, pools: node::Pools::of(gpus), ears, list: 0 }, pods, view)
}

/// Keeps nodes.
pub(crate) struct KeepNodes {
    table: Shared<NodeTable>,
    pools: node::Pools,
    ears: Ears,
    list: u32,
}

impl Keep<NodeSeen> for KeepNodes {
    fn begin(&mut self) {
        self.list += 1;
    }

    fn put(&mut self, seen: NodeSeen) {
        let Some(entry) = NodeEntry::of(seen, &mut self.pools) else { return };
        let name = Arc::clone(&entry.name);
        {
            let all = &mut self.table.write().expect("no holder of this lock panics").all;
            // As it was: a list from scratch moves nothing, and wakes nobody.
            if let Some(known) = all.get_mut(&name).filter(|known| *known.entry == entry) {
                known.list = self.list;
                return;
            }
            all.insert(Arc::clone(&name), Kept { entry: Arc::new(entry), list: self.list });
        }
        self.ears.about(&name);
    }

    fn remove(&mut self, seen: NodeSeen) {
        let Some(name) = seen.metadata.name else { return };
        self.table.write().expect("no holder of this lock panics").all.remove(name.as_str());
        self.ears.about(&name);
    }

    fn end(&mut self) {
        let list = self.list;
        let gone: Vec<_> = {
            let mut table = self.table.write().expect("no holder of this lock panics");
            table.all.extract_if(.., |_, kept| kept.list != list).map(|(name, _)| name).collect()
        };
        gone.iter().for_each(|name| self.ears.about(name));
        self.ears.listed(|listed| listed.nodes = true);
    }
}

/// Keeps GPU pods.
pub(crate) struct KeepPods {
    table: Shared<PodTable>,
    pools: pod::Pools,
    ears: Ears,
    list: u32,
}

impl KeepPods {
    fn gone(&self, gone: Option<Arc<PodEntry>>) {
        if let Some(gone) = gone {
            self.ears.about(&gone.node);
        }
    }
}

impl Keep<PodSeen> for KeepPods {
    fn begin(&mut self) {
        self.list += 1;
    }

    fn put(&mut self, seen: PodSeen) {
        let key = key(&seen);
        let Some(entry) = PodEntry::of(seen, &mut self.pools) else {
            // Another one of that name, that asks for no GPU.
            let gone = self.table.write().expect("no holder of this lock panics").remove(&key);
            return self.gone(gone);
        };
        let node = Arc::clone(&entry.node);
        let put = self.table.write().expect("no holder of this lock panics").put(entry, self.list);
        if let Put::Instead(before) = put {
            self.gone(before.filter(|before| before.node != node));
            self.ears.about(&node);
        }
    }

    fn remove(&mut self, seen: PodSeen) {
        let gone = self.table.write().expect("no holder of this lock panics").remove(&key(&seen));
        self.gone(gone);
    }

    fn end(&mut self) {
        let list = self.list;
        let gone: Vec<_> = {
            let mut table = self.table.write().expect("no holder of this lock panics");
            let gone: Vec<Key> = table.all.iter().filter(|(_, kept)| kept.list != list).map(|(key, _)| key.clone()).collect();
            gone.iter().map(|key| table.remove(key)).collect()
        };
        gone.into_iter().for_each(|gone| self.gone(gone));
        self.ears.listed(|listed| listed.pods = true);
    }
}

fn key(seen: &PodSeen) -> Key {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    (text(&seen.metadata.namespace), text(&seen.metadata.name))
}

#[cfg(test)]
mod tests;
