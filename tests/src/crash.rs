//! The crash points of docs/link.md's failure table, each played once with the real programs: a GPU breaks, a hub or the
//! leading spoke dies at a point with a name, as by kill -9, and is started again as it ships. What broke must then be
//! healed, once. Who dies is a build with the feature `fail-points`; everybody else is what ships.

use std::{
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::{
    alert::{self, Alert},
    cluster::{Kind, Machine},
    facts,
    fleet::{ClusterPlan, Fleet, Plan, inventory_known},
    invariants::{self, COUNTED, Left},
    process::{Process, binary},
    record,
    script::{PATIENT_LEASE, POLICY, WITHIN},
    wait,
    workload::{self, Shape},
};

const CLUSTER: &str = "alpha";
/// GPUs of each node: half of a node's work fits beside that of another one.
const GPUS: u32 = 4;
/// Nodes, of which the policy lets 60 % be out: one, where one breaks.
const NODES: usize = 3;
/// Where several break at once, so many do: one more than a hub judges in the transaction that takes their faults, so that
/// its workers have to.
const AT_ONCE: usize = 5;
/// So that five are within 60 %.
const NODES_FOR_MANY: usize = 9;
/// What a program that aborts ends with.
const SIGABRT: i32 = 6;

/// Who dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The only hub.
    Hub,
    /// The spoke that leads.
    Leader,
}

/// What happens first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One GPU falls off the bus: Xid 79, and a GPU less to allocate.
    Xid,
    /// The same on several nodes, of which a single webhook tells before anybody has seen it.
    Many,
    /// A person asks for a mark.
    Person,
}

/// One crash.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// Of the failure table.
    pub row: &'static str,
    /// Its fail point.
    pub point: &'static str,
    /// Whose.
    pub who: Who,
    /// After what.
    pub cause: Cause,
}

const fn hub(row: &'static str, point: &'static str, cause: Cause) -> Crash {
    Crash { row, point, who: Who::Hub, cause }
}

const fn leader(row: &'static str, point: &'static str) -> Crash {
    Crash { row, point, who: Who::Leader, cause: Cause::Xid }
}

/// Every fail point of hub and spoke.
pub const CRASHES: [Crash; 25] = [
    leader("1", "journal.before-write"),
    leader("1", "journal.before-sync"),
    leader("2", "journal.synced"),
    leader("2", "send.before"),
    hub("3", "ingest.received", Cause::Xid),
    hub("3", "ingest.before-commit", Cause::Xid),
    hub("4", "ingest.committed", Cause::Xid),
    leader("4", "send.acked"),
    hub("5", "decide.claimed", Cause::Many),
    hub("6", "decide.before-commit", Cause::Many),
    hub("7", "sign.before", Cause::Person),
    hub("7", "sign.before-commit", Cause::Person),
    hub("8", "deliver.put", Cause::Xid),
    hub("8", "deliver.before-note", Cause::Xid),
    leader("10", "verify.received"),
    leader("10", "execute.before-intent"),
    leader("11", "execute.intent-written"),
    leader("11", "execute.before-patch"),
    leader("12", "execute.node-patched"),
    leader("12", "execute.evicted"),
    leader("14", "execute.before-outcome"),
    leader("15", "execute.outcome-written"),
    leader("15", "report.acked"),
    hub("15", "settle.before-commit", Cause::Xid),
    hub("15", "settle.committed", Cause::Xid),
];

/// The programs that can die.
#[derive(Clone, Debug)]
pub struct Dying {
    /// The hub's.
    pub hub: PathBuf,
    /// The spoke's.
    pub spoke: PathBuf,
}

impl Dying {
    /// Where `make test` has put them.
    pub fn built() -> Result<Self> {
        let find = |name| binary(name).context("the crash tests' own programs are built by `make test`, see the Makefile");
        Ok(Self { hub: find("gpuheal-hub-dying")?, spoke: find("gpuheal-spoke-dying")? })
    }
}

