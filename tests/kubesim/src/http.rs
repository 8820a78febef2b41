//! The HTTPS front of one cluster: accepts connections, knows who asks, lets faults happen, records, answers.
//! What a request means for objects is decided in `rest`; here is only what HTTP adds to it.

mod admin;
mod answer;
mod body;
mod discovery;
mod dispatch;
mod info;
mod list;
mod openapi;
mod patching;
mod protobuf;
mod reviews;
mod subresources;
mod table;
mod watching;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::http::request::Parts;
use ::http::{Response, header};
use axum::body::{Body, Bytes};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::config::User;
use crate::faults::{Faults, Subject, Then};
use crate::recorder::{Record, Recorder};
use crate::rest::refused_by_budget;
use crate::status::ApiError;
use crate::store::Store;

use answer::{Answer, Payload};
use info::Info;

/// Largest body taken, as on a real server: 3 MiB.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// A client that does not finish its TLS handshake by then is let go.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// A failed accept (out of file descriptors) is tried again after this pause.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// All that a request may need.
pub(crate) struct App {
    pub(crate) store: Arc<Store>,
    pub(crate) faults: Faults,
    pub(crate) recorder: Recorder,
    pub(crate) clock: Clock,
    pub(crate) tokens: Mutex<BTreeMap<String, User>>,
    pub(crate) bookmark_every: Duration,
    pub(crate) version: String,
    pub(crate) stop: CancellationToken,
}

/// The connection is cut instead of an answer.
#[derive(Debug, thiserror::Error)]
#[error("connection cut on purpose")]
struct Cut;

/// Accepts until told to stop; then waits for no one.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener, acceptor: TlsAcceptor) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = app.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (app, acceptor) = (app.clone(), acceptor.clone());
        connections.spawn(async move {
            let stop = app.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = connection(app, socket, acceptor) => {}
            }
        });
    }
}

async fn connection(app: Arc<App>, socket: tokio::net::TcpStream, acceptor: TlsAcceptor) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "nodelay refused");
    }
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(socket)).await else { return };
    let service = service_fn(move |request| handle(app.clone(), request));
    let served = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

async fn handle(app: Arc<App>, request: hyper::Request<Incoming>) -> Result<Response<Body>, Cut> {
    let (parts, incoming) = request.into_parts();
    let body = axum::body::to_bytes(Body::new(incoming), BODY_BYTES_MAX).await;
    let skew = app.faults.clock_skew();
    let answer = match body {
        Ok(body) => respond(&app, parts, body).await?,
        Err(_) => Answer::from(ApiError::new(413, "RequestEntityTooLarge", "limit is 3145728")),
    };
    Ok(answer.into_response(app.clock.now() + chrono::Duration::seconds(skew)))
}

async fn respond(app: &Arc<App>, parts: Parts, body: Bytes) -> Result<Answer, Cut> {
    let info = Info::parse(&parts.method, &parts.uri);
    let Some(user) = authenticate(app, &parts, &info) else { return Ok(ApiError::unauthorized().into()) };
    if let Some(rest) = info.path.strip_prefix("/kubesim/v1/") {
        return Ok(admin::answer(app, &user, &parts.method, rest, &info, &body));
    }
    let asked = Asked { app: app.clone(), info, user, body, parts };
    let fault = app.faults.meet(&asked.subject());
    let (answer, cut) = match fault {
        Some(Then::CutBefore) => return asked.cut(),
        Some(Then::Hang) => {
            app.stop.cancelled().await;
            return asked.cut();
        }
        Some(Then::CutAfter) => (dispatch::answer(&asked), true),
        Some(Then::Delay { ms }) => {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            (dispatch::answer(&asked), false)
        }
        Some(Then::SlowBody { ms, bytes }) => (dispatch::answer(&asked).slow(Duration::from_millis(ms), bytes), false),
        Some(then) => match refusal(&asked, then) {
            Some(error) => (error.into(), false),
            None => (dispatch::answer(&asked), false),
        },
        None => (dispatch::answer(&asked), false),
    };
    if cut {
        return asked.cut();
    }
    asked.record(&answer);
    Ok(answer)
}

