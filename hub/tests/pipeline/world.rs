//! A hub without listeners: its stages over a database of their own, a cluster that says what the test wants, and short
//! ways to ask the database.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuheal_hub::{
    decide::{self, ManualRequest},
    ingest::Ingest,
    policy_file,
    sign::{Key, Signer},
    store::{policy::policy_apply, pool, term::hub_term},
    wake::Wake,
};
use gpuheal_proto::{
    fault::{Fault, FaultClass, GpuRef, NodeRef, Onset, Witness},
    ids::{ClusterId, GpuSlot, NodeName, NodeUid},
    link::v1,
    time::Timestamp,
    words::Action,
};
use sqlx::{AssertSqlSafe, PgPool, postgres::PgPoolOptions};
use tokio_util::sync::CancellationToken;

/// Everything on, and no rate in the way of a test about something else.
pub(crate) const HEAL: &str = "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nmetadata:\n  name: test\nspec:\n  mode: heal\n  budgets:\n    fleet: {percent: 100}\n    cluster: {percent: 100}\n  breaker: {percent: 100, nodesMin: 1000}\n  rates:\n    fleet: {nodesPerSecond: 1000}\n    cluster: {nodesPerSecond: 1000}\n";

/// Longer than anything here takes on the slowest machine.
const PATIENCE_MS: &str = "120000";

pub(crate) struct World {
    pub(crate) pool: PgPool,
    pub(crate) wake: Arc<Wake>,
    pub(crate) ingest: Ingest,
    state_seq: AtomicU64,
    _stop: tokio_util::sync::DropGuard,
}

impl World {
    pub(crate) async fn new() -> Self {
        // As a hub connects, but for its timeouts: they are for a sick database, and a slow machine under ten hubs at once
        // must not be taken for one.
        let patient = [
            ("statement_timeout", PATIENCE_MS),
            ("lock_timeout", PATIENCE_MS),
            ("idle_in_transaction_session_timeout", PATIENCE_MS),
        ];
        let options = pool::options(&testpg::database().await).unwrap().options(patient);
        let pool = PgPoolOptions::new().max_connections(24).acquire_timeout(Duration::from_secs(120));
        Self::over(pool.connect_with(options).await.unwrap())
    }

    /// Another hub over the same database.
    pub(crate) fn over(pool: PgPool) -> Self {
        let (wake, stop) = (Wake::new(), CancellationToken::new());
        let (ingest, _committer) = Ingest::start(pool.clone(), wake.clone(), stop.clone());
        Self { pool, wake, ingest, state_seq: AtomicU64::new(1), _stop: stop.drop_guard() }
    }

    /// With a policy that heals and a cluster of `nodes` GPU nodes.
    pub(crate) async fn healing(nodes: u32) -> Self {
        let world = Self::new().await;
        world.policy(HEAL).await;
        world.snapshot(&cluster("c1"), (0..nodes).map(node).collect()).await;
        world
    }

    pub(crate) async fn policy(&self, yaml: &str) -> u64 {
        let policy = policy_file::check(yaml).unwrap();
        policy_apply(&self.pool, yaml, &policy.digest, "test", "").await.unwrap().revision
    }

    pub(crate) async fn now(&self) -> Timestamp {
        gpuheal_hub::store::moment::now(&mut self.pool.acquire().await.unwrap()).await.unwrap()
    }

    pub(crate) async fn snapshot(&self, cluster: &ClusterId, nodes: Vec<v1::NodeState>) {
        self.shown(cluster, true, nodes).await;
    }

    /// A snapshot, whose leader says whether all else was told too.
    pub(crate) async fn shown(&self, cluster: &ClusterId, all_told: bool, nodes: Vec<v1::NodeState>) {
        let part = v1::SnapshotPart { part: 1, parts: 1, nodes, config: None, sources: vec![] };
        self.say(cluster, all_told, v1::cluster_state::Body::Snapshot(part)).await;
    }

    /// A word in which nothing changed.
    pub(crate) async fn nothing_new(&self, cluster: &ClusterId, all_told: bool) {
        self.say(cluster, all_told, v1::cluster_state::Body::Delta(v1::StateDelta::default())).await;
    }

    /// The same, and that all that was asked for under this epoch was told.
    pub(crate) async fn told_under(&self, cluster: &ClusterId, term: u64) {
        self.say_under(cluster, term, v1::cluster_state::Body::Delta(v1::StateDelta::default())).await;
    }

    pub(crate) async fn state(&self, cluster: &ClusterId, body: v1::cluster_state::Body) {
        self.say(cluster, true, body).await;
    }

    async fn say(&self, cluster: &ClusterId, all_told: bool, body: v1::cluster_state::Body) {
        let term = hub_term(&mut self.pool.acquire().await.unwrap()).await.unwrap();
        self.say_under(cluster, if all_told { term } else { 0 }, body).await;
    }

    async fn say_under(&self, cluster: &ClusterId, all_told_term: u64, body: v1::cluster_state::Body) {
        let as_of_unix_ms = self.now().await.unix_ms();
        let seq = self.state_seq.fetch_add(1, Ordering::Relaxed);
        let state = v1::ClusterState {
            lease_transitions: 1,
            seq,
            as_of_unix_ms,
            told_upto_unix_ms: as_of_unix_ms,
            all_told_term,
            body: Some(body),
        };
        self.ingest.state(cluster.clone(), state).await.unwrap();
    }

