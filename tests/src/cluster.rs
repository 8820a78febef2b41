//! One cluster of a run: an API server (kubesim's or Kubernetes' own) with its nodes, exporters and workloads, and the two
//! spoke replicas that look after it. The spokes are the shipping binary and reach it by a kubeconfig, as anywhere.

mod account;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use gpuheal_proto::kubernetes::{CONFIG_KEY, CONFIG_MAP, FENCE, LEASE, NAMESPACE};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    coordination::v1::Lease,
    core::v1::{ConfigMap, Node, Pod},
};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    discovery::ApiResource,
};
use kubesim::{Controllers, KubeSim};
use serde_json::{Value, json};
use testkube::{AuditEntry, ControlPlane, Kubelet, NodeSpec};

use crate::{
    exporter::{Exporter, Exporters},
    observe::Observer,
    process::Process,
    script::WITHIN,
    wait, workload,
};

/// What serves the cluster's API.
pub enum Backend {
    /// Simulated, over real HTTPS.
    Sim(KubeSim),
    /// Kubernetes' own control plane.
    Real(Box<ControlPlane>),
}

/// Which one to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// kubesim.
    Sim,
    /// Kubernetes' own.
    Real,
}

/// A node to make.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// GPUs; 0 = none.
    pub gpus: u32,
    /// Their model.
    pub model: &'static str,
}

/// One cluster with its replicas.
pub struct Cluster {
    /// Its id, also in its spokes' certificate.
    pub id: String,
    /// The harness's own client.
    pub client: Client,
    /// What is seen of it.
    pub observer: Observer,
    /// Its kubeconfig's file.
    pub kubeconfig: PathBuf,
    /// By which its spokes reach it.
    spokes_kubeconfig: PathBuf,
    machines: Vec<Machine>,
    exporters: Exporters,
    backend: Backend,
    _kubelet: Kubelet,
    dir: PathBuf,
    replicas: BTreeMap<String, Replica>,
}

/// One spoke replica.
pub struct Replica {
    /// The running program.
    pub process: Process,
    /// Where it takes webhooks.
    pub http: String,
}

/// How a cluster's spokes are started.
#[derive(Clone, Debug)]
pub struct SpokeSettings {
    /// `https://host:port` of the hub's link.
    pub hub: String,
    /// Folder of this cluster's identity.
    pub identity: PathBuf,
    /// The webhook's token, in a file.
    pub token_file: PathBuf,
    /// Lease duration, renew deadline, retry.
    pub lease: [&'static str; 3],
    /// The spoke's program.
    pub program: PathBuf,
    /// The fail point at which it dies, if it is the crash tests' program.
    pub dies_at: Option<&'static str>,
    /// Each replica is a user of its own to a simulated API server, which records who asked what.
    pub own_user: bool,
}

impl Cluster {
    /// Starts the API server, makes the nodes, their exporters and the namespaces, and installs the CRD.
    pub async fn start(id: &str, kind: Kind, dir: &Path, seed: u64, machines: Vec<Machine>) -> Result<Self> {
        let dir = dir.join(id);
        std::fs::create_dir_all(&dir)?;
        let (backend, kubeconfig_text) = match kind {
            Kind::Sim => {
                let controllers = Controllers { kubelet: false, ..Controllers::ALL };
                let sim =
                    KubeSim::start(kubesim::Config { name: id.to_owned(), controllers, ..kubesim::Config::default() }).await?;
                let text = sim.kubeconfig_yaml();
                (Backend::Sim(sim), text)
            }
            Kind::Real => {
                let at = dir.join("control-plane");
                let plane = tokio::task::spawn_blocking(move || ControlPlane::start(&at)).await??;
                let text = plane.kubeconfig_yaml();
                (Backend::Real(Box::new(plane)), text)
            }
        };
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, &kubeconfig_text)?;
        let client = testkube::connect::connect(&kubeconfig_text, "gpuheal-harness").await?;
        let kubelet_client = match &backend {
            Backend::Sim(_) => testkube::connect::connect(&kubeconfig_text, "stand-in-kubelet").await?,
            Backend::Real(plane) => plane.kubelet_client().await,
        };
        let specs = machines.iter().map(node_spec).collect();
        let kubelet = Kubelet::start(kubelet_client, specs).await?;
        let observer = Observer::start(&client);
        let mut cluster = Self {
            id: id.to_owned(),
            client,
            observer,
            spokes_kubeconfig: kubeconfig.clone(),
            kubeconfig,
            machines,
            exporters: Exporters::default(),
            backend,
            _kubelet: kubelet,
            dir,
            replicas: BTreeMap::new(),
        };
        install(&cluster.client).await?;
        cluster.start_exporters(seed).await?;
        Ok(cluster)
    }

    async fn start_exporters(&mut self, seed: u64) -> Result<()> {
        for machine in self.machines.clone() {
            if machine.gpus > 0 {
                let address = self.exporters.add(seed, &machine.name, machine.model, machine.gpus).await?;
                self.create(workload::exporter(&machine.name, address.port())).await?;
            }
        }
        Ok(())
    }

