//! The scheduler: cordons, taints, node selectors and countable resources such as GPUs; else a pod stays Pending.
//! Knows nothing of cpu, memory, affinity and priorities. Keeps what it needs of nodes and pods, so a round parses little.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::obj;
use crate::rest::{self, WriteOptions};
use crate::store::{ObjKey, Store};

type Amounts = BTreeMap<String, i64>;

#[derive(Debug)]
struct Node {
    open: bool,
    taints: Vec<Value>,
    labels: BTreeMap<String, String>,
    allocatable: Amounts,
}

#[derive(Debug)]
struct Pod {
    node: String,
    requests: Amounts,
}

#[derive(Debug, Default)]
struct Used {
    count: usize,
    amounts: Amounts,
}

/// What is taken on each node, and the nodes in order of their pods' number.
#[derive(Debug, Default)]
struct Room {
    used: BTreeMap<String, Used>,
    by_count: BTreeSet<(usize, String)>,
}

impl Room {
    fn take(&mut self, node: &str, requests: &Amounts) {
        let used = self.used.entry(node.to_owned()).or_default();
        // A node that is gone may still have pods; it is no candidate.
        if self.by_count.remove(&(used.count, node.to_owned())) {
            self.by_count.insert((used.count + 1, node.to_owned()));
        }
        used.count += 1;
        for (resource, amount) in requests {
            *used.amounts.entry(resource.clone()).or_default() += amount;
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Scheduler {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<ObjKey, Pod>,
}

impl Scheduler {
    /// Whether somebody may now find a place.
    pub(super) fn notice_pod(&mut self, key: &ObjKey, pod: &Value, gone: bool) -> bool {
        if gone || obj::pod_finished(pod) {
            return self.pods.remove(key).is_some_and(|pod| !pod.node.is_empty()) && self.waiting();
        }
        let node = obj::text(pod, "/spec/nodeName").to_owned();
        let unbound = node.is_empty() && !obj::terminating(pod);
        self.pods.insert(key.clone(), Pod { node, requests: requests(pod) });
        unbound
    }

    pub(super) fn notice_node(&mut self, name: &str, node: &Value, gone: bool) -> bool {
        if gone {
            self.nodes.remove(name);
            return false;
        }
        let ready = obj::condition(node, "Ready").is_none_or(|ready| obj::text(ready, "/status") == "True");
        let view = Node {
            open: ready && !obj::flag(node, "/spec/unschedulable"),
            taints: obj::list(node, "/spec/taints").to_vec(),
            labels: obj::entries(node, "/metadata/labels").map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
            allocatable: amounts(&node["status"]["allocatable"]),
        };
        self.nodes.insert(name.to_owned(), view);
        self.waiting()
    }

    fn waiting(&self) -> bool {
        self.pods.values().any(|pod| pod.node.is_empty())
    }

    /// Tries to place every pod that has no node. Of pods that ask for the same, one refusal stands for all.
    pub(super) fn round(&mut self, store: &Store) {
        let mut room = self.room();
        let mut hopeless = BTreeSet::new();
        let waiting: Vec<ObjKey> = self.pods.iter().filter(|(_, pod)| pod.node.is_empty()).map(|(key, _)| key.clone()).collect();
        for key in waiting {
            let Some(pod) = store.load(super::PODS, &key).map(|stored| stored.bare()) else { continue };
            if obj::terminating(&pod)
                || !obj::text(&pod, "/spec/nodeName").is_empty()
                || obj::text(&pod, "/spec/schedulerName") != "default-scheduler"
            {
                continue;
            }
            let wish = json!([requests(&pod), pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]]).to_string();
            let found = if hopeless.contains(&wish) { None } else { self.place(&pod, &room) };
            match found {
                Some(node) => {
                    room.take(&node, &requests(&pod));
                    bind(store, &key, &node);
                }
                None => {
                    self.refuse(store, &key, &pod);
                    hopeless.insert(wish);
                }
            }
        }
    }

    fn room(&self) -> Room {
        let mut room = Room::default();
        for name in self.nodes.keys() {
            room.by_count.insert((0, name.clone()));
        }
        for pod in self.pods.values().filter(|pod| !pod.node.is_empty()) {
            room.take(&pod.node, &pod.requests);
        }
        room
    }

    /// The fitting node with the fewest pods.
    fn place(&self, pod: &Value, room: &Room) -> Option<String> {
        let wanted = requests(pod);
        let fits = |name: &str| {
            let Some(node) = self.nodes.get(name) else { return false };
            let taken = |resource: &str| room.used.get(name).and_then(|used| used.amounts.get(resource)).copied().unwrap_or(0);
            node.open
                && wanted
                    .iter()
                    .all(|(resource, amount)| taken(resource) + amount <= node.allocatable.get(resource).copied().unwrap_or(0))
                && tolerated(pod, &node.taints)
                && obj::entries(pod, "/spec/nodeSelector")
                    .all(|(key, value)| node.labels.get(key).is_some_and(|have| have == value))
        };
        room.by_count.iter().map(|(_, name)| name).find(|name| fits(name)).cloned()
    }

    fn refuse(&self, store: &Store, key: &ObjKey, pod: &Value) {
        let known = obj::condition(pod, "PodScheduled").is_some_and(|condition| obj::text(condition, "/reason") == "Unschedulable");
        if known {
            return;
        }
        let message =
            format!("0/{} nodes are available: no node fits cordons, taints, selectors and free resources.", self.nodes.len());
        let stamp = store.clock.stamp();
        let condition = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message });
        super::settle(
            store.edit("pods", &key.namespace, &key.name, |pod| obj::set_condition(pod, condition, &stamp)),
            "refuse a pod",
        );
    }
}

