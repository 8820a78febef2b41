//! One cluster's API server, as far as a spoke uses it: nodes, pods, HealActions, the Lease, the fence and the owner's
//! ConfigMap, each with UID and resourceVersion. A write at a version that is not the object's is a conflict; a JSON patch
//! is applied as a real server applies it. What it does not know: RBAC, admission, PodDisruptionBudgets, paging.

use std::{collections::BTreeMap, rc::Rc};

use gpuheal_proto::{ids::CommandId, time::Timestamp};
use gpuheal_spoke::healaction::{HealAction, HealActionStatus};
use gpuheal_spoke_core::{mark::NodeFacts, verify::Fence};
use serde_json::{Value, json};

/// A node as it stands.
#[derive(Clone, Debug)]
pub struct NodeObject {
    /// The whole object.
    pub json: Value,
    /// What of it marking and verifying read.
    pub facts: NodeFacts,
    /// Who last wrote `spec.unschedulable`.
    pub unschedulable_by: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// GPUs by its capacity.
    pub gpus: u32,
}

/// A pod that holds a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Identity.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Where it runs.
    pub node: String,
    /// On which of its GPUs.
    pub gpu: u8,
    /// Since when.
    pub started: Timestamp,
    /// It is going.
    pub deleting: bool,
}

/// The Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Its version.
    pub version: u64,
    /// Who holds it.
    pub holder: String,
    /// How often it changed hands.
    pub transitions: u64,
    /// Raised by each renewal.
    pub renewals: u64,
}

/// What is asked.
#[derive(Clone, Debug)]
pub enum Call {
    /// Read the Lease.
    GetLease,
    /// Write it at a version.
    PutLease(Lease),
    /// Read the fence.
    GetFence,
    /// Write it at a version; 0: create.
    PutFence(u64, Fence),
    /// Create an intent or tombstone.
    CreateAction(Box<HealAction>),
    /// Read one.
    GetAction(String),
    /// Write a status at a version.
    PutStatus(String, String, Box<HealActionStatus>),
    /// Take our finalizer off, at a version.
    LetGo(String, String),
    /// Read a node.
    GetNode(String),
    /// Patch a node.
    PatchNode(String, Value),
    /// Evict the pod of this UID.
    Evict(String),
}

/// What is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The Lease as it stands.
    Lease(Lease),
    /// The fence and its version; 0: there is none.
    Fence(u64, Fence),
    /// A HealAction as it stands.
    Action(Rc<HealAction>),
    /// A node as it stands.
    Node(Rc<NodeObject>),
    /// Done.
    Done,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is none.
    NotFound,
    /// Another version, or it exists.
    Conflict,
    /// Not answered in time, or 5xx: it may have happened.
    Unanswered,
    /// The request is no good.
    Invalid,
}

/// An object that changed, as a watch shows it.
#[derive(Clone, Debug)]
pub enum Change {
    /// A node; nothing: it is gone.
    Node(String, Option<Rc<NodeObject>>),
    /// A HealAction.
    Action(String, Rc<HealAction>),
    /// A pod; nothing: it is gone.
    Pod(String, Option<Pod>),
    /// The owner's ConfigMap.
    Config(String),
}

/// A change of a node that a command of ours made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// By which command.
    pub command: CommandId,
    /// On which node.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// What it did: `mark`, `release`, or `evict` and the pod's UID.
    pub what: String,
}

/// The server.
#[derive(Clone, Debug, Default)]
pub struct Api {
    version: u64,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Rc<NodeObject>>,
    /// Pods by UID.
    pub pods: BTreeMap<String, Pod>,
    /// HealActions by name.
    pub actions: BTreeMap<String, Rc<HealAction>>,
    /// The Lease.
    pub lease: Lease,
    /// The fence and its version.
    pub fence: (u64, Fence),
    /// Text of the owner's ConfigMap.
    pub config: String,
    /// What changed since it was last looked at.
    pub changes: Vec<Change>,
    /// What commands of ours did since it was last looked at.
    pub effects: Vec<Effect>,
}

