//! A hub with everything but spokes, and the program run as people run it.

use std::{
    path::PathBuf,
    process::{Command, Output},
    time::{Duration, Instant},
};

use clap::Parser as _;
use gpuheal_ctl::pki;
use gpuheal_hub::{app, args::Args, clock, ingest::Ingest, store::pool, wake::Wake};
use gpuheal_proto::{
    ids::{ClusterId, FaultKey, GpuPlace, GpuSlot, NodeUid},
    link::v1,
};
use tokio_util::sync::CancellationToken;

/// Longer than a hub takes to start on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// As long as names of hosts are.
pub(crate) const NODE: &str = "gpu-node-with-a-name-as-long-as-they-come.rack-17.row-4.example";

/// What a terminal must not see raw: a mark of direction, an escape of one byte, a zero width space.
pub(crate) const STEERING: [char; 3] = ['\u{202e}', '\u{9b}', '\u{200b}'];

/// Heals, and no share of a small fleet is in the way.
pub(crate) const HEAL: &str = "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata: {name: test}\nspec:\n  mode: heal\n  \
    budgets:\n    fleet: {percent: 100}\n    cluster: {percent: 100}\n  breaker: {percent: 100, nodesMin: 1000}\n";

pub(crate) struct Running {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) hub: String,
    database: String,
}