    /// Creates any object; its place comes from its kind.
    pub async fn create(&self, object: Value) -> Result<DynamicObject> {
        create(&self.client, object).await
    }

    /// Starts the two replicas.
    pub async fn start_spokes(&mut self, settings: &SpokeSettings) -> Result<()> {
        for replica in ["a", "b"] {
            self.start_replica(replica, settings).await?;
        }
        Ok(())
    }

    /// Starts one replica, anew if it ran before: its journal is where it was.
    pub async fn start_replica(&mut self, replica: &str, settings: &SpokeSettings) -> Result<()> {
        let name = self.launch_replica(replica, settings)?;
        let started = self.replicas.get_mut(&name).context("it was just started")?;
        let ready = started.process.ready().await?;
        ready["http"].as_str().context("the spoke's ready file names its http address")?.clone_into(&mut started.http);
        Ok(())
    }

    /// The same without waiting until it is ready: its address is not known yet. Gives its name.
    pub fn launch_replica(&mut self, replica: &str, settings: &SpokeSettings) -> Result<String> {
        let name = format!("{}-{replica}", self.id);
        let kubeconfig = if settings.own_user { self.kubeconfig_of(&name)? } else { self.spokes_kubeconfig.clone() };
        let path = |path: &Path| path.display().to_string();
        let [duration, deadline, retry] = settings.lease;
        let args: Vec<String> = [
            "run",
            "--hub",
            &settings.hub,
            "--identity",
            &path(&settings.identity),
            "--kubeconfig",
            &path(&kubeconfig),
            "--replica-id",
            &name,
            "--namespace",
            NAMESPACE,
            "--journal",
            &path(&self.dir.join(format!("journal-{replica}"))),
            "--listen-http",
            "127.0.0.1:0",
            "--webhook-token-file",
            &path(&settings.token_file),
            "--lease-duration",
            duration,
            "--lease-renew-deadline",
            deadline,
            "--lease-retry",
            retry,
        ]
        .map(str::to_owned)
        .to_vec();
        let process = Process::start_dying(&self.dir, &format!("spoke-{replica}"), &settings.program, &args, settings.dies_at)?;
        self.replicas.insert(name.clone(), Replica { process, http: String::new() });
        Ok(name)
    }

    /// A kubeconfig under which a simulated API server knows this replica by its name.
    fn kubeconfig_of(&self, name: &str) -> Result<PathBuf> {
        let sim = self.sim().context("only a simulated API server takes a user by name")?;
        let token = format!("token-of-{name}");
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        sim.add_token(&token, kubesim::User { name: name.to_owned(), groups });
        let file = self.dir.join(format!("kubeconfig-{name}"));
        std::fs::write(&file, sim.kubeconfig_for_token(&token))?;
        Ok(file)
    }

    /// The simulated API server, if this cluster has one.
    #[must_use]
    pub fn sim(&self) -> Option<&KubeSim> {
        match &self.backend {
            Backend::Sim(sim) => Some(sim),
            Backend::Real(_) => None,
        }
    }

