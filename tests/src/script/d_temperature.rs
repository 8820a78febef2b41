//! (d) 82 °C: P1, warned and watched, not evicted inside the window. Then 90 °C with its corroboration: P0.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gpuheal_proto::kubernetes::EVENT_REASON;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, api::ListParams};

use super::{Outcome, Stage, WITHIN, ms, setting};
use crate::{facts, wait};

/// How long the watching is watched: a good part of the script's observation window of five minutes would bore people.
const WATCHED: Duration = Duration::from_secs(3);

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let (node, gpu) = (stage.node("beta", 2)?, stage.draw_gpu());
    let cluster = stage.fleet.cluster("beta")?;
    let exporter = cluster.exporter(&node);
    exporter.change(|gpus| gpus[gpu].temperature = 82.0);
    let pool = &stage.fleet.pool;
    let warned = wait::until("a P1 incident that is watched", WITHIN, || async {
        let incidents = facts::incidents(pool, "beta", &node).await?;
        Ok(incidents.into_iter().find(|incident| incident.level == "P1" && incident.state == "watching"))
    })
    .await?;
    let events = Api::<Event>::namespaced(cluster.client.clone(), "default");
    wait::until("the warning as a Kubernetes Event", WITHIN, || async {
        let found = events.list(&ListParams::default().fields(&format!("reason={EVENT_REASON}"))).await?;
        Ok(found.items.into_iter().find(|event| event.involved_object.name.as_deref() == Some(node.as_str())))
    })
    .await?;
    wait::holds("watching without marking", WATCHED, || async { Ok(cluster.observer.times_tainted(&node) == 0) }).await?;

    let since = Instant::now();
    let version = exporter.change(|gpus| {
        gpus[gpu].temperature = 90.0;
        gpus[gpu].memory_temperature = 99.0;
        gpus[gpu].hw_thermal = 3;
    });
    let visible = setting::first_served(cluster, &node, version).await?;
    let tainted = stage.tainted("beta", &node, since).await?;
    stage.succeeded("beta", &node, "evict").await?;
    let incident = stage.once("beta", &node, "evict").await?;
    ensure!(incident.incident_id == warned.incident_id, "the worse fault opened a second incident instead of escalating the first");
    ensure!(incident.level == "P0", "the incident is {} after 90 °C", incident.level);
    stage.outcomes.push(Outcome {
        scene: 'd',
        fault: "82 °C, then 90 °C".into(),
        node: format!("beta/{node}"),
        decided: "P1 watch, then P0 heal".into(),
        why: incident.reason,
        done: "Event at 82 °C; marked and drained at 90 °C".into(),
        taint_ms: Some(ms(visible, tainted)),
        drained_ms: None,
        refused: format!("at 82 °C: {}", warned.reason),
    });
    Ok(())
}