/// Plays one crash, on a migrated database of its own; gives how long it took.
pub async fn play(crash: &Crash, dying: &Dying, database_url: String) -> Result<Duration> {
    let began = Instant::now();
    let count = if crash.cause == Cause::Many { NODES_FOR_MANY } else { NODES };
    let machine = |n| Machine { name: format!("{CLUSTER}-{n:02}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
    let plan = Plan {
        seed: 1,
        policy: POLICY.to_owned(),
        clusters: vec![ClusterPlan { id: CLUSTER, kind: Kind::Sim, machines: (0..count).map(machine).collect() }],
        lease: PATIENT_LEASE,
    };
    let mut fleet = Fleet::without_spokes(plan, Some(database_url), |_| {}).await?;
    match played(&mut fleet, crash, dying).await {
        Ok(()) => Ok(began.elapsed()),
        Err(error) => Err(fleet.place.left_for(error, &format!("row {}, {}", crash.row, crash.point))),
    }
}

async fn played(fleet: &mut Fleet, crash: &Crash, dying: &Dying) -> Result<()> {
    start_with_one_who_dies(fleet, crash, dying).await?;
    let broken = nodes_to_break(fleet, crash).await?;
    let pods: Vec<String> = gpu_pods(fleet, &broken).await?;
    happen(fleet, crash, &broken).await?;
    died(fleet, crash).await?;
    match crash.who {
        Who::Hub => fleet.start_hub_again().await?,
        Who::Leader => {
            let (cluster, settings) = fleet.cluster_mut(CLUSTER)?;
            cluster.start_replica("a", &settings).await?;
        }
    }
    if crash.cause == Cause::Many {
        show(fleet, &broken).await?;
    }
    for node in &broken {
        healed_once(fleet, crash, node, &pods).await?;
    }
    invariants_hold(fleet).await
}

/// A hub, a leader and a standby with some work to move; one of the first two is to die.
async fn start_with_one_who_dies(fleet: &mut Fleet, crash: &Crash, dying: &Dying) -> Result<()> {
    if crash.who == Who::Hub {
        fleet.kill_hub()?;
        fleet.start_hub_as(&dying.hub, Some(crash.point)).await?;
    }
    let (cluster, settings) = fleet.cluster_mut(CLUSTER)?;
    let pods = cluster.gpu_nodes().len() * 2;
    let shape = Shape { replicas: u32::try_from(pods)?, gpus: 1, grace_s: 2, exit_after_ms: 200 };
    cluster.create(workload::deployment("train", shape)).await?;
    cluster.app_ready("train", pods).await?;
    let mut first = settings.clone();
    if crash.who == Who::Leader {
        (first.program, first.dies_at) = (dying.spoke.clone(), Some(crash.point));
    }
    cluster.start_replica("a", &first).await?;
    let leads = cluster.leader().await?;
    cluster.start_replica("b", &settings).await?;
    let cluster = fleet.cluster(CLUSTER)?;
    inventory_known(&fleet.pool, cluster).await?;
    // A scrape of every node, so that what breaks has a predecessor.
    for node in cluster.gpu_nodes() {
        let exporter = cluster.exporter(&node);
        let version = exporter.change(|_| {});
        wait::until("a scrape of a healthy node", WITHIN, || async { Ok(exporter.visible_at(version)) }).await?;
    }
    ensure!(leads == format!("{CLUSTER}-a"), "{leads} leads");
    ensure!(
        dying_process(fleet, crash)?.end().is_none(),
        "it died before anything happened\n{}",
        dying_process(fleet, crash)?.log_tail()
    );
    Ok(())
}

/// Nodes with work on them.
async fn nodes_to_break(fleet: &Fleet, crash: &Crash) -> Result<Vec<String>> {
    let cluster = fleet.cluster(CLUSTER)?;
    let wanted = if crash.cause == Cause::Many { AT_ONCE } else { 1 };
    let mut busiest = vec![];
    for node in cluster.gpu_nodes() {
        busiest.push((gpu_pods(fleet, std::slice::from_ref(&node)).await?.len(), node));
    }
    busiest.sort_by(|a, b| b.cmp(a));
    ensure!(busiest[0].0 > 0, "no node has work: {busiest:?}");
    Ok(busiest.into_iter().take(wanted).map(|(_, node)| node).collect())
}

/// UIDs of the pods of ours on these nodes.
async fn gpu_pods(fleet: &Fleet, nodes: &[String]) -> Result<Vec<String>> {
    let mut uids = vec![];
    for node in nodes {
        let pods = fleet.cluster(CLUSTER)?.pods_on(node).await?;
        uids.extend(
            pods.into_iter()
                .filter(|pod| pod.metadata.namespace.as_deref() == Some(workload::JOBS))
                .filter_map(|pod| pod.metadata.uid),
        );
    }
    Ok(uids)
}

async fn happen(fleet: &Fleet, crash: &Crash, broken: &[String]) -> Result<()> {
    let webhook = fleet.cluster(CLUSTER)?.webhooks()[0].clone();
    match crash.cause {
        Cause::Xid => show(fleet, broken).await,
        Cause::Many => {
            let gpu = |node| fleet.cluster(CLUSTER).map(|cluster| cluster.exporter(node).gpus()[0].clone());
            let alerts = broken.iter().map(|node| Ok(Alert::xid(node, &gpu(node)?, 79, "2026-11-29T08:00:00.221Z".to_owned())));
            let alerts: Vec<Alert> = alerts.collect::<Result<_>>()?;
            let status = fleet.post_alert(&webhook, &alert::group(&alerts)).await?;
            ensure!(status == 200, "the webhook was answered {status}");
            Ok(())
        }
        Cause::Person => {
            let body = json!({"node": broken[0], "action": "mark", "reason": "heard a fan", "idempotency_key": "by-hand"});
            // The hub that decides may die before its answer is back.
            let _answer = fleet.post_process(&webhook, true, &body).await;
            Ok(())
        }
    }
}

/// GPU 0 of these nodes falls off the bus.
async fn show(fleet: &Fleet, broken: &[String]) -> Result<()> {
    let cluster = fleet.cluster(CLUSTER)?;
    for node in broken {
        cluster.exporter(node).change(|gpus| gpus[0].xid = 79);
        cluster.set_allocatable(node, GPUS - 1).await?;
    }
    Ok(())
}

fn dying_process<'a>(fleet: &'a mut Fleet, crash: &Crash) -> Result<&'a mut Process> {
    match crash.who {
        Who::Hub => Ok(&mut fleet.hub),
        Who::Leader => {
            let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
            let replica = cluster.replicas().get_mut(&format!("{CLUSTER}-a")).context("the first replica was started")?;
            Ok(&mut replica.process)
        }
    }
}

