//! A cluster, a spoke's hand in it, and a hub's signing key.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::Engine as _;
use bytes::Bytes;
use ed25519_dalek::{Signer as _, SigningKey};
use gpuheal_proto::{
    command::{Command, DeadlineOutcome, Drain, Step, Target, Times, Undo},
    envelope::{CANCEL_TYPE, COMMAND_TYPE, pae},
    fault::NodeRef,
    ids::{ClusterId, CommandId, FaultKey, IncidentId, NodeName, NodeUid, ReplicaId, uuid_v7},
    kubernetes::{LEASE, NAMESPACE},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke::{
    ceiling::Flags,
    clock::{self, HubClock},
    elector::{self, Elector, ElectorHandle},
    execute::{Deps, Hand},
    healaction::HealAction,
    metrics::Metrics,
    ports::{Attachment, Down, FaultView, LocalConfig, Seen, Standing},
    watch as cluster,
};
use gpuheal_spoke_core::verify::Trust;
use kube::{Api, Client, CustomResourceExt as _, config::Kubeconfig};
use kubesim::{Config, KubeSim, Record, build};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Longest that a test waits for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A simulated cluster with our CRD, our namespace and two GPU nodes.
pub(crate) struct Cluster {
    pub(crate) sim: KubeSim,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = KubeSim::start(Config::default()).await.unwrap();
        let create = |object: Value| drop(sim.store().create(object).unwrap());
        create(serde_json::to_value(HealAction::crd()).unwrap());
        for namespace in [NAMESPACE, "ml"] {
            create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        }
        for node in ["n1", "n2", "n3", "n4"] {
            create(build::gpu_node(node, 8, "NVIDIA-H100-80GB-HBM3"));
        }
        Self { sim }
    }

    pub(crate) async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::from_yaml(&self.sim.kubeconfig_yaml()).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        config.default_retry = false;
        Client::try_from(config).unwrap()
    }

    pub(crate) fn node(&self, name: &str) -> Value {
        self.sim.store().get("nodes", "", name).unwrap()
    }

    pub(crate) fn create(&self, object: Value) -> Value {
        self.sim.store().create(object).unwrap()
    }

    /// A GPU pod with an owner that would replace it.
    pub(crate) fn gpu_pod(&self, name: &str, node: &str, extra: Value) -> Value {
        let mut pod = build::gpu_pod("ml", name, node, 1, &[("app", "web")]);
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-web", "controller": true}]);
        json_patch::merge(&mut pod, &extra);
        let pod = self.create(pod);
        self.ready(name);
        pod
    }

    /// The kubelet's word that a pod runs.
    fn ready(&self, name: &str) {
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let _ = self.sim.store().patch_merge("pods", "ml", name, &status);
    }

    pub(crate) fn pod(&self, name: &str) -> Option<Value> {
        self.sim.store().get("pods", "ml", name)
    }

    pub(crate) fn action(&self, id: CommandId) -> Option<Value> {
        self.sim.store().get("healactions.gpu-selfhealing.io", NAMESPACE, &id.to_string())
    }

    /// Writes since `mark` that are not the elector's.
    pub(crate) fn writes_since(&self, mark: u64) -> Vec<Record> {
        self.requests_since(mark).into_iter().filter(Record::is_write).collect()
    }

    /// Requests since `mark`, watches and the elector's left out.
    pub(crate) fn requests_since(&self, mark: u64) -> Vec<Record> {
        let all = self.sim.recorder().requests_since(mark);
        all.into_iter().filter(|record| record.verb != "watch" && record.resource != "leases").collect()
    }

    pub(crate) fn evictions(&self) -> Vec<Record> {
        self.sim.recorder().writes_to("pods/eviction")
    }
}

/// How the test's faults stand.
#[derive(Debug)]
pub(crate) struct Faults(pub(crate) Mutex<Standing>);

impl FaultView for Faults {
    fn standing(&self, _: &FaultKey) -> Standing {
        *self.0.lock().unwrap()
    }
}

/// One replica's hand.
pub(crate) struct Spoke {
    pub(crate) down: mpsc::Sender<Down>,
    up: mpsc::Receiver<v1::CommandStatus>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) clock: Arc<HubClock>,
    pub(crate) config: watch::Sender<LocalConfig>,
    pub(crate) attachment: watch::Sender<Attachment>,
    pub(crate) elector: ElectorHandle,
    pub(crate) seen: watch::Receiver<Seen>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) fn election(identity: &str) -> elector::Config {
    elector::Config {
        namespace: NAMESPACE.into(),
        lease: LEASE.into(),
        identity: identity.into(),
        duration: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(3),
        retry: Duration::from_millis(300),
    }
}

