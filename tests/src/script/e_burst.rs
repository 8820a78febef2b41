//! (e) A burst of Xid 31 and 45 over ten nodes, as a crashing job makes it: recorded, nobody isolated.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Outcome, Stage, WITHIN, setting};
use crate::{facts, wait};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let nodes: Vec<String> = (2..12).map(|index| stage.node("alpha", index)).collect::<Result<_>>()?;
    let cluster = stage.fleet.cluster("alpha")?;
    for xid in [31, 45] {
        for node in &nodes {
            let version = cluster.exporter(node).change(|gpus| {
                for gpu in gpus {
                    gpu.xid = xid;
                    *gpu.xid_counts.entry(xid).or_default() += 12;
                }
            });
            setting::first_served(cluster, node, version).await?;
        }
        // Before the gauge shows the next one: the first page with it may have gone to the replica that does not lead.
        let code = xid.to_string();
        for node in &nodes {
            wait::until(&format!("Xid {xid} of {node} in Postgres"), WITHIN, || async {
                let faults = facts::faults(&stage.fleet.pool, "alpha", node).await?;
                Ok(faults.iter().any(|fault| fault.class == "xid" && fault.code == code).then_some(()))
            })
            .await?;
        }
    }
    wait::holds("ten nodes left alone", Duration::from_secs(3), || async {
        Ok(nodes.iter().all(|node| cluster.observer.times_tainted(node) == 0))
    })
    .await?;
    let mut why = String::new();
    for node in &nodes {
        let commands = facts::commands(&stage.fleet.pool, "alpha", node).await?;
        ensure!(commands.iter().all(|command| command.action == "notify"), "{node} was acted on: {commands:#?}");
        if let Some(incident) = facts::incidents(&stage.fleet.pool, "alpha", node).await?.pop() {
            ensure!(incident.level == "P2", "{node} has an incident of level {}", incident.level);
            why = incident.reason;
        }
    }
    stage.outcomes.push(Outcome {
        scene: 'e',
        fault: "Xid 31 and 45 on 10 nodes".into(),
        node: "alpha, 10 nodes".into(),
        decided: "P2 record".into(),
        why,
        done: "recorded".into(),
        taint_ms: None,
        drained_ms: None,
        refused: "nobody isolated: application faults".into(),
    });
    Ok(())
}
