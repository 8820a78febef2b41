//! Patches: what a quarantine's one call may rely on, and what each way of losing a race looks like.

use serde_json::json;
use testkube::raw;

use crate::world::{World, text};

testkube::claims![
    json_patch_that_tests_another_uid_is_422_and_changes_nothing,
    json_patch_that_replaces_an_old_resource_version_is_409,
    json_patch_that_replaces_the_current_resource_version_is_accepted,
    json_patch_that_adds_to_missing_taints_is_422,
    json_patch_below_a_missing_map_is_422,
    json_patch_that_removes_what_is_absent_is_422,
    json_patch_writes_label_annotation_taint_and_cordon_in_one_call,
    json_patch_of_several_operations_is_all_or_nothing,
    of_many_json_patches_on_one_resource_version_exactly_one_wins,
    patch_that_changes_nothing_keeps_the_resource_version,
    merge_patch_with_null_removes_a_key_and_keeps_the_others,
    merge_patch_with_an_old_resource_version_is_409,
    merge_patch_with_another_uid_is_422,
    strategic_merge_patch_replaces_taints_and_merges_conditions_by_type,
    patch_of_the_object_leaves_its_status_alone,
    patch_of_a_missing_object_is_404,
    patch_in_an_unknown_format_is_415,
    json_patch_of_an_immutable_field_is_422,
];

const TAINT: &str = "gpu-selfhealing.io/faulty";

async fn json_patch_that_tests_another_uid_is_422_and_changes_nothing(w: World) {
    let _machines = w.nodes(1, 8).await;
    let node = w.node_path(1);
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": "another" },
        { "op": "add", "path": "/spec/unschedulable", "value": true },
    ]);
    let answer = w.json_patch(&node, operations).await.expect(422);
    assert_eq!(answer.reason(), "Invalid");
    assert!(w.get(&node).await["spec"]["unschedulable"].is_null());
}

async fn json_patch_that_replaces_an_old_resource_version_is_409(w: World) {
    let old = w.config_map("a", json!({ "k": "1" })).await;
    let path = w.core("configmaps/a");
    w.merge_patch(&path, json!({ "data": { "k": "2" } })).await.expect(200);
    let operations = json!([
        { "op": "replace", "path": "/metadata/resourceVersion", "value": old["metadata"]["resourceVersion"] },
        { "op": "add", "path": "/data/k", "value": "3" },
    ]);
    let answer = w.json_patch(&path, operations).await.expect(409);
    assert_eq!(answer.reason(), "Conflict");
    assert_eq!(w.get(&path).await["data"]["k"], "2");
}

async fn json_patch_that_replaces_the_current_resource_version_is_accepted(w: World) {
    let current = w.config_map("a", json!({ "k": "1" })).await;
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": current["metadata"]["uid"] },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": current["metadata"]["resourceVersion"] },
        { "op": "add", "path": "/data/k", "value": "2" },
    ]);
    let answer = w.json_patch(&w.core("configmaps/a"), operations).await.expect(200);
    assert_ne!(answer.json["metadata"]["resourceVersion"], current["metadata"]["resourceVersion"]);
    assert_eq!(answer.json["data"]["k"], "2");
}

async fn json_patch_that_adds_to_missing_taints_is_422(w: World) {
    let _machines = w.nodes(1, 8).await;
    let taint = json!({ "key": TAINT, "value": "true", "effect": "NoSchedule" });
    let operations = json!([{ "op": "add", "path": "/spec/taints/-", "value": taint }]);
    w.json_patch(&w.node_path(1), operations).await.expect(422);
}

async fn json_patch_below_a_missing_map_is_422(w: World) {
    w.config_map("a", json!({ "k": "1" })).await;
    let operations = json!([{ "op": "add", "path": "/metadata/annotations/a", "value": "1" }]);
    w.json_patch(&w.core("configmaps/a"), operations).await.expect(422);
}

