//! What runs beside the API server: kubelet stand-in, scheduler, workload controllers, budgets, collectors.
//! One task works through one queue, fed by the store's changes and by timers; it sleeps when nothing changed.
//! Everything goes through the direct helpers of the store: not recorded, not faulty.

mod budget;
mod collector;
mod daemonset;
mod deployment;
mod kubelet;
mod namespace;
mod notice;
mod pods;
mod replicaset;
mod scheduler;
mod statefulset;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use crate::config::Controllers;
use crate::store::{Change, ChangeKind, ObjKey, Store};

const PODS: &str = "pods";
const NODES: &str = "nodes";
const CLAIMS: &str = "persistentvolumeclaims";
const DEPLOYMENTS: &str = "deployments.apps";
const REPLICASETS: &str = "replicasets.apps";
const STATEFULSETS: &str = "statefulsets.apps";
const DAEMONSETS: &str = "daemonsets.apps";
const BUDGETS: &str = "poddisruptionbudgets.policy";

/// Something to look at again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Kubelet(ObjKey),
    Deployment(ObjKey),
    ReplicaSet(ObjKey),
    StatefulSet(ObjKey),
    DaemonSet(ObjKey),
    Claim(ObjKey),
    Scheduler,
    Budget(ObjKey),
    /// Dependents of an owner that is gone.
    Orphans(String),
    /// An owner whose deletion waits for its dependents.
    Owner(Arc<str>, ObjKey),
    Namespace(String),
    /// A node that went; its pods follow after a while.
    LostNode(String),
}

pub(crate) async fn run(store: Arc<Store>, enabled: Controllers, stop: CancellationToken) {
    let mut engine = Engine {
        cursor: store.version(),
        on: enabled,
        queue: BTreeSet::new(),
        timers: BTreeMap::new(),
        kubelet: kubelet::Kubelet::default(),
        scheduler: scheduler::Scheduler::default(),
        store,
    };
    engine.relist();
    let mut commits = engine.store.subscribe();
    while !stop.is_cancelled() {
        commits.mark_unchanged();
        engine.learn();
        engine.fire();
        if let Some(work) = engine.queue.pop_first() {
            engine.act(&work);
            tokio::task::yield_now().await;
            continue;
        }
        let clock = engine.store.clock.clone();
        let next = engine.timers.keys().next().copied();
        let timer = async {
            match next {
                Some(moment) => clock.sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            _ = commits.changed() => {}
            () = timer => {}
        }
    }
}

struct Engine {
    store: Arc<Store>,
    on: Controllers,
    cursor: u64,
    queue: BTreeSet<Work>,
    timers: BTreeMap<DateTime<Utc>, BTreeSet<Work>>,
    kubelet: kubelet::Kubelet,
    scheduler: scheduler::Scheduler,
}

impl Engine {
    /// Takes in what changed since the last look; everything anew when the window has moved on.
    fn learn(&mut self) {
        let store = self.store.clone();
        match store.changes_after(self.cursor, None) {
            Ok((changes, version)) => {
                for change in &changes {
                    self.notice(change);
                }
                self.cursor = version;
            }
            Err(_) => self.relist(),
        }
    }

    fn relist(&mut self) {
        self.cursor = self.store.version();
        self.scheduler = scheduler::Scheduler::default();
        for storage in [NODES, PODS, CLAIMS, DEPLOYMENTS, REPLICASETS, STATEFULSETS, DAEMONSETS, BUDGETS] {
            for (key, stored) in self.store.snapshot(storage).0 {
                let change =
                    Change { rv: stored.rv, kind: ChangeKind::Added, storage: Arc::from(storage), key, now: stored, before: None };
                self.notice(&change);
            }
        }
        for key in self.store.keys("namespaces", |_, _| true) {
            self.queue.insert(Work::Namespace(key.name.to_string()));
        }
    }

    fn fire(&mut self) {
        let now = self.store.clock.now();
        while let Some(entry) = self.timers.first_entry() {
            if *entry.key() > now {
                return;
            }
            self.queue.extend(entry.remove());
        }
    }

    fn later(&mut self, moment: DateTime<Utc>, work: Work) {
        self.timers.entry(moment).or_default().insert(work);
    }

    fn act(&mut self, work: &Work) {
        let store = self.store.clone();
        let on = self.on;
        match work {
            Work::Kubelet(key) if on.kubelet => {
                if let Some(again) = self.kubelet.look(&store, key) {
                    self.later(again, work.clone());
                }
            }
            Work::Claim(key) if on.workloads => statefulset::bind_claim(&store, key),
            Work::Deployment(key) if on.workloads => deployment::reconcile(&store, key),
            Work::ReplicaSet(key) if on.workloads => replicaset::reconcile(&store, key),
            Work::StatefulSet(key) if on.workloads => statefulset::reconcile(&store, key),
            Work::DaemonSet(key) if on.workloads => daemonset::reconcile(&store, key),
            Work::Orphans(uid) if on.workloads => collector::collect(&store, uid),
            Work::Owner(storage, key) if on.workloads => collector::finish_owner(&store, storage, key),
            Work::LostNode(name) if on.workloads => collector::forget_node(&store, name),
            Work::Scheduler if on.scheduler => self.scheduler.round(&store),
            Work::Budget(key) if on.disruption => {
                if let Some(again) = budget::reconcile(&store, key) {
                    self.later(again, work.clone());
                }
            }
            Work::Namespace(name) => {
                if on.workloads {
                    namespace::furnish(&store, name);
                }
                namespace::finish(&store, name);
            }
            Work::Kubelet(_)
            | Work::Claim(_)
            | Work::Deployment(_)
            | Work::ReplicaSet(_)
            | Work::StatefulSet(_)
            | Work::DaemonSet(_)
            | Work::Orphans(_)
            | Work::Owner(..)
            | Work::Scheduler
            | Work::LostNode(_)
            | Work::Budget(_) => {}
        }
    }
}

/// A controller that lost a race is woken by the change that it lost to.
fn settle<T>(result: Result<T, crate::ApiError>, what: &str) {
    if let Err(error) = result {
        tracing::debug!(%error, what, "left for the next look");
    }
}
