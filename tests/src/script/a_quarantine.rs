//! (a) Xid 79 on an H100 node that runs a Deployment with a PDB, a StatefulSet with a bound PVC, a DaemonSet and a CPU-only
//! pod: quarantined once, only GPU pods evicted, the PDB kept, stateless before stateful.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Outcome, Stage, ms, setting, uids_of};
use crate::{
    record,
    workload::{self, Shape},
};

const APP: &str = "trainer";
const STATEFUL: &str = "store";
const REPLICAS: u32 = 3;
const MIN_AVAILABLE: u32 = 2;

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let node = stage.node("alpha", 0)?;
    let (gpu, grace_s, exit_after_ms) = (stage.draw_gpu(), stage.draw_span(4, 8), stage.draw_span(100, 400));
    let cluster = stage.fleet.cluster("alpha")?;
    let shape = Shape { replicas: REPLICAS, gpus: 1, grace_s, exit_after_ms };
    let [volume, claim] = workload::bound_claim(STATEFUL);
    let objects = vec![
        workload::deployment(APP, shape),
        workload::budget(APP, MIN_AVAILABLE),
        volume,
        claim,
        workload::stateful_set(STATEFUL, Shape { replicas: 1, ..shape }),
        workload::daemon_set("node-agent"),
        workload::cpu_pod("notebook", &node),
    ];
    setting::placed(cluster, &node, objects, &[(APP, REPLICAS as usize), (STATEFUL, 1), ("notebook", 1)]).await?;
    // The set's second replica stands elsewhere: the only ready one would rightly be left where it is.
    cluster.set_cordon(&node, true).await?;
    cluster.scale_stateful_set(STATEFUL, 2).await?;
    cluster.app_ready(STATEFUL, 2).await?;
    cluster.set_cordon(&node, false).await?;
    let stateless = uids_of(cluster, &node, &[APP]).await?;
    let stateful = uids_of(cluster, &node, &[STATEFUL]).await?;
    let staying = uids_of(cluster, &node, &["notebook", "node-agent"]).await?;
    ensure!(stateless.len() == 3 && stateful.len() == 1 && staying.len() == 2, "the node is not set up as the scene needs it");
    let names = cluster.observer.pods_of(&node);

    let since = Instant::now();
    let visible = setting::gpu_falls_off_the_bus(cluster, &node, gpu).await?;
    let tainted = stage.tainted("alpha", &node, since).await?;
    let moving: Vec<String> = stateless.iter().chain(&stateful).cloned().collect();
    let (drained, fewest) = setting::fewest_ready(cluster, APP, stage.gone("alpha", &node, &moving)).await?;
    let command = stage.succeeded("alpha", &node, "evict").await?;
    let incident = stage.once("alpha", &node, "evict").await?;

    let requests = cluster.requests().await;
    let writes = record::node_writes(&requests, &node);
    ensure!(writes.len() == 1, "the node was written {} times instead of once: {writes:#?}", writes.len());
    for uid in &moving {
        let Some(pod) = names.get(uid) else { continue };
        let evictions = record::evictions(&requests, &pod.name);
        let granted = evictions.iter().filter(|r| r.code == 201).count();
        ensure!(granted == 1, "{} was evicted {granted} times instead of once: {evictions:#?}", pod.name);
    }
    ensure!(fewest >= MIN_AVAILABLE as usize, "{fewest} pods of {APP} were ready at one moment, the PDB asks for {MIN_AVAILABLE}");
    let pods = cluster.observer.pods_of(&node);
    let ending = |uids: &[String]| {
        uids.iter().filter_map(|uid| pods.get(uid).and_then(|pod| pod.ending_at.or(pod.gone_at))).collect::<Vec<_>>()
    };
    let last_stateless = ending(&stateless).into_iter().max();
    let first_stateful = ending(&stateful).into_iter().min();
    ensure!(last_stateless < first_stateful, "a stateful pod was told to go before the last stateless one");
    let left = uids_of(cluster, &node, &["notebook", "node-agent"]).await?;
    ensure!(staying.iter().all(|uid| left.contains(uid)), "a pod without GPUs was moved");

    stage.outcomes.push(Outcome {
        scene: 'a',
        fault: "Xid 79, GPU off the bus".into(),
        node: format!("alpha/{node}"),
        decided: format!("{} heal", incident.level),
        why: incident.reason,
        done: format!("marked in 1 write, {} GPU pods evicted once each; {}", moving.len(), command.result_reason),
        taint_ms: Some(ms(visible, tainted)),
        drained_ms: Some(ms(visible, drained)),
        refused: format!("DaemonSet and CPU-only pods left alone; never below {fewest} of {REPLICAS} ready"),
    });
    Ok(())
}
