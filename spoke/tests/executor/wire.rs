//! The way between a claim's spokes and the API server: notes each request with its body, in the order of the answers, and
//! spoils what a claim wants spoilt on Kubernetes itself, which has no switches for it. On kubesim those are used instead.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _};
use gpuheal_proto::kubernetes::LEASE;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use testkube::settled;
use tokio::sync::watch;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, Failure>>;

/// A request that went over the way.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Which replica asked.
    pub(crate) replica: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// Null when there was none.
    pub(crate) body: Value,
    /// None when no answer came.
    pub(crate) code: Option<u16>,
}

impl Sent {
    pub(crate) fn is_eviction(&self) -> bool {
        self.method == "POST" && self.path.ends_with("/eviction")
    }
}

/// What goes wrong: requests are told by the end of their path.
#[derive(Debug, Default)]
struct Spoilt {
    lost: Option<&'static str>,
    denied: Option<&'static str>,
    throttled: Option<&'static str>,
    /// What the next such POSTs are answered, in order.
    answers: Vec<(&'static str, Value)>,
    patches_denied: Option<String>,
    reads_failed: Option<String>,
    skew: Duration,
}

/// One claim's way.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    sent: Mutex<Vec<Sent>>,
    spoilt: Mutex<Spoilt>,
    stalled: watch::Sender<bool>,
    config_stalled: watch::Sender<bool>,
    cuts: watch::Sender<u32>,
    away: watch::Sender<bool>,
    /// Whose patches of nodes are held on their way.
    held: watch::Sender<Option<&'static str>>,
    /// Whose requests about the Lease are.
    held_leases: watch::Sender<Option<&'static str>>,
    holding: AtomicUsize,
    patches_refused: AtomicUsize,
    reads_failed: AtomicUsize,
    /// Lists and watches of nodes are narrowed by this label selector: the claims share an API server, and each spoke is to
    /// see the nodes of its own cluster.
    nodes: String,
}

impl Wire {
    pub(crate) fn new(nodes: String) -> Arc<Self> {
        Arc::new(Self { nodes, ..Self::default() })
    }

    /// A client over this way.
    pub(crate) fn client(self: &Arc<Self>, replica: &str, client: Client) -> Client {
        let (wire, replica, namespace) = (Arc::clone(self), replica.to_owned(), client.default_namespace().to_owned());
        let service = tower::service_fn(move |request| Arc::clone(&wire).pass(replica.clone(), client.clone(), request).boxed());
        Client::new(service, namespace)
    }

    /// How often the API server was asked for this node itself.
    pub(crate) fn node_reads(&self, name: &str) -> usize {
        let end = format!("/nodes/{name}");
        self.sent().iter().filter(|sent| sent.method == "GET" && sent.path.ends_with(&end)).count()
    }

