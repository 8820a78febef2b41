//! Lists: pages, tokens, selectors, shapes.

use kubesim::build;
use serde_json::{Value, json};

use crate::client::{pod, still};

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn pages_show_one_version_even_while_objects_come_and_go() {
    let (sim, client) = still().await;
    for name in ["a", "b", "c", "d", "e"] {
        sim.store().create(build::gpu_node(name, 8, "H100")).unwrap();
    }
    let first = client.get("/api/v1/nodes?limit=2").await.body;
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(3)));
    sim.store().delete("nodes", "", "d").unwrap();
    sim.store().create(build::gpu_node("cc", 8, "H100")).unwrap();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = client.get(&format!("/api/v1/nodes?limit=10&continue={token}")).await.body;
    assert_eq!(names(&second), ["c", "d", "e"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    assert_eq!(second["metadata"]["continue"], Value::Null);
}

#[tokio::test]
async fn a_token_older_than_the_window_is_a_410() {
    let (sim, client) = still().await;
    for name in ["a", "b"] {
        sim.store().create(build::gpu_node(name, 8, "H100")).unwrap();
    }
    let first = client.get("/api/v1/nodes?limit=1").await.body;
    sim.store().patch_merge("nodes", "", "a", &json!({ "metadata": { "labels": { "x": "y" } } })).unwrap();
    sim.store().compact();
    let reply = client.get(&format!("/api/v1/nodes?limit=1&continue={}", first["metadata"]["continue"].as_str().unwrap())).await;
    assert_eq!((reply.code, reply.reason()), (410, "Expired"));
}

#[tokio::test]
async fn selectors_narrow_a_list() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    sim.store().create(build::gpu_pod("ml", "q", "node-2", 1, &[("app", "other")])).unwrap();
    for (query, expected) in [
        ("fieldSelector=spec.nodeName%3Dnode-1", vec!["p"]),
        ("fieldSelector=status.phase%21%3DRunning", vec!["q"]),
        ("labelSelector=app%20in%20(train,x)", vec!["p"]),
        ("labelSelector=app,app%21%3Dtrain", vec!["q"]),
        ("fieldSelector=metadata.namespace%3Dnone", vec![]),
    ] {
        assert_eq!(names(&client.get(&format!("/api/v1/pods?{query}")).await.body), expected, "{query}");
    }
    assert_eq!(client.get("/api/v1/pods?labelSelector=%3D").await.code, 400);
}

#[tokio::test]
async fn lists_of_builtin_types_leave_the_type_out_of_their_items() {
    let (sim, client) = still().await;
    pod(sim.store(), "p", "Running", true);
    let list = client.get("/api/v1/namespaces/ml/pods").await.body;
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&json!("PodList"), &Value::Null));
}

#[tokio::test]
async fn events_are_one_object_under_two_apis() {
    let (_sim, client) = still().await;
    let event = json!({
        "metadata": { "name": "e", "namespace": "default" }, "regarding": { "kind": "Node", "name": "gpu-1" }, "note": "quarantined", "reason": "GPUSelfHealing",
        "action": "Quarantine", "type": "Warning", "eventTime": "2026-11-29T10:00:00.000000Z", "reportingController": "gpuheal-spoke", "reportingInstance": "0",
    });
    assert_eq!(client.post("/apis/events.k8s.io/v1/namespaces/default/events", &event).await.code, 201);
    let core = client
        .get("/api/v1/namespaces/default/events?fieldSelector=reason%3DGPUSelfHealing,involvedObject.name%3Dgpu-1")
        .await
        .body;
    assert_eq!(
        (&core["items"][0]["message"], &core["items"][0]["reportingComponent"]),
        (&json!("quarantined"), &json!("gpuheal-spoke"))
    );
    let new = client.get("/apis/events.k8s.io/v1/namespaces/default/events/e").await.body;
    assert_eq!((&new["note"], &new["apiVersion"]), (&json!("quarantined"), &json!("events.k8s.io/v1")));
}

#[tokio::test]
async fn an_event_about_a_node_lives_in_default_only() {
    let (sim, client) = still().await;
    sim.store().create(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "ml" } })).unwrap();
    let event = json!({ "metadata": { "name": "e", "namespace": "ml" }, "involvedObject": { "kind": "Node", "name": "gpu-1" }, "reason": "r" });
    assert_eq!(client.post("/api/v1/namespaces/ml/events", &event).await.code, 422);
}
