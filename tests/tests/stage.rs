//! The stage on which the script is played is what it claims to be: pods run, exporters answer, a scheduler keeps off what is
//! tainted. What this proves wrong would make every scene's outcome doubtful.

use std::time::Duration;

use anyhow::{Result, ensure};
use gpuheal_tests::{
    cluster::{Cluster, Kind},
    script::{WITHIN, plan_of},
    workload::{self, Shape},
};

#[tokio::test(flavor = "multi_thread")]
async fn workloads_run_and_are_replaced_on_the_simulated_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let plan = plan_of(3, "gamma", Kind::Sim);
    let machines = plan.clusters.into_iter().next().expect("gamma is in the plan").machines;
    let cluster = Cluster::start("gamma", Kind::Sim, dir.path(), 3, machines).await?;
    let node = cluster.gpu_nodes()[0].clone();
    let shape = Shape { replicas: 3, gpus: 1, grace_s: 5, exit_after_ms: 50 };
    cluster.create(workload::deployment("trainer", shape)).await?;
    cluster.create(workload::budget("trainer", 2)).await?;
    for object in workload::bound_claim("store") {
        cluster.create(object).await?;
    }
    cluster.create(workload::stateful_set("store", Shape { replicas: 1, ..shape })).await?;
    cluster.create(workload::daemon_set("agent")).await?;
    cluster.create(workload::cpu_pod("notebook", &node)).await?;
    cluster.app_ready("trainer", 3).await?;
    cluster.app_ready("store", 1).await?;
    cluster.app_ready("notebook", 1).await?;
    cluster.app_ready("agent", cluster.gpu_nodes().len()).await?;
    let exporters = cluster
        .pods_on(&node)
        .await?
        .into_iter()
        .filter(|pod| pod.metadata.namespace.as_deref() == Some(workload::OPERATOR))
        .count();
    ensure!(exporters == 1, "{node} has {exporters} exporter pods");
    tokio::time::timeout(WITHIN, async {
        while cluster.observer.pods_of(&node).is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await?;
    Ok(())
}
