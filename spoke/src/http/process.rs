//! `POST /api/v1/process`: a person asks for something to be done to a node. The hub decides and answers with the
//! command's id or with why not; while it is away nothing is kept, and 503 says so.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use gpuheal_proto::{limits, link::v1, workload::Workload};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{Deps, auth, body, refusal, unavailable};
use crate::link::Ask;

/// A request is a few hundred bytes; what is larger is answered 413 here, and no message to the hub comes near its limit.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 128;
/// The hub decides in milliseconds; a hub that fails over needs seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// When to come again while the hub is away.
const RETRY_AFTER_S: u32 = 10;

pub(super) async fn post(
    State(deps): State<Arc<Deps>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    ask(&deps, peer, &headers, body).await.unwrap_or_else(|refusal| refusal)
}

async fn ask(deps: &Deps, peer: SocketAddr, headers: &HeaderMap, body: Body) -> Result<Response, Response> {
    auth::check(deps, headers).await?;
    let body = body::read(body, BODY_BYTES_MAX).await?;
    let mut process = parse(&body).map_err(|error| refusal(StatusCode::BAD_REQUEST, error))?;
    process.caller = format!("bearer token, from {}", peer.ip());
    let (reply, answer) = oneshot::channel();
    if deps.attachment.borrow().generation.is_none() {
        return Err(unavailable("hub is away and nothing was kept", RETRY_AFTER_S));
    }
    let asked = async {
        // Many may ask at once: they wait for each other, and all for the hub no longer than one.
        deps.asks.send(Ask { process, reply }).await.ok()?;
        answer.await.ok()
    };
    let lost = "hub gave no answer; ask again with the same idempotency_key";
    let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await.ok().flatten();
    answer.map(told).ok_or_else(|| unavailable(lost, RETRY_AFTER_S))
}

fn told(result: v1::ProcessResult) -> Response {
    let outcome = result.outcome();
    let v1::ProcessResult { command_id, reason, .. } = result;
    let done = |status| (status, Json(serde_json::json!({"command_id": command_id, "reason": reason}))).into_response();
    match outcome {
        v1::ProcessOutcome::Accepted => done(StatusCode::ACCEPTED),
        v1::ProcessOutcome::Repeated => done(StatusCode::OK),
        v1::ProcessOutcome::NoSuchNode => refusal(StatusCode::NOT_FOUND, reason),
        v1::ProcessOutcome::Blocked => refusal(StatusCode::CONFLICT, reason),
        v1::ProcessOutcome::Invalid => refusal(StatusCode::BAD_REQUEST, reason),
        v1::ProcessOutcome::Unspecified => unavailable("hub's answer is not known to this version", RETRY_AFTER_S),
    }
}

/// The request, or which field is wrong.
fn parse(body: &[u8]) -> Result<v1::Process, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
    let Value::Object(mut fields) = value else { return Err("body: expected an object".to_owned()) };
    let node = text(&mut fields, "node", 253)?.ok_or("node: missing")?;
    let action = text(&mut fields, "action", 16)?.ok_or("action: missing")?;
    let reason = text(&mut fields, "reason", limits::REASON_BYTES_MAX)?.ok_or("reason: missing")?;
    let key = text(&mut fields, "idempotency_key", KEY_BYTES_MAX)?;
    let workloads = texts(&mut fields, "workloads")?;
    let past_budgets = flag(&mut fields, "past_budgets")?;
    if let Some(unknown) = fields.keys().next() {
        return Err(format!("{}: unknown field", gpuheal_proto::bytes_text::clip(unknown, 64)));
    }
    let action = match action.as_str() {
        "mark" => v1::ProcessAction::Mark,
        "evict" => v1::ProcessAction::Evict,
        "release" => v1::ProcessAction::Release,
        "notify" => v1::ProcessAction::Notify,
        "restart" => v1::ProcessAction::Restart,
        _ => return Err("action: expected mark, evict, release, notify or restart".to_owned()),
    };
    let request_id = key.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    Ok(v1::Process { request_id, node, action: action.into(), reason, caller: String::new(), workloads, past_budgets })
}

fn text(fields: &mut Map<String, Value>, name: &str, bytes_max: usize) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Err(format!("{name}: empty")),
        Some(Value::String(text)) if text.len() > bytes_max => Err(format!("{name}: longer than {bytes_max} bytes")),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name}: expected text")),
    }
}

fn flag(fields: &mut Map<String, Value>, name: &str) -> Result<bool, String> {
    match fields.remove(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(_) => Err(format!("{name}: expected true or false")),
    }
}

/// Workloads in their one spelling; whether the action takes any is the hub's to say.
fn texts(fields: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, String> {
    let all = match fields.remove(name) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) if all.len() <= limits::WORKLOADS_MAX => all,
        Some(Value::Array(all)) => {
            return Err(format!("{name}: {} of them, at most {} are allowed", all.len(), limits::WORKLOADS_MAX));
        }
        Some(_) => return Err(format!("{name}: expected a list of texts")),
    };
    let one = |value: Value| {
        let text = value.as_str().ok_or_else(|| format!("{name}: expected a list of texts"))?;
        Workload::parse(text).map(|workload| workload.to_string()).map_err(|error| format!("{name}: {error}"))
    };
    all.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_request_is_told_by_its_field() {
        let good = r#"{"node":"n1","action":"mark","reason":"looks ill"}"#;
        let process = parse(good.as_bytes()).unwrap();
        assert_eq!((process.node.as_str(), process.action()), ("n1", v1::ProcessAction::Mark));
        for (body, field) in [
            ("", "no JSON"),
            ("[]", "body"),
            (r#"{"action":"mark","reason":"r"}"#, "node"),
            (r#"{"node":1,"action":"mark","reason":"r"}"#, "node"),
            (r#"{"node":"n","action":"reboot","reason":"r"}"#, "action"),
            (r#"{"node":"n","action":"mark","reason":" "}"#, "reason"),
            (r#"{"node":"n","action":"mark","reason":"r","nod":"n"}"#, "nod"),
            (r#"{"node":"n","action":"restart","reason":"r","workloads":"deployment/ml/web"}"#, "workloads: expected a list"),
            (r#"{"node":"n","action":"evict","reason":"r","past_budgets":"yes"}"#, "past_budgets: expected true or false"),
            (r#"{"node":"n","action":"restart","reason":"r","workloads":[1]}"#, "workloads: expected a list"),
            (r#"{"node":"n","action":"restart","reason":"r","workloads":["job/ml/a"]}"#, "workloads: job/ml/a cannot be restarted"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.starts_with(field), "{body}: {error}");
        }
    }

    #[test]
    fn a_restart_names_its_workloads_in_one_spelling() {
        let body = br#"{"node":"n1","action":"restart","reason":"r","workloads":["Deployment/ml/web","daemonset/ml/agent"]}"#;
        let process = parse(body).unwrap();
        assert_eq!(
            (process.action(), process.workloads),
            (v1::ProcessAction::Restart, vec!["deployment/ml/web".into(), "daemonset/ml/agent".into()])
        );
    }

    #[test]
    fn a_request_with_a_key_has_the_same_id_each_time() {
        let body = br#"{"node":"n1","action":"mark","reason":"r","idempotency_key":"k1"}"#;
        assert_eq!(parse(body).unwrap().request_id, "k1");
    }
}
