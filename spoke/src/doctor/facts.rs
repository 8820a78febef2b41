//! What was seen of a cluster, as far as it is judged. Plain data: whatever could not be seen says why.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_spoke_core::scrape::metric::Metric;
use serde_json::Value;

use crate::rights::Grant;

/// What was seen, or why not.
pub(crate) type Seen<T> = Result<T, String>;

/// Everything.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Of our own objects.
    pub namespace: String,
    /// How far the account is to go.
    pub mode: Grant,
    /// In which namespaces it is to have its rights to pods and workloads; where none is named, in all, or wherever it has them.
    pub namespaces: Vec<String>,
    /// The API server.
    pub server: Seen<Server>,
    /// What the account may do.
    pub account: Seen<Account>,
    /// Our namespace is there.
    pub home: Seen<bool>,
    /// The HealAction CRD.
    pub crd: Seen<Option<Value>>,
    /// Our admission policies and their bindings that are there.
    pub policies: Seen<Vec<Value>>,
    /// Webhooks and policies that may change a node as it is written.
    pub mutators: Seen<Vec<Mutator>>,
    /// Our Lease.
    pub lease: Seen<Option<Lease>>,
    /// The fence's data.
    pub fence: Seen<Option<BTreeMap<String, String>>>,
    /// The owner's settings.
    pub config: Seen<OwnersConfig>,
    /// All nodes.
    pub nodes: Seen<Vec<Node>>,
    /// All exporters that are known.
    pub exporters: Seen<Vec<Exporter>>,
    /// The listener, where one was named.
    pub webhook: Option<Webhook>,
    /// Versions of the group of ResourceClaims that the API server serves; none where it serves nothing of it.
    pub dra: Seen<Vec<String>>,
    /// Pods that hold GPUs.
    pub pods: Seen<Vec<Pod>>,
    /// PodDisruptionBudgets.
    pub budgets: Seen<Vec<Budget>>,
    /// Namespaces with stateful GPU pods whose owner allows their eviction.
    pub allowed: Seen<BTreeSet<String>>,
    /// `namespace/name` of claims whose volume is on one node's own disk.
    pub local_claims: Seen<BTreeSet<String>>,
    /// Nodes on which a pod of the device plugin is ready.
    pub plugins: Seen<BTreeSet<String>>,
    /// Our own replicas.
    pub spokes: Seen<Vec<Spoke>>,
    /// Records of commands.
    pub actions: Seen<Vec<Action>>,
    /// How old the newest snapshot of a claim is, by `namespace/name`; nothing where the cluster has no snapshots.
    pub snapshots: Seen<Option<BTreeMap<String, Duration>>>,
}

/// One of our own replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spoke {
    /// Its pod.
    pub name: String,
    /// By its own word.
    pub ready: bool,
    /// How often it was started again.
    pub restarts: u32,
    /// How it ended before that; empty when nobody knows.
    pub ended: String,
}

/// A record of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Its name.
    pub name: String,
    /// Of which node.
    pub node: String,
    /// It has not ended.
    pub open: bool,
    /// Our finalizer is on it.
    pub held: bool,
    /// It is kept until its node is released.
    pub waits_for_release: bool,
    /// Somebody has deleted it.
    pub deleting: bool,
    /// Since its time was over.
    pub overdue: Duration,
}

/// The API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As it says, such as `v1.36.3`.
    pub version: String,
    /// Major and minor.
    pub number: (u32, u32),
    /// How far its clock is from ours, as well as a `Date` of whole seconds tells.
    pub clock_off: Option<Duration>,
}

/// What was answered about the account's rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Whose rights these are.
    pub user: String,
    /// It is the spoke's account.
    pub ours: bool,
    /// By row of the table and verb.
    pub held: BTreeMap<(usize, &'static str), bool>,
    /// The same of rights to pods and workloads that are not held in the whole cluster, for each namespace that was asked about.
    pub within: BTreeMap<String, BTreeSet<(usize, &'static str)>>,
    /// What no spoke ever does, and this one may.
    pub beyond: Vec<String>,
}

/// A mutating webhook, or a policy, whose rules take in changes of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutator {
    /// What it is and its name, and that of its configuration.
    pub name: String,
    /// A selector or a condition says of which: whether our patches are among them nobody can tell here.
    pub conditional: bool,
}

/// The owner's ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnersConfig {
    /// There is none.
    Missing,
    /// It is there without its key.
    NoKey,
    /// What its key holds.
    Text(String),
}

impl OwnersConfig {
    /// What its key holds, where there is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Missing | Self::NoKey => None,
            Self::Text(text) => Some(text),
        }
    }
}

/// Our Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Empty when nobody holds it.
    pub holder: String,
    /// Since its last renewal.
    pub age: Option<Duration>,
    /// How long one lasts.
    pub lasts: Duration,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// GPUs that it has.
    pub gpus: u32,
    /// GPUs that it offers.
    pub offered: u32,
    /// A label says that there is a GPU in it.
    pub labelled: bool,
    /// Version of its driver as a label tells it; empty when none does.
    pub driver: String,
}

/// An exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exporter {
    /// Whose GPUs it tells of.
    pub node: String,
    /// Host and port.
    pub address: String,
    /// Metrics that its page has, or why there is none.
    pub page: Seen<BTreeSet<Metric>>,
    /// None of its GPUs has ECC memory, by their models.
    pub without_ecc: bool,
}

/// The webhook's listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where it was looked for.
    pub url: String,
    /// What `GET /readyz` answers.
    pub ready: Seen<(u16, String)>,
    /// What a post without a token is answered.
    pub without_token: Seen<u16>,
    /// What a post with the token is answered, where one was given: an empty object, which starts nothing.
    pub with_token: Option<Seen<u16>>,
}

/// A pod that holds a GPU and that a drain would look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Where.
    pub namespace: String,
    /// Which.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Who makes another; empty when nobody does.
    pub controller: String,
    /// Its claims.
    pub claims: Vec<String>,
    /// Volumes that go with it or stay behind: `emptyDir` on disk, `ephemeral` and `hostPath`, by name.
    pub scratch: Vec<String>,
    /// What its label `gpu-selfhealing.io/evict` says.
    pub evict: Option<String>,
}

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Where.
    pub namespace: String,
    /// Which.
    pub name: String,
    /// `namespace/name` of those GPU pods that it covers.
    pub covers: Vec<String>,
    /// Pods that it counts.
    pub expected: i32,
    /// How many must be healthy.
    pub desired: i32,
    /// How many are.
    pub healthy: i32,
    /// Pods that are not ready may go all the same.
    pub unhealthy_may_go: bool,
    /// Why its numbers cannot be told; empty when they can.
    pub failed: String,
}
