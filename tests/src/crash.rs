//! The crash points of docs/link.md's failure table, each played with the real programs: a GPU breaks, a hub, the leading spoke,
//! or one spoke after the other dies at a point with a name, as by kill -9, and is started again as it ships. What broke must
//! then be healed, once: evictions are compared with pods by UID. Who dies is a build with the feature `fail-points`; everybody
//! else is what ships.

mod points;
mod restarting;

use std::{
    collections::BTreeSet,
    os::unix::process::ExitStatusExt as _,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

pub use self::points::{CRASHES, Cause, Crash, Who};
use crate::{
    alert::{self, Alert},
    chaos::effects,
    cluster::{Kind, Machine, SpokeSettings},
    facts,
    fleet::{ClusterPlan, Fleet, Plan, taken_over},
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
/// The point that only a drain of some seconds comes to: its record is written two seconds after it began.
const PROGRESS: &str = "execute.progress-written";
/// Pods of whom nobody may go, and what the script's policy says of a drain and what it says where a budget may be passed.
const APP: &str = "train";
const DRAINS: &str = "deadline: 600s";
const DRAINS_PAST_BUDGETS: &str = "deadline: 60s\n      onDeadline: bypass-pdb\n      allowPdbBypass: true";
/// Grace in seconds of a pod that takes so long to end, and how long that is in milliseconds.
const SLOW_POD: (u32, u32) = (8, 5_000);
/// What a program that aborts ends with.
const SIGABRT: i32 = 6;

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
        policy: policy(crash),
        clusters: vec![ClusterPlan { id: CLUSTER, kind: Kind::Sim, machines: (0..count).map(machine).collect() }],
        lease: PATIENT_LEASE,
    };
    let mut fleet = Fleet::without_spokes(plan, Some(database_url), |_| {}).await?;
    match played(&mut fleet, crash, dying).await {
        Ok(()) => Ok(began.elapsed()),
        Err(error) => Err(fleet.place.left_for(error, &format!("row {}, {}, {:?}", crash.row, crash.point, crash.who))),
    }
}

fn policy(crash: &Crash) -> String {
    if crash.cause == Cause::PastBudget { POLICY.replace(DRAINS, DRAINS_PAST_BUDGETS) } else { POLICY.to_owned() }
}

async fn played(fleet: &mut Fleet, crash: &Crash, dying: &Dying) -> Result<()> {
    start_with_one_who_dies(fleet, crash, dying).await?;
    let broken = nodes_to_break(fleet, crash).await?;
    let pods: Vec<String> = gpu_pods(fleet, &broken).await?;
    happen(fleet, crash, &broken).await?;
    if crash.cause == Cause::Back {
        healed_once(fleet, crash, &broken[0], &pods).await?;
        repaired_and_released(fleet, &broken[0]).await?;
    }
    die(fleet, crash).await?;
    if crash.cause == Cause::Many {
        show(fleet, &broken).await?;
    }
    for node in &broken {
        match crash.cause {
            Cause::Back => released_once(fleet, node).await?,
            Cause::Restart => restarting::restarted_once(fleet, node).await?,
            Cause::Xid | Cause::Many | Cause::Person | Cause::PastBudget => healed_once(fleet, crash, node, &pods).await?,
        }
    }
    let writes = fleet.cluster(CLUSTER)?.sim().context("the cluster is simulated")?.recorder().writes();
    let twice = effects::evicted_twice(&writes);
    ensure!(twice.is_empty(), "{twice:?}");
    let (evicted, deleted) = (effects::evicted_uids(&writes), effects::deleted_uids(&writes));
    let meant: BTreeSet<&str> = pods.iter().map(String::as_str).collect();
    let nobody = BTreeSet::new();
    let (evictions, deletes) = match crash.cause {
        Cause::Xid | Cause::Back => (Some(&meant), &nobody),
        // Where several break, pods move from one of them to the next.
        Cause::Many | Cause::Person => (None, &nobody),
        Cause::PastBudget => (Some(&nobody), &meant),
        Cause::Restart => (Some(&nobody), &nobody),
    };
    ensure!(evictions.is_none_or(|meant| evicted == *meant), "{evicted:?} were evicted instead of {evictions:?}");
    let once: BTreeSet<&str> = deleted.iter().copied().collect();
    ensure!(once.len() == deleted.len(), "some were deleted twice: {deleted:?}");
    ensure!(once == *deletes, "{once:?} were deleted instead of {deletes:?}");
    invariants_hold(fleet).await
}