fn bind(store: &Store, key: &ObjKey, node: &str) {
    let Some(pods) = store.find("", "v1", "pods") else { return };
    let bound = store.write(false, |txn| rest::bind(txn, &pods, key, node, &WriteOptions::by("kube-scheduler")));
    super::settle(bound, "bind a pod");
}

/// What can be counted: extended resources, by their requests or else their limits.
fn requests(pod: &Value) -> Amounts {
    let mut sum = Amounts::new();
    for container in obj::list(pod, "/spec/containers") {
        let resources = &container["resources"];
        let mut of_container = amounts(&resources["limits"]);
        of_container.extend(amounts(&resources["requests"]));
        for (resource, amount) in of_container {
            *sum.entry(resource).or_default() += amount;
        }
    }
    sum
}

fn amounts(list: &Value) -> Amounts {
    let extended = list.as_object().into_iter().flatten().filter(|(resource, _)| resource.contains('/'));
    extended
        .filter_map(|(resource, amount)| {
            let number = amount.as_i64().or_else(|| amount.as_str().and_then(|text| text.parse().ok()))?;
            Some((resource.clone(), number))
        })
        .collect()
}

fn tolerated(pod: &Value, taints: &[Value]) -> bool {
    let tolerations = obj::list(pod, "/spec/tolerations");
    let hard = taints.iter().filter(|taint| matches!(obj::text(taint, "/effect"), "NoSchedule" | "NoExecute"));
    hard.into_iter().all(|taint| {
        tolerations.iter().any(|toleration| {
            let effect = obj::text(toleration, "/effect");
            let key = obj::text(toleration, "/key");
            let effect_fits = effect.is_empty() || effect == obj::text(taint, "/effect");
            let key_fits = key.is_empty() || key == obj::text(taint, "/key");
            let value_fits = obj::text(toleration, "/operator") == "Exists"
                || (!key.is_empty() && obj::text(toleration, "/value") == obj::text(taint, "/value"));
            effect_fits && key_fits && value_fits
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build;

    fn scheduler(nodes: &[Value]) -> Scheduler {
        let mut scheduler = Scheduler::default();
        for node in nodes {
            scheduler.notice_node(obj::name(node), node, false);
        }
        scheduler
    }

    #[test]
    fn a_pod_goes_where_gpus_are_free_and_no_taint_or_cordon_keeps_it_off() {
        let mut tainted = build::gpu_node("a", 8, "H100");
        tainted["spec"]["taints"] = json!([{ "key": "gpu-selfhealing.io/faulty", "value": "true", "effect": "NoSchedule" }]);
        let mut cordoned = build::gpu_node("b", 8, "H100");
        cordoned["spec"]["unschedulable"] = json!(true);
        let mut scheduler = scheduler(&[tainted, cordoned, build::gpu_node("c", 8, "H100"), build::cpu_node("d")]);
        let pod = build::gpu_pod("ml", "p", "", 6, &[]);
        assert_eq!(scheduler.place(&pod, &scheduler.room()).as_deref(), Some("c"));
        scheduler.notice_pod(&ObjKey::new("ml", "q"), &build::gpu_pod("ml", "q", "c", 4, &[]), false);
        assert_eq!(scheduler.place(&pod, &scheduler.room()), None);
    }

    #[test]
    fn a_toleration_lets_a_pod_past_a_taint() {
        let taints = [json!({ "key": "k", "value": "v", "effect": "NoSchedule" })];
        let pod = |toleration: Value| json!({ "spec": { "tolerations": [toleration] } });
        assert!(tolerated(&pod(json!({ "operator": "Exists" })), &taints));
        assert!(tolerated(&pod(json!({ "key": "k", "value": "v", "effect": "NoSchedule" })), &taints));
        assert!(!tolerated(&pod(json!({ "key": "k", "value": "w" })), &taints));
        assert!(!tolerated(&pod(json!({ "key": "k", "operator": "Exists", "effect": "NoExecute" })), &taints));
    }
}
