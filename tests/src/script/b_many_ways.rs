//! (b) The same fault by scrape, by webhook three times, and from an HA twin of Alertmanager, on either replica: one
//! incident, one command.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Outcome, Stage, ms, setting};
use crate::{alert, alert::Alert, facts, wait};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let (node, gpu) = (stage.node("alpha", 1)?, stage.draw_gpu());
    let cluster = stage.fleet.cluster("alpha")?;
    let exporter = cluster.exporter(&node);
    let since = Instant::now();
    let version = exporter.change(|gpus| gpus[gpu].xid = 79);
    let starts_at = "2026-11-29T08:00:00.221Z".to_owned();
    let body = alert::group(&[Alert::xid(&node, &exporter.gpus()[gpu], 79, starts_at)]);
    let mut twin = body.clone();
    twin["externalURL"] = json!("http://alertmanager-1.example.com");
    let webhooks = cluster.webhooks();
    for turn in 0..3 {
        let status = stage.fleet.post_alert(&webhooks[turn % webhooks.len()], &body).await?;
        ensure!(status == 200, "webhook {turn} was answered {status}");
    }
    for address in &webhooks {
        let status = stage.fleet.post_alert(address, &twin).await?;
        ensure!(status == 200, "the twin's webhook was answered {status}");
    }
    let visible = setting::first_served(cluster, &node, version).await?;
    let tainted = stage.tainted("alpha", &node, since).await?;
    stage.succeeded("alpha", &node, "evict").await?;
    let faults = wait::until("the fault to have both witnesses", super::WITHIN, || async {
        let faults = facts::faults(&stage.fleet.pool, "alpha", &node).await?;
        let both = faults.iter().any(|f| {
            f.class == "xid" && f.code == "79" && ["alert", "exporter_gauge"].iter().all(|w| f.witnesses.iter().any(|x| x == w))
        });
        Ok(both.then_some(faults))
    })
    .await?;
    let xids: Vec<_> = faults.iter().filter(|fault| fault.class == "xid").collect();
    ensure!(xids.len() == 1 && xids[0].episode == 1, "one fault was seen in six ways, Postgres has {xids:#?}");
    let incident = stage.once("alpha", &node, "evict").await?;
    let drained = setting::last_gone(stage.fleet.cluster("alpha")?, &node, since).await?;
    stage.outcomes.push(Outcome {
        scene: 'b',
        fault: "Xid 79 by scrape and 5 webhooks".into(),
        node: format!("alpha/{node}"),
        decided: format!("{} heal", incident.level),
        why: incident.reason,
        done: "1 fault, 1 incident, 1 command".into(),
        taint_ms: Some(ms(visible.max(since), tainted)),
        drained_ms: drained.map(|at| ms(visible, at)),
        refused: "4 repeats of the alert changed nothing".into(),
    });
    Ok(())
}
