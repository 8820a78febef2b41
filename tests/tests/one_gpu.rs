//! Two GPUs of one node fail one after the other, end to end: the shipping programs, real Postgres, mTLS, a simulated API server,
//! and an exporter that says which pod uses which GPU. What is drained is what each of them takes with it, and nobody else.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use gpuheal_tests::{
    cluster::{Cluster, Kind},
    facts,
    fleet::Fleet,
    record,
    script::{PATIENT_LEASE, WITHIN, plan_of},
    wait,
    workload::{self, JOBS},
};

const SEED: u64 = 20_261_130;
/// Who uses which of the node's GPUs.
const USERS: [(&str, usize); 3] = [("first", 0), ("second", 1), ("third", 2)];

#[tokio::test(flavor = "multi_thread")]
async fn gpus_that_fail_one_after_the_other_take_their_own_users_with_them_and_nobody_else() -> Result<()> {
    let mut plan = plan_of(SEED, "alpha", Kind::Sim);
    plan.lease = PATIENT_LEASE;
    let mut fleet = Fleet::start(plan, |_| {}).await?;
    if let Err(error) = played(&fleet).await {
        return Err(fleet.place.left_for(error, "two GPUs of one node failed"));
    }
    gpuheal_tests::invariants::check(&fleet).await?;
    fleet.stop()
}

async fn played(fleet: &Fleet) -> Result<()> {
    let cluster = fleet.cluster("alpha")?;
    let node = cluster.gpu_nodes().first().cloned().context("alpha has GPU nodes")?;
    for (pod, _) in USERS {
        cluster.create(workload::gpu_pod(pod, &node, Duration::from_millis(100))).await?;
    }
    cluster.app_ready("job", USERS.len()).await?;
    for (pod, _) in USERS {
        cluster.ran_since(JOBS, pod, "2026-01-01T00:00:00Z").await?;
    }
    cluster.exporter(&node).change(|gpus| {
        for (pod, gpu) in USERS {
            gpus[gpu].pod = Some((JOBS.to_owned(), pod.to_owned()));
        }
    });
    let before = uids(cluster, &node).await?;

    fails(cluster, &node, 0, 1).await?;
    let reports = drained(fleet, &node, 1).await?;
    ensure!(left(cluster, &node, &before).await? == ["second", "third"], "after the first GPU's drain: {reports:#?}");
    ensure!(told(cluster, &node, 0, 2, &reports[0]), "the record of the first drain is {reports:#?}");

    fails(cluster, &node, 1, 2).await?;
    let reports = drained(fleet, &node, 2).await?;
    ensure!(left(cluster, &node, &before).await? == ["third"], "after the second GPU's drain: {reports:#?}");
    ensure!(told(cluster, &node, 1, 1, &reports[1]), "the record of the second drain is {reports:#?}");

    let requests = cluster.requests().await;
    for (pod, times) in [("first", 1), ("second", 1), ("third", 0)] {
        let asked = record::evictions(&requests, &format!("{JOBS}/{pod}"));
        ensure!(asked.len() == times, "{pod} was to be evicted {times} times: {asked:#?}");
    }
    let incidents = facts::incidents(&fleet.pool, "alpha", &node).await?;
    ensure!(incidents.len() == 1, "one node's trouble is one incident: {incidents:#?}");
    ensure!(cluster.observer.times_tainted(&node) == 1, "the node was marked more than once");
    Ok(())
}

/// Xid 79, and the device plugin holds so many back by now.
async fn fails(cluster: &Cluster, node: &str, gpu: usize, held_back: u32) -> Result<()> {
    let exporter = cluster.exporter(node);
    let all = u32::try_from(exporter.gpus().len())?;
    cluster.set_allocatable(node, all - held_back).await?;
    exporter.change(|gpus| gpus[gpu].xid = 79);
    Ok(())
}

/// Waits until so many drains of the node have succeeded, and no more were asked for; what came of each.
async fn drained(fleet: &Fleet, node: &str, count: usize) -> Result<Vec<String>> {
    let drains = || async {
        let commands = facts::commands(&fleet.pool, "alpha", node).await?;
        anyhow::Ok(commands.into_iter().filter(|command| command.action == "evict").collect::<Vec<_>>())
    };
    let awaited = format!("{count} drains of {node} to succeed");
    let seen = wait::until(&awaited, WITHIN, || async {
        let done: Vec<_> = drains().await?.into_iter().filter(|command| command.state == "SUCCEEDED").collect();
        Ok((done.len() >= count).then(|| done.into_iter().map(|command| command.result_reason).collect::<Vec<_>>()))
    });
    let done = match seen.await {
        Ok(done) => done,
        Err(error) => return Err(error.context(format!("drains of {node}: {:#?}", drains().await?))),
    };
    let asked = drains().await?;
    ensure!(asked.len() == count, "{} drains were asked for instead of {count}: {asked:#?}", asked.len());
    Ok(done)
}

/// Whether a drain's record says whom it was for, and that the others were left alone.
fn told(cluster: &Cluster, node: &str, gpu: usize, others: usize, report: &str) -> bool {
    let uuid = &cluster.exporter(node).gpus()[gpu].uuid;
    report.contains(&format!("users of {uuid} alone, {others} on other GPUs left alone"))
}

async fn uids(cluster: &Cluster, node: &str) -> Result<BTreeMap<String, String>> {
    let pods = cluster.pods_on(node).await?;
    let of_jobs =
        pods.into_iter().filter(|pod| pod.metadata.namespace.as_deref() == Some(JOBS) && pod.metadata.deletion_timestamp.is_none());
    Ok(of_jobs.filter_map(|pod| pod.metadata.name.zip(pod.metadata.uid)).collect())
}

/// Names of the pods that are the ones they were.
async fn left(cluster: &Cluster, node: &str, before: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let now = uids(cluster, node).await?;
    Ok(before.iter().filter(|(name, uid)| now.get(*name) == Some(uid)).map(|(name, _)| name.clone()).collect())
}
