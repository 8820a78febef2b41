//! The spoke's view of its cluster: nodes, GPU pods, pods of exporters and device plugins, and the owner's ConfigMap, watched
//! and kept small: of each object what is used, in types of our own, and nothing at all of a pod without GPUs.
//! Reads only; who acts reads the object again. A watch that breaks backs off and lists again, and tells how old its
//! news is: silence of a watch is not news that nothing happened.

mod config_map;
mod follow;
mod heard;
mod node;
mod plugins;
mod pod;
mod pool;
mod resources;
mod service;
mod tables;
mod touched;
mod wire;

use std::{sync::Arc, time::Duration};

use gpuheal_proto::kubernetes::CONFIG_MAP;
use gpuheal_spoke_core::gpu_resources::GpuResources;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{Client, Resource};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{ceiling::remembered, execute::api::Kube, fence::FenceStore, metrics::Metrics, ports::LocalConfig};

pub use heard::{CONFIG, DRAINED_PODS, EXPORTERS, GPU_PODS, HEAL_ACTIONS, Heard, NODES, PLUGINS, STALE_AFTER};
pub use node::NodeEntry;
pub use plugins::Plugins;
pub use pod::{Owner, PodEntry};
pub(crate) use resources::gpu_count;
pub use service::{ServicePod, ServicePods};
pub use touched::Touched;
pub(crate) use {
    follow::{Follow, Keep, Shared as FollowShared},
    wire::{PodSeen, Seen},
};
#[cfg(test)]
pub(crate) use {
    service::KeepServices,
    tables::{Ears, KeepNodes, KeepPods, keepers},
    wire::NodeSeen,
};

use tables::{NodeTable, PodTable, Shared};

/// A list from scratch this often, beside the watches.
pub const RESYNC: Duration = Duration::from_secs(1800);

/// Nodes, and those pods that hold or ask for GPUs, as far as anybody uses them. Cheap to clone.
#[derive(Clone)]
pub struct Nodes {
    nodes: Shared<NodeTable>,
    pods: Shared<PodTable>,
    changes: watch::Receiver<u64>,
    listed: watch::Receiver<Listed>,
    gpus: GpuResources,
}

/// What has been listed once. A reflector's own `wait_until_ready` wakes only the last of several waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Nodes.
    pub nodes: bool,
    /// GPU pods.
    pub pods: bool,
}

impl Nodes {
    /// A view of both tables; `changes` is bumped at each event of either.
    const fn new(
        nodes: Shared<NodeTable>,
        pods: Shared<PodTable>,
        changes: watch::Receiver<u64>,
        listed: watch::Receiver<Listed>,
        gpus: GpuResources,
    ) -> Self {
        Self { nodes, pods, changes, listed, gpus }
    }

    /// Which resources are GPUs here, by which all of this was kept.
    #[must_use]
    pub const fn gpus(&self) -> &GpuResources {
        &self.gpus
    }

    /// The node of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Arc<NodeEntry>> {
        self.nodes.read().expect("no holder of this lock panics").get(name)
    }

    /// Whether the node of this name is this very machine, as far as seen.
    #[must_use]
    pub fn shows(&self, name: &str, uid: &str) -> bool {
        self.node(name).is_some_and(|node| *node.uid == *uid)
    }

    /// The highest plan revision that wrote to this very machine, as far as seen; 0 when none has.
    #[must_use]
    pub fn plan_revision(&self, name: &str, uid: &str) -> Option<u64> {
        self.node(name).filter(|node| *node.uid == *uid).map(|node| node.plan_revision())
    }

    /// Every node, in the order of their names.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<NodeEntry>> {
        self.nodes.read().expect("no holder of this lock panics").iter().map(Arc::clone).collect()
    }

    /// Every GPU pod.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<PodEntry>> {
        self.pods.read().expect("no holder of this lock panics").iter().map(Arc::clone).collect()
    }

    /// GPU pods bound to that node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<Arc<PodEntry>> {
        self.pods.read().expect("no holder of this lock panics").on(node)
    }

    /// Bumped at each event: wait on it instead of polling.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Waits until both have been listed once.
    pub async fn ready(&self) {
        // An error means that the watches are gone, which ends the process elsewhere.
        let _ = self.listed.clone().wait_for(|listed| listed.nodes && listed.pods).await;
    }

    /// Whether both are listed. Before, a node that is not found may well exist.
    #[must_use]
    pub fn listed(&self) -> bool {
        let listed = *self.listed.borrow();
        listed.nodes && listed.pods
    }
}

