//! The way between a claim's spokes and the API server: notes each request with its body, in the order of the answers, and
//! spoils what a claim wants spoilt on Kubernetes itself, which has no switches for it. On kubesim those are used instead.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, BodyStream, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use kube::{Client, client::Body};
use serde_json::{Value, json};
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
    skew: Duration,
}

/// One claim's way.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    sent: Mutex<Vec<Sent>>,
    spoilt: Mutex<Spoilt>,
    stalled: watch::Sender<bool>,
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

    /// All requests that were answered, or whose answer was lost.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    pub(crate) fn evictions(&self) -> Vec<Sent> {
        self.sent().into_iter().filter(Sent::is_eviction).collect()
    }

    /// The next such POST is done, and its answer does not come.
    pub(crate) fn lose_answer(&self, end: &'static str) {
        self.spoilt.lock().unwrap().lost = Some(end);
    }

    /// Such POSTs are refused.
    pub(crate) fn deny(&self, end: &'static str) {
        self.spoilt.lock().unwrap().denied = Some(end);
    }

    /// Watches of nodes fall silent and stay open.
    pub(crate) fn stall_nodes(&self) {
        self.stalled.send_replace(true);
    }

    /// The Date of each answer is off by so much.
    pub(crate) fn skew(&self, by: Duration) {
        self.spoilt.lock().unwrap().skew = by;
    }

    async fn pass(self: Arc<Self>, replica: String, client: Client, request: Request<Body>) -> Result<Answer, Failure> {
        let (mut parts, body) = request.into_parts();
        parts.uri = self.narrowed(parts.uri);
        let watches_nodes =
            parts.uri.path() == "/api/v1/nodes" && parts.uri.query().is_some_and(|query| query.contains("watch=true"));
        let bytes = body.collect_bytes().await?;
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let mut sent = Sent { replica, method: parts.method.to_string(), path: parts.uri.path().to_owned(), body, code: None };
        if self.is_denied(&sent) {
            return Ok(forbidden());
        }
        let answer = client.send(Request::from_parts(parts, Body::from(bytes.to_vec()))).await;
        sent.code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        let lost = self.is_lost(&sent);
        self.sent.lock().unwrap().push(sent);
        let mut answer = answer?;
        if lost {
            return Err("the answer was lost on purpose".into());
        }
        self.set_clock(answer.headers_mut());
        let stalled = self.stalled.subscribe();
        Ok(answer.map(|body| if watches_nodes { held_while(stalled, body) } else { body.map_err(Failure::from).boxed_unsync() }))
    }

    fn narrowed(&self, uri: Uri) -> Uri {
        if uri.path() != "/api/v1/nodes" || self.nodes.is_empty() {
            return uri;
        }
        let query = uri.query().unwrap_or_default();
        format!("{}?{query}&labelSelector={}", uri.path(), self.nodes).parse().unwrap()
    }

    fn is_denied(&self, sent: &Sent) -> bool {
        sent.method == "POST" && self.spoilt.lock().unwrap().denied.is_some_and(|end| sent.path.ends_with(end))
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

/// A body whose frames do not come while it is stalled.
fn held_while(stalled: watch::Receiver<bool>, body: Body) -> UnsyncBoxBody<Bytes, Failure> {
    let frames = BodyStream::new(body).then(move |frame| {
        let mut stalled = stalled.clone();
        async move {
            let _ = stalled.wait_for(|stalled| !stalled).await;
            frame.map_err(Failure::from)
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

fn forbidden() -> Answer {
    let status = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "denied on purpose" });
    let body = http_body_util::Full::new(Bytes::from(status.to_string())).map_err(|never| match never {}).boxed_unsync();
    let answer = Response::builder().status(StatusCode::FORBIDDEN).header(header::CONTENT_TYPE, "application/json");
    answer.body(body).unwrap()
}