/// Waits until whoever is to die has, and starts it again as it ships.
async fn die(fleet: &mut Fleet, crash: &Crash) -> Result<()> {
    if let Who::Heir { after } = crash.who {
        died(replica(fleet, "a")?, after).await?;
    }
    died(dying_process(fleet, crash)?, crash.point).await?;
    let again: &[&str] = match crash.who {
        Who::Hub => return fleet.start_hub_again().await,
        Who::Leader => &["a"],
        Who::Heir { .. } => &["a", "b"],
    };
    let (cluster, settings) = fleet.cluster_mut(CLUSTER)?;
    for replica in again {
        cluster.start_replica(replica, &settings).await?;
    }
    Ok(())
}

/// A hub, a leader and a standby with some work to move; one of the first two is to die.
async fn start_with_one_who_dies(fleet: &mut Fleet, crash: &Crash, dying: &Dying) -> Result<()> {
    if crash.who == Who::Hub {
        fleet.kill_hub()?;
        fleet.start_hub_as(&dying.hub, Some(crash.point)).await?;
    }
    let (cluster, settings) = fleet.cluster_mut(CLUSTER)?;
    let pods = cluster.gpu_nodes().len() * 2;
    let (grace_s, exit_after_ms) = if crash.point == PROGRESS { SLOW_POD } else { (2, 200) };
    let shape = Shape { replicas: u32::try_from(pods)?, gpus: 1, grace_s, exit_after_ms };
    cluster.create(workload::deployment(APP, shape)).await?;
    cluster.app_ready(APP, pods).await?;
    if crash.cause == Cause::PastBudget {
        cluster.create(workload::budget(APP, u32::try_from(pods)?)).await?;
    }
    if crash.cause == Cause::Restart {
        restarting::with_a_second_workload(cluster).await?;
    }
    let mut each = [settings.clone(), settings];
    let [a, b] = &mut each;
    let dies = |spoke: &mut SpokeSettings, point| (spoke.program, spoke.dies_at) = (dying.spoke.clone(), Some(point));
    match crash.who {
        Who::Hub => {}
        Who::Leader => dies(a, crash.point),
        Who::Heir { after } => {
            dies(a, after);
            dies(b, crash.point);
        }
    }
    cluster.start_replica("a", &each[0]).await?;
    let leads = cluster.leader().await?;
    cluster.start_replica("b", &each[1]).await?;
    let cluster = fleet.cluster(CLUSTER)?;
    taken_over(&fleet.pool, cluster).await?;
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
        Cause::Xid | Cause::Back => show(fleet, broken).await,
        Cause::Many => {
            let gpu = |node| fleet.cluster(CLUSTER).map(|cluster| cluster.exporter(node).gpus()[0].clone());
            let alerts = broken.iter().map(|node| Ok(Alert::xid(node, &gpu(node)?, 79, "2026-11-29T08:00:00.221Z".to_owned())));
            let alerts: Vec<Alert> = alerts.collect::<Result<_>>()?;
            let status = fleet.post_alert(&webhook, &alert::group(&alerts)).await?;
            ensure!(status == 200, "the webhook was answered {status}");
            Ok(())
        }
        Cause::PastBudget => {
            let body = json!({"node": broken[0], "action": "evict", "reason": "heard a fan", "past_budgets": true});
            asked_for(fleet, &webhook, body).await
        }
        Cause::Restart => {
            let workloads = restarting::workloads();
            let body =
                json!({"node": broken[0], "action": "restart", "reason": "its driver handle is stale", "workloads": workloads});
            asked_for(fleet, &webhook, body).await
        }
        Cause::Person => {
            let body = json!({"node": broken[0], "action": "mark", "reason": "heard a fan", "idempotency_key": "by-hand"});
            // The hub that decides may die before its answer is back; one that came is a yes.
            if let Ok((status, answer)) = fleet.post_process(&webhook, true, &body).await {
                ensure!(matches!(status, 200 | 202 | 503 | 504), "the request was answered {status}: {answer}");
            }
            Ok(())
        }
    }
}

