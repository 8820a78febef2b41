//! The custom resource: what makes a HealAction fit to be an intent, a cursor and a tombstone.
//! The CRD here is the least that these claims need; the shipped one is the spoke's.

use serde_json::{Value, json};
use testkube::raw;

use crate::runner::claims;
use crate::world::{World, text};

claims![
    creation_under_a_name_in_use_is_409_already_exists,
    status_is_written_only_through_its_subresource,
    generation_rises_with_the_spec_and_not_with_the_status,
    a_finalizer_keeps_a_deleted_object_until_it_is_taken_away,
    the_step_cursor_moves_by_compare_and_swap,
    what_the_schema_does_not_know_is_dropped,
    what_the_schema_does_not_know_is_refused_when_validation_is_strict,
    what_the_schema_forbids_is_422,
    printer_columns_are_served_as_a_table,
    a_watch_sees_changes_of_the_status,
    the_resource_is_found_by_discovery,
];

pub(crate) const GROUP: &str = "gpu-selfhealing.io/v1";

pub(crate) fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "healactions.gpu-selfhealing.io" },
        "spec": {
            "group": "gpu-selfhealing.io", "scope": "Namespaced",
            "names": { "kind": "HealAction", "listKind": "HealActionList", "plural": "healactions", "singular": "healaction", "shortNames": ["ha"] },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    { "name": "Node", "type": "string", "jsonPath": ".spec.node" },
                    { "name": "State", "type": "string", "jsonPath": ".status.state" },
                    { "name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp" },
                ],
                "schema": { "openAPIV3Schema": {
                    "type": "object", "required": ["spec"],
                    "properties": {
                        "spec": {
                            "type": "object", "required": ["node"],
                            "properties": { "node": { "type": "string", "minLength": 1 }, "command": { "type": "string" } },
                        },
                        "status": {
                            "type": "object",
                            "properties": { "state": { "type": "string" }, "step": { "type": "integer" } },
                        },
                    },
                } },
            }],
        },
    })
}

fn action(name: &str) -> Value {
    json!({ "apiVersion": GROUP, "kind": "HealAction", "metadata": { "name": name }, "spec": { "node": "gpu-1" } })
}

async fn created(w: &World, name: &str) -> Value {
    w.cluster.apply_crd(&w.client, &definition()).await;
    raw::post(&w.client, &w.apis(GROUP, "healactions"), &action(name)).await.expect(201).json
}

fn path(w: &World, rest: &str) -> String {
    w.apis(GROUP, &format!("healactions/{rest}"))
}

async fn creation_under_a_name_in_use_is_409_already_exists(w: World) {
    let first = created(&w, "c-1").await;
    let answer = raw::post(&w.client, &w.apis(GROUP, "healactions"), &action("c-1")).await.expect(409);
    assert_eq!(answer.reason(), "AlreadyExists");
    assert_eq!(w.get(&path(&w, "c-1")).await["metadata"]["uid"], first["metadata"]["uid"]);
}

async fn status_is_written_only_through_its_subresource(w: World) {
    created(&w, "c-1").await;
    let both = json!({ "spec": { "command": "seen" }, "status": { "state": "Running" } });
    let after = w.merge_patch(&path(&w, "c-1"), both.clone()).await.expect(200).json;
    assert_eq!((&after["spec"]["command"], &after["status"]["state"]), (&json!("seen"), &Value::Null));
    let other = json!({ "spec": { "command": "ignored" }, "status": { "state": "Running" } });
    let after = w.merge_patch(&path(&w, "c-1/status"), other).await.expect(200).json;
    assert_eq!((&after["spec"]["command"], &after["status"]["state"]), (&json!("seen"), &json!("Running")));
}

async fn generation_rises_with_the_spec_and_not_with_the_status(w: World) {
    let first = created(&w, "c-1").await;
    assert_eq!(first["metadata"]["generation"], 1);
    let after = w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "step": 1 } })).await.expect(200).json;
    assert_eq!(after["metadata"]["generation"], 1);
    let after = w.merge_patch(&path(&w, "c-1"), json!({ "spec": { "command": "x" } })).await.expect(200).json;
    assert_eq!(after["metadata"]["generation"], 2);
}

