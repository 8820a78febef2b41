//! `POST /api/v1/alert`: Alertmanager's webhook. 200 once what it leads to is journaled and synced; 400 for what is no
//! such body, with its place; 408 for one that drips; 413; 503 when it could not be kept, whereupon Alertmanager tries again.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use gpuheal_spoke_core::scrape::webhook::WEBHOOK_BYTES_MAX;

use super::{Deps, auth, body, refusal, unavailable};
use crate::{
    derive::{AlertError, Taken},
    journal, metrics,
};

/// When to come again after the journal was full: the hub must first take some.
const RETRY_AFTER_S: u32 = 30;

pub(super) async fn post(State(deps): State<Arc<Deps>>, headers: HeaderMap, body: Body) -> Response {
    let response = take(&deps, &headers, body).await.unwrap_or_else(|refusal| refusal);
    let outcome = match response.status().as_u16() {
        200 => "accepted",
        401 => "unauthorised",
        503 => "not kept",
        _ => "refused",
    };
    deps.metrics.inc(metrics::ALERTS, &[("outcome", outcome)]);
    response
}

async fn take(deps: &Deps, headers: &HeaderMap, body: Body) -> Result<Response, Response> {
    auth::check(deps, headers).await?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|bytes| bytes > WEBHOOK_BYTES_MAX) {
        return Err(body::too_large(WEBHOOK_BYTES_MAX));
    }
    let body = body::read(body, WEBHOOK_BYTES_MAX).await?;
    if deps.settings.detect().webhook_off {
        return Ok(Json(serde_json::json!({"faults": 0, "note": "webhooks are switched off by policy"})).into_response());
    }
    let taken = deps.derive.alerts(&body, deps.derive.now()).await.map_err(failed)?;
    Ok(accepted(&taken))
}

fn accepted(taken: &Taken) -> Response {
    Json(serde_json::json!({
        "faults": taken.faults,
        "repeats": taken.repeats,
        "skipped": taken.skipped,
        "refused": taken.refused,
        "truncated": taken.truncated,
    }))
    .into_response()
}

fn failed(error: AlertError) -> Response {
    use gpuheal_spoke_core::scrape::webhook::Error as Body;
    match error {
        AlertError::Body(error @ (Body::TooLarge { .. } | Body::TooManyAlerts { .. })) => {
            refusal(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
        }
        AlertError::Body(error) => refusal(StatusCode::BAD_REQUEST, error.to_string()),
        AlertError::NotListed => unavailable("cluster is not listed yet, so no alert can be told to a node", 5),
        AlertError::Journal(error @ (journal::Error::Full { .. } | journal::Error::Io { .. } | journal::Error::Closed)) => {
            unavailable(error.to_string(), RETRY_AFTER_S)
        }
        AlertError::Journal(error) => unavailable(error.to_string(), RETRY_AFTER_S),
    }
}
