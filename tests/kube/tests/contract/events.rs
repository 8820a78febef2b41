//! Kubernetes Events: written through either API, found by reason, and where those about a Node must live.

use serde_json::{Value, json};
use testkube::raw;

use crate::world::{World, names};

testkube::claims![
    an_event_is_found_by_its_reason,
    an_event_is_found_by_the_object_it_is_about,
    an_event_of_the_new_api_is_seen_through_the_old_one,
    an_event_about_a_node_lives_in_default,
    an_event_in_another_namespace_than_its_object_is_refused,
    an_event_of_the_new_api_without_its_required_fields_is_422,
    a_repeated_event_is_counted_by_a_patch,
];

const REASON: &str = "GPUSelfHealing";

fn core_event(w: &World, name: &str, reason: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": { "name": name, "namespace": w.ns() },
        "involvedObject": { "kind": "Pod", "namespace": w.ns(), "name": format!("about-{name}"), "apiVersion": "v1" },
        "reason": reason, "message": "evicted: Xid 79", "type": "Warning",
        "source": { "component": "gpuheal-spoke" }, "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    })
}

fn new_event(namespace: &str, name: &str, regarding: &Value) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": name, "namespace": namespace },
        "eventTime": "2026-01-01T00:00:00.000001Z", "action": "Quarantine",
        "reportingController": "gpu-selfhealing.io/spoke", "reportingInstance": "spoke-0",
        "regarding": regarding, "reason": REASON, "note": "quarantined: Xid 79", "type": "Warning",
    })
}

async fn an_event_is_found_by_its_reason(w: World) {
    let events = w.core("events");
    raw::post(&w.client, &events, &core_event(&w, "ours", REASON)).await.expect(201);
    raw::post(&w.client, &events, &core_event(&w, "theirs", "Pulled")).await.expect(201);
    assert_eq!(names(&w.get(&format!("{events}?fieldSelector=reason%3D{REASON}")).await), ["ours"]);
}

async fn an_event_is_found_by_the_object_it_is_about(w: World) {
    let events = w.core("events");
    raw::post(&w.client, &events, &core_event(&w, "a", REASON)).await.expect(201);
    raw::post(&w.client, &events, &core_event(&w, "b", REASON)).await.expect(201);
    let selector = "fieldSelector=involvedObject.kind%3DPod,involvedObject.name%3Dabout-b";
    assert_eq!(names(&w.get(&format!("{events}?{selector}")).await), ["b"]);
}

async fn an_event_of_the_new_api_is_seen_through_the_old_one(w: World) {
    let regarding = json!({ "kind": "Pod", "namespace": w.ns(), "name": "p", "apiVersion": "v1" });
    let event = new_event(w.ns(), "a", &regarding);
    raw::post(&w.client, &w.apis("events.k8s.io/v1", "events"), &event).await.expect(201);
    let old = w.get(&w.core("events/a")).await;
    assert_eq!(old["involvedObject"]["name"], "p");
    assert_eq!(old["message"], "quarantined: Xid 79");
    assert_eq!(old["reportingComponent"], "gpu-selfhealing.io/spoke");
    let found = w.get(&format!("{}?fieldSelector=reason%3D{REASON}", w.apis("events.k8s.io/v1", "events"))).await;
    assert_eq!(names(&found), ["a"]);
}

async fn an_event_about_a_node_lives_in_default(w: World) {
    let _machines = w.nodes(1, 8).await;
    let name = format!("{}-event", w.pool.name);
    let regarding = json!({ "kind": "Node", "name": format!("{}-1", w.pool.name), "apiVersion": "v1" });
    let event = new_event("default", &name, &regarding);
    raw::post(&w.client, "/apis/events.k8s.io/v1/namespaces/default/events", &event).await.expect(201);
    let refused = new_event(w.ns(), &name, &regarding);
    raw::post(&w.client, &w.apis("events.k8s.io/v1", "events"), &refused).await.expect(422);
}

async fn an_event_in_another_namespace_than_its_object_is_refused(w: World) {
    let mut event = core_event(&w, "a", REASON);
    event["involvedObject"]["namespace"] = json!("default");
    raw::post(&w.client, &w.core("events"), &event).await.expect(422);
}

async fn an_event_of_the_new_api_without_its_required_fields_is_422(w: World) {
    let regarding = json!({ "kind": "Pod", "namespace": w.ns(), "name": "p" });
    for missing in ["eventTime", "reportingController", "reportingInstance", "action", "reason"] {
        let mut event = new_event(w.ns(), "a", &regarding);
        event.as_object_mut().expect("it is an object").remove(missing);
        let answer = raw::post(&w.client, &w.apis("events.k8s.io/v1", "events"), &event).await;
        assert_eq!(answer.code, 422, "without {missing}: {}", answer.text);
    }
}

async fn a_repeated_event_is_counted_by_a_patch(w: World) {
    raw::post(&w.client, &w.core("events"), &core_event(&w, "a", REASON)).await.expect(201);
    let patch = json!({ "count": 2, "lastTimestamp": "2026-01-01T00:01:00Z" });
    let after = w.merge_patch(&w.core("events/a"), patch).await.expect(200).json;
    assert_eq!(after["count"], 2);
}
