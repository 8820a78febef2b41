//! Server-side apply and field ownership, and the promise of a dry run.

use serde_json::{Value, json};
use testkube::raw;

use crate::world::{World, text};

testkube::claims![
    apply_creates_and_records_its_owner,
    apply_of_the_same_changes_nothing,
    apply_of_a_field_that_another_owns_is_409_with_the_cause,
    apply_by_force_takes_the_field_over,
    apply_that_leaves_out_an_owned_field_removes_it,
    apply_without_a_manager_is_refused,
    a_patch_records_the_manager_it_names,
    dry_run_of_a_creation_stores_nothing,
    dry_run_of_a_patch_changes_nothing_and_shows_what_it_would_do,
    dry_run_of_a_deletion_deletes_nothing,
    dry_run_of_an_unknown_kind_is_refused,
];

fn config(data: Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": data })
}

async fn apply(w: &World, query: &str, data: Value) -> raw::Answer {
    raw::patch(&w.client, &format!("{}?{query}", w.core("configmaps/a")), raw::APPLY_PATCH, &config(data)).await
}

fn owners(object: &Value) -> Vec<(String, String)> {
    let entries = object["metadata"]["managedFields"].as_array();
    let pair = |entry: &Value| (text(entry, "/manager").to_owned(), text(entry, "/operation").to_owned());
    entries.into_iter().flatten().map(pair).collect()
}

async fn apply_creates_and_records_its_owner(w: World) {
    let answer = apply(&w, "fieldManager=ours", json!({ "k": "1" })).await.expect(201);
    assert_eq!(owners(&answer.json), [("ours".to_owned(), "Apply".to_owned())]);
    assert!(answer.json["metadata"]["managedFields"][0]["fieldsV1"]["f:data"]["f:k"].is_object(), "{}", answer.text);
}

async fn apply_of_the_same_changes_nothing(w: World) {
    let first = apply(&w, "fieldManager=ours", json!({ "k": "1" })).await.expect(201).json;
    let second = apply(&w, "fieldManager=ours", json!({ "k": "1" })).await.expect(200).json;
    assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
}

async fn apply_of_a_field_that_another_owns_is_409_with_the_cause(w: World) {
    apply(&w, "fieldManager=theirs", json!({ "k": "1" })).await.expect(201);
    let answer = apply(&w, "fieldManager=ours", json!({ "k": "2" })).await.expect(409);
    assert_eq!(answer.reason(), "Conflict");
    assert_eq!(answer.causes(), ["FieldManagerConflict"]);
    assert!(answer.message().contains("theirs"), "{}", answer.message());
}

async fn apply_by_force_takes_the_field_over(w: World) {
    apply(&w, "fieldManager=theirs", json!({ "k": "1" })).await.expect(201);
    let after = apply(&w, "fieldManager=ours&force=true", json!({ "k": "2" })).await.expect(200).json;
    assert_eq!(after["data"]["k"], "2");
    let ours = after["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let ours = ours.iter().find(|entry| entry["manager"] == "ours").cloned().unwrap_or_default();
    assert!(ours["fieldsV1"]["f:data"]["f:k"].is_object(), "{ours}");
}

async fn apply_that_leaves_out_an_owned_field_removes_it(w: World) {
    apply(&w, "fieldManager=ours", json!({ "k": "1", "l": "1" })).await.expect(201);
    let after = apply(&w, "fieldManager=ours", json!({ "k": "1" })).await.expect(200).json;
    assert_eq!(after["data"], json!({ "k": "1" }));
}

async fn apply_without_a_manager_is_refused(w: World) {
    let answer = apply(&w, "", json!({ "k": "1" })).await;
    assert!([400, 422].contains(&answer.code), "{}", answer.text);
}

async fn a_patch_records_the_manager_it_names(w: World) {
    let _machines = w.nodes(1, 8).await;
    let path = format!("{}?fieldManager=gpuheal-spoke", w.node_path(1));
    let after = w.merge_patch(&path, json!({ "spec": { "unschedulable": true } })).await.expect(200).json;
    let owner = ("gpuheal-spoke".to_owned(), "Update".to_owned());
    assert!(owners(&after).contains(&owner), "{:?}", owners(&after));
}

async fn dry_run_of_a_creation_stores_nothing(w: World) {
    let path = format!("{}?dryRun=All", w.core("configmaps"));
    let answer = raw::post(&w.client, &path, &config(json!({ "k": "1" }))).await.expect(201);
    assert!(!text(&answer.json, "/metadata/uid").is_empty());
    raw::get(&w.client, &w.core("configmaps/a")).await.expect(404);
}

async fn dry_run_of_a_patch_changes_nothing_and_shows_what_it_would_do(w: World) {
    let before = w.config_map("a", json!({ "k": "1" })).await;
    let path = format!("{}?dryRun=All", w.core("configmaps/a"));
    let shown = w.merge_patch(&path, json!({ "data": { "k": "2" } })).await.expect(200).json;
    assert_eq!(shown["data"]["k"], "2");
    let after = w.get(&w.core("configmaps/a")).await;
    assert_eq!(after["data"]["k"], "1");
    assert_eq!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
}

async fn dry_run_of_a_deletion_deletes_nothing(w: World) {
    w.config_map("a", json!({})).await;
    raw::delete(&w.client, &format!("{}?dryRun=All", w.core("configmaps/a")), None).await.expect(200);
    assert!(w.get(&w.core("configmaps/a")).await["metadata"]["deletionTimestamp"].is_null());
}

async fn dry_run_of_an_unknown_kind_is_refused(w: World) {
    let path = format!("{}?dryRun=Some", w.core("configmaps"));
    let answer = raw::post(&w.client, &path, &config(json!({}))).await;
    assert!([400, 422].contains(&answer.code), "{}", answer.text);
}
