//! (f) The leading spoke replica is killed mid-drain: the other goes on, no pod is evicted twice.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Api, api::DeleteParams};

use super::{Outcome, Stage, WITHIN, ms, setting, uids_of};
use crate::{
    record, wait,
    workload::{self, Shape},
};

const APP: &str = "solver";
/// One pod whose budget lets it go only once the scene takes that budget away: until then no drain of its node is over,
/// however fast it is and however late it is looked at.
const GATE: &str = "gate";

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let node = stage.node("gamma", 0)?;
    let (gpu, grace_s, exit_after_ms) = (stage.draw_gpu(), stage.draw_span(8, 12), stage.draw_span(400, 900));
    let cluster = stage.fleet.cluster("gamma")?;
    let shape = Shape { replicas: 3, gpus: 1, grace_s, exit_after_ms };
    let objects = vec![
        workload::deployment(APP, shape),
        workload::budget(APP, 2),
        workload::deployment(GATE, Shape { replicas: 1, ..shape }),
        workload::budget(GATE, 1),
    ];
    setting::placed(cluster, &node, objects, &[(APP, 3), (GATE, 1)]).await?;
    let moving = uids_of(cluster, &node, &[APP, GATE]).await?;
    ensure!(moving.len() == 4, "the node is not set up as the scene needs it");
    let since = Instant::now();
    let visible = setting::gpu_falls_off_the_bus(cluster, &node, gpu).await?;
    let tainted = stage.tainted("gamma", &node, since).await?;
    let observer = &cluster.observer;
    wait::until("the first pod told to go", WITHIN, || async {
        Ok(observer.pods_of(&node).iter().any(|(uid, pod)| moving.contains(uid) && pod.ending_at.is_some()).then_some(()))
    })
    .await?;
    let still_there = observer.pods_of(&node).iter().filter(|(uid, pod)| moving.contains(*uid) && pod.ending_at.is_none()).count();
    ensure!(still_there > 0, "the drain was over before the leader could be killed");
    let leader = cluster.leader().await?;
    let (cluster, settings) = stage.fleet.cluster_mut("gamma")?;
    cluster.replicas().get_mut(&leader).context("the leader is one of ours")?.process.kill()?;
    let budgets = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), workload::JOBS);
    budgets.delete(GATE, &DeleteParams::default()).await?;

    let drained = stage.gone("gamma", &node, &moving).await?;
    stage.succeeded("gamma", &node, "evict").await?;
    let incident = stage.once("gamma", &node, "evict").await?;
    let cluster = stage.fleet.cluster("gamma")?;
    let heir = cluster.leader().await?;
    ensure!(heir != leader, "the killed replica still leads");
    let requests = cluster.requests().await;
    let pods = cluster.observer.pods_of(&node);
    for uid in &moving {
        let pod = pods.get(uid).context("the pod was seen")?;
        let granted = record::evictions(&requests, &pod.name).iter().filter(|r| r.code == 201).count();
        ensure!(granted == 1, "{} was evicted {granted} times", pod.name);
    }
    let (cluster, _) = stage.fleet.cluster_mut("gamma")?;
    let letter = leader.rsplit('-').next().unwrap_or_default().to_owned();
    cluster.start_replica(&letter, &settings).await?;
    stage.outcomes.push(Outcome {
        scene: 'f',
        fault: "Xid 79; leader killed mid-drain".into(),
        node: format!("gamma/{node}"),
        decided: format!("{} heal", incident.level),
        why: incident.reason,
        done: format!("{heir} finished what {leader} began: {} pods, each evicted once", moving.len()),
        taint_ms: Some(ms(visible, tainted)),
        drained_ms: Some(ms(visible, drained)),
        refused: String::new(),
    });
    Ok(())
}