async fn json_patch_that_removes_what_is_absent_is_422(w: World) {
    w.config_map("a", json!({ "k": "1" })).await;
    let operations = json!([{ "op": "remove", "path": "/data/absent" }]);
    w.json_patch(&w.core("configmaps/a"), operations).await.expect(422);
}

async fn json_patch_writes_label_annotation_taint_and_cordon_in_one_call(w: World) {
    let _machines = w.nodes(1, 8).await;
    let path = w.node_path(1);
    let node = w.get(&path).await;
    let mut labels = node["metadata"]["labels"].clone();
    labels["gpu-selfhealing.io/status"] = json!("faulty");
    let foreign = json!({ "key": "example.com/theirs", "effect": "NoSchedule" });
    let ours = json!({ "key": TAINT, "value": "true", "effect": "NoSchedule" });
    let operations = json!([
        { "op": "test", "path": "/metadata/uid", "value": node["metadata"]["uid"] },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"] },
        { "op": "add", "path": "/metadata/labels/gpu-selfhealing.io~1status", "value": "faulty" },
        { "op": "add", "path": "/metadata/annotations", "value": { "gpu-selfhealing.io/process-id": "p1" } },
        { "op": "add", "path": "/spec/taints", "value": [foreign, ours] },
        { "op": "add", "path": "/spec/unschedulable", "value": true },
    ]);
    let after = w.json_patch(&path, operations).await.expect(200).json;
    assert_eq!(after["metadata"]["labels"], labels);
    assert_eq!(after["metadata"]["annotations"]["gpu-selfhealing.io/process-id"], "p1");
    assert_eq!(after["spec"]["taints"][0]["key"], "example.com/theirs");
    assert_eq!(after["spec"]["taints"][1], ours);
    assert_eq!(after["spec"]["unschedulable"], true);
}

async fn json_patch_of_several_operations_is_all_or_nothing(w: World) {
    w.config_map("a", json!({ "k": "1" })).await;
    let path = w.core("configmaps/a");
    let operations = json!([
        { "op": "replace", "path": "/data/k", "value": "2" },
        { "op": "test", "path": "/data/k", "value": "1" },
    ]);
    w.json_patch(&path, operations).await.expect(422);
    assert_eq!(w.get(&path).await["data"]["k"], "1");
}

async fn of_many_json_patches_on_one_resource_version_exactly_one_wins(w: World) {
    let current = w.config_map("a", json!({})).await;
    let path = w.core("configmaps/a");
    let version = &current["metadata"]["resourceVersion"];
    let attempts = (0..8).map(|writer| {
        let operations = json!([
            { "op": "replace", "path": "/metadata/resourceVersion", "value": version },
            { "op": "add", "path": "/data", "value": { "writer": writer.to_string() } },
        ]);
        w.json_patch(&path, operations)
    });
    let mut codes: Vec<u16> = futures::future::join_all(attempts).await.iter().map(|answer| answer.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [200, 409, 409, 409, 409, 409, 409, 409]);
}

