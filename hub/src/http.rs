//! Plain HTTP for probes and Prometheus: `/healthz`, `/readyz`, `/metrics`. Shows no fault, no node and no secret.

use std::{sync::Arc, time::Duration};

use axum::{Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics;

/// A probe's own patience is a second as a rule.
const CHECK_TIMEOUT: Duration = Duration::from_millis(900);

/// One thing that must be so before the hub can do its work.
#[tonic::async_trait]
pub trait Check: Send + Sync {
    /// Its name in the answer.
    fn name(&self) -> &'static str;
    /// Nothing when it is so, else what is wrong.
    async fn problem(&self) -> Option<String>;
}

type Checks = Arc<Vec<Box<dyn Check>>>;

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, checks: Vec<Box<dyn Check>>, stop: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router(checks)).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn router(checks: Vec<Box<dyn Check>>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async || ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text())))
        .with_state(Arc::new(checks))
}

/// All checks at once, each with its own line, so that the first look tells what is missing.
async fn readyz(State(checks): State<Checks>) -> impl IntoResponse {
    let asked = checks.iter().map(async |check| {
        let problem = tokio::time::timeout(CHECK_TIMEOUT, check.problem()).await;
        (check.name(), problem.unwrap_or_else(|_| Some("no answer within 900 ms".into())))
    });
    let answers = futures::future::join_all(asked).await;
    let ready = answers.iter().all(|(_, problem)| problem.is_none());
    let line = |(name, problem): (&str, Option<String>)| format!("{name}: {}\n", problem.as_deref().unwrap_or("ok"));
    let body: String = answers.into_iter().map(line).collect();
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, body)
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt as _;

    use super::*;

    struct Fixed(Option<&'static str>);

    #[tonic::async_trait]
    impl Check for Fixed {
        fn name(&self) -> &'static str {
            "database"
        }

        async fn problem(&self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    async fn get(problem: Option<&'static str>, path: &str) -> (StatusCode, String) {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let response = router(vec![Box::new(Fixed(problem))]).oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing() {
        assert_eq!(get(None, "/readyz").await, (StatusCode::OK, "database: ok\n".into()));
        assert_eq!(get(Some("away"), "/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, "database: away\n".into()));
        assert_eq!(get(Some("away"), "/healthz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn every_metric_has_its_sentence() {
        let (status, text) = get(None, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).count();
        assert!(names >= 15, "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("# HELP gpu_selfhealing_hub_")).count(), names);
    }
}