fn authenticate(app: &App, parts: &Parts, info: &Info) -> Option<User> {
    let given = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match given.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(token) => app.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(token.trim()).cloned(),
        None if info.is_open() => Some(User { name: "system:anonymous".into(), groups: vec!["system:unauthenticated".into()] }),
        None => None,
    }
}

/// The refusal that a fault stands for; none when it does not concern this request.
fn refusal(asked: &Asked, then: Then) -> Option<ApiError> {
    match then {
        Then::Deny => Some(asked.denied()),
        Then::Throttle { retry_after } => {
            Some(ApiError::too_many_requests("too many requests, please try again later", retry_after))
        }
        Then::BudgetRefusal { retry_after } => {
            Some(refused_by_budget("The disruption budget kubesim needs 1 healthy pods and has 1 currently", retry_after))
        }
        Then::BudgetConflict => Some(
            ApiError::new(504, "Timeout", "Timeout: couldn't update PodDisruptionBudget \"kubesim\" due to conflicts")
                .with_retry_after(Some(10)),
        ),
        Then::Status { code, reason, message, retry_after } => {
            Some(ApiError::new(code, &reason, message).with_retry_after(retry_after))
        }
        Then::AdmissionDenial { code, message } => {
            Some(ApiError::new(code, "", format!("admission webhook \"deny.kubesim\" denied the request: {message}")))
        }
        Then::WatchGone if asked.info.verb == "watch" => Some(ApiError::expired("too old resource version")),
        Then::WatchGone
        | Then::Delay { .. }
        | Then::SlowBody { .. }
        | Then::CutBefore
        | Then::CutAfter
        | Then::Hang
        | Then::StallWatch => None,
    }
}

/// One authenticated request.
pub(crate) struct Asked {
    pub(crate) app: Arc<App>,
    pub(crate) info: Info,
    pub(crate) user: User,
    pub(crate) body: Bytes,
    parts: Parts,
}

impl Asked {
    pub(crate) fn header(&self, name: header::HeaderName) -> &str {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            verb: &self.info.verb,
            resource: &self.info.resource,
            subresource: &self.info.subresource,
            namespace: &self.info.namespace,
            name: &self.info.name,
            user: &self.user.name,
            user_agent: self.header(header::USER_AGENT),
        }
    }

    fn denied(&self) -> ApiError {
        let info = &self.info;
        let scope = if info.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", info.namespace)
        };
        let target =
            if info.subresource.is_empty() { info.resource.clone() } else { format!("{}/{}", info.resource, info.subresource) };
        let qualified = if info.group.is_empty() { info.resource.clone() } else { format!("{}.{}", info.resource, info.group) };
        let named = if info.name.is_empty() { qualified } else { format!("{qualified} \"{}\"", info.name) };
        let message = format!(
            "{named} is forbidden: User \"{}\" cannot {} resource \"{target}\" in API group \"{}\" {scope}",
            self.user.name, info.verb, info.group
        );
        ApiError::new(403, "Forbidden", message)
            .with_details(serde_json::json!({ "name": info.name, "group": info.group, "kind": info.resource }))
    }

    fn cut(&self) -> Result<Answer, Cut> {
        self.record(&Answer { code: 0, payload: Payload::Json(String::new()), ignored_fields: Vec::new(), retry_after: None });
        Err(Cut)
    }

    fn record(&self, answer: &Answer) {
        let info = &self.info;
        let write = matches!(info.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        self.app.recorder.push(Record {
            seq: 0,
            at_ms: 0,
            method: self.parts.method.to_string(),
            path: self.parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            verb: info.verb.clone(),
            group: info.group.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            user_agent: self.header(header::USER_AGENT).to_owned(),
            user: self.user.name.clone(),
            content_type: self.header(header::CONTENT_TYPE).to_owned(),
            body: if write { body::loose(&self.body) } else { None },
            ignored_fields: answer.ignored_fields.clone(),
            dry_run: info.dry_run() || body::asks_dry_run(&self.body),
            code: answer.code,
        });
    }
}
