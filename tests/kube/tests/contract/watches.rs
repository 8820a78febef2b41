//! Watches: order, resumption, bookmarks, and how a version that is too old is refused.

use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testkube::{raw, settled};

use crate::world::{World, text};

testkube::claims![
    watch_gives_changes_in_order_with_rising_versions,
    watch_resumes_after_a_version_without_loss_or_repetition,
    watch_without_a_version_begins_with_what_is_there,
    watch_with_initial_events_ends_them_with_a_marked_bookmark,
    watch_sends_a_bookmark_before_it_ends,
    watch_ends_by_itself_after_its_time,
    watch_from_a_version_too_old_is_410,
    watch_by_label_sees_an_object_go_when_it_stops_matching,
    watch_by_node_name_sees_a_pod_once_it_is_bound,
    watch_of_one_name_sees_no_other,
    watch_sees_a_deletion_as_it_was_last,
    the_kube_crates_watcher_follows_from_a_list,
    the_kube_crates_watcher_follows_from_a_streamed_list,
];

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "/type")).collect()
}

fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

async fn labelled(w: &World, name: &str) -> Value {
    let body = json!({ "metadata": { "name": name, "labels": { "seen": "yes" } } });
    raw::post(&w.client, &w.core("configmaps"), &body).await.expect(201).json
}

fn watch_path(w: &World, rest: &str) -> String {
    format!("{}?watch=true&labelSelector=seen%3Dyes&{rest}", w.core("configmaps"))
}

async fn watch_gives_changes_in_order_with_rising_versions(w: World) {
    let start = w.get(&w.core("configmaps")).await;
    labelled(&w, "a").await;
    w.merge_patch(&w.core("configmaps/a"), json!({ "data": { "k": "1" } })).await.expect(200);
    raw::delete(&w.client, &w.core("configmaps/a"), None).await.expect(200);
    let path = watch_path(&w, &format!("resourceVersion={}", version(&start)));
    let events = raw::watch(&w.client, &path, |events| events.len() == 3).await;
    assert_eq!(kinds(&events), ["ADDED", "MODIFIED", "DELETED"]);
    let versions: Vec<u64> = events.iter().filter_map(|event| version(&event["object"]).parse().ok()).collect();
    assert!(versions.is_sorted() && versions.len() == 3, "{versions:?}");
}

async fn watch_resumes_after_a_version_without_loss_or_repetition(w: World) {
    let first = labelled(&w, "a").await;
    labelled(&w, "b").await;
    labelled(&w, "c").await;
    let path = watch_path(&w, &format!("resourceVersion={}", version(&first)));
    let events = raw::watch(&w.client, &path, |events| events.len() == 2).await;
    let seen: Vec<&str> = events.iter().map(|event| text(event, "/object/metadata/name")).collect();
    assert_eq!(seen, ["b", "c"]);
}

async fn watch_without_a_version_begins_with_what_is_there(w: World) {
    labelled(&w, "a").await;
    labelled(&w, "b").await;
    let events = raw::watch(&w.client, &watch_path(&w, ""), |events| events.len() == 2).await;
    assert_eq!(kinds(&events), ["ADDED", "ADDED"]);
}

