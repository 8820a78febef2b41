//! Watches, as a reflector needs them.

use std::time::Duration;

use kubesim::{Config, Controllers, Fault, Then, When, build};
use serde_json::{Value, json};

use crate::client::{pod, start, still};

const QUIET: Duration = Duration::from_millis(60);

fn label(value: &str) -> Value {
    json!({ "metadata": { "labels": { "state": value } } })
}

#[tokio::test]
async fn a_watch_tells_every_change_after_its_version_in_order() {
    let (sim, client) = still().await;
    let version = client.get("/api/v1/nodes").await.body["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().patch_merge("nodes", "", "a", &label("x")).unwrap();
    let mut watch = client.watch(&format!("/api/v1/nodes?watch=true&resourceVersion={version}")).await;
    sim.store().delete("nodes", "", "a").unwrap();
    let mut versions = Vec::new();
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!(kind), &json!("Node")));
        versions.push(event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(versions.is_sorted());
}

#[tokio::test]
async fn what_ceases_to_match_a_selector_is_deleted_and_what_starts_to_is_added() {
    let (sim, client) = still().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    let version = sim.store().version();
    let mut watch = client.watch(&format!("/api/v1/nodes?watch=1&labelSelector=state%3Don&resourceVersion={version}")).await;
    for value in ["on", "off", "on"] {
        sim.store().patch_merge("nodes", "", "a", &label(value)).unwrap();
    }
    for kind in ["ADDED", "DELETED", "ADDED"] {
        assert_eq!(watch.next_short().await, Some((kind.into(), "a".into())));
    }
}

#[tokio::test]
async fn a_watch_without_version_starts_with_what_is_there() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    pod(sim.store(), "q", "Running", true);
    let mut watch = client.watch("/api/v1/pods?watch=true&fieldSelector=metadata.name%3Dq").await;
    assert_eq!(watch.next_short().await, Some(("ADDED".into(), "q".into())));
    assert!(watch.is_silent_for(QUIET).await);
}

#[tokio::test]
async fn streamed_lists_end_with_a_marked_bookmark() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let mut watch = client
        .watch("/api/v1/pods?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan")
        .await;
    assert_eq!(watch.next_short().await, Some(("ADDED".into(), "p".into())));
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

#[tokio::test]
async fn bookmarks_move_a_quiet_watch_forward() {
    let config = Config { controllers: Controllers::NONE, bookmark_every: Duration::from_millis(20), ..Config::default() };
    let (sim, client) = start(config).await;
    let version = sim.store().version();
    let mut watch = client.watch(&format!("/api/v1/nodes?watch=1&allowWatchBookmarks=true&resourceVersion={version}")).await;
    pod(sim.store(), "p", "Running", true);
    loop {
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("BOOKMARK"), &json!("Node")));
        let at: u64 = event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        if at == sim.store().version() {
            return;
        }
    }
}

#[tokio::test]
async fn a_version_that_is_compacted_is_a_410_in_the_stream() {
    let (sim, client) = still().await;
    let version = sim.store().version();
    pod(sim.store(), "p", "Running", true);
    sim.store().compact();
    let mut watch = client.watch(&format!("/api/v1/pods?watch=1&resourceVersion={version}")).await;
    assert_eq!(watch.code, 200);
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"], &event["object"]["reason"]),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn a_410_can_also_be_the_http_status() {
    let (sim, client) = still().await;
    sim.faults().add(Fault::once(When::verb("watch", "pods"), Then::WatchGone));
    assert_eq!(client.watch("/api/v1/pods?watch=1&resourceVersion=1").await.code, 410);
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout() {
    let (sim, client) = still().await;
    let mut watch = client.watch(&format!("/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion={}", sim.store().version())).await;
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn watches_can_be_cut_by_resource() {
    let (sim, client) = still().await;
    let version = sim.store().version();
    let mut pods = client.watch(&format!("/api/v1/pods?watch=1&resourceVersion={version}")).await;
    let mut nodes = client.watch(&format!("/api/v1/nodes?watch=1&resourceVersion={version}")).await;
    sim.faults().drop_watches("pods");
    assert_eq!(pods.next().await, None);
    assert!(nodes.is_silent_for(QUIET).await);
}

#[tokio::test]
async fn a_stalled_watch_is_silent_and_open_and_may_speak_again() {
    let (sim, client) = still().await;
    let version = sim.store().version();
    let mut watch = client.watch(&format!("/api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion={version}")).await;
    let stall = sim.faults().stall_watches("pods");
    pod(sim.store(), "p", "Running", true);
    assert!(watch.is_silent_for(QUIET).await);
    sim.faults().remove(stall);
    assert_eq!(watch.next_short().await, Some(("ADDED".into(), "p".into())));
}
