//! (i) `POST /api/v1/process` without and with the Bearer token.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Outcome, Stage};

pub(crate) async fn play(stage: &mut Stage) -> Result<()> {
    let node = stage.node("beta", 3)?;
    let address = stage.fleet.cluster("beta")?.webhooks()[0].clone();
    let body = json!({"node": node, "action": "mark", "reason": "fan noise heard in row 4", "idempotency_key": "hand-1"});
    let (status, _) = stage.fleet.post_process(&address, false, &body).await?;
    ensure!(status == 401, "without a token the answer was {status} instead of 401");
    ensure!(stage.fleet.cluster("beta")?.observer.times_tainted(&node) == 0, "a request without a token marked the node");
    let (status, answer) = stage.fleet.post_process(&address, true, &body).await?;
    ensure!(status == 202, "with the token the answer was {status} instead of 202: {answer}");
    let (status, again) = stage.fleet.post_process(&address, true, &body).await?;
    ensure!(status == 200, "the repeat was answered {status} instead of 200: {again}");
    ensure!(answer["command_id"] == again["command_id"], "the repeat made another command: {answer} and {again}");
    let (status, nowhere) =
        stage.fleet.post_process(&address, true, &json!({"node": "no-such-node", "action": "mark", "reason": "x"})).await?;
    ensure!(status == 404, "for a node that is not there the answer was {status} instead of 404: {nowhere}");
    let (status, odd) =
        stage.fleet.post_process(&address, true, &json!({"node": node, "action": "explode", "reason": "x"})).await?;
    ensure!(status == 400, "for an action that is none the answer was {status} instead of 400: {odd}");
    stage.succeeded("beta", &node, "mark").await?;
    let incident = stage.once("beta", &node, "mark").await?;
    stage.outcomes.push(Outcome {
        scene: 'i',
        fault: "a person's request: mark".into(),
        node: format!("beta/{node}"),
        decided: format!("{} mark", incident.level),
        why: incident.reason,
        done: "marked once for two requests".into(),
        taint_ms: None,
        drained_ms: None,
        refused: "without a token: 401; unknown node: 404; unknown action: 400".into(),
    });
    Ok(())
}