async fn watch_with_initial_events_ends_them_with_a_marked_bookmark(w: World) {
    labelled(&w, "a").await;
    let rest = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let events = raw::watch(&w.client, &watch_path(&w, rest), |events| events.len() == 2).await;
    assert_eq!(kinds(&events), ["ADDED", "BOOKMARK"]);
    let annotations = &events[1]["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    assert!(!version(&events[1]["object"]).is_empty());
}

async fn watch_sends_a_bookmark_before_it_ends(w: World) {
    let object = labelled(&w, "a").await;
    let mut events = Vec::new();
    // It comes two seconds before the end: a server that has not come to it by then is asked again for longer.
    for seconds in [5, 15, 45] {
        let rest = format!("resourceVersion={}&allowWatchBookmarks=true&timeoutSeconds={seconds}", version(&object));
        events = raw::watch(&w.client, &watch_path(&w, &rest), |_| false).await;
        if kinds(&events).contains(&"BOOKMARK") {
            break;
        }
    }
    assert!(kinds(&events).contains(&"BOOKMARK"), "{events:?}");
    let bookmark = &events[events.len() - 1]["object"];
    assert_eq!(bookmark["kind"], "ConfigMap");
    let (before, after): (u64, u64) = (version(&object).parse().unwrap_or(0), version(bookmark).parse().unwrap_or(0));
    assert!(after >= before && after > 0);
}

async fn watch_ends_by_itself_after_its_time(w: World) {
    let began = std::time::Instant::now();
    let object = labelled(&w, "a").await;
    let rest = format!("resourceVersion={}&timeoutSeconds=1", version(&object));
    assert_eq!(raw::watch(&w.client, &watch_path(&w, &rest), |_| false).await, Vec::<Value>::new());
    assert!(began.elapsed() >= Duration::from_millis(900));
}

/// The 410 may be the answer's status or an ERROR event in an answer of 200; a client must know both.
async fn watch_from_a_version_too_old_is_410(w: World) {
    let w = w.undisturbed().await;
    // A resource that was defined just now: Kubernetes does not remember how it was at the cluster's
    // beginning. Kubesim remembers until it is told to forget.
    w.cluster.apply_crd(&w.client, &crate::crd::definition()).await;
    if let Some(sim) = w.cluster.as_sim() {
        sim.store().compact();
    }
    let path = format!("{}?watch=true&resourceVersion=1", w.apis(crate::crd::GROUP, "healactions"));
    let events = raw::watch(&w.client, &path, |events| !events.is_empty()).await;
    let status = if text(&events[0], "/type") == "ERROR" { &events[0]["object"] } else { &events[0] };
    assert_eq!((status["kind"].as_str(), status["code"].as_u64()), (Some("Status"), Some(410)), "{status}");
    assert_eq!(status["reason"], "Expired");
}

async fn watch_by_label_sees_an_object_go_when_it_stops_matching(w: World) {
    let object = labelled(&w, "a").await;
    w.merge_patch(&w.core("configmaps/a"), json!({ "metadata": { "labels": { "seen": "no" } } })).await.expect(200);
    let path = watch_path(&w, &format!("resourceVersion={}", version(&object)));
    let events = raw::watch(&w.client, &path, |events| !events.is_empty()).await;
    assert_eq!(kinds(&events), ["DELETED"]);
}

async fn watch_by_node_name_sees_a_pod_once_it_is_bound(w: World) {
    let _machines = w.nodes(1, 8).await;
    let start = w.get("/api/v1/pods?limit=1").await;
    w.running_pod(w.pool.pod("late", 1)).await;
    let selector = format!("fieldSelector=spec.nodeName%3D{}-1", w.pool.name);
    let path = format!("/api/v1/pods?watch=true&{selector}&resourceVersion={}", version(&start));
    let events = raw::watch(&w.client, &path, |events| events.len() == 2).await;
    assert_eq!(kinds(&events), ["ADDED", "MODIFIED"]);
    assert_eq!(events[0]["object"]["metadata"]["name"], "late");
}

async fn watch_of_one_name_sees_no_other(w: World) {
    let start = w.get(&w.core("configmaps")).await;
    labelled(&w, "a").await;
    labelled(&w, "b").await;
    let rest = format!("fieldSelector=metadata.name%3Db&resourceVersion={}", version(&start));
    let events = raw::watch(&w.client, &watch_path(&w, &rest), |events| !events.is_empty()).await;
    assert_eq!(events[0]["object"]["metadata"]["name"], "b");
}

async fn watch_sees_a_deletion_as_it_was_last(w: World) {
    let object = labelled(&w, "a").await;
    raw::delete(&w.client, &w.core("configmaps/a"), None).await.expect(200);
    let path = watch_path(&w, &format!("resourceVersion={}", version(&object)));
    let events = raw::watch(&w.client, &path, |events| !events.is_empty()).await;
    assert_eq!(kinds(&events), ["DELETED"]);
    assert_eq!(events[0]["object"]["metadata"]["uid"], object["metadata"]["uid"]);
    assert_ne!(version(&events[0]["object"]), version(&object));
}

async fn the_kube_crates_watcher_follows_from_a_list(w: World) {
    followed(&w, watcher::Config::default()).await;
}

async fn the_kube_crates_watcher_follows_from_a_streamed_list(w: World) {
    followed(&w, watcher::Config::default().streaming_lists()).await;
}

/// What stands is told first and as such, then each change, then the deletion.
async fn followed(w: &World, config: watcher::Config) {
    labelled(w, "before").await;
    // A streamed list is of any version that the API server's cache may have, as a list of version 0 is: the cache must have heard of it.
    let cached = format!("{}?labelSelector=seen%3Dyes&resourceVersion=0", w.core("configmaps"));
    settled::is_true("the cache shows what was made", || async {
        w.get(&cached).await["items"].as_array().is_some_and(|items| !items.is_empty())
    })
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(w.client.clone(), w.ns());
    let mut events = Box::pin(watcher(maps, config.labels("seen=yes")));
    let mut next = async || match tokio::time::timeout(settled::BOUND, events.next()).await {
        Ok(Some(Ok(watcher::Event::Init))) => "init".to_owned(),
        Ok(Some(Ok(watcher::Event::InitApply(map)))) => format!("initial {}", map.name_any()),
        Ok(Some(Ok(watcher::Event::InitDone))) => "done".to_owned(),
        Ok(Some(Ok(watcher::Event::Apply(map)))) => format!("apply {}", map.name_any()),
        Ok(Some(Ok(watcher::Event::Delete(map)))) => format!("delete {}", map.name_any()),
        other => panic!("{other:?}"),
    };
    assert_eq!([next().await, next().await, next().await], ["init", "initial before", "done"]);
    labelled(w, "after").await;
    assert_eq!(next().await, "apply after");
    raw::delete(&w.client, &w.core("configmaps/before"), None).await.expect(200);
    assert_eq!(next().await, "delete before");
}
