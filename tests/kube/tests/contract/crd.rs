//! The custom resource: what makes a HealAction fit to be an intent, a cursor and a tombstone. The CRD is the shipped one,
//! so that each API server is seen to take it and to check objects by it.

use serde_json::{Value, json};
use testkube::raw;

use crate::world::{World, text};

testkube::claims![
    the_shipped_definition_is_taken_as_it_is,
    creation_under_a_name_in_use_is_409_already_exists,
    status_is_written_only_through_its_subresource,
    generation_does_not_rise_with_the_status,
    a_finalizer_keeps_a_deleted_object_until_it_is_taken_away,
    the_step_cursor_moves_by_compare_and_swap,
    what_the_schema_does_not_know_is_dropped,
    what_the_schema_does_not_know_is_refused_when_validation_is_strict,
    what_the_schema_forbids_is_422,
    what_is_left_out_gets_the_schemas_default,
    printer_columns_are_served_as_a_table,
    a_watch_sees_changes_of_the_status,
    the_resource_is_found_by_discovery,
];

pub(crate) const GROUP: &str = "gpu-selfhealing.io/v1";

/// What is shipped, as people apply it.
const SHIPPED: &str = include_str!("../../../../deploy/spoke/crd.yaml");

pub(crate) fn definition() -> Value {
    serde_saphyr::from_str(SHIPPED).expect("the shipped CRD is YAML")
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

/// Whatever the server would not keep of it, or would find wrong in its schema, shows here.
async fn the_shipped_definition_is_taken_as_it_is(w: World) {
    let shipped = definition();
    w.cluster.apply_crd(&w.client, &shipped).await;
    let name = text(&shipped, "/metadata/name");
    let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
    let kept = w.get(&path).await;
    assert_eq!(plain(&kept["spec"]["versions"][0]["schema"]), plain(&shipped["spec"]["versions"][0]["schema"]));
    let conditions = kept["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let holds = |kind: &str| conditions.iter().any(|one| one["type"] == kind && one["status"] == "True");
    assert!(holds("Established") && holds("NamesAccepted") && !holds("NonStructuralSchema"), "{conditions:?}");
    let strict = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict&dryRun=All";
    let mut again = shipped;
    again["spec"]["names"] = json!({ "kind": "Twin", "plural": "twins", "singular": "twin" });
    again["metadata"]["name"] = json!("twins.gpu-selfhealing.io");
    raw::post(&w.client, strict, &again).await.expect(201);
}

/// The same with 0 for 0.0, since the two are one number to whoever reads a bound.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), plain(value))).collect(),
        Value::Array(items) => items.iter().map(plain).collect(),
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

async fn creation_under_a_name_in_use_is_409_already_exists(w: World) {
    let first = created(&w, "c-1").await;
    let answer = raw::post(&w.client, &w.apis(GROUP, "healactions"), &action("c-1")).await.expect(409);
    assert_eq!(answer.reason(), "AlreadyExists");
    assert_eq!(w.get(&path(&w, "c-1")).await["metadata"]["uid"], first["metadata"]["uid"]);
}

async fn status_is_written_only_through_its_subresource(w: World) {
    created(&w, "c-1").await;
    let both = json!({ "metadata": { "labels": { "seen": "yes" } }, "status": { "state": "STARTED" } });
    let after = w.merge_patch(&path(&w, "c-1"), both.clone()).await.expect(200).json;
    assert_eq!((&after["metadata"]["labels"]["seen"], &after["status"]["state"]), (&json!("yes"), &Value::Null));
    let other = json!({ "spec": { "reason": "ignored" }, "status": { "state": "STARTED" } });
    let after = w.merge_patch(&path(&w, "c-1/status"), other).await.expect(200).json;
    assert_eq!((&after["spec"]["reason"], &after["status"]["state"]), (&json!(""), &json!("STARTED")));
}

/// The spec of a HealAction does not change.
async fn generation_does_not_rise_with_the_status(w: World) {
    let first = created(&w, "c-1").await;
    assert_eq!(first["metadata"]["generation"], 1);
    let after = w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "cursor": 1 } })).await.expect(200).json;
    assert_eq!(after["metadata"]["generation"], 1);
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
    let step = |number: u32| json!({ "metadata": { "resourceVersion": version }, "status": { "cursor": number } });
    w.merge_patch(&path(&w, "c-1/status"), step(1)).await.expect(200);
    assert_eq!(w.merge_patch(&path(&w, "c-1/status"), step(2)).await.expect(409).reason(), "Conflict");
    assert_eq!(w.get(&path(&w, "c-1")).await["status"]["cursor"], 1);
}