async fn a_finalizer_keeps_a_deleted_object_until_it_is_taken_away(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let mut body = action("c-1");
    body["metadata"]["finalizers"] = json!(["gpu-selfhealing.io/outcome"]);
    raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(201);
    raw::delete(&w.client, &path(&w, "c-1"), None).await.expect(200);
    assert!(!text(&w.get(&path(&w, "c-1")).await, "/metadata/deletionTimestamp").is_empty());
    let operations = json!([{ "op": "remove", "path": "/metadata/finalizers/0" }]);
    w.json_patch(&path(&w, "c-1"), operations).await.expect(200);
    raw::get(&w.client, &path(&w, "c-1")).await.expect(404);
}

async fn the_step_cursor_moves_by_compare_and_swap(w: World) {
    let first = created(&w, "c-1").await;
    let version = &first["metadata"]["resourceVersion"];
    let step = |number: u32| json!({ "metadata": { "resourceVersion": version }, "status": { "step": number } });
    w.merge_patch(&path(&w, "c-1/status"), step(1)).await.expect(200);
    assert_eq!(w.merge_patch(&path(&w, "c-1/status"), step(2)).await.expect(409).reason(), "Conflict");
    assert_eq!(w.get(&path(&w, "c-1")).await["status"]["step"], 1);
}

async fn what_the_schema_does_not_know_is_dropped(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let mut body = action("c-1");
    body["spec"]["unheardOf"] = json!(1);
    let after = raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(201).json;
    assert_eq!(after["spec"], json!({ "node": "gpu-1" }));
}

async fn what_the_schema_does_not_know_is_refused_when_validation_is_strict(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let mut body = action("c-1");
    body["spec"]["unheardOf"] = json!(1);
    let collection = w.apis(GROUP, "healactions?fieldValidation=Strict");
    let answer = raw::post(&w.client, &collection, &body).await.expect(400);
    assert!(answer.message().contains("unheardOf"), "{}", answer.message());
}

async fn what_the_schema_forbids_is_422(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    for spec in [json!({ "node": 1 }), json!({}), json!({ "node": "" })] {
        let mut body = action("c-1");
        body["spec"] = spec;
        let answer = raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(422);
        assert_eq!(answer.reason(), "Invalid");
    }
}

async fn printer_columns_are_served_as_a_table(w: World) {
    created(&w, "c-1").await;
    w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "state": "Running" } })).await.expect(200);
    let table = crate::kubectl::table(&w, &w.apis(GROUP, "healactions")).await;
    assert_eq!(crate::kubectl::columns(&table), ["Name", "Node", "State", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().cloned().unwrap_or_default();
    assert_eq!(cells[..3], [json!("c-1"), json!("gpu-1"), json!("Running")]);
    assert!(cells[3].as_str().is_some_and(|age| age.ends_with('s')), "{cells:?}");
}

async fn a_watch_sees_changes_of_the_status(w: World) {
    let first = created(&w, "c-1").await;
    w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "step": 7 } })).await.expect(200);
    let version = text(&first, "/metadata/resourceVersion");
    let watch = format!("{}?watch=true&resourceVersion={version}", w.apis(GROUP, "healactions"));
    let events = raw::watch(&w.client, &watch, |events| !events.is_empty()).await;
    assert_eq!((text(&events[0], "/type"), &events[0]["object"]["status"]["step"]), ("MODIFIED", &json!(7)));
}

async fn the_resource_is_found_by_discovery(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let found = w.get(&format!("/apis/{GROUP}")).await;
    let resources = found["resources"].as_array().cloned().unwrap_or_default();
    let resource = resources.iter().find(|resource| resource["name"] == "healactions").cloned().unwrap_or_default();
    assert_eq!((&resource["kind"], &resource["namespaced"]), (&json!("HealAction"), &json!(true)));
    assert!(resources.iter().any(|resource| resource["name"] == "healactions/status"), "{resources:?}");
}
