//! Pods of exporters: on which node each is, where it listens and since which start. Also the place where an alert's pod
//! label is looked up.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, RwLock},
};

use tokio::sync::watch;

use super::{follow::Keep, wire::PodSeen};

/// An exporter's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePod {
    /// Its name.
    pub name: Box<str>,
    /// The node that it is bound to; empty while there is none.
    pub node: Box<str>,
    /// Its address.
    pub ip: Option<IpAddr>,
    /// Its port of the name `metrics`, else its first.
    pub port: Option<u16>,
    /// It may be asked: it is not finished, not on its way out, not yet to begin.
    pub runs: bool,
    /// Tells one start of its process from the next: its UID and its restarts.
    pub start: Box<str>,
}

/// Every exporter's pod. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ServicePods {
    all: Arc<RwLock<BTreeMap<Key, Kept>>>,
}

/// Namespace and name.
type Key = (Box<str>, Box<str>);

#[derive(Debug)]
struct Kept {
    pod: ServicePod,
    /// The list in which it was last found.
    list: u32,
}

impl ServicePods {
    /// A look at all of them.
    pub fn look<T>(&self, look: impl FnOnce(&mut dyn Iterator<Item = &ServicePod>) -> T) -> T {
        let all = self.all.read().expect("no holder of this lock panics");
        look(&mut all.values().map(|kept| &kept.pod))
    }
}

/// Keeps them.
pub(crate) struct KeepServices {
    pods: ServicePods,
    changed: watch::Sender<u64>,
    list: u32,
    /// All were listed once.
    listed: bool,
}

impl KeepServices {
    /// A keeper, what it keeps, and a number that rises whenever that changes, from 0 on once all were listed.
    pub(crate) fn new() -> (Self, ServicePods, watch::Receiver<u64>) {
        let pods = ServicePods::default();
        let (changed, changes) = watch::channel(0);
        (Self { pods: pods.clone(), changed, list: 0, listed: false }, pods, changes)
    }

    /// Changes them, and says so if anything is not as it was.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<Key, Kept>) -> bool) {
        let changed = change(&mut self.pods.all.write().expect("no holder of this lock panics"));
        if changed && self.listed {
            self.changed.send_modify(|n| *n += 1);
        }
    }
}

impl Keep<PodSeen> for KeepServices {
    fn begin(&mut self) {
        self.list += 1;
    }

    fn put(&mut self, seen: PodSeen) {
        let (key, kept) = (key(&seen), Kept { pod: ServicePod::of(&seen), list: self.list });
        self.change(|all| match all.get_mut(&key) {
            Some(known) => std::mem::replace(known, kept).pod != known.pod,
            None => all.insert(key, kept).is_none(),
        });
    }

    fn remove(&mut self, seen: PodSeen) {
        self.change(|all| all.remove(&key(&seen)).is_some());
    }

    fn end(&mut self) {
        // Whoever waits for the first list hears of an empty one too.
        let (list, first) = (self.list, !std::mem::replace(&mut self.listed, true));
        self.change(|all| {
            let before = all.len();
            all.retain(|_, kept| kept.list == list);
            first || all.len() != before
        });
    }
}

fn key(seen: &PodSeen) -> Key {
    let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
    (text(&seen.metadata.namespace), text(&seen.metadata.name))
}

impl ServicePod {
    /// What is kept of it.
    pub(crate) fn of(seen: &PodSeen) -> Self {
        let (meta, status) = (&seen.metadata, &seen.status);
        let ports = || seen.spec.containers.iter().flatten().flat_map(|container| container.ports.iter().flatten());
        let named = ports().find(|port| port.name.as_deref() == Some("metrics")).or_else(|| ports().next());
        let restarts: i32 = status.container_statuses.iter().flatten().map(|status| status.restart_count).sum();
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed" | "Pending"));
        Self {
            name: meta.name.as_deref().unwrap_or_default().into(),
            node: seen.spec.node_name.as_deref().unwrap_or_default().into(),
            ip: status.pod_ip.as_deref().and_then(|ip| ip.parse().ok()),
            port: named.and_then(|port| u16::try_from(port.container_port).ok()),
            runs: meta.deletion_timestamp.is_none() && !over,
            start: format!("{}/{restarts}", meta.uid.as_deref().unwrap_or_default()).into(),
        }
    }
}
