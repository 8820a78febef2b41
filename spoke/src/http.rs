//! What the cluster reaches over HTTP: health, metrics, Alertmanager's webhook and a person's request. Whoever may post
//! could get a node drained, so both posts need the bearer token; without a token file nobody may. Both replicas serve.
//! Never logs a body or a header.

mod accept;
mod alert;
mod auth;
mod body;
mod process;
mod ready;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    derive::Derive,
    identity::Keeper,
    journal::Depth,
    link::Ask,
    metrics::{self, Metrics},
    ports::{Attachment, LocalConfig},
    scrape::Rounds,
    settings::Settings,
    watch::Heard,
};

/// Everything that requests touch.
pub struct Deps {
    /// Alerts go to it.
    pub derive: Arc<Derive>,
    /// People's requests go to it.
    pub asks: mpsc::Sender<Ask>,
    /// Is the hub there?
    pub attachment: watch::Receiver<Attachment>,
    /// Is the journal well?
    pub journal: watch::Receiver<Depth>,
    /// What has it given up, by class?
    pub given_up: watch::Receiver<BTreeMap<String, u64>>,
    /// Has the cluster been listed?
    pub listed: watch::Receiver<bool>,
    /// Are the exporters known?
    pub rounds: Arc<Rounds>,
    /// What of ours is missing in the cluster, in words?
    pub lacks: watch::Receiver<Vec<String>>,
    /// Is the owner's ConfigMap lost?
    pub config: watch::Receiver<Option<LocalConfig>>,
    /// How old is the watches' news?
    pub heard: Arc<Heard>,
    /// The certificate, whose end is looked up at each question.
    pub identity: Arc<Keeper>,
    /// Is the webhook switched off?
    pub settings: Arc<Settings>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Where the token is; read at each request, so that a new one counts at once.
    pub token_file: Option<PathBuf>,
}

/// Serves until cancelled, then ends what is under way.
pub async fn serve(listener: TcpListener, deps: Deps, cancel: CancellationToken) {
    accept::serve(listener, router(Arc::new(deps)), cancel).await;
}

fn router(deps: Arc<Deps>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .route("/api/v1/alert", post(alert::post))
        .route("/api/v1/process", post(process::post))
        .with_state(deps)
}

/// Alive: a journal that failed cannot be mended but by a restart.
async fn healthz(State(deps): State<Arc<Deps>>) -> Response {
    if deps.journal.borrow().broken {
        (StatusCode::SERVICE_UNAVAILABLE, "journal is broken\n").into_response()
    } else {
        "ok\n".into_response()
    }
}

/// Ready, or why not, in words.
async fn readyz(State(deps): State<Arc<Deps>>) -> Response {
    let reasons = ready::not_ready(&deps).await;
    if reasons.is_empty() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n").into_response()
    }
}

async fn render(State(deps): State<Arc<Deps>>) -> Response {
    let depth = *deps.journal.borrow();
    deps.metrics.set(metrics::QUEUE, &[], depth.unacked as f64);
    deps.metrics.set(metrics::JOURNAL_BYTES, &[], depth.bytes as f64);
    for (class, count) in deps.given_up.borrow().iter() {
        deps.metrics.set(metrics::JOURNAL_GIVEN_UP, &[("class", class)], *count as f64);
    }
    // One that was never heard is as old as can be told.
    let ages = deps.heard.ages().into_iter().map(|(kind, age)| (kind, age.map_or(f64::INFINITY, |age| age.as_secs_f64())));
    deps.metrics.only(metrics::WATCH_AGE, "kind", ages);
    let sources = deps.derive.sources();
    for state in ["fresh", "stale", "broken"] {
        let count = sources.iter().filter(|source| source.state == state).count();
        deps.metrics.set(metrics::SOURCES, &[("state", state)], count as f64);
    }
    if let Some(identity) = ready::identity(&deps).await {
        deps.metrics.set(metrics::CERTIFICATE_ENDS, &[], identity.not_after.unix_ms() as f64 / 1000.0);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], deps.metrics.render()).into_response()
}

/// An error as JSON: what, and where.
fn refusal(status: StatusCode, error: impl Into<String>) -> Response {
    (status, Json(serde_json::json!({"error": error.into()}))).into_response()
}

/// Away for now: Alertmanager and people come again.
fn unavailable(error: impl Into<String>, retry_after_s: u32) -> Response {
    let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE, error);
    response.headers_mut().insert(header::RETRY_AFTER, retry_after_s.into());
    response
}

#[cfg(test)]
mod tests;