impl Spoke {
    /// Starts one, and waits until it leads when `leads`.
    pub(crate) async fn start(cluster: &Cluster, replica: &str, config: &str) -> Self {
        let client = cluster.client().await;
        let stop = CancellationToken::new();
        let metrics = Metrics::new();
        let settings = cluster::Config {
            namespace: NAMESPACE.into(),
            exporter_selector: "app=nvidia-dcgm-exporter".into(),
            resync: Duration::from_secs(3600),
        };
        let views = cluster::spawn(&client, &settings, vec![], &metrics, &stop);
        tokio::time::timeout(PATIENCE, views.nodes.ready()).await.unwrap();
        let (leadership, elector) = Elector::spawn(client.clone(), election(replica)).unwrap();
        let (down, down_rx) = mpsc::channel(64);
        let (up_tx, up) = mpsc::channel(1024);
        let (config, config_rx) = watch::channel(LocalConfig { resource_version: "1".into(), yaml: config.into() });
        let (attachment, attachment_rx) = watch::channel(Attachment { generation: Some(1), hub_term: 1, report_again: 0 });
        let (seen_tx, seen) = watch::channel(Seen::default());
        let faults = Arc::new(Faults(Mutex::new(Standing::Present)));
        let clock = HubClock::new();
        clock.set(clock::wall(), Duration::from_millis(2));
        let deps = Deps {
            client: client.clone(),
            namespace: NAMESPACE.into(),
            replica: ReplicaId::parse(replica).unwrap(),
            cluster: ClusterId::parse("c1").unwrap(),
            trust: Arc::new(trust()),
            clock: Arc::clone(&clock),
            nodes: views.nodes,
            faults: faults.clone(),
            leadership,
            elector: elector.clone(),
            config: config_rx,
            flags: Flags::default(),
            attachment: attachment_rx,
            seen: seen_tx,
            metrics,
        };
        let task = tokio::spawn(Hand::run(deps, down_rx, up_tx, stop.clone()));
        Self { down, up, faults, clock, config, attachment, elector, seen, stop, task }
    }

