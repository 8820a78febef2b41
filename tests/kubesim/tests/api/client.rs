//! A plain HTTPS client: shows status, headers and body as they come, with no retries and no interpretation.

use std::time::{Duration, Instant};

use kubesim::{Config, Controllers, KubeSim, Store};
use reqwest::{Certificate, Method};
use serde_json::{Value, json};

/// Longest wait for something that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    token: String,
}

pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) date: String,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn causes(&self) -> Vec<&str> {
        let causes = self.body["details"]["causes"].as_array();
        causes.into_iter().flatten().filter_map(|cause| cause["reason"].as_str()).collect()
    }
}

/// A cluster in which nothing moves by itself.
pub(crate) async fn still() -> (KubeSim, Client) {
    start(Config { controllers: Controllers::NONE, ..Config::default() }).await
}

/// A cluster with everything.
pub(crate) async fn lively() -> (KubeSim, Client) {
    start(Config::default()).await
}

pub(crate) async fn start(config: Config) -> (KubeSim, Client) {
    let sim = KubeSim::start(config).await.unwrap();
    let client = Client::new(&sim, sim.admin_token());
    (sim, client)
}

impl Client {
    pub(crate) fn new(sim: &KubeSim, token: &str) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ca = Certificate::from_pem(sim.ca_pem().as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([ca]).user_agent("claims/1").build().unwrap();
        Self { http, url: sim.url(), token: token.to_owned() }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<reqwest::Response> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", content_type).body(body.to_string());
        }
        request.send().await
    }

    pub(crate) async fn try_call(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<Reply> {
        let response = self.send(method.parse().unwrap(), path, content_type, body).await?;
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let (code, retry_after, date) = (response.status().as_u16(), header("retry-after"), header("date").unwrap_or_default());
        let text = response.text().await?;
        Ok(Reply { code, retry_after, date, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) })
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.try_call("GET", path, "", None).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.try_call("POST", path, "application/json", Some(body)).await.unwrap()
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.try_call("PUT", path, "application/json", Some(body)).await.unwrap()
    }

    pub(crate) async fn delete(&self, path: &str, body: &Value) -> Reply {
        self.try_call("DELETE", path, "application/json", Some(body)).await.unwrap()
    }

    /// `kind`: json-patch, merge-patch, strategic-merge-patch.
    pub(crate) async fn patch(&self, path: &str, kind: &str, body: &Value) -> Reply {
        self.try_call("PATCH", path, &format!("application/{kind}+json"), Some(body)).await.unwrap()
    }

    pub(crate) async fn apply(&self, path: &str, body: &Value) -> Reply {
        self.try_call("PATCH", path, "application/apply-patch+yaml", Some(body)).await.unwrap()
    }

    pub(crate) async fn evict(&self, pod: &str, body: Value) -> Reply {
        self.evict_with(pod, "", body).await
    }

    pub(crate) async fn evict_with(&self, pod: &str, query: &str, mut body: Value) -> Reply {
        body["apiVersion"] = json!("policy/v1");
        body["kind"] = json!("Eviction");
        if body["metadata"].is_null() {
            body["metadata"] = json!({ "name": pod, "namespace": "ml" });
        }
        self.post(&format!("/api/v1/namespaces/ml/pods/{pod}/eviction{query}"), &body).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Lines {
        let response = self.send(Method::GET, path, "", None).await.unwrap();
        Lines { code: response.status().as_u16(), response, buffer: Vec::new() }
    }
}

/// An open watch.
pub(crate) struct Lines {
    pub(crate) code: u16,
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Lines {
    /// The next event; none when the watch has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        tokio::time::timeout(PATIENCE, self.line()).await.expect("a watch event within the bound")
    }

    /// The next event's type and its object's name.
    pub(crate) async fn next_short(&mut self) -> Option<(String, String)> {
        let event = self.next().await?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((text(&event["type"]), text(&event["object"]["metadata"]["name"])))
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_silent_for(&mut self, span: Duration) -> bool {
        tokio::time::timeout(span, self.line()).await.is_err()
    }

    async fn line(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.buffer.extend_from_slice(&chunk),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "did not come: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A pod that stands in a phase.
pub(crate) fn pod(store: &Store, name: &str, phase: &str, ready: bool) -> Value {
    let mut pod = kubesim::build::gpu_pod("ml", name, "node-1", 1, &[("app", "train")]);
    let answer = if ready { "True" } else { "False" };
    pod["status"] = json!({ "phase": phase, "conditions": [{ "type": "Ready", "status": answer }] });
    store.create(pod).unwrap()
}

/// A disruption budget with a status of the test's choice.
pub(crate) fn budget(store: &Store, name: &str, status: Value) -> Value {
    let mut budget = kubesim::build::pdb("ml", name, 1, &[("app", "train")]);
    budget["status"] =
        json!({ "observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": 0 });
    for (field, value) in status.as_object().unwrap() {
        budget["status"][field] = value.clone();
    }
    store.create(budget).unwrap()
}