async fn patch_that_changes_nothing_keeps_the_resource_version(w: World) {
    let before = w.config_map("a", json!({ "k": "1" })).await;
    let path = w.core("configmaps/a");
    let merged = w.merge_patch(&path, json!({ "data": { "k": "1" } })).await.expect(200).json;
    assert_eq!(merged["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
    let operations = json!([{ "op": "replace", "path": "/data/k", "value": "1" }]);
    let patched = w.json_patch(&path, operations).await.expect(200).json;
    assert_eq!(patched["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
}

async fn merge_patch_with_null_removes_a_key_and_keeps_the_others(w: World) {
    w.config_map("a", json!({ "ours": "1", "theirs": "2" })).await;
    let after = w.merge_patch(&w.core("configmaps/a"), json!({ "data": { "ours": null } })).await.expect(200);
    assert_eq!(after.json["data"], json!({ "theirs": "2" }));
}

async fn merge_patch_with_an_old_resource_version_is_409(w: World) {
    let old = w.config_map("a", json!({ "k": "1" })).await;
    let path = w.core("configmaps/a");
    w.merge_patch(&path, json!({ "data": { "k": "2" } })).await.expect(200);
    let version = &old["metadata"]["resourceVersion"];
    let patch = json!({ "metadata": { "resourceVersion": version }, "data": { "k": "3" } });
    assert_eq!(w.merge_patch(&path, patch).await.expect(409).reason(), "Conflict");
}

async fn merge_patch_with_another_uid_is_422(w: World) {
    w.config_map("a", json!({ "k": "1" })).await;
    let patch = json!({ "metadata": { "uid": "another" }, "data": { "k": "2" } });
    let answer = w.merge_patch(&w.core("configmaps/a"), patch).await.expect(422);
    assert_eq!(answer.reason(), "Invalid");
    assert_eq!(w.get(&w.core("configmaps/a")).await["data"]["k"], "1");
}

async fn strategic_merge_patch_replaces_taints_and_merges_conditions_by_type(w: World) {
    let _machines = w.nodes(1, 8).await;
    let path = w.node_path(1);
    let two = json!({ "spec": { "taints": [{ "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoSchedule" }] } });
    raw::patch(&w.client, &path, raw::STRATEGIC_MERGE_PATCH, &two).await.expect(200);
    let one = json!({ "spec": { "taints": [{ "key": "c", "effect": "NoSchedule" }] } });
    let after = raw::patch(&w.client, &path, raw::STRATEGIC_MERGE_PATCH, &one).await.expect(200).json;
    assert_eq!(after["spec"]["taints"].as_array().map(Vec::len), Some(1), "{}", after["spec"]);

    let before = after["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let status = json!({ "status": { "conditions": [{ "type": "GpuTrouble", "status": "True", "reason": "Xid79" }] } });
    let after = raw::patch(&w.client, &format!("{path}/status"), raw::STRATEGIC_MERGE_PATCH, &status).await.expect(200).json;
    let conditions = after["status"]["conditions"].as_array().cloned().unwrap_or_default();
    assert_eq!(conditions.len(), before.len() + 1, "{conditions:?}");
    assert!(conditions.iter().any(|condition| text(condition, "/type") == "Ready"));
}

async fn patch_of_the_object_leaves_its_status_alone(w: World) {
    let _machines = w.nodes(1, 8).await;
    let path = w.node_path(1);
    let patch = json!({ "status": { "capacity": { "nvidia.com/gpu": "1" } }, "metadata": { "labels": { "seen": "yes" } } });
    let after = w.merge_patch(&path, patch).await.expect(200).json;
    assert_eq!(after["status"]["capacity"]["nvidia.com/gpu"], "8");
    assert_eq!(after["metadata"]["labels"]["seen"], "yes");
}

async fn patch_of_a_missing_object_is_404(w: World) {
    let answer = w.merge_patch(&w.core("configmaps/absent"), json!({ "data": {} })).await.expect(404);
    assert_eq!(answer.reason(), "NotFound");
    assert_eq!(answer.json["details"]["name"], "absent");
}

async fn patch_in_an_unknown_format_is_415(w: World) {
    w.config_map("a", json!({})).await;
    let body = json!({});
    raw::patch(&w.client, &w.core("configmaps/a"), "application/unheard-of", &body).await.expect(415);
}

async fn json_patch_of_an_immutable_field_is_422(w: World) {
    let _machines = w.nodes(1, 8).await;
    let pod = w.running_pod(w.pool.pod("a", 1)).await;
    let operations = json!([{ "op": "replace", "path": "/spec/nodeName", "value": "elsewhere" }]);
    assert_eq!(w.json_patch(&w.pod_path(&pod), operations).await.expect(422).reason(), "Invalid");
}