    /// All requests that were answered, or whose answer was lost.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    pub(crate) fn evictions(&self) -> Vec<Sent> {
        self.sent().into_iter().filter(Sent::is_eviction).collect()
    }

    /// What was written but records, Events, Lease and fence: to nodes, pods and workloads.
    pub(crate) fn touched(&self) -> Vec<Sent> {
        let own = ["/healactions", "/events", "/leases/", "/configmaps/"];
        let touches = |sent: &Sent| sent.method != "GET" && !own.iter().any(|own| sent.path.contains(own));
        self.sent().into_iter().filter(touches).collect()
    }

    /// The next such POST is done, and its answer does not come.
    pub(crate) fn lose_answer(&self, end: &'static str) {
        self.spoilt.lock().unwrap().lost = Some(end);
    }

    /// Such POSTs are refused.
    pub(crate) fn deny(&self, end: &'static str) {
        self.spoilt.lock().unwrap().denied = Some(end);
    }

    /// PATCHes of what ends so are refused, until others are or none.
    pub(crate) fn deny_patches(&self, end: Option<String>) {
        self.spoilt.lock().unwrap().patches_denied = end;
    }

    /// How many were refused.
    pub(crate) fn patches_refused(&self) -> usize {
        self.patches_refused.load(Ordering::SeqCst)
    }

    /// GETs whose path and query hold this are answered by a failure, until others are or none.
    pub(crate) fn fail_reads(&self, of: Option<String>) {
        self.spoilt.lock().unwrap().reads_failed = of;
    }

    /// How many were.
    pub(crate) fn reads_failed(&self) -> usize {
        self.reads_failed.load(Ordering::SeqCst)
    }

    /// The next such POST is not done: the server is overloaded, and asks for a second.
    pub(crate) fn throttle(&self, end: &'static str) {
        self.spoilt.lock().unwrap().throttled = Some(end);
    }

    /// The next such POST is not done, and answered by this Status. What is said several times is kept in order, also between
    /// requests that are under way at once: each waits for its turn.
    pub(crate) fn answer(&self, end: &'static str, status: Value) {
        self.spoilt.lock().unwrap().answers.push((end, status));
    }

    /// Whether all of that was answered.
    pub(crate) fn answered(&self) -> bool {
        self.spoilt.lock().unwrap().answers.is_empty()
    }

    /// Open watches of pods end in the middle.
    pub(crate) fn cut_pods(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// The API server cannot be reached by any replica, and what was open is cut; or it is there again.
    pub(crate) fn away(&self, away: bool) {
        self.away.send_replace(away);
    }

    /// Watches of nodes fall silent and stay open.
    pub(crate) fn stall_nodes(&self) {
        self.stalled.send_replace(true);
    }

    /// The watch of the owner's ConfigMap falls silent and stays open, or is heard again.
    pub(crate) fn stall_config(&self, stalled: bool) {
        self.config_stalled.send_replace(stalled);
    }

    /// Patches of nodes by this replica stay on their way until they are let go, as packets in a network do: whoever sent
    /// them may be dead by then.
    pub(crate) fn hold_node_patches(&self, replica: &'static str) {
        self.held.send_replace(Some(replica));
    }

    /// Requests of this replica about the Lease stay on their way, likewise.
    pub(crate) fn hold_leases(&self, replica: &'static str) {
        self.held_leases.send_replace(Some(replica));
    }

    /// How many are held or were.
    pub(crate) fn holding(&self) -> usize {
        self.holding.load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self) {
        self.held.send_replace(None);
        self.held_leases.send_replace(None);
    }

    /// The Date of each answer is off by so much.
    pub(crate) fn skew(&self, by: Duration) {
        self.spoilt.lock().unwrap().skew = by;
    }

    async fn pass(self: Arc<Self>, replica: String, client: Client, request: Request<Body>) -> Result<Answer, Failure> {
        if *self.away.borrow() {
            return Err("connection refused on purpose".into());
        }
        let (mut parts, body) = request.into_parts();
        parts.uri = self.narrowed(parts.uri);
        if parts.method == http::Method::GET && self.fails(&parts.uri) {
            return Ok(refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"));
        }
        let watched = parts.uri.query().filter(|query| query.contains("watch=true")).map(|_| parts.uri.path().to_owned());
        let bytes = body.collect_bytes().await?;
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let sent = Sent { replica, method: parts.method.to_string(), path: parts.uri.path().to_owned(), body, code: None };
        settled::is_true("its turn to be answered", || async { self.has_turn(&sent) }).await;
        if let Some(refusal) = self.refusal(&sent) {
            return Ok(refusal);
        }
        let request = Request::from_parts(parts, Body::from(bytes.to_vec()));
        let Some(mut held) = self.holds(&sent) else {
            return self.ask(client, request, sent, watched).await;
        };
        self.holding.fetch_add(1, Ordering::SeqCst);
        let late = async move {
            let _ = held.wait_for(Option::is_none).await;
            self.ask(client, request, sent, None).await
        };
        tokio::spawn(late).await?
    }

    fn holds(&self, sent: &Sent) -> Option<watch::Receiver<Option<&'static str>>> {
        let held = if sent.method == "PATCH" && sent.path.contains("/nodes/") {
            &self.held
        } else if sent.path.ends_with(LEASE) {
            &self.held_leases
        } else {
            return None;
        };
        (*held.borrow() == Some(sent.replica.as_str())).then(|| held.subscribe())
    }

    async fn ask(
        &self,
        client: Client,
        request: Request<Body>,
        mut sent: Sent,
        watched: Option<String>,
    ) -> Result<Answer, Failure> {
        let answer = client.send(request).await;
        sent.code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        let lost = self.is_lost(&sent);
        self.sent.lock().unwrap().push(sent);
        let mut answer = answer?;
        if lost {
            return Err("the answer was lost on purpose".into());
        }
        self.set_clock(answer.headers_mut());
        Ok(answer.map(|body| self.body(watched.as_deref(), body)))
    }

    /// The body of an answer; that of a watch as it comes while watches are spoilt.
    fn body(&self, watched: Option<&str>, body: Body) -> UnsyncBoxBody<Bytes, Failure> {
        let mut away = self.away.subscribe();
        let gone = async move { away.wait_for(|away| *away).await.is_ok() };
        let frames = BodyStream::new(body).map(|frame| frame.map_err(Failure::from)).take_until(gone);
        match watched {
            Some("/api/v1/nodes") => StreamBody::new(stalling(&self.stalled, frames)).boxed_unsync(),
            Some(path) if path.ends_with("/configmaps") => StreamBody::new(stalling(&self.config_stalled, frames)).boxed_unsync(),
            Some("/api/v1/pods") => {
                let mut cuts = self.cuts.subscribe();
                StreamBody::new(frames.take_until(async move { cuts.changed().await })).boxed_unsync()
            }
            Some(_) | None => StreamBody::new(frames).boxed_unsync(),
        }
    }

    fn narrowed(&self, uri: Uri) -> Uri {
        if uri.path() != "/api/v1/nodes" || self.nodes.is_empty() {
            return uri;
        }
        let query = uri.query().unwrap_or_default();
        format!("{}?{query}&labelSelector={}", uri.path(), self.nodes).parse().unwrap()
    }

    fn fails(&self, uri: &Uri) -> bool {
        let fails = self.spoilt.lock().unwrap().reads_failed.as_ref().is_some_and(|of| uri.to_string().contains(of));
        self.reads_failed.fetch_add(usize::from(fails), Ordering::SeqCst);
        fails
    }

    /// What is to be answered before it has been.
    fn has_turn(&self, sent: &Sent) -> bool {
        let spoilt = self.spoilt.lock().unwrap();
        let meant = |end: &str| sent.method == "POST" && sent.path.ends_with(end);
        spoilt.answers.iter().position(|(end, _)| meant(end)).is_none_or(|place| place == 0)
    }

    fn refusal(&self, sent: &Sent) -> Option<Answer> {
        let mut spoilt = self.spoilt.lock().unwrap();
        let meant = |end: Option<&str>| sent.method == "POST" && end.is_some_and(|end| sent.path.ends_with(end));
        if meant(spoilt.denied) {
            return Some(refuse(StatusCode::FORBIDDEN, "Forbidden"));
        }
        if sent.method == "PATCH" && spoilt.patches_denied.as_ref().is_some_and(|end| sent.path.ends_with(end)) {
            self.patches_refused.fetch_add(1, Ordering::SeqCst);
            return Some(refuse(StatusCode::FORBIDDEN, "Forbidden"));
        }
        if let Some(next) = spoilt.answers.iter().position(|(end, _)| meant(Some(*end))) {
            return Some(respond(&spoilt.answers.remove(next).1));
        }
        let throttled = meant(spoilt.throttled);
        throttled.then(|| {
            spoilt.throttled = None;
            refuse(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests")
        })
    }

    fn is_lost(&self, sent: &Sent) -> bool {
        let mut spoilt = self.spoilt.lock().unwrap();
        let lost = sent.method == "POST" && spoilt.lost.is_some_and(|end| sent.path.ends_with(end));
        if lost {
            spoilt.lost = None;
        }
        lost
    }

    fn set_clock(&self, headers: &mut HeaderMap) {
        let skew = self.spoilt.lock().unwrap().skew;
        let date = headers.get(header::DATE).and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        if let Some(date) = date {
            let moved = DateTimePrinter::new().timestamp_to_rfc9110_string(&(date + skew)).unwrap();
            headers.insert(header::DATE, moved.parse().unwrap());
        }
    }
}

/// A watch whose frames wait while it is stalled.
fn stalling<F: Send + 'static>(
    stalled: &watch::Sender<bool>,
    frames: impl Stream<Item = F> + Send + 'static,
) -> impl Stream<Item = F> + Send + 'static {
    let stalled = stalled.subscribe();
    frames.then(move |frame| {
        let mut stalled = stalled.clone();
        async move {
            let _ = stalled.wait_for(|stalled| !stalled).await;
            frame
        }
    })
}

fn refuse(code: StatusCode, reason: &str) -> Answer {
    respond(&json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16(), "message": "on purpose",
    }))
}

/// As an API server sends a Status of this kind.
fn respond(status: &Value) -> Answer {
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap();
    let code = StatusCode::from_u16(code).unwrap();
    let body = http_body_util::Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if code == StatusCode::TOO_MANY_REQUESTS {
        let wait = status.pointer("/details/retryAfterSeconds").and_then(Value::as_u64).unwrap_or(1);
        answer = answer.header(header::RETRY_AFTER, wait);
    }
    answer.body(body).unwrap()
}
