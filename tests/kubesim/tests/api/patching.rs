//! Writes to one object: patches of all kinds, conflicts, dry runs.

use kubesim::build;
use serde_json::{Value, json};

use crate::client::{Client, still};

const NODE: &str = "/api/v1/nodes/gpu-1";

async fn node() -> (kubesim::KubeSim, Client) {
    let (sim, client) = still().await;
    sim.store().create(build::gpu_node("gpu-1", 8, "H100")).unwrap();
    (sim, client)
}

fn mark(node: &Value) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"] },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"] },
        { "op": "add", "path": "/metadata/labels/gpu-selfhealing.io~1status", "value": "faulty" },
        { "op": "add", "path": "/spec/taints", "value": [{ "key": "gpu-selfhealing.io/faulty", "value": "true", "effect": "NoSchedule" }] },
    ])
}

#[tokio::test]
async fn one_json_patch_marks_a_node() {
    let (sim, client) = node().await;
    let before = client.get(NODE).await.body;
    let reply = client.patch(NODE, "json-patch", &mark(&before)).await;
    assert_eq!(reply.code, 200);
    assert_eq!(reply.body["metadata"]["labels"]["gpu-selfhealing.io/status"], "faulty");
    assert_eq!(sim.recorder().writes_to("nodes").len(), 1);
}

#[tokio::test]
async fn a_json_patch_bound_to_an_old_version_is_a_409_and_to_another_uid_a_422_without_details() {
    let (sim, client) = node().await;
    let before = client.get(NODE).await.body;
    sim.store().patch_merge("nodes", "", "gpu-1", &json!({ "metadata": { "labels": { "a": "b" } } })).unwrap();
    let reply = client.patch(NODE, "json-patch", &mark(&before)).await;
    assert_eq!((reply.code, reply.reason()), (409, "Conflict"));
    let mut other = sim.store().get("nodes", "", "gpu-1").unwrap();
    other["metadata"]["uid"] = json!("of-another");
    let reply = client.patch(NODE, "json-patch", &mark(&other)).await;
    assert_eq!((reply.code, reply.reason(), &reply.body["details"]), (422, "Invalid", &json!({})));
}

#[tokio::test]
async fn appending_to_taints_that_are_not_there_is_a_422() {
    let (_sim, client) = node().await;
    let patch = json!([{ "op": "add", "path": "/spec/taints/-", "value": { "key": "k", "effect": "NoSchedule" } }]);
    assert_eq!(client.patch(NODE, "json-patch", &patch).await.code, 422);
}

#[tokio::test]
async fn two_taints_of_one_key_and_effect_are_refused() {
    let (_sim, client) = node().await;
    let taint = json!({ "key": "k", "value": "a", "effect": "NoSchedule" });
    let reply = client.patch(NODE, "merge-patch", &json!({ "spec": { "taints": [taint, taint] } })).await;
    assert_eq!((reply.code, reply.causes()), (422, vec!["FieldValueDuplicate"]));
}

#[tokio::test]
async fn a_merge_patch_with_an_old_resource_version_is_a_409() {
    let (_sim, client) = node().await;
    let reply = client.patch(NODE, "merge-patch", &json!({ "metadata": { "resourceVersion": "1", "labels": { "a": "b" } } })).await;
    assert_eq!(reply.code, 409);
}

#[tokio::test]
async fn a_strategic_patch_of_the_status_touches_one_condition_and_no_spec() {
    let (_sim, client) = node().await;
    let patch =
        json!({ "spec": { "unschedulable": true }, "status": { "conditions": [{ "type": "XidError", "status": "True" }] } });
    let reply = client.patch("/api/v1/nodes/gpu-1/status", "strategic-merge-patch", &patch).await;
    assert_eq!(reply.code, 200);
    assert_eq!(reply.body["status"]["conditions"].as_array().unwrap().len(), 5);
    assert_eq!(reply.body["spec"]["unschedulable"], Value::Null);
}

#[tokio::test]
async fn the_main_endpoint_does_not_touch_the_status() {
    let (_sim, client) = node().await;
    let reply =
        client.patch(NODE, "merge-patch", &json!({ "status": { "conditions": [] }, "spec": { "unschedulable": true } })).await;
    assert_eq!(reply.body["status"]["conditions"].as_array().unwrap().len(), 4);
    assert_eq!(reply.body["spec"]["unschedulable"], true);
}