/// It died, and there: otherwise nothing was shown.
async fn died(fleet: &mut Fleet, crash: &Crash) -> Result<()> {
    let since = Instant::now();
    let process = dying_process(fleet, crash)?;
    let end = loop {
        match process.end() {
            Some(end) => break end,
            None if since.elapsed() > WITHIN => bail!("nobody came to this point within {WITHIN:?}\n{}", process.log_tail()),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let last = process.log_tail();
    ensure!(end.signal() == Some(SIGABRT), "it ended with {end} instead\n{last}");
    ensure!(last.lines().any(|line| line == format!("dies at {}", crash.point)), "it died of something else\n{last}");
    Ok(())
}

/// One incident, one command that does anything, once, and the pods that were there have left, each evicted once.
async fn healed_once(fleet: &Fleet, crash: &Crash, node: &str, pods: &[String]) -> Result<()> {
    let action = if crash.cause == Cause::Person { "mark" } else { "evict" };
    let done = wait::until(&format!("the {action} of {node} to succeed"), WITHIN, || async {
        let commands = facts::commands(&fleet.pool, CLUSTER, node).await?;
        Ok(commands.iter().any(|command| command.action == action && command.state == "SUCCEEDED").then_some(()))
    })
    .await;
    let commands = facts::commands(&fleet.pool, CLUSTER, node).await?;
    let incidents = facts::incidents(&fleet.pool, CLUSTER, node).await?;
    let faults = facts::faults(&fleet.pool, CLUSTER, node).await?;
    done.with_context(|| format!("{commands:#?}, {incidents:#?}, {faults:#?}"))?;
    let acting = commands.iter().filter(|command| command.action != "notify").count();
    ensure!(acting == 1, "{node} got {acting} commands that act instead of one: {commands:#?}");
    ensure!(incidents.len() == 1, "{node} has {} incidents instead of one: {incidents:#?}", incidents.len());
    let cluster = fleet.cluster(CLUSTER)?;
    wait::until(&format!("our taint on {node} to be seen"), WITHIN, || async {
        Ok((cluster.observer.times_tainted(node) > 0).then_some(()))
    })
    .await?;
    let times = cluster.observer.times_tainted(node);
    ensure!(times == 1, "{node} was tainted {times} times");
    let requests = cluster.requests().await;
    let writes = record::node_writes(&requests, node).iter().filter(|write| write.code == 200).count();
    ensure!(writes == 1, "{node} was written {writes} times instead of once");
    if action == "evict" {
        for (uid, pod) in cluster.observer.pods_of(node).into_iter().filter(|(uid, _)| pods.contains(uid)) {
            ensure!(pod.ending_at.or(pod.gone_at).is_some(), "{} ({uid}) is still on {node}", pod.name);
            let granted = record::evictions(&requests, &pod.name).iter().filter(|eviction| eviction.code == 201).count();
            ensure!(granted == 1, "{} was evicted {granted} times instead of once", pod.name);
        }
    }
    Ok(())
}

/// Every invariant that a run shows in which somebody was killed, and took what it had counted with it.
async fn invariants_hold(fleet: &Fleet) -> Result<()> {
    let ctl = |args: &[&str]| fleet.ctl(args);
    let left = Left { pool: &fleet.pool, clusters: &fleet.clusters, ctl: &ctl };
    wait::until("every invariant to hold", WITHIN, || async {
        for check in invariants::all(&left).await.into_iter().filter(|check| check.name != COUNTED) {
            check.held.with_context(|| format!("invariant {}, {}", check.number, check.name))?;
        }
        Ok(Some(()))
    })
    .await
}
