//! What kubectl needs beside objects: discovery, the version, tables, reviews of its own rights.

use http::{Request, header};
use kube::client::Body;
use serde_json::{Value, json};
use testkube::raw;

use crate::world::{World, text};

testkube::claims![
    discovery_names_the_eviction_subresource_and_its_version,
    discovery_lists_the_groups,
    the_version_is_served,
    nodes_are_served_as_a_table,
    pods_are_served_as_a_table,
    a_review_of_own_rights_is_answered,
    a_missing_object_is_404_with_its_details,
    creation_in_a_missing_namespace_is_404,
    a_body_that_is_no_object_is_400,
    a_request_with_an_unknown_token_is_401,
    readiness_is_served,
];

pub(crate) async fn table(w: &World, path: &str) -> Value {
    let request = Request::get(path)
        .header(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        .body(Body::empty())
        .expect("the path is a valid URI: tests write it");
    let response = w.client.send(request).await.expect("an answer");
    let bytes = response.into_body().collect_bytes().await.expect("a whole answer");
    let table: Value = serde_json::from_slice(&bytes).expect("JSON");
    assert_eq!(table["kind"], "Table", "{table}");
    table
}

pub(crate) fn columns(table: &Value) -> Vec<&str> {
    let columns = table["columnDefinitions"].as_array();
    columns.into_iter().flatten().map(|column| text(column, "/name")).collect()
}

async fn discovery_names_the_eviction_subresource_and_its_version(w: World) {
    let found = w.get("/api/v1").await;
    let resources = found["resources"].as_array().cloned().unwrap_or_default();
    let eviction = resources.iter().find(|resource| resource["name"] == "pods/eviction").cloned().unwrap_or_default();
    assert_eq!((text(&eviction, "/group"), text(&eviction, "/version")), ("policy", "v1"));
    let nodes = resources.iter().find(|resource| resource["name"] == "nodes").cloned().unwrap_or_default();
    assert_eq!(nodes["shortNames"], json!(["no"]));
    assert_eq!(nodes["namespaced"], false);
}

async fn discovery_lists_the_groups(w: World) {
    let found = w.get("/apis").await;
    let groups: Vec<&str> = found["groups"].as_array().into_iter().flatten().map(|group| text(group, "/name")).collect();
    for group in ["apps", "policy", "coordination.k8s.io", "events.k8s.io", "apiextensions.k8s.io"] {
        assert!(groups.contains(&group), "{group} is not among {groups:?}");
    }
}

async fn the_version_is_served(w: World) {
    let version = w.get("/version").await;
    assert!(text(&version, "/gitVersion").starts_with("v1."), "{version}");
}

async fn nodes_are_served_as_a_table(w: World) {
    let _machines = w.nodes(1, 8).await;
    let selector = format!("labelSelector=gpu-selfhealing.io%2Ftest-pool%3D{}", w.pool.name);
    w.merge_patch(&w.node_path(1), json!({ "spec": { "unschedulable": true } })).await.expect(200);
    let table = table(&w, &format!("/api/v1/nodes?{selector}")).await;
    assert_eq!(columns(&table)[..5], ["Name", "Status", "Roles", "Age", "Version"]);
    assert_eq!(table["rows"][0]["cells"][1], "Ready,SchedulingDisabled");
}

async fn pods_are_served_as_a_table(w: World) {
    let _machines = w.nodes(1, 8).await;
    w.running_pod(w.pool.pod("a", 1)).await;
    let table = table(&w, &w.core("pods")).await;
    assert_eq!(columns(&table)[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    let cells = &table["rows"][0]["cells"];
    assert_eq!((&cells[0], &cells[1], &cells[2]), (&json!("a"), &json!("1/1"), &json!("Running")));
}

async fn a_review_of_own_rights_is_answered(w: World) {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": "create", "resource": "pods", "subresource": "eviction", "namespace": w.ns() } },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = raw::post(&w.client, path, &review).await.expect(201);
    assert_eq!(answer.json["status"]["allowed"], true);
}

async fn a_missing_object_is_404_with_its_details(w: World) {
    let answer = raw::get(&w.client, "/api/v1/nodes/absent").await.expect(404);
    assert_eq!(answer.json["kind"], "Status");
    assert_eq!(answer.reason(), "NotFound");
    assert_eq!(answer.json["details"], json!({ "name": "absent", "kind": "nodes" }));
}

async fn creation_in_a_missing_namespace_is_404(w: World) {
    let body = json!({ "metadata": { "name": "a" } });
    raw::post(&w.client, "/api/v1/namespaces/absent/configmaps", &body).await.expect(404);
}

async fn a_body_that_is_no_object_is_400(w: World) {
    raw::post(&w.client, &w.core("configmaps"), &json!("text")).await.expect(400);
}

async fn a_request_with_an_unknown_token_is_401(w: World) {
    let kubeconfig = w.cluster.kubeconfig_with_token("nobody's");
    let stranger = testkube::connect::connect(&kubeconfig, "contract-stranger").await.expect("a client");
    raw::get(&stranger, &w.core("pods")).await.expect(401);
}

async fn readiness_is_served(w: World) {
    assert_eq!(raw::get(&w.client, "/readyz").await.expect(200).text, "ok");
}
