//! The stand-in for the kubelets of a test's nodes: registers them, runs bound pods, ends deleted ones.
//! A task on the caller's runtime that uses a plain kube client, so it works on any cluster.
//! Runs no containers and renews no heartbeats; touches no pod or node that is not its own.
//! A pod says by annotation how its containers start and end, as it does to kubesim's own kubelet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// By these annotations a pod says how its containers behave, to kubesim's own kubelet and to this one.
pub use kubesim::build::{EXIT_AFTER_MS, HANG, POD_IP, READY, START_AFTER_MS};
use node::Identity;
pub use node::NodeSpec;
use pod::Duty;

mod node;
mod pod;
mod pods;

/// The taint that admission puts on every new node, and that a kubelet's first report removes.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The kubelets of some nodes. They stop when this is dropped; nodes and pods stay as they are.
#[derive(Debug)]
pub struct Kubelet {
    shared: Arc<Shared>,
    watching: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    client: ClientOf,
    machines: Mutex<BTreeMap<String, Machine>>,
    pending: Mutex<BTreeMap<(String, Step), Pending>>,
}

/// One machine and whether its kubelet answers.
#[derive(Debug, Clone)]
struct Machine {
    spec: NodeSpec,
    identity: Identity,
    dead: bool,
}

/// What a pod waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Start,
    Stop,
}

/// A step that a pod is about to take.
#[derive(Debug)]
struct Pending {
    at: Instant,
    task: JoinHandle<()>,
}

impl Kubelet {
    /// Registers `nodes`, which must not exist, and runs and ends the pods that are bound to them.
    pub async fn start(client: Client, nodes: Vec<NodeSpec>) -> Result<Self, kube::Error> {
        let mut kubelet = Self::idle(client);
        kubelet.watching = Some(tokio::spawn(pods::watch(Arc::clone(&kubelet.shared))));
        kubelet.add_nodes(nodes).await?;
        Ok(kubelet)
    }

    /// Registers `nodes` only: on a cluster that runs and ends pods by itself, as kubesim does.
    pub async fn register_only(client: Client, nodes: Vec<NodeSpec>) -> Result<Self, kube::Error> {
        let kubelet = Self::idle(client);
        kubelet.add_nodes(nodes).await?;
        Ok(kubelet)
    }

    fn idle(client: Client) -> Self {
        let shared = Shared { client: ClientOf(client), machines: Mutex::default(), pending: Mutex::default() };
        Self { shared: Arc::new(shared), watching: None }
    }

    /// Registers more nodes.
    pub async fn add_nodes(&self, nodes: Vec<NodeSpec>) -> Result<(), kube::Error> {
        for node in nodes {
            self.add_node(node).await?;
        }
        Ok(())
    }

    /// Registers one more node.
    pub async fn add_node(&self, spec: NodeSpec) -> Result<(), kube::Error> {
        let machine = Machine { spec, identity: Identity::new_machine(), dead: false };
        self.register(machine).await
    }

    /// The machine restarts: new boot id, its containers start once more, stopping pods are gone.
    ///
    /// # Panics
    /// When the node is not one of ours.
    pub async fn reboot(&self, name: &str) -> Result<(), kube::Error> {
        let machine = self.shared.change(name, |machine| {
            machine.identity = machine.identity.rebooted();
            machine.dead = false;
        });
        let status = node::status(&machine.spec, &machine.identity, &now());
        self.patch_node_status(name, json!({ "status": status })).await?;
        self.say_to_kubesim(name, None).await?;
        self.restart_pods(name).await
    }

    /// Another machine takes the node's name: the Node gets a new UID, the pods bound to the name stay
    /// and start there.
    ///
    /// # Panics
    /// When the node is not one of ours.
    pub async fn replace_node(&self, name: &str) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.shared.client());
        nodes.delete(name, &DeleteParams::default()).await?;
        let machine = self.shared.change(name, |machine| {
            machine.identity = Identity::new_machine();
            machine.dead = false;
        });
        self.register(machine).await?;
        self.restart_pods(name).await
    }

    /// The kubelet of this node answers nobody any more: pods deleted there stay for ever.
    ///
    /// # Panics
    /// When the node is not one of ours.
    pub async fn die(&self, name: &str) -> Result<(), kube::Error> {
        self.shared.change(name, |machine| machine.dead = true);
        self.say_to_kubesim(name, Some("dead")).await?;
        self.set_ready(name, false).await
    }

    /// Sets the node's Ready condition.
    pub async fn set_ready(&self, name: &str, ready: bool) -> Result<(), kube::Error> {
        self.patch_node_status(name, json!({ "status": { "conditions": node::conditions(ready, &now()) } })).await
    }

    /// Sets how many GPUs the device plugin reports as usable; capacity stays.
    pub async fn set_allocatable_gpus(&self, name: &str, gpus: u32) -> Result<(), kube::Error> {
        let allocatable = json!({ "nvidia.com/gpu": gpus.to_string() });
        self.patch_node_status(name, json!({ "status": { "allocatable": allocatable } })).await
    }

    async fn register(&self, machine: Machine) -> Result<(), kube::Error> {
        let manifest = node::manifest(&machine.spec, &machine.identity, &now());
        let manifest: Node = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        let name = machine.spec.name.clone();
        lock(&self.shared.machines).insert(name, machine);
        let nodes: Api<Node> = Api::all(self.shared.client());
        let created = nodes.create(&PostParams::default(), &manifest).await?;
        remove_not_ready(&nodes, created).await
    }

    /// Kubesim's own kubelets hear of their death by an annotation; to anybody else it means nothing.
    async fn say_to_kubesim(&self, name: &str, word: Option<&str>) -> Result<(), kube::Error> {
        let patch = json!({ "metadata": { "annotations": { kubesim::build::KUBELET: word } } });
        let nodes: Api<Node> = Api::all(self.shared.client());
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn patch_node_status(&self, name: &str, patch: serde_json::Value) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.shared.client());
        // Strategic: conditions that others own (merged by type) stay.
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    async fn restart_pods(&self, node: &str) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::all(self.shared.client());
        let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
        for pod in pods.list(&bound).await? {
            match pod::duty(&pod) {
                Duty::Stop(_) | Duty::Hang => self.shared.remove(&pod).await,
                Duty::Start(_) => self.shared.set_status(&pod, pod::running(&pod, 0, &now())).await,
                Duty::Keep => self.shared.set_status(&pod, pod::running(&pod, 1, &now())).await,
            }
        }
        Ok(())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(watching) = &self.watching {
            watching.abort();
        }
        for pending in lock(&self.shared.pending).values() {
            pending.task.abort();
        }
    }
}

impl Shared {
    fn client(&self) -> Client {
        self.client.0.clone()
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Machine)) -> Machine {
        let mut machines = lock(&self.machines);
        let machine = machines.get_mut(name).unwrap_or_else(|| panic!("{name} is not one of ours"));
        change(machine);
        machine.clone()
    }

    fn is_alive(&self, node: &str) -> bool {
        lock(&self.machines).get(node).is_some_and(|machine| !machine.dead)
    }
}

async fn remove_not_ready(nodes: &Api<Node>, node: Node) -> Result<(), kube::Error> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    if taints.iter().all(|taint| taint.key != NOT_READY) {
        return Ok(());
    }
    let kept: Vec<_> = taints.into_iter().filter(|taint| taint.key != NOT_READY).collect();
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": kept },
    });
    nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client says nothing useful of itself when it is printed.
struct ClientOf(Client);

impl std::fmt::Debug for ClientOf {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Client")
    }
}
