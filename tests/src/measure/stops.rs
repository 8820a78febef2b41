//! Measuring the stop switches: drains are under way, each waiting for a pod that takes its time to end. How long until all of
//! them have ended of it? First the fleet's stop, through hub, database and signed cancellations; then the cluster's own, in its
//! ConfigMap, with the hub killed; at last a revoked identity, until its streams are cut.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use gpuheal_proto::{command::CommandState, kubernetes::NAMESPACE};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::json;

use super::{GPUS, break_gpu, quantile};
use crate::{
    cluster::{Kind, Machine, heal_action_resource},
    fleet::{ClusterPlan, Fleet, Plan},
    script::LEASE,
    wait, workload,
};

const CLUSTER: &str = "stops";
/// How long a pod takes to end: far longer than any stop, so that only a stop ends a drain.
const EXIT: Duration = Duration::from_secs(300);
/// How long anything may take before the run is called broken.
const WITHIN: Duration = Duration::from_secs(120);

/// What was seen, in milliseconds from each stop, sorted.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Figures {
    /// From the commit of the fleet's stop to the commit that says of a command that it was cancelled.
    pub fleet_ms: Vec<f64>,
    /// From the owner's write of the ConfigMap to a HealAction that was seen to have ended, with no hub running.
    pub cluster_ms: Vec<f64>,
    /// From the commit of a revocation until the hub had none of the cluster's sessions.
    pub revoked_ms: f64,
}

impl Figures {
    /// Each figure in words: what, target, measured.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 3]> {
        let of = |sorted: &[f64]| format!("{:.0} / {:.0} ms", quantile(sorted, 0.5), quantile(sorted, 1.0));
        vec![
            [format!("fleet stopped: {} drains called off, P50 / last", self.fleet_ms.len()), "1 s".into(), of(&self.fleet_ms)],
            [
                format!("cluster stopped by its ConfigMap, no hub: {} drains ended, P50 / last", self.cluster_ms.len()),
                "1 s".into(),
                of(&self.cluster_ms),
            ],
            ["identity revoked: both its sessions cut".into(), "1 s".into(), format!("{:.0} ms", self.revoked_ms)],
        ]
    }
}

/// Has `drains` drains under way at each of the two stops and measures.
///
/// # Errors
/// When anything of it breaks, and when a drain ended otherwise than by the stop.
pub async fn run(drains: usize, seed: u64, policy: &str, say: impl Fn(&str)) -> Result<Figures> {
    let machine = |n: usize| Machine { name: format!("n{n:04}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" };
    let plan = ClusterPlan { id: CLUSTER, kind: Kind::Sim, machines: (0..2 * drains).map(machine).collect() };
    let plan = Plan { seed, policy: policy.to_owned(), clusters: vec![plan], lease: LEASE };
    let mut fleet = Fleet::start(plan, &say).await?;
    match measured(&mut fleet, drains, &say).await {
        Ok(figures) => fleet.stop().map(|()| figures),
        Err(error) => Err(fleet.place.left_for(error, "measuring the stops")),
    }
}

async fn measured(fleet: &mut Fleet, drains: usize, say: &impl Fn(&str)) -> Result<Figures> {
    let names = fleet.cluster(CLUSTER)?.gpu_nodes();
    say(&format!("{drains} drains, and the fleet is stopped"));
    under_way(fleet, &names[..drains]).await?;
    called(fleet.ctl(&["stop", "--reason", "measuring"])?)?;
    let fleet_ms = called_off(fleet, drains).await?;
    called(fleet.ctl(&["resume", "--reason", "measured"])?)?;

    say(&format!("{drains} drains, the hub is killed, and the cluster is stopped"));
    under_way(fleet, &names[drains..]).await?;
    fleet.kill_hub()?;
    let cluster = fleet.cluster(CLUSTER)?;
    // Where the fleet was stopped before it may be drained again by now: those are others.
    let these = &names[drains..];
    let stopped = Instant::now();
    cluster.set_config("ceiling: {stop: true}").await?;
    let (mut seen, mut cluster_ms) = (BTreeSet::new(), vec![]);
    while cluster_ms.len() < drains {
        if stopped.elapsed() > EXIT {
            bail!("{} of {drains} drains had not ended {EXIT:?} after the cluster was stopped", drains - cluster_ms.len());
        }
        let now = ended(cluster, these).await?;
        cluster_ms.extend(now.difference(&seen).map(|_| stopped.elapsed().as_secs_f64() * 1000.0));
        seen = now;
    }

    say("the hub is back, and the identity is revoked");
    fleet.start_hub_again().await?;
    wait::until("both replicas to be attached", WITHIN, || async { Ok((sessions(fleet).await? == 2).then_some(())) }).await?;
    fleet.revoke(CLUSTER)?;
    wait::until("its sessions to be cut", WITHIN, || async { Ok((sessions(fleet).await? == 0).then_some(())) }).await?;
    let revoked_s: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM clock_timestamp() - max(at))::float8 FROM audit_entries WHERE kind = 'certificates_revoked'",
    )
    .fetch_one(&fleet.pool)
    .await?;
    Ok(Figures { fleet_ms, cluster_ms, revoked_ms: revoked_s * 1000.0 })
}