    /// Sends faults as one batch at the end of a stream of their own.
    pub(crate) async fn faults(&self, cluster: &ClusterId, faults: &[Fault]) -> v1::FaultAck {
        let stream = format!("s-{}", uuid::Uuid::new_v4());
        self.ingest.submit(cluster.clone(), batch(&stream, 1, faults)).await.unwrap()
    }

    /// Judges until nothing is due; returns how many judgements that were.
    pub(crate) async fn decide(&self) -> usize {
        let mut judged = 0;
        loop {
            match decide::step(&self.pool, &self.wake).await.unwrap() {
                0 => return judged,
                more => judged += more,
            }
        }
    }

    /// Does what sign and deliver do, without a key.
    pub(crate) async fn dispatch(&self) {
        self.run(
            "UPDATE commands SET state = 'DISPATCHED', envelope = 'x', envelope_sha256 = encode(sha256(command_id::text::bytea), 'hex'), key_id = 'k', \
             key_epoch = 1, signed_at = clock_timestamp(), sent_at = clock_timestamp() WHERE state = 'PROPOSED'",
        )
        .await;
    }

    pub(crate) async fn run(&self, statement: &str) -> u64 {
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&self.pool).await.unwrap().rows_affected()
    }

    pub(crate) async fn count(&self, what: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {what}"))).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn text(&self, what: &str) -> String {
        let row: Option<Option<String>> =
            sqlx::query_scalar(AssertSqlSafe(format!("SELECT ({what})::text"))).fetch_optional(&self.pool).await.unwrap();
        row.flatten().unwrap_or_default()
    }

    pub(crate) async fn lines(&self, query: &str) -> Vec<String> {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_all(&self.pool).await.unwrap()
    }
}

pub(crate) fn cluster(id: &str) -> ClusterId {
    ClusterId::parse(id).unwrap()
}

/// A signer with a key of its own.
pub(crate) fn signer() -> Signer {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    gpuheal_ctl::pki::init(&gpuheal_ctl::pki::Request::new(&pki, vec![cluster("c1")], gpuheal_hub::clock::now())).unwrap();
    Signer::new(Key::read(&pki.join("signing/command.key")).unwrap(), 1)
}

/// A healthy node of two GPUs, a day old.
pub(crate) fn node(n: u32) -> v1::NodeState {
    let gpu =
        |bus: u32| v1::GpuRef { slot: format!("0000:{bus:02x}:00"), uuid: format!("GPU-{n}-{bus}"), model: "NVIDIA H100".into() };
    v1::NodeState {
        name: format!("n{n}"),
        uid: format!("uid-{n}"),
        boot_id: "boot-1".into(),
        created_unix_ms: 1_700_000_000_000,
        gpus: vec![gpu(0x5d), gpu(0x5e)],
        capacity_gpus: 2,
        allocatable_gpus: 2,
        ready: v1::Readiness::Ready.into(),
        ..Default::default()
    }
}

/// The same node with our mark on it.
pub(crate) fn marked(n: u32, incident: &str, plan_revision: u64) -> v1::NodeState {
    let mark = v1::Mark {
        labelled: true,
        tainted: true,
        cordoned_by_us: false,
        incident_id: incident.to_owned(),
        last_process_unix_ms: 0,
    };
    v1::NodeState { mark: Some(mark), plan_revision, ..node(n) }
}

/// Xid 79 of node `n` by a decoded kernel line: stands alone, P0.
pub(crate) fn xid79(cluster: &ClusterId, n: u32) -> Fault {
    fault(cluster, n, FaultClass::Xid, "79", Onset::Edge, Witness::KernelLine)
}

pub(crate) fn fault(cluster: &ClusterId, n: u32, class: FaultClass, code: &str, onset: Onset, witness: Witness) -> Fault {
    let node = NodeRef {
        name: NodeName::parse(&format!("n{n}")).unwrap(),
        uid: NodeUid::parse(&format!("uid-{n}")).unwrap(),
        boot_id: "boot-1".into(),
    };
    let gpu = GpuRef { slot: GpuSlot::normalise("0000:5d:00"), uuid: None, model: "NVIDIA H100".into() };
    let mut fault = Fault {
        key: gpuheal_proto::ids::FaultKey::derive(cluster, &node.uid, None, "", ""),
        node,
        gpu: Some(gpu),
        class,
        code: code.into(),
        onset,
        witness,
        observed_at: Timestamp::from_unix_ms(1_764_000_000_000),
        value: 0.0,
        threshold: 0.0,
        count: 1,
        source: "test".into(),
        detail: String::new(),
        workload: String::new(),
    };
    fault.key = fault.derived_key(cluster);
    fault
}

pub(crate) fn batch(stream: &str, first_seq: u64, faults: &[Fault]) -> v1::FaultBatch {
    v1::FaultBatch { stream_id: stream.into(), first_seq, faults: faults.iter().map(Into::into).collect() }
}

pub(crate) fn request(id: &str, n: u32, action: Action) -> ManualRequest {
    ManualRequest {
        cluster: cluster("c1"),
        request_id: id.into(),
        node: format!("n{n}"),
        action,
        reason: "test".into(),
        caller: "user/tester".into(),
        override_cooldown: false,
        workloads: vec![],
        past_budgets: false,
    }
}
