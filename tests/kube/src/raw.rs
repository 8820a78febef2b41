//! Requests as they go over the wire and answers as they come back: status, headers, body.
//! For claims about the API itself, where a typed client would hide what is being proved.
//! Paths are relative to the server; every request has a bound.

use std::time::Duration;

use futures::AsyncBufReadExt;
use http::{HeaderMap, Method, Request, header};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// An answer later than this is none. An eviction that meets a busy PDB may take 10 s, and a slow machine ten times that.
const ANSWER: Duration = Duration::from_secs(120);

/// `application/json-patch+json`
pub const JSON_PATCH: &str = "application/json-patch+json";
/// `application/merge-patch+json`
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// `application/strategic-merge-patch+json`
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
/// `application/apply-patch+yaml`; JSON is YAML.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// An answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
    /// Its headers.
    pub headers: HeaderMap,
    /// The body if it is JSON, else null.
    pub json: Value,
    /// The body.
    pub text: String,
}

impl Answer {
    /// `reason` of a Kubernetes Status.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.json["reason"].as_str().unwrap_or_default()
    }

    /// `message` of a Kubernetes Status.
    #[must_use]
    pub fn message(&self) -> &str {
        self.json["message"].as_str().unwrap_or_default()
    }

    /// `details.causes[].reason` of a Kubernetes Status.
    #[must_use]
    pub fn causes(&self) -> Vec<&str> {
        let causes = self.json["details"]["causes"].as_array();
        causes.into_iter().flatten().filter_map(|cause| cause["reason"].as_str()).collect()
    }

    /// The answer itself when it has this status.
    ///
    /// # Panics
    /// When it has another.
    #[track_caller]
    pub fn expect(self, code: u16) -> Self {
        assert_eq!(self.code, code, "the answer was {}", self.text);
        self
    }
}

/// Sends one request.
pub async fn try_send(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Option<&Value>,
) -> Result<Answer, kube::Error> {
    let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, "application/json");
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    let request = request.body(Body::from(bytes)).expect("the path is a valid URI: tests write it");
    let response = client.send(request).await?;
    let (parts, body) = response.into_parts();
    let text = String::from_utf8_lossy(&body.collect_bytes().await?).into_owned();
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { code: parts.status.as_u16(), headers: parts.headers, json, text })
}

/// Sends one request and insists on an answer.
///
/// # Panics
/// Without one.
pub async fn send(client: &Client, method: Method, path: &str, content_type: &str, body: Option<&Value>) -> Answer {
    let what = format!("{method} {path}");
    tokio::time::timeout(ANSWER, try_send(client, method, path, content_type, body))
        .await
        .unwrap_or_else(|_| panic!("no answer within {} s: {what}", ANSWER.as_secs()))
        .unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// GET, for callers that expect failures.
pub async fn try_get(client: &Client, path: &str) -> Result<Answer, kube::Error> {
    try_send(client, Method::GET, path, "", None).await
}

/// GET.
pub async fn get(client: &Client, path: &str) -> Answer {
    send(client, Method::GET, path, "", None).await
}

/// POST.
pub async fn post(client: &Client, path: &str, body: &Value) -> Answer {
    send(client, Method::POST, path, "application/json", Some(body)).await
}

/// PUT.
pub async fn put(client: &Client, path: &str, body: &Value) -> Answer {
    send(client, Method::PUT, path, "application/json", Some(body)).await
}

/// PATCH of the kind that `content_type` says.
pub async fn patch(client: &Client, path: &str, content_type: &str, body: &Value) -> Answer {
    send(client, Method::PATCH, path, content_type, Some(body)).await
}

/// DELETE, with DeleteOptions or none.
pub async fn delete(client: &Client, path: &str, options: Option<&Value>) -> Answer {
    send(client, Method::DELETE, path, "application/json", options).await
}

/// Opens a watch and reads its events until `enough` says so; gives all that were read.
///
/// # Panics
/// When that takes longer than [`crate::settled::BOUND`], or a line is not JSON.
pub async fn watch(client: &Client, path: &str, mut enough: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
    let mut events = Vec::new();
    let read = async {
        let request = Request::get(path).body(Vec::new()).expect("the path is a valid URI: tests write it");
        let stream = client.request_stream(request).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut lines = std::pin::pin!(stream);
        let mut line = String::new();
        while !enough(&events) {
            line.clear();
            let read = lines.read_line(&mut line).await.unwrap_or_else(|error| panic!("{path}: {error}"));
            if read == 0 {
                return;
            }
            events.push(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{path}: {error}: {line}")));
        }
    };
    let outcome = tokio::time::timeout(crate::settled::BOUND, read).await;
    assert!(outcome.is_ok(), "watched {path} in vain; saw {events:?}");
    events
}

/// A pod of `pods` as it stood once it was told to go, after the version in which the caller has it. Read from the watch's
/// history, so that it does not matter whether the pod is there still.
///
/// # Panics
/// When nobody tells it to go within [`crate::settled::BOUND`].
pub async fn told_to_go(client: &Client, pods: &str, pod: &Value) -> Value {
    let (name, version) = (&pod["metadata"]["name"], &pod["metadata"]["resourceVersion"]);
    let path = format!(
        "{pods}?watch=true&fieldSelector=metadata.name%3D{}&resourceVersion={}",
        name.as_str().unwrap_or_default(),
        version.as_str().unwrap_or_default(),
    );
    let told = |event: &Value| event["type"] == "MODIFIED" && event["object"]["metadata"]["deletionTimestamp"].is_string();
    let mut events = watch(client, &path, |events| events.last().is_some_and(told)).await;
    events.pop().filter(told).unwrap_or_else(|| panic!("{name} was not told to go; saw {events:?}"))["object"].take()
}
