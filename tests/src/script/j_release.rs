//! (j) Release: label, taint and our cordon are gone; a cordon that a person had set before is still there.

use std::time::Instant;

use anyhow::{Result, ensure};
use gpuheal_proto::kubernetes::{LABEL_STATUS, TAINT_FAULTY};

use super::{Outcome, Stage, WITHIN, setting};
use crate::wait;

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let (ours, theirs) = (stage.node("alpha", 0)?, stage.node("alpha", 2)?);
    let (gpu, other) = (stage.draw_gpu(), stage.draw_gpu());
    let cluster = stage.fleet.cluster("alpha")?;
    if cluster.observer.times_tainted(&ours) == 0 {
        setting::gpu_falls_off_the_bus(cluster, &ours, gpu).await?;
        stage.succeeded("alpha", &ours, "evict").await?;
    }
    cluster.set_cordon(&theirs, true).await?;
    let since = Instant::now();
    setting::gpu_falls_off_the_bus(cluster, &theirs, other).await?;
    stage.tainted("alpha", &theirs, since).await?;
    stage.succeeded("alpha", &theirs, "evict").await?;
    ensure!(cordoned(stage, &ours).await?, "the policy cordons what it quarantines, {ours} is not cordoned");
    for node in [&ours, &theirs] {
        release(stage, node)?;
        stage.succeeded("alpha", node, "release").await?;
        wait::until(&format!("our marks to be gone from {node}"), WITHIN, || async {
            // Also by the observer's own watch, which the invariants are checked by.
            let seen = stage.fleet.cluster("alpha")?.observer.marked_now(node);
            Ok((!seen && !marked(stage, node).await?).then_some(()))
        })
        .await?;
    }
    ensure!(!cordoned(stage, &ours).await?, "our own cordon is still on {ours}");
    ensure!(cordoned(stage, &theirs).await?, "the person's cordon is gone from {theirs}");
    stage.outcomes.push(Outcome {
        scene: 'j',
        fault: "released by gpuhealctl".into(),
        node: format!("alpha/{ours}, alpha/{theirs}"),
        decided: "release".into(),
        why: "a person's word".into(),
        done: format!("label, taint and our cordon gone from {ours}"),
        taint_ms: None,
        drained_ms: None,
        refused: format!("{theirs} stays cordoned: a person had done that before us"),
    });
    Ok(())
}

async fn marked(stage: &Stage, node: &str) -> Result<bool> {
    let node = stage.fleet.cluster("alpha")?.node(node).await?;
    let tainted = node.spec.and_then(|spec| spec.taints).is_some_and(|taints| taints.iter().any(|taint| taint.key == TAINT_FAULTY));
    let labelled = node.metadata.labels.is_some_and(|labels| labels.contains_key(LABEL_STATUS));
    Ok(tainted || labelled)
}

async fn cordoned(stage: &Stage, node: &str) -> Result<bool> {
    Ok(stage.fleet.cluster("alpha")?.node(node).await?.spec.and_then(|spec| spec.unschedulable).unwrap_or(false))
}

fn release(stage: &Stage, node: &str) -> Result<()> {
    let (code, _, errors) = stage.fleet.ctl(&["release", node, "--cluster", "alpha", "--reason", "checked by hand"])?;
    ensure!(code == 0, "gpuhealctl release {node} ended with {code}: {errors}");
    Ok(())
}