    /// The replica that holds the Lease, as its name.
    pub async fn leader(&self) -> Result<String> {
        wait::until(&format!("a leader in {}", self.id), WITHIN, || async {
            let lease = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE).get(LEASE).await?;
            let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            Ok(self.replicas.keys().find(|name| holder.starts_with(name.as_str())).cloned())
        })
        .await
    }

    /// The running replicas by name.
    pub fn replicas(&mut self) -> &mut BTreeMap<String, Replica> {
        &mut self.replicas
    }

    /// The addresses where the replicas take webhooks, by name.
    #[must_use]
    pub fn webhooks(&self) -> Vec<String> {
        self.replicas.values().map(|replica| replica.http.clone()).collect()
    }

    /// A node's exporter.
    #[must_use]
    pub fn exporter(&self, node: &str) -> std::sync::Arc<Exporter> {
        self.exporters.of(node)
    }

    /// Names of the GPU nodes, in the order in which they were made.
    #[must_use]
    pub fn gpu_nodes(&self) -> Vec<String> {
        self.machines.iter().filter(|machine| machine.gpus > 0).map(|machine| machine.name.clone()).collect()
    }

    /// A node as it is.
    pub async fn node(&self, name: &str) -> Result<Node> {
        Api::<Node>::all(self.client.clone()).get(name).await.with_context(|| format!("reading node {name}"))
    }

    /// The pods bound to a node.
    pub async fn pods_on(&self, node: &str) -> Result<Vec<Pod>> {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(Api::<Pod>::all(self.client.clone()).list(&params).await?.items)
    }

    /// Has a pod look as if it had run since long: what is said of one that has just begun may be of another of its name.
    pub async fn ran_since(&self, namespace: &str, pod: &str, start: &str) -> Result<()> {
        let patch = json!({"status": {"startTime": start}});
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Sets a node's allocatable GPUs, as the device plugin does through the kubelet.
    pub async fn set_allocatable(&self, node: &str, gpus: u32) -> Result<()> {
        let patch = json!({"status": {"allocatable": {"nvidia.com/gpu": gpus.to_string()}}});
        Api::<Node>::all(self.client.clone()).patch_status(node, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Cordons or uncordons, as a person with kubectl.
    pub async fn set_cordon(&self, node: &str, cordoned: bool) -> Result<()> {
        let patch = json!({"spec": {"unschedulable": cordoned}});
        let params = PatchParams { field_manager: Some("kubectl-cordon".into()), ..PatchParams::default() };
        Api::<Node>::all(self.client.clone()).patch(node, &params, &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Scales a StatefulSet.
    pub async fn scale_stateful_set(&self, name: &str, replicas: u32) -> Result<()> {
        let patch = json!({"spec": {"replicas": replicas}});
        let api = Api::<StatefulSet>::namespaced(self.client.clone(), workload::JOBS);
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Writes the cluster owner's ConfigMap.
    pub async fn set_config(&self, yaml: &str) -> Result<()> {
        let api = Api::<ConfigMap>::namespaced(self.client.clone(), NAMESPACE);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE}, "data": {CONFIG_KEY: yaml}});
        api.patch(CONFIG_MAP, &PatchParams::apply("cluster-owner").force(), &Patch::Apply(map)).await?;
        Ok(())
    }

    /// Waits until an app has this many ready pods, none of them ending.
    pub async fn app_ready(&self, app: &str, count: usize) -> Result<Vec<Pod>> {
        let api = Api::<Pod>::namespaced(self.client.clone(), workload::JOBS);
        let params = ListParams::default().labels(&format!("app={app}"));
        wait::until(&format!("{count} ready pods of {app}"), WITHIN, || async {
            let pods: Vec<Pod> = api.list(&params).await?.items.into_iter().filter(ready).collect();
            Ok((pods.len() == count).then_some(pods))
        })
        .await
    }

    /// How many pods of an app are ready now.
    pub async fn ready_count(&self, app: &str) -> Result<usize> {
        let params = ListParams::default().labels(&format!("app={app}"));
        let pods = Api::<Pod>::namespaced(self.client.clone(), workload::JOBS).list(&params).await?;
        Ok(pods.items.iter().filter(|pod| ready(pod)).count())
    }

    /// Every request that the API server has answered, in order, in one shape for both kinds of server.
    pub async fn requests(&self) -> Vec<AuditEntry> {
        match &self.backend {
            Backend::Sim(sim) => crate::record::of_sim(sim),
            Backend::Real(plane) => {
                plane.mark().await;
                plane.audit()
            }
        }
    }

    /// Is the API server Kubernetes' own?
    #[must_use]
    pub fn real(&self) -> bool {
        matches!(self.backend, Backend::Real(_))
    }
}

/// What a spoke finds in any cluster that it is installed in: namespaces, CRD, Lease and fence.
pub(crate) async fn install(client: &Client) -> Result<()> {
    let allowed = json!({"gpu-selfhealing.io/stateful-eviction": "allowed"});
    for (name, labels) in [(NAMESPACE, json!({})), (workload::JOBS, allowed), (workload::OPERATOR, json!({}))] {
        create(client, workload::namespace(name, &labels)).await?;
    }
    let crd: Value = serde_saphyr::from_str(include_str!("../../deploy/spoke/crd.yaml")).context("deploy/spoke/crd.yaml")?;
    create(client, crd).await?;
    let place = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    create(client, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": place(LEASE), "spec": {}})).await?;
    create(client, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": place(FENCE), "data": {}})).await?;
    wait::until("the HealAction resource to be served", WITHIN, || async {
        let resource = heal_action_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &resource);
        Ok(api.list(&ListParams::default().limit(1)).await.ok())
    })
    .await
    .map(|_| ())
}

async fn create(client: &Client, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.clone().context("an object has a kind")?;
    let resource = resource_of(&types.api_version, &types.kind);
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object.metadata.name.clone().unwrap_or_default();
    api.create(&PostParams::default(), &object).await.with_context(|| format!("creating {} {name}", types.kind))
}

/// Is this pod running, ready and not about to end?
#[must_use]
pub fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    pod.metadata.deletion_timestamp.is_none() && conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn node_spec(machine: &Machine) -> NodeSpec {
    let spec = NodeSpec::new(machine.name.clone(), machine.gpus);
    if machine.gpus == 0 {
        return spec;
    }
    spec.label("nvidia.com/gpu.product", machine.model.replace(' ', "-")).label("topology.kubernetes.io/zone", "z1")
}

/// The HealAction resource.
#[must_use]
pub fn heal_action_resource() -> ApiResource {
    resource_of("gpu-selfhealing.io/v1", "HealAction")
}

fn resource_of(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = match kind {
        "HealAction" => "healactions".to_owned(),
        other => match other.to_lowercase() {
            policy if policy.ends_with('y') => format!("{}ies", policy.trim_end_matches('y')),
            other => format!("{other}s"),
        },
    };
    ApiResource { group: group.into(), version: version.into(), api_version: api_version.into(), kind: kind.into(), plural }
}
