//! From a change to the work that it makes. Parses an object only where somebody is interested in it.

use serde_json::Value;

use super::{BUDGETS, CLAIMS, DAEMONSETS, DEPLOYMENTS, Engine, NODES, PODS, REPLICASETS, STATEFULSETS, Work, collector, kubelet};
use crate::obj;
use crate::store::{Change, ChangeKind, ObjKey};

impl Engine {
    pub(super) fn notice(&mut self, change: &Change) {
        let key = change.key.clone();
        match &*change.storage {
            "namespaces" => self.push(Work::Namespace(key.name.to_string())),
            CLAIMS => self.push(Work::Claim(key)),
            DEPLOYMENTS => self.push(Work::Deployment(key)),
            REPLICASETS => self.push(Work::ReplicaSet(key)),
            STATEFULSETS => self.push(Work::StatefulSet(key)),
            DAEMONSETS => self.push(Work::DaemonSet(key)),
            BUDGETS => self.push(Work::Budget(key)),
            _ => {}
        }
        if self.on != crate::config::Controllers::NONE {
            self.notice_parsed(change);
        } else if change.kind == ChangeKind::Deleted {
            self.push(Work::Namespace(change.key.namespace.to_string()));
        }
    }

    fn notice_parsed(&mut self, change: &Change) {
        let gone = change.kind == ChangeKind::Deleted;
        let watched = matches!(&*change.storage, PODS | NODES | REPLICASETS);
        if !watched && !gone && !change.now.is_held {
            return;
        }
        let object = change.now.bare();
        let key = change.key.clone();
        match &*change.storage {
            PODS => self.notice_pod(&key, &object, gone),
            NODES => self.notice_node(&key, &object, change),
            REPLICASETS => self.push_owner(&key.namespace, &object),
            _ => {}
        }
        if gone {
            self.push(Work::Orphans(obj::uid(&object).to_owned()));
            self.push(Work::Namespace(key.namespace.to_string()));
            self.push_waiting_owners(&key.namespace, &object);
        } else if change.now.is_held {
            self.push(Work::Owner(change.storage.clone(), key));
        }
    }

    fn push(&mut self, work: Work) {
        self.queue.insert(work);
    }

    /// Owners may wait for the end of a dependent.
    fn push_waiting_owners(&mut self, namespace: &str, object: &Value) {
        for owner in obj::list(object, "/metadata/ownerReferences") {
            let Some(storage) = self.store.storage_of(obj::text(owner, "/apiVersion"), obj::text(owner, "/kind")) else { continue };
            for namespace in [namespace, ""] {
                let key = ObjKey::new(namespace, obj::text(owner, "/name"));
                if self.store.load(&storage, &key).is_some() {
                    self.push(Work::Owner(storage.clone(), key));
                }
            }
        }
    }

    fn push_owner(&mut self, namespace: &str, object: &Value) {
        let Some(owner) = obj::controller(object) else { return };
        let key = ObjKey::new(namespace, obj::text(owner, "/name"));
        match obj::text(owner, "/kind") {
            "Deployment" => self.push(Work::Deployment(key)),
            "ReplicaSet" => self.push(Work::ReplicaSet(key)),
            "StatefulSet" => self.push(Work::StatefulSet(key)),
            "DaemonSet" => self.push(Work::DaemonSet(key)),
            _ => {}
        }
    }

    fn notice_pod(&mut self, key: &ObjKey, pod: &Value, gone: bool) {
        self.push_owner(&key.namespace, pod);
        for budget in self.store.keys(BUDGETS, |budget, _| budget.namespace == key.namespace) {
            self.push(Work::Budget(budget));
        }
        self.push(Work::Kubelet(key.clone()));
        if self.scheduler.notice_pod(key, pod, gone) {
            self.push(Work::Scheduler);
        }
    }

    fn notice_node(&mut self, key: &ObjKey, node: &Value, change: &Change) {
        let gone = change.kind == ChangeKind::Deleted;
        if self.scheduler.notice_node(&key.name, node, gone) {
            self.push(Work::Scheduler);
        }
        let before = change.before.as_ref().map(|before| before.bare());
        let appeared = before.is_none() || gone;
        let revived = before.as_ref().is_some_and(|before| kubelet::is_dead(before) != kubelet::is_dead(node));
        if appeared {
            for set in self.store.keys(DAEMONSETS, |_, _| true) {
                self.push(Work::DaemonSet(set));
            }
        }
        if gone {
            let moment = self.store.clock.now() + collector::LOST_NODE_AFTER;
            self.later(moment, Work::LostNode(key.name.to_string()));
        }
        if appeared || revived {
            for pod in self.store.keys(PODS, |_, pod| pod.node.as_deref() == Some(&*key.name)) {
                self.push(Work::Kubelet(pod));
            }
        }
    }
}
