//! How a reign ends in the middle of a drain, with the real programs: a leader that stands still for longer than its Lease
//! (SIGSTOP, as a paused machine would), and one that is told to end while an eviction of its own is on the way. Each replica
//! is a user of its own to the simulated API server, whose record says who did what, in which order.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gpuheal_proto::kubernetes::NAMESPACE;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams},
};
use kubesim::{Fault, KubeSim, Record, Then, When};

use crate::{
    chaos::effects,
    cluster::{Cluster, Kind, Machine, heal_action_resource},
    facts,
    fleet::{ClusterPlan, Fleet, Plan, taken_over},
    script::{PATIENT_LEASE, POLICY, WITHIN},
    wait, workload,
};

const CLUSTER: &str = "alpha";
/// GPUs of each node.
const GPUS: u32 = 4;
/// Nodes, of which the policy lets 60 % be out: one.
const NODES: usize = 3;
/// The one pod on the node, and its budget.
const POD: &str = "job";
/// How long it takes to end.
const EXIT: Duration = Duration::from_millis(200);
/// How long the API server sits on an eviction: half of what a spoke waits for an answer, and far more than giving up a Lease takes.
const ON_THE_WAY_MS: u64 = 1_000;

/// After so many refusals the next eviction is asked for 4 to 8 s later.
const REFUSED: u64 = 3;

/// A node whose one GPU pod is to be drained.
struct Field {
    fleet: Fleet,
    node: String,
    leader: String,
    heir: String,
}

impl Field {
    /// Both replicas run and the pod does; nothing is broken yet.
    async fn start(database_url: String) -> Result<Self> {
        let machine = |n| Machine { name: format!("{CLUSTER}-{n:02}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
        let machines = (0..NODES).map(machine).collect();
        let plan = Plan {
            seed: 1,
            policy: POLICY.to_owned(),
            clusters: vec![ClusterPlan { id: CLUSTER, kind: Kind::Sim, machines }],
            lease: PATIENT_LEASE,
        };
        let mut fleet = Fleet::without_spokes(plan, Some(database_url), |_| {}).await?;
        let (cluster, mut settings) = fleet.cluster_mut(CLUSTER)?;
        settings.own_user = true;
        let node = cluster.gpu_nodes()[0].clone();
        cluster.create(workload::gpu_pod(POD, &node, EXIT)).await?;
        cluster.app_ready(POD, 1).await?;
        cluster.start_spokes(&settings).await?;
        let leader = cluster.leader().await?;
        let heir = cluster.replicas().keys().find(|name| **name != leader).cloned().context("there are two replicas")?;
        taken_over(&fleet.pool, fleet.cluster(CLUSTER)?).await?;
        Ok(Self { fleet, node, leader, heir })
    }

    fn cluster(&self) -> Result<&Cluster> {
        self.fleet.cluster(CLUSTER)
    }

    fn sim(&self) -> Result<&KubeSim> {
        self.cluster()?.sim().context("the cluster is simulated")
    }

    /// Its Xid and one GPU less to allocate.
    async fn break_gpu(&self) -> Result<()> {
        let cluster = self.cluster()?;
        cluster.exporter(&self.node).change(|gpus| gpus[0].xid = 79);
        cluster.set_allocatable(&self.node, GPUS - 1).await
    }

    /// Evictions that a replica has asked for, by the answer's code.
    fn evictions(&self, by: &str, code: u16) -> Result<usize> {
        let records = self.sim()?.recorder().requests();
        Ok(records.iter().filter(|record| record.subresource == "eviction" && record.user == by && record.code == code).count())
    }

    /// How often the drain's record says that an eviction was asked for.
    async fn calls_on_record(&self) -> Result<u64> {
        let cluster = self.cluster()?;
        let api = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), NAMESPACE, &heal_action_resource());
        let actions = api.list(&ListParams::default()).await?.items;
        let steps = actions.iter().flat_map(|action| action.data["status"]["steps"].as_array().into_iter().flatten());
        let pods = steps.flat_map(|step| step["pods"].as_array().into_iter().flatten());
        Ok(pods.filter_map(|pod| pod["evictionCalls"].as_u64()).sum())
    }

