//! One replica of a spoke: elector, watches and hand as they ship. The claim is its link and its detectors.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::{
    command::Command,
    ids::{ClusterId, CommandId, FaultKey, NodeUid, ReplicaId},
    kubernetes::LEASE,
    link::v1,
};
use gpuheal_spoke::{
    ceiling::{self, Flags},
    clock::{self, HubClock},
    elector::{self, Elector, ElectorHandle},
    execute::{Deps, Hand, dates},
    metrics::Metrics,
    ports::{Attachment, Down, FaultView, GpuUsers, LocalConfig, Seen, Standing},
    watch::{self as cluster, Heard, Nodes},
};
use gpuheal_spoke_core::drain::{Unknown, Users};
use testkube::settled;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

use crate::{
    hub::{mark, signed, trust},
    world::World,
};

/// How the claim's faults stand.
#[derive(Debug)]
pub(crate) struct Faults(pub(crate) Mutex<Standing>);

impl FaultView for Faults {
    fn standing(&self, _: &FaultKey) -> Standing {
        *self.0.lock().unwrap()
    }
}

/// What the claim's exporter says of who uses which GPU.
#[derive(Debug)]
pub(crate) struct Exporter(pub(crate) Mutex<Result<Users, Unknown>>);

impl GpuUsers for Exporter {
    fn users(&self, _: &NodeUid) -> Result<Users, Unknown> {
        self.0.lock().unwrap().clone()
    }
}

/// One replica.
pub(crate) struct Spoke {
    pub(crate) down: mpsc::Sender<Down>,
    up: mpsc::Receiver<v1::CommandStatus>,
    pub(crate) faults: Arc<Faults>,
    pub(crate) exporter: Arc<Exporter>,
    pub(crate) clock: Arc<HubClock>,
    /// The owner's ConfigMap as the shipped watch shows it to the hand.
    pub(crate) config: watch::Receiver<LocalConfig>,
    pub(crate) attachment: watch::Sender<Attachment>,
    pub(crate) elector: ElectorHandle,
    pub(crate) seen: watch::Receiver<Seen>,
    pub(crate) nodes: Nodes,
    pub(crate) heard: Arc<Heard>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _watches: JoinSet<()>,
}

/// As shipped, but that it looks more often: a claim waits for the first election.
pub(crate) fn election(w: &World, identity: &str) -> elector::Config {
    elector::Config {
        namespace: w.home.clone(),
        lease: LEASE.into(),
        identity: identity.into(),
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(10),
        retry: Duration::from_millis(500),
    }
}

impl Spoke {
    /// Starts one; whether it leads is the elector's to find out. The ConfigMap says so before, where that is anything.
    pub(crate) async fn start(w: &World, replica: &str, config: &str) -> Self {
        if !config.is_empty() {
            w.configure(config).await;
        }
        let clock = HubClock::new();
        clock.set(clock::wall(), Duration::from_millis(2));
        let client = dates::witnessed(w.client(replica).await, Arc::clone(&clock));
        let stop = CancellationToken::new();
        let metrics = Metrics::new();
        let settings = cluster::Config {
            namespace: w.home.clone(),
            exporter_selector: "app=nvidia-dcgm-exporter".into(),
            plugin_selectors: Vec::new(),
            gpu_resources: Default::default(),
            resync: Duration::from_secs(3600),
        };
        let (views, watches) = cluster::spawn(&client, &settings, vec![], &metrics, &stop);
        let config = ceiling::judged(views.config.clone(), &views.nodes);
        let config = tokio::time::timeout(settled::BOUND, config).await.unwrap();
        let (leadership, elector) = Elector::spawn(client.clone(), election(w, replica)).unwrap();
        let (down, down_rx) = mpsc::channel(64);
        let (up_tx, up) = mpsc::channel(1024);
        let (attachment, attachment_rx) = watch::channel(Attachment { generation: Some(1), hub_term: 1, ..Attachment::default() });
        let (seen_tx, seen) = watch::channel(Seen::default());
        let faults = Arc::new(Faults(Mutex::new(Standing::Present)));
        let exporter = Arc::new(Exporter(Mutex::new(Err(Unknown::NoPage))));
        let (nodes, heard) = (views.nodes.clone(), Arc::clone(&views.heard));
        let deps = Deps {
            client,
            namespace: w.home.clone(),
            replica: ReplicaId::parse(replica).unwrap(),
            cluster: ClusterId::parse("c1").unwrap(),
            trust: Arc::new(trust()),
            clock: Arc::clone(&clock),
            nodes: views.nodes,
            faults: faults.clone(),
            users: exporter.clone(),
            leadership,
            elector: elector.clone(),
            config: config.clone(),
            heard: Arc::clone(&heard),
            flags: Flags::default(),
            attachment: attachment_rx,
            seen: seen_tx,
            metrics,
        };
        let task = tokio::spawn(Hand::run(deps, down_rx, up_tx, stop.clone()));
        Self { down, up, faults, exporter, clock, config, attachment, elector, seen, nodes, heard, stop, task, _watches: watches }
    }

