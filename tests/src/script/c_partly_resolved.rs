//! (c) A group whose status is firing, with one alert resolved inside: only the firing one counts.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Outcome, Stage, ms, setting};
use crate::{alert, alert::Alert, facts, wait};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let (firing, resolved) = (stage.node("beta", 0)?, stage.node("beta", 1)?);
    let (gpu, other) = (stage.draw_gpu(), stage.draw_gpu());
    let cluster = stage.fleet.cluster("beta")?;
    let since = Instant::now();
    let version = cluster.exporter(&firing).change(|gpus| gpus[gpu].xid = 79);
    let starts_at = "2026-11-29T08:10:00Z".to_owned();
    let mut healthy_again = Alert::xid(&resolved, &cluster.exporter(&resolved).gpus()[other], 95, starts_at.clone());
    healthy_again.firing = false;
    let body = alert::group(&[healthy_again, Alert::xid(&firing, &cluster.exporter(&firing).gpus()[gpu], 79, starts_at)]);
    ensure!(body["status"] == "firing", "the group's own status is firing");
    for address in cluster.webhooks() {
        let status = stage.fleet.post_alert(&address, &body).await?;
        ensure!(status == 200, "the webhook was answered {status}");
    }
    let visible = setting::first_served(cluster, &firing, version).await?;
    let tainted = stage.tainted("beta", &firing, since).await?;
    stage.succeeded("beta", &firing, "evict").await?;
    let incident = stage.once("beta", &firing, "evict").await?;
    wait::holds("the node of the resolved alert left alone", Duration::from_secs(2), || async {
        let incidents = facts::incidents(&stage.fleet.pool, "beta", &resolved).await?;
        Ok(incidents.is_empty() && cluster.observer.times_tainted(&resolved) == 0)
    })
    .await?;
    stage.outcomes.push(Outcome {
        scene: 'c',
        fault: "Xid 79 firing, Xid 95 resolved".into(),
        node: format!("beta/{firing}"),
        decided: format!("{} heal", incident.level),
        why: incident.reason,
        done: "the firing one's node quarantined".into(),
        taint_ms: Some(ms(visible.max(since), tainted)),
        drained_ms: None,
        refused: format!("{resolved}: a resolved alert starts nothing"),
    });
    Ok(())
}