#[tokio::test]
async fn a_write_that_changes_nothing_has_no_new_version() {
    let (sim, client) = node().await;
    let version = sim.store().version();
    let reply = client.patch(NODE, "merge-patch", &json!({ "metadata": { "labels": { "nvidia.com/gpu.present": "true" } } })).await;
    assert_eq!((reply.code, sim.store().version()), (200, version));
}

#[tokio::test]
async fn a_dry_run_shows_the_result_and_keeps_the_object() {
    let (sim, client) = node().await;
    let version = sim.store().version();
    let reply = client.patch(&format!("{NODE}?dryRun=All"), "merge-patch", &json!({ "spec": { "unschedulable": true } })).await;
    assert_eq!(reply.body["spec"]["unschedulable"], true);
    assert_eq!(sim.store().version(), version);
}

#[tokio::test]
async fn a_put_of_an_old_version_is_a_409_and_one_without_version_is_taken_for_nodes_only() {
    let (sim, client) = node().await;
    let mut node = client.get(NODE).await.body;
    node["metadata"]["labels"]["a"] = json!("b");
    assert_eq!(client.put(NODE, &node).await.code, 200);
    assert_eq!(client.put(NODE, &node).await.code, 409);
    node["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(client.put(NODE, &node).await.code, 200);
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "l", "namespace": "default" }, "spec": { "holderIdentity": "a" } });
    sim.store().create(lease.clone()).unwrap();
    assert_eq!(client.put("/apis/coordination.k8s.io/v1/namespaces/default/leases/l", &lease).await.code, 422);
}

#[tokio::test]
async fn the_writer_of_a_cordon_can_be_told() {
    let (_sim, client) = node().await;
    let path = format!("{NODE}?fieldManager=kubectl-cordon");
    let reply = client.patch(&path, "strategic-merge-patch", &json!({ "spec": { "unschedulable": true } })).await;
    let entries = reply.body["metadata"]["managedFields"].as_array().unwrap().clone();
    let owner = entries.iter().find(|entry| entry["fieldsV1"]["f:spec"]["f:unschedulable"].is_object()).unwrap();
    assert_eq!((&owner["manager"], &owner["operation"]), (&json!("kubectl-cordon"), &json!("Update")));
    let path = format!("{NODE}?fieldManager=somebody");
    let reply = client.patch(&path, "merge-patch", &json!({ "spec": { "unschedulable": false } })).await;
    let entries = reply.body["metadata"]["managedFields"].as_array().unwrap().clone();
    let owners: Vec<&Value> = entries
        .iter()
        .filter(|entry| entry["fieldsV1"]["f:spec"]["f:unschedulable"].is_object())
        .map(|entry| &entry["manager"])
        .collect();
    assert_eq!(owners, [&json!("somebody")]);
}

#[tokio::test]
async fn apply_creates_changes_takes_back_and_refuses_what_another_manager_owns() {
    let (_sim, client) = still().await;
    let path = |manager: &str| format!("/api/v1/namespaces/default/configmaps/c?fieldManager={manager}");
    let map = |data: Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" }, "data": data });
    assert_eq!(client.apply(&path("one"), &map(json!({ "a": "1", "b": "1" }))).await.code, 201);
    let reply = client.apply(&path("one"), &map(json!({ "a": "2" }))).await;
    assert_eq!((reply.code, &reply.body["data"]), (200, &json!({ "a": "2" })));
    let reply = client.apply(&path("two"), &map(json!({ "a": "3" }))).await;
    assert_eq!((reply.code, reply.causes()), (409, vec!["FieldManagerConflict"]));
    let reply = client.apply(&format!("{}&force=true", path("two")), &map(json!({ "a": "3" }))).await;
    assert_eq!((reply.code, &reply.body["data"]), (200, &json!({ "a": "3" })));
    let reply = client.apply("/api/v1/namespaces/default/configmaps/c", &map(json!({}))).await;
    assert_eq!(reply.code, 422, "an apply needs a manager");
}