/// Breaks a GPU of each, with a pod on it, and waits until every pod is asked to go.
async fn under_way(fleet: &Fleet, nodes: &[String]) -> Result<()> {
    let cluster = fleet.cluster(CLUSTER)?;
    for node in nodes {
        let mut pod = workload::gpu_pod(&format!("job-{node}"), node, EXIT);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(2 * EXIT.as_secs());
        cluster.create(pod).await?;
    }
    for node in nodes {
        wait::until(&format!("the pod of {node} to run"), WITHIN, || async {
            Ok(cluster.pods_on(node).await?.iter().any(crate::cluster::ready).then_some(()))
        })
        .await?;
        break_gpu(fleet, CLUSTER, node)?;
    }
    for node in nodes {
        wait::until(&format!("the drain of {node}"), WITHIN, || async {
            let pods = cluster.pods_on(node).await?;
            Ok(pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// How long after the fleet's stop each command was known to be cancelled.
async fn called_off(fleet: &Fleet, drains: usize) -> Result<Vec<f64>> {
    let want = i64::try_from(drains)?;
    wait::until("the drains to end", WITHIN, || async {
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM commands WHERE action = 'evict' AND finished_at IS NULL")
            .fetch_one(&fleet.pool)
            .await?;
        Ok((open == 0).then_some(()))
    })
    .await?;
    let ends: Vec<(String, f64)> = sqlx::query_as(
        "SELECT state, extract(epoch FROM finished_at - (SELECT max(at) FROM audit_entries WHERE kind = 'fleet_stop'))::float8 \
         FROM commands WHERE action = 'evict'",
    )
    .fetch_all(&fleet.pool)
    .await?;
    let others: Vec<&String> = ends.iter().map(|(state, _)| state).filter(|state| *state != "CANCELLED").collect();
    if ends.len() as i64 != want || !others.is_empty() {
        bail!("{} drains ended, {want} were under way; ended otherwise than cancelled: {others:?}", ends.len());
    }
    let mut ms: Vec<f64> = ends.into_iter().map(|(_, seconds)| seconds * 1000.0).collect();
    ms.sort_by(f64::total_cmp);
    Ok(ms)
}

/// Of these nodes, those whose HealActions have all ended.
async fn ended(cluster: &crate::cluster::Cluster, nodes: &[String]) -> Result<BTreeSet<String>> {
    let api = Api::<DynamicObject>::namespaced_with(cluster.client.clone(), NAMESPACE, &heal_action_resource());
    let list = api.list(&ListParams::default()).await?;
    let over = |object: &DynamicObject| {
        let state = object.data["status"]["state"].as_str().unwrap_or_default();
        CommandState::parse(state).is_some_and(CommandState::terminal)
    };
    let of =
        |node: &String| list.items.iter().filter(|object| object.data["spec"]["node"].as_str() == Some(node)).collect::<Vec<_>>();
    let ended = |node: &&String| {
        let of = of(node);
        !of.is_empty() && of.into_iter().all(over)
    };
    Ok(nodes.iter().filter(ended).cloned().collect())
}

/// Replicas that are attached, by the hub's own count.
async fn sessions(fleet: &Fleet) -> Result<u64> {
    let page = reqwest::get(format!("http://{}/metrics", fleet.http_address)).await?.text().await?;
    let line = page.lines().find_map(|line| line.strip_prefix("gpu_selfhealing_hub_sessions "));
    Ok(line.context("the hub counts its sessions")?.parse::<f64>()? as u64)
}

fn called((code, _, errors): (i32, String, String)) -> Result<()> {
    if code != 0 {
        bail!("gpuhealctl ended with {code}: {errors}");
    }
    Ok(())
}