async fn what_the_schema_does_not_know_is_dropped(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let mut body = action("c-1");
    body["spec"]["unheardOf"] = json!(1);
    let after = raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(201).json;
    assert_eq!((&after["spec"]["node"], &after["spec"]["unheardOf"]), (&json!("gpu-1"), &Value::Null));
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
    let pod = json!({ "namespace": "ml", "name": "a", "uid": "u", "state": "planned", "evictionCalls": -1 });
    for (spec, field) in [
        (json!({ "node": 1 }), "spec.node"),
        (json!({ "commandSeq": -1 }), "spec.commandSeq"),
        (json!({ "pods": [{ "namespace": "ml", "name": "a", "uid": "u" }] }), "spec.pods[0].state"),
        (json!({ "pods": [pod] }), "spec.pods[0].evictionCalls"),
        (json!({ "undo": {} }), "spec.undo"),
        (json!({ "tombstone": {} }), "spec.tombstone.state"),
        (json!({ "action": "levitate" }), "spec.action"),
        (json!({ "holder": "a".repeat(254) }), "spec.holder"),
    ] {
        let mut body = action("c-1");
        body["spec"] = spec;
        let answer = raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(422);
        assert_eq!(answer.reason(), "Invalid");
        assert!(answer.message().contains(field), "{field} is not named by {}", answer.message());
    }
    let mut bare = action("c-1");
    bare.as_object_mut().expect("it is an object").remove("spec");
    raw::post(&w.client, &w.apis(GROUP, "healactions"), &bare).await.expect(422);
    created(&w, "c-1").await;
    let answer = w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "steps": [{ "state": "done" }] } })).await.expect(422);
    assert!(answer.message().contains("status.steps[0].name"), "{}", answer.message());
}

async fn what_is_left_out_gets_the_schemas_default(w: World) {
    let spec = created(&w, "c-1").await["spec"].clone();
    assert_eq!((&spec["action"], &spec["commandSeq"], &spec["holder"]), (&json!(""), &json!(0), &json!("")));
    assert!(spec["pods"].is_null() && spec["tombstone"].is_null(), "{spec}");
    let status = json!({ "status": { "steps": [{ "name": "mark" }] } });
    let after = w.merge_patch(&path(&w, "c-1/status"), status).await.expect(200).json;
    assert_eq!((&after["status"]["cursor"], &after["status"]["steps"][0]["state"]), (&json!(0), &json!("")));
}

async fn printer_columns_are_served_as_a_table(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let mut body = action("c-1");
    body["spec"] = json!({
        "node": "gpu-1", "fault": "xid 79", "level": "P0", "action": "evict", "reason": "off the bus", "commandId": "019ad0ff",
        "shownNode": "gpu-1", "shownWhat": "evict xid 79"
    });
    raw::post(&w.client, &w.apis(GROUP, "healactions"), &body).await.expect(201);
    w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "state": "STARTED", "shownState": "BLOCKED" } })).await.expect(200);
    let table = crate::kubectl::table(&w, &w.apis(GROUP, "healactions")).await;
    assert_eq!(
        crate::kubectl::columns(&table),
        ["Name", "Node", "What", "State", "Age", "Command", "Machine", "Fault", "Level", "Reason"]
    );
    let cells = table["rows"][0]["cells"].as_array().cloned().unwrap_or_default();
    assert_eq!(cells[..4], [json!("c-1"), json!("gpu-1"), json!("evict xid 79"), json!("BLOCKED")]);
    assert!(cells[4].as_str().is_some_and(|age| age.ends_with(['s', 'm'])), "{cells:?}");
    assert_eq!(cells[5..], [json!("019ad0ff"), json!("gpu-1"), json!("xid 79"), json!("P0"), json!("off the bus")]);
}

async fn a_watch_sees_changes_of_the_status(w: World) {
    let first = created(&w, "c-1").await;
    w.merge_patch(&path(&w, "c-1/status"), json!({ "status": { "cursor": 7 } })).await.expect(200);
    let version = text(&first, "/metadata/resourceVersion");
    let watch = format!("{}?watch=true&resourceVersion={version}", w.apis(GROUP, "healactions"));
    let events = raw::watch(&w.client, &watch, |events| !events.is_empty()).await;
    assert_eq!((text(&events[0], "/type"), &events[0]["object"]["status"]["cursor"]), ("MODIFIED", &json!(7)));
}

async fn the_resource_is_found_by_discovery(w: World) {
    w.cluster.apply_crd(&w.client, &definition()).await;
    let found = w.get(&format!("/apis/{GROUP}")).await;
    let resources = found["resources"].as_array().cloned().unwrap_or_default();
    let resource = resources.iter().find(|resource| resource["name"] == "healactions").cloned().unwrap_or_default();
    assert_eq!((&resource["kind"], &resource["namespaced"]), (&json!("HealAction"), &json!(true)));
    assert!(resources.iter().any(|resource| resource["name"] == "healactions/status"), "{resources:?}");
}