impl Running {
    pub(crate) async fn start() -> Self {
        let (dir, database) = (tempfile::tempdir().unwrap(), testpg::database().await);
        pki::init(&pki::Request::new(&dir.path().join("pki"), vec![alpha()], clock::now())).unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (identity, key, ready) = (path("pki/hub"), path("pki/signing/command.key"), path("ready.json"));
        let any = "127.0.0.1:0";
        let args = Args::try_parse_from([
            "gpuheal-hub",
            "serve",
            "--database-url",
            &database,
            "--database-connections",
            "4",
            "--identity",
            &identity,
            "--signing-key",
            &key,
            "--listen-link",
            any,
            "--listen-fleet",
            any,
            "--listen-http",
            any,
            "--ready-file",
            &ready,
        ]);
        // On a runtime of its own, as the process that it is elsewhere; it goes with the test's process.
        std::thread::spawn(move || tokio::runtime::Runtime::new().unwrap().block_on(app::run(args.unwrap())));
        let began = Instant::now();
        let told = loop {
            match std::fs::read_to_string(&ready) {
                Ok(told) if told.ends_with('}') || told.ends_with("}\n") => break told,
                _ => assert!(began.elapsed() < PATIENCE, "no hub within three minutes"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let hub = format!("https://{}", told["fleet"].as_str().unwrap());
        Self { dir, hub, database }
    }

    /// Cluster alpha shows a node, which then has an Xid 79 by a decoded kernel line.
    pub(crate) async fn fault(&self) {
        self.shown(vec![xid79()]).await;
    }

    /// Cluster alpha shows a node that has nothing.
    pub(crate) async fn healthy(&self) {
        self.shown(vec![]).await;
    }

    async fn shown(&self, faults: Vec<v1::Fault>) {
        let (pool, wake, stop) = (pool::connect(&self.database, 4).await.unwrap(), Wake::new(), CancellationToken::new());
        let (ingest, _committer) = Ingest::start(pool, wake, stop.clone());
        let part = v1::SnapshotPart { part: 1, parts: 1, nodes: vec![node()], config: None, sources: vec![source()] };
        let as_of_unix_ms = clock::now().unix_ms();
        let body = Some(v1::cluster_state::Body::Snapshot(part));
        let state = v1::ClusterState {
            lease_transitions: 1,
            seq: 1,
            as_of_unix_ms,
            told_upto_unix_ms: as_of_unix_ms,
            all_told_term: 1,
            body,
        };
        ingest.state(alpha(), state).await.unwrap();
        let batch = v1::FaultBatch { stream_id: "stream-1".into(), first_seq: 1, faults };
        if !batch.faults.is_empty() {
            ingest.submit(alpha(), batch).await.unwrap();
        }
        stop.cancel();
    }

    /// A statement past the hub, as what it knows from elsewhere.
    pub(crate) async fn known(&self, statement: &'static str) {
        sqlx::query(statement).execute(&pool::connect(&self.database, 1).await.unwrap()).await.unwrap();
    }

    pub(crate) fn identity(&self) -> PathBuf {
        self.dir.path().join("pki/users/admin")
    }

    /// The program with these arguments, as admin.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program(args);
        command.env("GPUHEAL_HUB", &self.hub).env("GPUHEAL_IDENTITY", self.identity()).env("GPUHEAL_TIMEOUT_S", "120");
        command
    }

    /// What it answers; the hub goes on meanwhile.
    pub(crate) async fn run(&self, args: &[&str]) -> Answer {
        run(self.command(args)).await
    }

    /// Its answer as JSON; it must succeed.
    pub(crate) async fn json(&self, args: &[&str]) -> serde_json::Value {
        let answer = self.run(&[args, &["-o", "json"]].concat()).await;
        assert_eq!(answer.code, 0, "{args:?}: {answer:?}");
        serde_json::from_str(&answer.out).unwrap_or_else(|error| panic!("{args:?}: {error}: {}", answer.out))
    }

    /// Waits until a list has an item that `is`.
    pub(crate) async fn until(&self, args: &[&str], is: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let began = Instant::now();
        loop {
            let list = self.json(args).await;
            if let Some(found) = list["items"].as_array().unwrap().iter().find(|item| is(item)) {
                return found.clone();
            }
            assert!(began.elapsed() < PATIENCE, "{args:?} never showed it: {list}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuhealctl"));
    command.args(args).env_remove("GPUHEAL_HUB").env_remove("GPUHEAL_IDENTITY");
    command
}

pub(crate) async fn run(mut command: Command) -> Answer {
    let Output { status, stdout, stderr } = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    Answer { code: status.code().unwrap(), out: String::from_utf8(stdout).unwrap(), err: String::from_utf8(stderr).unwrap() }
}

fn alpha() -> ClusterId {
    ClusterId::parse("alpha").unwrap()
}

fn node() -> v1::NodeState {
    v1::NodeState {
        name: NODE.into(),
        uid: "uid-1".into(),
        boot_id: "boot".into(),
        created_unix_ms: 1_700_000_000_000,
        gpus: vec![gpu()],
        capacity_gpus: 1,
        allocatable_gpus: 1,
        ready: v1::Readiness::Ready.into(),
        ..Default::default()
    }
}

fn source() -> v1::SourceState {
    v1::SourceState {
        source: "exporter 10.0.3.7:9400".into(),
        node: NODE.into(),
        last_seen_unix_ms: 1_700_000_000_000,
        state: "broken".into(),
        reason: format!("connection refused{}", String::from_iter(STEERING)),
    }
}

fn gpu() -> v1::GpuRef {
    v1::GpuRef { slot: "0000:5d:00".into(), uuid: "GPU-1".into(), model: "NVIDIA H100 80GB HBM3".into() }
}

fn xid79() -> v1::Fault {
    let slot = GpuSlot::normalise("0000:5d:00").map(GpuPlace::Slot);
    v1::Fault {
        fault_key: FaultKey::derive(&alpha(), &NodeUid::parse("uid-1").unwrap(), slot.as_ref(), "xid", "79").to_string(),
        node: Some(v1::NodeRef { name: node().name, uid: "uid-1".into(), boot_id: "boot".into() }),
        gpu: Some(gpu()),
        class: v1::FaultClass::Xid.into(),
        code: "79".into(),
        onset: v1::Onset::Edge.into(),
        witness: v1::Witness::KernelLine.into(),
        count: 1,
        source: format!("test{}", String::from_iter(STEERING)),
        ..Default::default()
    }
}