impl Api {
    fn next(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Answers a call of the command named.
    ///
    /// # Errors
    /// As a server would.
    pub fn serve(&mut self, call: &Call, by: Option<CommandId>) -> Result<Answer, Fault> {
        match call {
            Call::GetLease => Ok(Answer::Lease(self.lease.clone())),
            Call::PutLease(lease) => self.put_lease(lease),
            Call::GetFence => Ok(Answer::Fence(self.fence.0, self.fence.1)),
            Call::PutFence(at, fence) => {
                if *at != self.fence.0 {
                    return Err(Fault::Conflict);
                }
                self.fence = (self.next(), *fence);
                Ok(Answer::Fence(self.fence.0, self.fence.1))
            }
            Call::CreateAction(action) => self.create(action),
            Call::GetAction(id) => self.actions.get(id).cloned().map(Answer::Action).ok_or(Fault::NotFound),
            Call::PutStatus(id, at, status) => {
                let status = (**status).clone();
                self.edit(id, at, |action| action.status = Some(status))
            }
            Call::LetGo(id, at) => self.edit(id, at, |action| action.metadata.finalizers = None),
            Call::GetNode(name) => self.nodes.get(name).cloned().map(Answer::Node).ok_or(Fault::NotFound),
            Call::PatchNode(name, patch) => self.patch(name, patch, by),
            Call::Evict(uid) => self.evict(uid, by),
        }
    }

    fn put_lease(&mut self, lease: &Lease) -> Result<Answer, Fault> {
        if lease.version != self.lease.version {
            return Err(Fault::Conflict);
        }
        let version = self.next();
        self.lease = Lease { version, renewals: self.lease.renewals + 1, ..lease.clone() };
        Ok(Answer::Lease(self.lease.clone()))
    }

    fn create(&mut self, action: &HealAction) -> Result<Answer, Fault> {
        let name = action.id().to_owned();
        if self.actions.contains_key(&name) {
            return Err(Fault::Conflict);
        }
        let mut stored = action.clone();
        let version = self.next().to_string();
        stored.metadata.uid = Some(format!("action-{version}"));
        stored.metadata.resource_version = Some(version);
        // A real server drops a status at creation.
        stored.status = None;
        Ok(Answer::Action(self.keep(name, stored)))
    }

    fn edit(&mut self, id: &str, at: &str, change: impl FnOnce(&mut HealAction)) -> Result<Answer, Fault> {
        let stored = self.actions.get(id).ok_or(Fault::NotFound)?;
        if stored.metadata.resource_version.as_deref() != Some(at) {
            return Err(Fault::Conflict);
        }
        let mut next = (**stored).clone();
        change(&mut next);
        next.metadata.resource_version = Some(self.next().to_string());
        Ok(Answer::Action(self.keep(id.to_owned(), next)))
    }

    fn keep(&mut self, id: String, action: HealAction) -> Rc<HealAction> {
        let action = Rc::new(action);
        self.actions.insert(id.clone(), Rc::clone(&action));
        self.changes.push(Change::Action(id, Rc::clone(&action)));
        action
    }

    /// A failing `test` is a 422, another resourceVersion a 409.
    fn patch(&mut self, name: &str, patch: &Value, by: Option<CommandId>) -> Result<Answer, Fault> {
        let before = self.nodes.get(name).cloned().ok_or(Fault::NotFound)?;
        let ops: json_patch::Patch = serde_json::from_value(patch.clone()).map_err(|_| Fault::Invalid)?;
        let mut json = before.json.clone();
        json_patch::patch(&mut json, &ops).map_err(|_| Fault::Invalid)?;
        if json["metadata"]["resourceVersion"] != before.json["metadata"]["resourceVersion"] {
            return Err(Fault::Conflict);
        }
        let after = self.write(name, json, "gpu-selfhealing");
        if let Some(command) = by {
            let what = match (before.facts.marked(), after.facts.marked()) {
                (_, true) => "mark",
                (_, false) => "release",
            };
            let (node, uid) = (name.to_owned(), after.facts.uid.clone());
            self.effects.push(Effect { command, node, uid, what: what.to_owned() });
        }
        Ok(Answer::Node(after))
    }

    fn evict(&mut self, uid: &str, by: Option<CommandId>) -> Result<Answer, Fault> {
        let pod = self.pods.get_mut(uid).ok_or(Fault::NotFound)?;
        let first = !std::mem::replace(&mut pod.deleting, true);
        let pod = pod.clone();
        if let (Some(command), true) = (by, first) {
            let node_uid = self.nodes.get(&pod.node).map(|node| node.facts.uid.clone()).unwrap_or_default();
            let what = format!("evict {uid}");
            self.effects.push(Effect { command, node: pod.node.clone(), uid: node_uid, what });
        }
        self.changes.push(Change::Pod(uid.to_owned(), Some(pod)));
        Ok(Answer::Done)
    }

    /// A pod's grace is over.
    pub fn pod_gone(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.changes.push(Change::Pod(uid.to_owned(), None));
        }
    }