    /// Starts one and waits until it carries out commands.
    pub(crate) async fn leading(w: &World, replica: &str, config: &str) -> Self {
        let mut spoke = Self::start(w, replica, config).await;
        // Only who leads and has read fence and HealActions looks at the clock: its doubt is the sign, and leaves no trace.
        spoke.clock.set(clock::wall(), Duration::from_secs(61));
        let probe = w.command("n4", 1, vec![mark()]).await;
        let end = spoke.decided(&probe, v1::RefusalCode::ClockUncertain).await;
        assert_eq!(end.refusal(), v1::RefusalCode::ClockUncertain, "{}", end.reason);
        spoke.welcome();
        spoke
    }

    /// As the link does when the hub tells its time.
    pub(crate) fn welcome(&self) {
        self.clock.set(clock::wall(), Duration::from_millis(2));
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
        match tokio::time::timeout(settled::BOUND, wait).await {
            Ok(status) => status,
            Err(_) => panic!("not told within {:?}: {what}", settled::BOUND),
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

    /// Sends a command again and again, as a hub does, while it is not taken for another reason than `wanted`.
    pub(crate) async fn decided(&mut self, command: &Command, wanted: v1::RefusalCode) -> v1::CommandStatus {
        let until = tokio::time::Instant::now() + settled::BOUND;
        loop {
            let end = self.carry_out(command).await;
            if end.state() != v1::CommandState::NotNow || end.refusal() == wanted {
                return end;
            }
            assert!(tokio::time::Instant::now() < until, "not taken within {:?}: {}", settled::BOUND, end.reason);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The owner writes the ConfigMap. Returns once the watch has brought it here.
    pub(crate) async fn configured(&self, w: &World, yaml: &str) {
        w.configure(yaml).await;
        self.hears("what the owner wrote", |config| config.yaml == yaml && config.lost.is_none()).await;
    }

    /// Waits until the watch of the ConfigMap shows this.
    pub(crate) async fn hears(&self, what: &str, fits: impl Fn(&LocalConfig) -> bool) {
        let mut config = self.config.clone();
        let heard = tokio::time::timeout(settled::BOUND, config.wait_for(|config| fits(config))).await;
        assert!(heard.is_ok_and(|heard| heard.is_ok()), "not heard within {:?}: {what}", settled::BOUND);
    }

    pub(crate) async fn ack(&self, status: &v1::CommandStatus) {
        let ack =
            v1::StatusAck { command_id: status.command_id.clone(), status_seq: status.status_seq, undo_kept: true, hub_term: 1 };
        self.down.send(Down::StatusAck(ack)).await.unwrap();
    }

    /// Waits until its watch shows the node as it is.
    pub(crate) async fn sees(&self, w: &World, node: &str) {
        settled::is_true("the watch shows the node as it is", || async {
            let version = w.node(node).await["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            self.nodes.node(&w.name(node)).is_some_and(|node| version.as_deref() == Some(&*node.resource_version))
        })
        .await;
    }

    /// As a kill does it: nothing is finished, nothing released.
    pub(crate) fn kill(self) {
        self.task.abort();
    }
}

impl Drop for Spoke {
    fn drop(&mut self) {
        self.elector.abandon();
        self.stop.cancel();
    }
}
