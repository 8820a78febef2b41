//! The spoke's view of its cluster: nodes, GPU pods, pods of exporters and device plugins, and the owner's ConfigMap, watched
//! and kept small.
//! Reads only; who acts reads the object again. A watch that breaks backs off and lists again, and tells how old its
//! news is: silence of a watch is not news that nothing happened.

mod follow;
mod heard;
mod plugins;
mod touched;
mod trim;

use std::{sync::Arc, time::Duration};

use gpuheal_proto::kubernetes::{CONFIG_KEY, CONFIG_MAP};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::{
    Api, Client,
    runtime::{
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, ports::LocalConfig};

pub use heard::{GPU_PODS, Heard, NODES, STALE_AFTER};
pub use plugins::Plugins;
pub use touched::Touched;
pub use trim::{UNSCHEDULABLE_FIELD, gpu_count, holds_gpu};

/// Nodes, and those pods that hold or ask for GPUs, trimmed to what is used. Cheap to clone.
/// Kept of a node: name, UID, resourceVersion, creation, labels, annotations, taints, unschedulable and its field
/// manager, conditions, addresses, capacity, allocatable, nodeInfo.bootID. Of a pod: metadata without managedFields,
/// owners, nodeName, resources of containers, volumes, tolerations, phase, conditions, deletionTimestamp.
#[derive(Clone)]
pub struct Nodes {
    nodes: Store<Node>,
    pods: Store<Pod>,
    changes: watch::Receiver<u64>,
    listed: watch::Receiver<Listed>,
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
    /// Wraps reflector stores; `changes` is bumped at each event of either.
    #[must_use]
    pub const fn new(nodes: Store<Node>, pods: Store<Pod>, changes: watch::Receiver<u64>, listed: watch::Receiver<Listed>) -> Self {
        Self { nodes, pods, changes, listed }
    }

    /// The node of that name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectRef::new(name))
    }

    /// Whether the node of this name is this very machine, as far as seen.
    #[must_use]
    pub fn shows(&self, name: &str, uid: &str) -> bool {
        self.node(name).is_some_and(|node| node.metadata.uid.as_deref() == Some(uid))
    }

    /// Every node.
    #[must_use]
    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.state()
    }

    /// The GPU pod of that name.
    #[must_use]
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods.get(&ObjectRef::new(name).within(namespace))
    }

    /// Every GPU pod.
    #[must_use]
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.state()
    }

    /// GPU pods bound to that node.
    #[must_use]
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let here = |pod: &Arc<Pod>| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        self.pods.state().into_iter().filter(here).collect()
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
    /// A list from scratch this often.
    pub resync: Duration,
}

/// All views.
#[derive(Clone)]
pub struct Views {
    /// Nodes and GPU pods.
    pub nodes: Nodes,
    /// Exporter pods.
    pub exporters: Store<Pod>,
    /// Bumped when they may have changed; 0 until they were listed.
    pub exporter_changes: watch::Receiver<u64>,
    /// When device plugins started.
    pub plugins: Arc<Plugins>,
    /// The owner's ConfigMap; nothing until it was read once.
    pub config: watch::Receiver<Option<LocalConfig>>,
    /// How old the news of each watch is.
    pub heard: Arc<Heard>,
}

/// Starts the watches. Each `touched` gets the names of nodes that changed.
#[must_use]
pub fn spawn(
    client: &Client,
    config: &Config,
    touched: Vec<Arc<Touched>>,
    metrics: &Arc<Metrics>,
    cancel: &CancellationToken,
) -> Views {
    let (changed, changes) = watch::channel(0_u64);
    let (exporter_changed, exporter_changes) = watch::channel(0_u64);
    let (config_tx, config_rx) = watch::channel(None);
    let (listed_tx, listed) = watch::channel(Listed::default());
    let touched: Arc<[Arc<Touched>]> = touched.into();
    let heard = Heard::new();
    let shared = follow::Shared { metrics: Arc::clone(metrics), heard: Arc::clone(&heard), cancel: cancel.clone() };
    let resync = config.resync;

    let (nodes, writer) = reflector::store();
    let (bump, names, done) = (changed.clone(), Arc::clone(&touched), listed_tx.clone());
    let follow = follow::Follow {
        kind: heard::NODES,
        api: Api::<Node>::all(client.clone()),
        labels: None,
        fields: None,
        writer,
        trim: trim::node,
        seen: Box::new(move |event| {
            touched::tell(&names, event, |node| node.metadata.name.clone());
            if matches!(event, watcher::Event::InitDone) {
                done.send_modify(|listed| listed.nodes = true);
            }
            bump.send_modify(|n| *n += 1);
        }),
        resync,
        shared: shared.clone(),
    };
    tokio::spawn(follow.run());

    let (pods, writer) = reflector::store();
    let (bump, names) = (changed, touched);
    let follow = follow::Follow {
        kind: heard::GPU_PODS,
        api: Api::<Pod>::all(client.clone()),
        labels: None,
        fields: None,
        writer,
        trim: trim::gpu_pod,
        seen: Box::new(move |event| {
            touched::tell(&names, event, |pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone()));
            if matches!(event, watcher::Event::InitDone) {
                listed_tx.send_modify(|listed| listed.pods = true);
            }
            bump.send_modify(|n| *n += 1);
        }),
        resync,
        shared: shared.clone(),
    };
    tokio::spawn(follow.run());

    let (exporters, writer) = reflector::store();
    let follow = follow::Follow {
        kind: "exporter pod",
        api: Api::<Pod>::all(client.clone()),
        labels: Some(config.exporter_selector.clone()),
        fields: None,
        writer,
        trim: trim::service_pod,
        seen: Box::new(move |event| {
            if !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
                exporter_changed.send_modify(|n| *n += 1);
            }
        }),
        resync,
        shared: shared.clone(),
    };
    tokio::spawn(follow.run());

    let plugins = Plugins::new();
    for selector in &config.plugin_selectors {
        let (_, writer) = reflector::store();
        let starts = Arc::clone(&plugins);
        let follow = follow::Follow {
            kind: "device plugin pod",
            api: Api::<Pod>::all(client.clone()),
            labels: Some(selector.clone()),
            fields: None,
            writer,
            trim: trim::service_pod,
            seen: Box::new(move |event| starts.see(event)),
            resync,
            shared: shared.clone(),
        };
        tokio::spawn(follow.run());
    }

    let (config_map, writer) = reflector::store::<ConfigMap>();
    let done = |event: &watcher::Event<ConfigMap>| !matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
    let follow = follow::Follow {
        kind: "config map",
        api: Api::<ConfigMap>::namespaced(client.clone(), &config.namespace),
        labels: None,
        fields: Some(format!("metadata.name={CONFIG_MAP}")),
        writer,
        trim: |_| true,
        seen: Box::new(move |event| {
            if done(event) {
                let read = local_config(config_map.state().first().map(Arc::as_ref));
                config_tx.send_if_modified(|known| known.replace(read.clone()) != Some(read));
            }
        }),
        resync,
        shared,
    };
    tokio::spawn(follow.run());
    Views { nodes: Nodes::new(nodes, pods, changes, listed), exporters, exporter_changes, plugins, config: config_rx, heard }
}

fn local_config(map: Option<&ConfigMap>) -> LocalConfig {
    let Some(map) = map else { return LocalConfig::default() };
    LocalConfig {
        resource_version: map.metadata.resource_version.clone().unwrap_or_default(),
        yaml: map.data.as_ref().and_then(|data| data.get(CONFIG_KEY)).cloned().unwrap_or_default(),
    }
}