    /// A pod starts.
    pub fn pod_starts(&mut self, pod: Pod) {
        self.changes.push(Change::Pod(pod.uid.clone(), Some(pod.clone())));
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Writes a node as `manager`.
    pub fn write(&mut self, name: &str, mut json: Value, manager: &str) -> Rc<NodeObject> {
        json["metadata"]["resourceVersion"] = json!(self.next().to_string());
        let facts = NodeFacts::from_json(&json).expect("nodes of the simulation have name, UID and version");
        let before = self.nodes.get(name).filter(|node| node.facts.uid == facts.uid);
        let same = before.is_some_and(|node| node.facts.unschedulable == facts.unschedulable);
        let unschedulable_by = match before {
            Some(node) if same => node.unschedulable_by.clone(),
            _ if facts.unschedulable.is_some() => manager.to_owned(),
            _ => String::new(),
        };
        let created_at = before.map_or_else(|| created(&json), |node| node.created_at);
        let gpus = json["status"]["capacity"]["nvidia.com/gpu"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        let node = Rc::new(NodeObject { json, facts, unschedulable_by, created_at, gpus });
        self.nodes.insert(name.to_owned(), Rc::clone(&node));
        self.changes.push(Change::Node(name.to_owned(), Some(Rc::clone(&node))));
        node
    }

    /// A person, or another program, changes a node.
    pub fn by_hand(&mut self, name: &str, manager: &str, change: impl FnOnce(&mut Value)) {
        if let Some(node) = self.nodes.get(name) {
            let mut json = node.json.clone();
            change(&mut json);
            self.write(name, json, manager);
        }
    }

    /// The node's object is deleted.
    pub fn node_gone(&mut self, name: &str) {
        if self.nodes.remove(name).is_some() {
            self.changes.push(Change::Node(name.to_owned(), None));
        }
        let pods: Vec<String> = self.pods.values().filter(|pod| pod.node == name).map(|pod| pod.uid.clone()).collect();
        pods.iter().for_each(|uid| self.pod_gone(uid));
    }

    /// The owner writes the ConfigMap.
    pub fn configure(&mut self, yaml: &str) {
        yaml.clone_into(&mut self.config);
        self.changes.push(Change::Config(yaml.to_owned()));
    }
}

fn created(json: &Value) -> Timestamp {
    Timestamp::from_unix_ms(json["metadata"]["createdMs"].as_i64().unwrap_or(0))
}

/// A fresh node with GPUs.
#[must_use]
pub fn node(name: &str, uid: &str, boot_id: &str, gpus: u32, created_at: Timestamp) -> Value {
    json!({
        "metadata": {"name": name, "uid": uid, "createdMs": created_at.unix_ms(), "labels": {"pool": "train"}},
        "spec": {},
        "status": {
            "nodeInfo": {"bootID": boot_id},
            "capacity": {"nvidia.com/gpu": gpus.to_string()},
            "allocatable": {"nvidia.com/gpu": gpus.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}
