//! Status codes over real HTTP.

use std::io::Write as _;

use serde_json::json;

use super::*;
use crate::{
    journal::Limits,
    ports::Lost,
    testing::{TestCluster, identity_into},
};

const TOKEN: &str = "a-token-of-some-length";

struct Server {
    base: String,
    cluster: TestCluster,
    asks: mpsc::Receiver<Ask>,
    client: reqwest::Client,
    listed: watch::Sender<bool>,
    lacks: watch::Sender<Vec<String>>,
    config: watch::Sender<Option<LocalConfig>>,
    rounds: Arc<Rounds>,
    cancel: CancellationToken,
    identity: tempfile::TempDir,
    _token: tempfile::NamedTempFile,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Puts an identity there that ends with that year's first second.
fn identity(dir: &std::path::Path, year: i32) {
    identity_into(dir, "spiffe://dev.gpuheal/cluster/c1/spoke", year);
}

async fn server_over(cluster: TestCluster) -> Server {
    server_until(cluster, 2100).await
}

/// With an identity that ends with that year's first second.
async fn server_until(cluster: TestCluster, year: i32) -> Server {
    let server = server_unlisted(cluster, year).await;
    server.rounds.expect(std::iter::empty());
    server
}

/// The same, while it is not known yet which exporters there are.
async fn server_unlisted(mut cluster: TestCluster, year: i32) -> Server {
    cluster.node("n1", &json!({}));
    let mut token = tempfile::NamedTempFile::new().unwrap();
    writeln!(token, "{TOKEN}").unwrap();
    let (asks_tx, asks) = mpsc::channel(4);
    let (listed, listing) = watch::channel(true);
    let (lacks, lacking) = watch::channel(Vec::new());
    let (config, configured) = watch::channel(Some(LocalConfig::default()));
    let (dir, rounds) = (tempfile::tempdir().unwrap(), Rounds::new());
    identity(dir.path(), year);
    let deps = Deps {
        derive: Arc::clone(&cluster.derive),
        asks: asks_tx,
        attachment: cluster.attachment.subscribe(),
        journal: cluster.journal.depth(),
        given_up: cluster.journal.given_up(),
        listed: listing,
        rounds: Arc::clone(&rounds),
        lacks: lacking,
        config: configured,
        heard: Arc::clone(&cluster.heard),
        identity: Keeper::open(dir.path(), Arc::clone(&cluster.metrics)).unwrap(),
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
    Server { base, cluster, asks, client, listed, lacks, config, rounds, cancel, identity: dir, _token: token }
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

/// Failure table, row 37.
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
    let limits = Limits { bytes_max: 64 << 10, segment_bytes: 8 << 10, ..Limits::default() };
    let server = server_over(TestCluster::with_journal(tempfile::tempdir().unwrap(), limits).await).await;
    let alert = |xid: usize| firing("n1", 1).replace("\"79\"", &format!("\"{xid}\""));
    let mut taken = 0;
    let refused = loop {
        assert!(taken < 500, "the journal never fills");
        let (status, body) = server.alert(alert(taken)).await;
        if status != 200 {
            break (status, body);
        }
        taken += 1;
    };
    assert_eq!(refused.0, 503, "{refused:?}");
    assert!(refused.1["error"].as_str().unwrap().contains("full"), "{refused:?}");
    assert_eq!(server.alert(alert(taken)).await.0, 503, "still full, and not taken for one that is known");
    assert_eq!(server.cluster.metrics.get(metrics::JOURNAL_FAILED, &[("reason", "full")]), Some(2.0));
    // The hub has acked what was there: room again.
    let head = server.cluster.journal.head().borrow().clone();
    assert_eq!(head.next_seq, taken as u64 + 1);
    server.cluster.journal.acked(head.stream, head.next_seq - 1).await;
    let (status, body) = server.alert(alert(taken)).await;
    assert_eq!((status, &body["faults"]), (200, &json!(1)), "{body}");
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
async fn fifty_posts_at_once_with_one_key_are_all_answered_alike() {
    use gpuheal_proto::link::v1::{ProcessOutcome, ProcessResult};
    let mut server = server().await;
    let body = json!({"node": "n1", "action": "mark", "reason": "looks ill", "idempotency_key": "k"}).to_string();
    let post = || {
        let request = server.client.post(format!("{}/api/v1/process", server.base)).body(body.clone());
        let response = request.header("authorization", format!("Bearer {TOKEN}")).send();
        async { response.await.unwrap().status().as_u16() }
    };
    let posts = futures::future::join_all((0..50).map(|_| post()));
    let asks = &mut server.asks;
    let hub = async {
        for _ in 0..50 {
            let ask = asks.recv().await.unwrap();
            assert_eq!(ask.process.request_id, "k");
            let result = ProcessResult { outcome: ProcessOutcome::Accepted.into(), ..ProcessResult::default() };
            // One that gave up is seen by its status.
            let _ = ask.reply.send(result);
        }
    };
    let (statuses, ()) = tokio::join!(posts, hub);
    assert_eq!(statuses, [202; 50]);
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
    server.lacks.send_replace(vec!["HealAction CRD is missing: kubectl apply -f deploy/spoke/crd.yaml".to_owned()]);
    assert!(server.get("/readyz").await.1.contains("kubectl apply -f deploy/spoke/crd.yaml"));
    assert_eq!(server.get("/healthz").await.0, 200);
}

/// Failure table, row 23.
#[tokio::test]
async fn readiness_is_red_once_the_certificate_has_expired_and_green_again_with_a_new_one() {
    let server = server_until(TestCluster::new().await, 2001).await;
    let (status, why) = server.get("/readyz").await;
    assert_eq!(status, 503);
    assert!(why.contains("certificate expired at 2001-01-01T00:00:00"), "{why}");
    std::fs::remove_file(server.identity.path().join("tls.crt")).unwrap();
    let (status, why) = server.get("/readyz").await;
    assert!(status == 503 && why.contains("tls.crt cannot be read"), "{why}");
    identity(server.identity.path(), 2100);
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    // The last good one serves.
    std::fs::remove_file(server.identity.path().join("tls.crt")).unwrap();
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    assert_eq!(server.cluster.metrics.get(metrics::TLS_RELOADS, &[("outcome", "failed")]), Some(2.0));
}

#[tokio::test]
async fn a_spoke_whose_watches_are_stale_is_not_ready_and_says_which() {
    let server = server().await;
    server.cluster.heard.forget(crate::watch::GPU_PODS);
    let (status, why) = server.get("/readyz").await;
    assert_eq!((status, why.as_str()), (503, "watch of gpu pods has not been heard yet\n"));
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_stop_switch_that_nobody_hears_makes_a_spoke_not_ready_and_every_watch_has_its_age() {
    use crate::watch::{CONFIG, DRAINED_PODS, HEAL_ACTIONS, STALE_AFTER};
    let server = server().await;
    let heard = &server.cluster.heard;
    let now = crate::clock::boottime();
    let (config, records, drain) = (heard.begin(CONFIG), heard.begin(HEAL_ACTIONS), heard.begin(DRAINED_PODS));
    [&config, &records, &drain].iter().for_each(|watch| watch.note(now));
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    config.note(now.saturating_sub(STALE_AFTER + std::time::Duration::from_secs(5)));
    let (status, why) = server.get("/readyz").await;
    assert!(status == 503 && why.starts_with("watch of config maps is stale: neither an event nor a bookmark for 95s"), "{why}");
    assert!(why.contains("whether it says stop is not known, and nothing that harms is done"), "{why}");
    let shown = |text: &str, kind: &str| text.contains(&format!("gpu_selfhealing_spoke_watch_age_seconds{{kind=\"{kind}\"}} "));
    let (_, text) = server.get("/metrics").await;
    for kind in ["node", "gpu pod", CONFIG, HEAL_ACTIONS, DRAINED_PODS] {
        assert!(shown(&text, kind), "{kind}: {text}");
    }
    drop(drain);
    let (_, text) = server.get("/metrics").await;
    assert!(!shown(&text, DRAINED_PODS), "a drain that is over has no watch: {text}");
}

#[tokio::test]
async fn a_spoke_whose_exporters_were_never_listed_is_not_ready_and_says_that_nothing_is_released() {
    let server = server_unlisted(TestCluster::new().await, 2100).await;
    let (status, why) = server.get("/readyz").await;
    assert!(status == 503 && why.contains("exporter pods are not listed yet") && why.contains("no node is released"), "{why}");
    server.rounds.expect(std::iter::empty());
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()), "a cluster may have none");
}

#[tokio::test]
async fn a_spoke_whose_owners_ceiling_is_lost_is_not_ready_and_says_how_to_lift_one_on_purpose() {
    let server = server().await;
    for (lost, what) in
        [(Lost::Object, "is gone: what it said last stays"), (Lost::KeyUnread, "has no key config.yaml: nothing but")]
    {
        server.config.send_replace(Some(LocalConfig { lost: Some(lost), ..LocalConfig::default() }));
        let (status, why) = server.get("/readyz").await;
        assert!(status == 503 && why.contains(what) && why.contains("let its key config.yaml hold an empty document"), "{why}");
    }
    server.config.send_replace(Some(LocalConfig { resource_version: "9".into(), ..LocalConfig::default() }));
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
    server.config.send_replace(None);
    let watch = server.cluster.heard.begin(crate::watch::CONFIG);
    watch.note(crate::clock::boottime());
    assert!(server.get("/readyz").await.1.contains("the fence cannot be read"));
    server.config.send_replace(Some(LocalConfig::default()));
    assert_eq!(server.get("/readyz").await, (200, "ok\n".to_owned()));
}

/// Every sample of a page by name and labels; the page must be without a bad line.
fn samples(page: &str) -> std::collections::BTreeMap<String, f64> {
    let mut rows = gpuheal_spoke_core::scrape::exposition::rows(page.as_bytes()).unwrap();
    let samples = rows.by_ref().map(|row| (format!("{}{{{}}}", row.name, row.labels.raw()), row.value)).collect();
    assert_eq!(rows.bad().total(), 0, "{:?} in {page}", rows.bad().first());
    samples
}

#[tokio::test]
async fn the_metrics_that_people_query_are_there_by_name_with_what_was_done() {
    let server = server().await;
    let names = ["evict_pods_total", "leader_active", "queue_depth", "annotation_write_failures_total"];
    let before = samples(&server.get("/metrics").await.1);
    for name in names {
        assert_eq!(before.get(&format!("gpu_selfhealing_{name}{{}}")), Some(&0.0), "{name} is there before anything is done");
    }
    let metrics = &server.cluster.metrics;
    metrics.inc(metrics::PROCESSED, &[("node", "n1"), ("action", "evict")]);
    metrics.inc(metrics::SKIPPED, &[("node", "n2"), ("reason", "cooldown")]);
    metrics.add(metrics::EVICTED, &[], 3.0);
    metrics.set(metrics::LEADER, &[], 1.0);
    metrics.inc(metrics::ANNOTATION_FAILED, &[]);
    server.alert(firing("n1", 1)).await;
    let page = server.get("/metrics").await.1;
    let after = samples(&page);
    for (series, value) in [
        ("gpu_selfhealing_processed_total{node=\"n1\",action=\"evict\"}", 1.0),
        ("gpu_selfhealing_processed_skipped{node=\"n2\",reason=\"cooldown\"}", 1.0),
        ("gpu_selfhealing_evict_pods_total{}", 3.0),
        ("gpu_selfhealing_leader_active{}", 1.0),
        ("gpu_selfhealing_queue_depth{}", 1.0),
        ("gpu_selfhealing_annotation_write_failures_total{}", 1.0),
        ("gpu_selfhealing_spoke_alerts_total{outcome=\"accepted\"}", 1.0),
        ("gpu_selfhealing_spoke_sources{state=\"fresh\"}", 0.0),
        ("gpu_selfhealing_spoke_certificate_not_after_seconds{}", 4_102_444_800.0),
    ] {
        assert_eq!(after.get(series), Some(&value), "{series} in {page}");
    }
    let ages: Vec<_> = after.iter().filter(|(series, _)| series.contains("watch_age_seconds")).collect();
    assert_eq!(ages.len(), 2, "{ages:?}");
    assert!(ages.iter().all(|(_, age)| **age < 60.0), "{ages:?}");
}

#[tokio::test]
async fn metrics_are_served_as_text_with_the_queue_in_them() {
    let server = server().await;
    let (status, text) = server.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(text.contains("\ngpu_selfhealing_queue_depth 0\n"), "{text}");
}

#[tokio::test]
async fn what_a_full_journal_gave_up_is_counted_by_class() {
    use gpuheal_proto::fault::{Fault, FaultClass, NodeRef, Onset, Witness};
    use gpuheal_proto::ids::{ClusterId, FaultKey, NodeName, NodeUid};

    let small = Limits { bytes_max: 16 << 10, segment_bytes: 1 << 10, ..Limits::default() };
    let server = server_over(TestCluster::with_journal(tempfile::tempdir().unwrap(), small).await).await;
    let uid = NodeUid::parse("u1").unwrap();
    let fault = Fault {
        key: FaultKey::derive(&ClusterId::parse("c1").unwrap(), &uid, None, "xid", "31"),
        node: NodeRef { name: NodeName::parse("n1").unwrap(), uid, boot_id: String::new() },
        gpu: None,
        class: FaultClass::Xid,
        code: "31".to_owned(),
        onset: Onset::Edge,
        witness: Witness::ExporterGauge,
        observed_at: gpuheal_proto::time::Timestamp::EPOCH,
        value: 31.0,
        threshold: 0.0,
        count: 1,
        source: String::new(),
        detail: String::new(),
        workload: String::new(),
    };
    for _ in 0..300 {
        server.cluster.journal.append(std::slice::from_ref(&fault), vec![]).await.unwrap();
    }
    let page = samples(&server.get("/metrics").await.1);
    let given_up = page.get("gpu_selfhealing_spoke_journal_given_up_total{class=\"xid\"}").copied().unwrap_or_default();
    assert!(given_up >= 1.0, "{page:?}");
    let left = server.cluster.journal.given_up().borrow()["xid"];
    assert_eq!(given_up, left as f64);
}
