//! Creating, deleting, namespaces, finalizers, custom resources.

use kubesim::build;
use serde_json::{Value, json};

use crate::client::{Client, lively, still, until};

fn definition() -> Value {
    let schema = json!({
        "type": "object", "required": ["spec"],
        "properties": {
            "spec": { "type": "object", "required": ["node"], "properties": { "node": { "type": "string" }, "level": { "type": "string", "enum": ["P0", "P1", "P2"] } } },
            "status": { "type": "object", "properties": { "state": { "type": "string" } } },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": "healactions.gpu-selfhealing.io" },
        "spec": {
            "group": "gpu-selfhealing.io", "scope": "Namespaced", "names": { "plural": "healactions", "singular": "healaction", "kind": "HealAction", "shortNames": ["ha"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
                "additionalPrinterColumns": [{ "name": "Node", "type": "string", "jsonPath": ".spec.node" }, { "name": "State", "type": "string", "jsonPath": ".status.state" }],
            }],
        },
    })
}

const ACTIONS: &str = "/apis/gpu-selfhealing.io/v1/namespaces/default/healactions";

async fn with_definition() -> (kubesim::KubeSim, Client) {
    let (sim, client) = still().await;
    let reply = client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition()).await;
    assert_eq!(reply.code, 201);
    (sim, client)
}

fn action(spec: Value) -> Value {
    json!({ "apiVersion": "gpu-selfhealing.io/v1", "kind": "HealAction", "metadata": { "name": "a" }, "spec": spec, "status": { "state": "done" } })
}

#[tokio::test]
async fn a_definition_registers_its_resource_and_validates_it() {
    let (_sim, client) = with_definition().await;
    assert_eq!(client.post(ACTIONS, &action(json!({ "level": "P0" }))).await.causes(), ["FieldValueRequired"]);
    assert_eq!(client.post(ACTIONS, &action(json!({ "node": "n", "level": "P9" }))).await.causes(), ["FieldValueNotSupported"]);
    assert_eq!(client.post(ACTIONS, &action(json!({ "node": 1 }))).await.causes(), ["FieldValueTypeInvalid"]);
    let strange = action(json!({ "node": "n", "odd": 1 }));
    assert_eq!(client.post(&format!("{ACTIONS}?fieldValidation=Strict"), &strange).await.code, 400);
    let reply = client.post(ACTIONS, &strange).await;
    assert_eq!((reply.code, &reply.body["spec"], &reply.body["status"]), (201, &json!({ "node": "n" }), &Value::Null));
}

#[tokio::test]
async fn status_and_spec_of_a_custom_resource_have_their_own_endpoints() {
    let (_sim, client) = with_definition().await;
    client.post(ACTIONS, &action(json!({ "node": "n" }))).await;
    let path = format!("{ACTIONS}/a");
    let both = json!({ "spec": { "node": "m" }, "status": { "state": "running" } });
    let reply = client.patch(&path, "merge-patch", &both).await;
    assert_eq!(
        (&reply.body["spec"]["node"], &reply.body["status"], &reply.body["metadata"]["generation"]),
        (&json!("m"), &Value::Null, &json!(2))
    );
    let reply = client
        .patch(&format!("{path}/status"), "merge-patch", &json!({ "spec": { "node": "x" }, "status": { "state": "running" } }))
        .await;
    assert_eq!(
        (&reply.body["spec"]["node"], &reply.body["status"]["state"], &reply.body["metadata"]["generation"]),
        (&json!("m"), &json!("running"), &json!(2))
    );
    assert_eq!(client.patch(&path, "strategic-merge-patch", &both).await.code, 415);
}

#[tokio::test]
async fn a_second_create_is_a_409_and_a_missing_namespace_a_404() {
    let (_sim, client) = with_definition().await;
    assert_eq!(client.post(ACTIONS, &action(json!({ "node": "n" }))).await.code, 201);
    let reply = client.post(ACTIONS, &action(json!({ "node": "n" }))).await;
    assert_eq!((reply.code, reply.reason()), (409, "AlreadyExists"));
    let mut elsewhere = action(json!({ "node": "n" }));
    elsewhere["metadata"]["namespace"] = json!("none");
    assert_eq!(client.post("/apis/gpu-selfhealing.io/v1/namespaces/none/healactions", &elsewhere).await.code, 404);
}

#[tokio::test]
async fn a_finalizer_keeps_an_object_until_it_is_taken_away() {
    let (_sim, client) = with_definition().await;
    let mut held = action(json!({ "node": "n" }));
    held["metadata"]["finalizers"] = json!(["gpu-selfhealing.io/report"]);
    client.post(ACTIONS, &held).await;
    let path = format!("{ACTIONS}/a");
    let reply = client.delete(&path, &json!({})).await;
    assert!(reply.body["metadata"]["deletionTimestamp"].is_string());
    let more =
        client.patch(&path, "merge-patch", &json!({ "metadata": { "finalizers": ["a/b", "gpu-selfhealing.io/report"] } })).await;
    assert_eq!(more.code, 422);
    client.patch(&path, "merge-patch", &json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(client.get(&path).await.code, 404);
}

#[tokio::test]
async fn delete_looks_at_its_preconditions() {
    let (sim, client) = still().await;
    let node = sim.store().create(build::cpu_node("n")).unwrap();
    let uid = |uid: &Value| json!({ "preconditions": { "uid": uid } });
    assert_eq!(client.delete("/api/v1/nodes/n", &uid(&json!("other"))).await.code, 409);
    assert_eq!(client.delete("/api/v1/nodes/n", &uid(&node["metadata"]["uid"])).await.code, 200);
}

#[tokio::test]
async fn generated_names_are_the_stem_and_five_letters() {
    let (_sim, client) = still().await;
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "generateName": "c-" } });
    let reply = client.post("/api/v1/namespaces/default/configmaps", &map).await;
    assert_eq!(reply.body["metadata"]["name"].as_str().unwrap().len(), 7);
}

#[tokio::test]
async fn a_replaced_node_has_its_name_and_another_uid_and_none_of_our_marks() {
    let (sim, _client) = still().await;
    let mut node = build::gpu_node("n", 8, "H100");
    node["metadata"]["labels"]["gpu-selfhealing.io/status"] = json!("faulty");
    let old = sim.store().create(node).unwrap();
    let new = sim.store().replace_node("n").unwrap();
    assert_ne!(old["metadata"]["uid"], new["metadata"]["uid"]);
    assert_eq!(new["metadata"]["labels"]["gpu-selfhealing.io/status"], Value::Null);
    assert_eq!(new["metadata"]["labels"]["nvidia.com/gpu.count"], "8");
}

#[tokio::test]
async fn a_deleted_namespace_takes_everything_with_it() {
    let (sim, client) = lively().await;
    sim.store().create(build::gpu_node("node-1", 8, "H100")).unwrap();
    sim.store().create(build::deployment("ml", "d", 2, 1, &[("app", "d")])).unwrap();
    until("pods run", || sim.store().list("pods").iter().filter(|pod| pod["status"]["phase"] == "Running").count() == 2).await;
    assert_eq!(client.delete("/api/v1/namespaces/ml", &json!({})).await.body["status"]["phase"], "Terminating");
    until("all is gone", || sim.store().get("namespaces", "", "ml").is_none() && sim.store().list("pods").is_empty()).await;
}
