//! Status codes over real HTTP.

use std::io::Write as _;

use serde_json::json;

use super::*;
use crate::{journal::Limits, testing::TestCluster};

const TOKEN: &str = "a-token-of-some-length";

struct Server {
    base: String,
    cluster: TestCluster,
    asks: mpsc::Receiver<Ask>,
    client: reqwest::Client,
    listed: watch::Sender<bool>,
    cancel: CancellationToken,
    _token: tempfile::NamedTempFile,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

async fn server_over(mut cluster: TestCluster) -> Server {
    cluster.node("n1", &json!({}));
    let mut token = tempfile::NamedTempFile::new().unwrap();
    writeln!(token, "{TOKEN}").unwrap();
    let (asks_tx, asks) = mpsc::channel(4);
    let (listed, listing) = watch::channel(true);
    let deps = Deps {
        derive: Arc::clone(&cluster.derive),
        asks: asks_tx,
        attachment: cluster.attachment.subscribe(),
        journal: cluster.journal.depth(),
        listed: listing,
        settings: Arc::clone(&cluster.settings),
        metrics: Arc::clone(&cluster.metrics),
        token_file: Some(token.path().to_owned()),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let cancel = CancellationToken::new();
    tokio::spawn(serve(listener, deps, cancel.clone()));
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Server { base, cluster, asks, client, listed, cancel, _token: token }
}

async fn server() -> Server {
    server_over(TestCluster::new().await).await
}

impl Server {
    async fn post(&self, path: &str, token: Option<&str>, body: impl Into<reqwest::Body>) -> (u16, serde_json::Value) {
        let request = self.client.post(format!("{}{path}", self.base)).body(body);
        let request = if let Some(token) = token { request.header("authorization", format!("Bearer {token}")) } else { request };
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    async fn alert(&self, body: impl Into<reqwest::Body>) -> (u16, serde_json::Value) {
        self.post("/api/v1/alert", Some(TOKEN), body).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{path}", self.base)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }
}

/// A body with one firing alert about a GPU of a node, started at that second.
fn firing(node: &str, second: u32) -> String {
    json!({
        "version": "4", "status": "firing", "receiver": "gpu",
        "alerts": [{
            "status": "firing", "startsAt": format!("2026-11-29T19:00:{second:02}Z"), "endsAt": "0001-01-01T00:00:00Z",
            "labels": {"alertname": "GPUXidCritical", "node": node, "xid": "79", "pci_bus_id": "00000000:5D:00.0", "UUID": "GPU-1"},
        }],
    })
    .to_string()
}

#[tokio::test]
async fn a_post_without_the_token_is_refused_before_its_body_is_looked_at() {
    let server = server().await;
    for path in ["/api/v1/alert", "/api/v1/process"] {
        assert_eq!(server.post(path, None, "x").await.0, 401, "{path}");
        assert_eq!(server.post(path, Some("a-token-of-some-lengt"), "x").await.0, 401, "{path}");
        assert_eq!(server.post(path, Some(TOKEN), "x").await.0, 400, "{path}");
    }
}

#[tokio::test]
async fn garbage_is_refused_with_its_place_and_a_huge_body_with_its_size() {
    let server = server().await;
    let (status, body) = server.alert(r#"{"alerts": [}"#).await;
    assert_eq!(status, 400);
    assert!(body["error"].as_str().unwrap().contains("line 1, column"), "{body}");
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(server.alert(deep).await.0, 400);
    let huge = vec![b' '; gpuheal_spoke_core::scrape::webhook::WEBHOOK_BYTES_MAX + 1];
    assert_eq!(server.alert(huge).await.0, 413);
}

#[tokio::test]
async fn an_alert_is_answered_once_it_is_journaled_and_a_repeat_adds_nothing() {
    let server = server().await;
    let (status, body) = server.alert(firing("n1", 1)).await;
    assert_eq!((status, &body["faults"]), (200, &json!(1)), "{body}");
    let faults = server.cluster.journaled().await;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].node.as_ref().unwrap().uid, "uid-n1");
    let (status, body) = server.alert(firing("n1", 1)).await;
    assert_eq!((status, &body["faults"]), (200, &json!(0)), "{body}");
    assert_eq!(server.cluster.journaled().await.len(), 1);
}

#[tokio::test]
async fn resolved_alerts_and_unknown_nodes_start_nothing_and_say_so() {
    let server = server().await;
    let mut group: serde_json::Value = serde_json::from_str(&firing("n1", 1)).unwrap();
    group["alerts"][0]["status"] = json!("resolved");
    let (status, body) = server.alert(group.to_string()).await;
    assert_eq!((status, &body["faults"], &body["skipped"]["alert_resolved"]), (200, &json!(0), &json!(1)), "{body}");
    let (status, body) = server.alert(firing("nowhere", 1)).await;
    assert_eq!((status, &body["skipped"]["alert_node_unknown"]), (200, &json!(1)), "{body}");
    assert!(server.cluster.journaled().await.is_empty());
}

#[tokio::test]
async fn an_alert_that_cannot_be_kept_is_answered_503_and_found_again_when_it_comes_again() {
    let limits = Limits { bytes_max: 2 << 10, segment_bytes: 1 << 20, ..Limits::default() };
    let server = server_over(TestCluster::with_journal(tempfile::tempdir().unwrap(), limits).await).await;
    server.cluster.journal.append(&[], vec![("filler".into(), bytes::Bytes::from(vec![b'x'; 1900]))]).await.unwrap();
    for _ in 0..2 {
        let (status, body) = server.alert(firing("n1", 1)).await;
        assert_eq!(status, 503, "{body}");
        assert!(body["error"].as_str().unwrap().contains("full"), "{body}");
    }
    assert!(server.cluster.journaled().await.is_empty());
}

#[tokio::test]
async fn a_persons_request_is_answered_as_the_hub_decided() {
    use gpuheal_proto::link::v1::{ProcessOutcome as O, ProcessResult};
    let mut server = server().await;
    let body = json!({"node": "n1", "action": "mark", "reason": "looks ill"}).to_string();
    for (outcome, status) in
        [(O::Accepted, 202), (O::Repeated, 200), (O::NoSuchNode, 404), (O::Blocked, 409), (O::Invalid, 400), (O::Unspecified, 503)]
    {
        let hub = async {
            let ask = server.asks.recv().await.unwrap();
            assert_eq!(ask.process.node, "n1");
            let request_id = ask.process.request_id.clone();
            let result = ProcessResult { request_id, outcome: outcome.into(), command_id: "k1".into(), reason: "why".into() };
            ask.reply.send(result).unwrap();
        };
        let request = server.client.post(format!("{}/api/v1/process", server.base)).body(body.clone());
        let (_, response) = tokio::join!(hub, request.header("authorization", format!("Bearer {TOKEN}")).send());
        let response = response.unwrap();
        assert_eq!(response.status().as_u16(), status, "{outcome:?}");
        let json: serde_json::Value = response.json().await.unwrap();
        if status < 300 {
            assert_eq!(json["command_id"], "k1");
        }
    }
}

#[tokio::test]
async fn while_the_hub_is_away_a_persons_request_is_not_kept_and_says_so() {
    let server = server().await;
    server.cluster.attachment.send_replace(Attachment::default());
    let body = json!({"node": "n1", "action": "release", "reason": "repaired"}).to_string();
    let request = server.client.post(format!("{}/api/v1/process", server.base)).body(body);
    let response = request.header("authorization", format!("Bearer {TOKEN}")).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()["retry-after"], "10");
    assert!(response.text().await.unwrap().contains("nothing was kept"));
}

#[tokio::test]
async fn readiness_says_in_words_what_is_missing_and_liveness_does_not_depend_on_the_hub() {
    let server = server().await;
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    server.cluster.attachment.send_replace(Attachment::default());
    server.listed.send_replace(false);
    let (status, why) = server.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(why.contains("hub does not answer") && why.contains("not listed"), "{why}");
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn metrics_are_served_as_text_with_the_queue_in_them() {
    let server = server().await;
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("\ngpu_selfhealing_queue_depth 0\n"), "{text}");
}
