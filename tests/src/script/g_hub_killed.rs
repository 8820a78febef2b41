//! (g) The hub is killed between ack and command and started again: nothing lost, nothing twice. What holds it there long
//! enough is a lock of ours on the table that commands go into: faults are acked, and no decision can be committed.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{Outcome, Stage, WITHIN, ms, setting};
use crate::{facts, wait};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let (node, gpu) = (stage.node("gamma", 1)?, stage.draw_gpu());
    let since = Instant::now();
    let mut lock = stage.fleet.pool.begin().await?;
    sqlx::query("LOCK TABLE commands IN SHARE MODE").execute(&mut *lock).await?;
    let visible = setting::gpu_falls_off_the_bus(stage.fleet.cluster("gamma")?, &node, gpu).await?;
    let pool = stage.fleet.pool.clone();
    wait::until("the fault to be acked", WITHIN, || async {
        let faults = facts::faults(&pool, "gamma", &node).await?;
        Ok(faults.iter().any(|fault| fault.class == "xid").then_some(()))
    })
    .await?;
    stage.fleet.kill_hub()?;
    lock.rollback().await?;
    let commands = facts::commands(&pool, "gamma", &node).await?;
    ensure!(commands.is_empty(), "a command was there before the hub died: {commands:#?}");
    stage.fleet.start_hub_again().await?;

    let tainted = stage.tainted("gamma", &node, since).await?;
    stage.succeeded("gamma", &node, "evict").await?;
    let incident = stage.once("gamma", &node, "evict").await?;
    let drained = setting::last_gone(stage.fleet.cluster("gamma")?, &node, since).await?;
    stage.outcomes.push(Outcome {
        scene: 'g',
        fault: "Xid 79; hub killed after the ack".into(),
        node: format!("gamma/{node}"),
        decided: format!("{} heal", incident.level),
        why: incident.reason,
        done: "decided once, by the hub that came back".into(),
        taint_ms: Some(ms(visible, tainted)),
        drained_ms: drained.map(|at| ms(visible, at)),
        refused: String::new(),
    });
    Ok(())
}
