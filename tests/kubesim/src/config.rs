//! What one simulated cluster is started with.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::clock::Clock;
use crate::tls::TlsIdentity;

/// Changes that watches can resume over. 4,096 × about 2 kB are 8 MB at most.
pub const WATCH_WINDOW: usize = 4_096;

/// Who a bearer token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User name, as RBAC and the recorder see it.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl User {
    /// A user without groups of its own.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), groups: vec!["system:authenticated".into()] }
    }
}

/// Which parts of a cluster run beside the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controllers {
    /// Bound pods run, deleted pods end.
    pub kubelet: bool,
    /// Pods get nodes.
    pub scheduler: bool,
    /// Deployments, ReplicaSets, StatefulSets, DaemonSets make pods; owners' dependents are collected.
    pub workloads: bool,
    /// PodDisruptionBudgets get their status.
    pub disruption: bool,
}

impl Controllers {
    /// Everything runs.
    pub const ALL: Self = Self { kubelet: true, scheduler: true, workloads: true, disruption: true };
    /// Nothing runs: objects stay as they are put. Only a deleted namespace is still emptied.
    pub const NONE: Self = Self { kubelet: false, scheduler: false, workloads: false, disruption: false };
}

/// How to start a cluster.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen.
    pub address: IpAddr,
    /// 0: any free port.
    pub port: u16,
    /// Shown as the cluster's and context's name in kubeconfigs.
    pub name: String,
    /// Bearer tokens beside the admin's.
    pub tokens: BTreeMap<String, User>,
    /// The admin's token; drawn at start when absent.
    pub admin_token: Option<String>,
    /// What runs beside the server.
    pub controllers: Controllers,
    /// The cluster's clock.
    pub clock: Clock,
    /// Time between bookmarks on a quiet watch.
    pub bookmark_every: Duration,
    /// Changes that a watch can resume over.
    pub watch_window: usize,
    /// Certificates; made at start when absent. Shared ones spare time when many clusters start.
    pub tls: Option<TlsIdentity>,
    /// What `/version` says.
    pub version: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            name: "kubesim".into(),
            tokens: BTreeMap::new(),
            admin_token: None,
            controllers: Controllers::ALL,
            clock: Clock::default(),
            bookmark_every: Duration::from_secs(10),
            watch_window: WATCH_WINDOW,
            tls: None,
            version: "v1.36.3".into(),
        }
    }
}