    pub(crate) async fn leading(cluster: &Cluster, replica: &str, config: &str) -> Self {
        let mut spoke = Self::start(cluster, replica, config).await;
        // Only who leads and has read fence and HealActions looks at the clock: its doubt is the sign, and leaves no trace.
        spoke.clock.set(clock::wall(), Duration::from_secs(61));
        let probe = command(cluster, "n4", 1, vec![mark()]);
        let until = tokio::time::Instant::now() + PATIENCE;
        while spoke.carry_out(&probe).await.refusal() != v1::RefusalCode::ClockUncertain {
            assert!(tokio::time::Instant::now() < until, "not ready within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        spoke.clock.set(clock::wall(), Duration::from_millis(2));
        spoke
    }

    pub(crate) async fn send(&self, bytes: Vec<u8>) {
        self.down.send(Down::Command(Bytes::from(bytes))).await.unwrap();
    }

    /// The next status that fits.
    pub(crate) async fn told(&mut self, what: &str, fits: impl Fn(&v1::CommandStatus) -> bool) -> v1::CommandStatus {
        let wait = async {
            loop {
                let status = self.up.recv().await.expect("the hand lives");
                if fits(&status) {
                    return status;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(status) => status,
            Err(_) => panic!("not told within {PATIENCE:?}: {what}"),
        }
    }

    /// The final status of a command.
    pub(crate) async fn ended(&mut self, id: CommandId) -> v1::CommandStatus {
        let id = id.to_string();
        self.told("the end", |status| {
            status.command_id == id && !matches!(status.state(), v1::CommandState::Received | v1::CommandState::Started)
        })
        .await
    }

    /// Carries out a command and returns its final status.
    pub(crate) async fn carry_out(&mut self, command: &Command) -> v1::CommandStatus {
        self.send(signed(command)).await;
        self.ended(command.id).await
    }

    pub(crate) async fn ack(&self, status: &v1::CommandStatus) {
        let ack = v1::StatusAck { command_id: status.command_id.clone(), status_seq: status.status_seq, undo_kept: true };
        self.down.send(Down::StatusAck(ack)).await.unwrap();
    }

    /// As a kill does it: nothing is finished, nothing released.
    pub(crate) fn kill(self) {
        self.task.abort();
        self.elector.abandon();
        self.stop.cancel();
    }
}

impl Drop for Spoke {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < until, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

pub(crate) fn trust() -> Trust {
    let public = base64::engine::general_purpose::STANDARD.encode(key().verifying_key().to_bytes());
    let json =
        json!({"version": 1, "trust_domain": "t", "key_epoch": 1, "command_keys": [{"keyid": "k", "ed25519": public}], "ca": []});
    Trust::parse(json.to_string().as_bytes()).unwrap()
}

pub(crate) fn seal(key: &SigningKey, payload_type: &str, payload: Vec<u8>) -> Vec<u8> {
    let sig = key.sign(&pae(payload_type, &payload)).to_bytes().to_vec();
    v1::Envelope {
        payload: payload.into(),
        payload_type: payload_type.into(),
        signatures: vec![v1::EnvelopeSignature { keyid: String::new(), sig: sig.into() }],
    }
    .encode_to_vec()
}

pub(crate) fn signed(command: &Command) -> Vec<u8> {
    seal(&key(), COMMAND_TYPE, v1::CommandBody::from(command).encode_to_vec())
}

pub(crate) fn forged(command: &Command) -> Vec<u8> {
    seal(&SigningKey::from_bytes(&[8; 32]), COMMAND_TYPE, v1::CommandBody::from(command).encode_to_vec())
}

pub(crate) fn cancel(id: CommandId) -> Vec<u8> {
    let body = v1::CancelBody {
        command_id: id.to_string(),
        audience: "c1".into(),
        hub_term: 1,
        reason: "approval withdrawn".into(),
        created_unix_ms: clock::wall().unix_ms(),
    };
    seal(&key(), CANCEL_TYPE, body.encode_to_vec())
}

pub(crate) fn mark() -> Step {
    Step::Mark { label: true, taint: true, cordon: true }
}

pub(crate) fn drain() -> Step {
    Step::Drain(Drain {
        grace_max: Duration::from_secs(60),
        deadline: Duration::from_secs(1800),
        on_deadline: DeadlineOutcome::Stop,
        allow_pdb_bypass: false,
        include_stateful: true,
        resource_prefixes: vec![],
    })
}

pub(crate) fn release(undo: Option<v1::UndoRecord>) -> Step {
    Step::Release { undo: undo.map(|undo| Undo::try_from(undo).unwrap()).unwrap_or_default() }
}

/// A command for `node` as the hub would make it now.
pub(crate) fn command(cluster: &Cluster, node: &str, plan_rev: u64, steps: Vec<Step>) -> Command {
    let now = clock::wall();
    let after = |secs| now.after(Duration::from_secs(secs));
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).unwrap();
    let object = cluster.node(node);
    Command {
        id: CommandId::from_uuid(uuid_v7(now, &seed)),
        idempotency_key: "k".into(),
        audience: ClusterId::parse("c1").unwrap(),
        key_epoch: 1,
        hub_term: 1,
        cmd_seq: plan_rev,
        plan_rev,
        times: Times { created: now, deliver_by: after(60), start_by: after(300), finish_by: after(2700), expires: after(3000) },
        incident: IncidentId::from_uuid(uuid_v7(Timestamp::from_unix_ms(1), &[2; 32])),
        level: "P0".into(),
        reason: "xid 79 on GPU 0000:5d:00: the GPU has fallen off the bus".into(),
        policy_revision: 1,
        policy_digest: "d".into(),
        target: Target {
            node: NodeRef {
                name: NodeName::parse(node).unwrap(),
                uid: NodeUid::parse(object["metadata"]["uid"].as_str().unwrap()).unwrap(),
                boot_id: String::new(),
            },
            gpu: None,
        },
        fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).unwrap()],
        ignore_cooldown: false,
        steps,
    }
}

/// Marks of ours on a node.
pub(crate) fn marks(node: &Value) -> (bool, usize, bool) {
    let label = node["metadata"]["labels"]["gpu-selfhealing.io/status"] == "faulty";
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let taints = taints.filter(|taint| taint["key"] == "gpu-selfhealing.io/faulty").count();
    (label, taints, node["spec"]["unschedulable"] == true)
}

pub(crate) async fn existing(cluster: &Cluster, action: &HealAction) {
    let api: Api<HealAction> = Api::namespaced(cluster.client().await, NAMESPACE);
    api.create(&Default::default(), action).await.unwrap();
}