    /// Waits until a replica has ended by itself; gives its exit code and the end of its log.
    async fn ended(&mut self, name: &str) -> Result<(Option<i32>, String)> {
        let since = Instant::now();
        let (cluster, _) = self.fleet.cluster_mut(CLUSTER)?;
        let process = &mut cluster.replicas().get_mut(name).context("a replica of ours")?.process;
        while since.elapsed() < WITHIN {
            if let Some(end) = process.end() {
                return Ok((end.code(), process.log_tail()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{name} goes on without a Lease\n{}", process.log_tail())
    }

    /// Waits until the other replica holds the Lease.
    async fn heir_leads(&self) -> Result<()> {
        wait::until("the other replica to lead", WITHIN, || async {
            Ok((self.cluster()?.leader().await? == self.heir).then_some(()))
        })
        .await
    }

    /// Waits until the drain is over and says that it went well: then the pod was evicted once, and each effect was its leader's.
    async fn drained_once(&self) -> Result<()> {
        wait::until("the drain to succeed", WITHIN, || async {
            let commands = facts::commands(&self.fleet.pool, CLUSTER, &self.node).await?;
            Ok(commands.iter().any(|command| command.action == "evict" && command.state == "SUCCEEDED").then_some(()))
        })
        .await?;
        let records = self.sim()?.recorder().writes();
        ensure!(effects::evictions(&records) == 1, "{} evictions were granted instead of one", effects::evictions(&records));
        let without = effects::without_the_lease(&records, &[], &[self.leader.clone(), self.heir.clone()]);
        ensure!(without.is_empty(), "{without:?}");
        Ok(())
    }

    async fn end(mut self, played: Result<()>, doing: &str) -> Result<()> {
        match played {
            Ok(()) => self.fleet.stop(),
            Err(error) => Err(self.fleet.place.left_for(error, doing)),
        }
    }
}

/// A leader whose eviction waits for a budget is stopped until another leads, and goes on.
///
/// # Errors
/// When it does anything then, or does not end.
pub async fn stands_still(database_url: String) -> Result<()> {
    let mut field = Field::start(database_url).await?;
    let played = stood_still(&mut field).await;
    field.end(played, "a leader that stood still").await
}

async fn stood_still(field: &mut Field) -> Result<()> {
    let (leader, heir) = (field.leader.clone(), field.heir.clone());
    field.cluster()?.create(workload::budget(POD, 1)).await?;
    field.break_gpu().await?;
    // Written down: at that moment nothing but the next eviction is due, and that only in seconds.
    wait::until("the leader's evictions to be refused", WITHIN, || async {
        Ok((field.calls_on_record().await? >= REFUSED).then_some(()))
    })
    .await?;
    signal(field, &leader, |process| process.pause())?;
    field.heir_leads().await?;
    // Meanwhile the eviction that it was to ask for again has become due, too.
    wait::until("the heir's eviction to be refused", WITHIN, || async { Ok((field.evictions(&heir, 429)? > 0).then_some(())) })
        .await?;
    let mark = field.sim()?.recorder().mark();
    signal(field, &leader, |process| process.resume())?;
    let (code, log) = field.ended(&leader).await?;
    ensure!(code == Some(1) && log.contains("leadership cannot be held"), "it ended with {code:?}\n{log}");
    let since = field.sim()?.recorder().requests_since(mark);
    let wrote = |record: &&Record| record.user == leader && record.is_write();
    let tried: Vec<String> =
        since.iter().filter(wrote).map(|r| format!("{} {} {} {}", r.verb, r.target(), r.name, r.code)).collect();
    // Renewals and progress, of versions that are gone. Nothing else is even tried.
    let refused = |one: &String| {
        let of = |what: &str| one.starts_with(&format!("update {what} ")) && one.ends_with(" 409");
        of("leases") || of("healactions/status")
    };
    ensure!(tried.iter().all(refused), "{leader} wrote once it went on: {tried:?}");

    let budgets = Api::<PodDisruptionBudget>::namespaced(field.cluster()?.client.clone(), workload::JOBS);
    budgets.delete(POD, &DeleteParams::default()).await?;
    field.drained_once().await?;
    ensure!(field.evictions(&heir, 201)? == 1, "the heir did not evict the pod");
    Ok(())
}

/// A leader is told to end while the API server sits on an eviction of its.
///
/// # Errors
/// When it gave the Lease back before that eviction was answered for.
pub async fn told_to_end(database_url: String) -> Result<()> {
    let mut field = Field::start(database_url).await?;
    let played = ends_as_told(&mut field).await;
    field.end(played, "a leader that was told to end").await
}

async fn ends_as_told(field: &mut Field) -> Result<()> {
    let leader = field.leader.clone();
    let faults = field.sim()?.faults().clone();
    faults.add(Fault::once(When::verb("create", "pods/eviction").by(&leader), Then::Delay { ms: ON_THE_WAY_MS }));
    field.break_gpu().await?;
    // A rule for one request is gone once that has come.
    wait::until("the leader's eviction to be on the way", WITHIN, || async { Ok(faults.all().is_empty().then_some(())) }).await?;
    signal(field, &leader, |process| process.terminate())?;
    let told = field.sim()?.recorder().mark();
    let (code, log) = field.ended(&leader).await?;
    ensure!(code == Some(0), "it ended with {code:?}\n{log}");
    let since = field.sim()?.recorder().requests_since(told);
    let by_it: Vec<&Record> = since.iter().filter(|record| record.user == leader && record.is_write()).collect();
    let at = |resource: &str, subresource: &str| {
        by_it.iter().rposition(|record| record.resource == resource && record.subresource == subresource)
    };
    let evicted = at("pods", "eviction").context("the eviction was answered before it was told to end: nothing was shown")?;
    let released = by_it.iter().rposition(|record| {
        let holder = record.body.as_ref().and_then(|body| body.pointer("/spec/holderIdentity")?.as_str());
        record.resource == "leases" && record.code == 200 && holder == Some("")
    });
    let released = released.with_context(|| format!("it did not give its Lease back\n{log}"))?;
    ensure!(evicted < released, "the Lease was given back while an eviction was under way");
    ensure!(released + 1 == by_it.len(), "something was written after the Lease had been given back");
    field.heir_leads().await?;
    field.drained_once().await
}

fn signal(field: &mut Field, name: &str, send: impl Fn(&crate::process::Process) -> Result<()>) -> Result<()> {
    let (cluster, _) = field.fleet.cluster_mut(CLUSTER)?;
    send(&cluster.replicas().get(name).context("a replica of ours")?.process)
}