/// A person's request is taken.
async fn asked_for(fleet: &Fleet, webhook: &str, body: Value) -> Result<()> {
    let attempts = AtomicU32::new(0);
    wait::until("a person's request to be taken", WITHIN, || async {
        // Each is a request of its own: what was refused stays refused.
        let mut body = body.clone();
        body["idempotency_key"] = json!(format!("by-hand-{}", attempts.fetch_add(1, Ordering::Relaxed)));
        let (code, _) = fleet.post_process(webhook, true, &body).await?;
        Ok((code == 202).then_some(()))
    })
    .await
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

fn replica<'a>(fleet: &'a mut Fleet, letter: &str) -> Result<&'a mut Process> {
    let (cluster, _) = fleet.cluster_mut(CLUSTER)?;
    let replica = cluster.replicas().get_mut(&format!("{CLUSTER}-{letter}")).context("the replica was started")?;
    Ok(&mut replica.process)
}

fn dying_process<'a>(fleet: &'a mut Fleet, crash: &Crash) -> Result<&'a mut Process> {
    match crash.who {
        Who::Hub => Ok(&mut fleet.hub),
        Who::Leader => replica(fleet, "a"),
        Who::Heir { .. } => replica(fleet, "b"),
    }
}

/// It died, and there: otherwise nothing was shown.
async fn died(process: &mut Process, point: &str) -> Result<()> {
    let since = Instant::now();
    let end = loop {
        match process.end() {
            Some(end) => break end,
            None if since.elapsed() > WITHIN => bail!("nobody came to {point} within {WITHIN:?}\n{}", process.log_tail()),
            None => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let last = process.log_tail();
    ensure!(end.signal() == Some(SIGABRT), "it ended with {end} instead\n{last}");
    ensure!(last.lines().any(|line| line == format!("dies at {point}")), "it died of something else\n{last}");
    Ok(())
}

/// A person has the GPU changed, and says so.
async fn repaired_and_released(fleet: &Fleet, node: &str) -> Result<()> {
    let cluster = fleet.cluster(CLUSTER)?;
    cluster.exporter(node).change(|gpus| gpus[0].xid = 0);
    cluster.set_allocatable(node, GPUS).await?;
    let (code, _, errors) = fleet.ctl(&["release", node, "--cluster", CLUSTER, "--reason", "GPU changed"])?;
    ensure!(code == 0, "gpuhealctl release {node} ended with {code}: {errors}");
    Ok(())
}

/// The node is free again, by one write more than its mark's.
async fn released_once(fleet: &Fleet, node: &str) -> Result<()> {
    wait::until(&format!("the release of {node} to succeed"), WITHIN, || async {
        let commands = facts::commands(&fleet.pool, CLUSTER, node).await?;
        let done = commands.iter().any(|command| command.action == "release" && command.state == "SUCCEEDED");
        let cluster = fleet.cluster(CLUSTER)?;
        let free = !cluster.observer.marked_now(node)
            && cluster.node(node).await?.spec.is_none_or(|spec| spec.unschedulable != Some(true));
        Ok((done && free).then_some(()))
    })
    .await?;
    let requests = fleet.cluster(CLUSTER)?.requests().await;
    let writes = record::node_writes(&requests, node).iter().filter(|write| write.code == 200).count();
    ensure!(writes == 2, "{node} was written {writes} times instead of twice");
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
            let meant = usize::from(crash.cause != Cause::PastBudget);
            ensure!(granted == meant, "{} was evicted {granted} times instead of {meant}", pod.name);
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