/// What is watched and how.
#[derive(Clone, Debug)]
pub struct Config {
    /// Our namespace, where the ConfigMap is.
    pub namespace: String,
    /// Label selector of exporter pods.
    pub exporter_selector: String,
    /// Label selectors of device plugin pods; one watch each.
    pub plugin_selectors: Vec<String>,
    /// Which resources are GPUs.
    pub gpu_resources: GpuResources,
    /// A list from scratch this often.
    pub resync: Duration,
}

/// All views.
#[derive(Clone)]
pub struct Views {
    /// Nodes and GPU pods.
    pub nodes: Nodes,
    /// Exporter pods.
    pub exporters: ServicePods,
    /// Bumped when they may have changed; 0 until they were listed.
    pub exporter_changes: watch::Receiver<u64>,
    /// When device plugins started.
    pub plugins: Arc<Plugins>,
    /// The owner's ConfigMap; nothing until it was read once, and known whether there was one before.
    pub config: watch::Receiver<Option<LocalConfig>>,
    /// How old the news of each watch is.
    pub heard: Arc<Heard>,
}

/// Starts the watches, one task each. Each `touched` gets the names of nodes that changed.
#[must_use]
pub fn spawn(
    client: &Client,
    config: &Config,
    touched: Vec<Arc<Touched>>,
    metrics: &Arc<Metrics>,
    cancel: &CancellationToken,
) -> (Views, JoinSet<()>) {
    let heard = Heard::new();
    let shared = follow::Shared { metrics: Arc::clone(metrics), heard: Arc::clone(&heard), cancel: cancel.clone() };
    let (keep_nodes, keep_pods, nodes) = tables::keepers(tables::Ears::new(touched), &config.gpu_resources);
    let (keep_exporters, exporters, exporter_changes) = service::KeepServices::new();
    let (keep_config, config_map) = config_map::KeepConfig::new();
    let pods = || Pod::url_path(&(), None);
    let mut follow = Start { client, resync: config.resync, shared, tasks: JoinSet::new() };
    follow.start(heard::NODES, Node::url_path(&(), None), Only::All, keep_nodes);
    follow.start(heard::GPU_PODS, pods(), Only::All, keep_pods);
    follow.start(heard::EXPORTERS, pods(), Only::Labels(config.exporter_selector.clone()), keep_exporters);
    let plugins = Plugins::new();
    for (watch, selector) in config.plugin_selectors.iter().enumerate() {
        follow.start(heard::PLUGINS, pods(), Only::Labels(selector.clone()), plugins.keeper(watch));
    }
    let ours = ConfigMap::url_path(&(), Some(&config.namespace));
    follow.start(heard::CONFIG, ours, Only::Fields(format!("metadata.name={CONFIG_MAP}")), keep_config);
    let fences = FenceStore::new(Kube::new(client.clone()), config.namespace.clone());
    let (config_map, remembering) = remembered::remembered(config_map, fences, remembered::RETRY);
    let cancel = cancel.clone();
    follow.tasks.spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = remembering => {}
        }
    });
    (Views { nodes, exporters, exporter_changes, plugins, config: config_map, heard }, follow.tasks)
}

/// Which objects of a kind.
enum Only {
    All,
    Labels(String),
    Fields(String),
}

/// What all watches have in common.
struct Start<'a> {
    client: &'a Client,
    resync: Duration,
    shared: follow::Shared,
    tasks: JoinSet<()>,
}

impl Start<'_> {
    fn start<K: Seen>(&mut self, kind: &'static str, path: String, only: Only, keep: impl Keep<K> + 'static) {
        let (labels, fields) = match only {
            Only::All => (None, None),
            Only::Labels(selector) => (Some(selector), None),
            Only::Fields(selector) => (None, Some(selector)),
        };
        let (client, resync, shared) = (self.client.clone(), self.resync, self.shared.clone());
        let follow = Follow { kind, client, path, labels, fields, keep: Box::new(keep), resync, shared };
        self.tasks.spawn(follow.run());
    }
}
