//! What is kept of a node says the same as the node itself.

use gpuheal_proto::kubernetes::{ANNOTATION_PLAN_REVISION, LABEL_STATUS, TAINT_FAULTY};
use serde_json::{Value, json};

use super::*;

fn entry(node: &Value) -> NodeEntry {
    NodeEntry::of(serde_json::from_value(node.clone()).unwrap(), &mut Pools::default()).unwrap()
}

fn whole() -> Value {
    json!({
        "metadata": {
            "name": "n1", "uid": "u1", "resourceVersion": "5", "creationTimestamp": "2026-11-29T19:05:00Z",
            "labels": {"pool": "train", LABEL_STATUS: "faulty"},
            "annotations": {
                ANNOTATION_PLAN_REVISION: "7", "karpenter.sh/do-not-disrupt": "true",
                "kubectl.kubernetes.io/last-applied-configuration": "all of it again",
            },
            "managedFields": [
                {"manager": "kubelet", "fieldsV1": {"f:status": {"f:conditions": {}}}},
                {"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
            ],
        },
        "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24", "taints": [
            {"key": "other", "effect": "NoExecute", "timeAdded": "2026-11-29T19:05:00Z"},
            {"key": TAINT_FAULTY, "value": "true", "effect": "NoSchedule"},
        ]},
        "status": {
            "images": [{"names": ["x"], "sizeBytes": 1}],
            "capacity": {"nvidia.com/gpu": "8", "cpu": "96"}, "allocatable": {"nvidia.com/gpu": "7", "cpu": "95"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "n1"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-11-29T19:05:00Z"}],
            "nodeInfo": {"bootID": "boot-1", "kernelVersion": "6"},
        },
    })
}

#[test]
fn what_is_kept_is_judged_as_the_node_itself_but_for_annotations_that_nobody_reads() {
    let node = whole();
    let mut want = NodeFacts::from_json(&node).unwrap();
    want.annotations.as_mut().unwrap().remove("kubectl.kubernetes.io/last-applied-configuration");
    let kept = entry(&node);
    assert_eq!(kept.facts(), Some(want.clone()));
    assert!(kept.marked && want.marked());
    assert_eq!(marker::all(&want), ["karpenter.sh/do-not-disrupt=true"]);
}

#[test]
fn maps_and_fields_that_a_node_lacks_are_known_to_be_lacking() {
    let bare = json!({"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5"}});
    let empty = json!({"metadata": {"name": "n1", "uid": "u1", "resourceVersion": "5", "labels": {}, "annotations": {"a": "b"}}, "spec": {"unschedulable": false}});
    for node in [bare, empty] {
        let want = NodeFacts::from_json(&node).unwrap();
        let got = entry(&node).facts().unwrap();
        assert_eq!(got.labels, want.labels);
        assert_eq!((got.annotations.is_some(), got.unschedulable), (want.annotations.is_some(), want.unschedulable));
    }
    assert!(entry(&json!({"metadata": {"name": "n1"}})).facts().is_none(), "without a UID it is no node to act on");
}

#[test]
fn a_mark_is_seen_by_our_label_and_by_our_taint_and_by_nothing_like_them() {
    let taint =
        |key: &str, effect: &str| json!({"taints": [{"key": "other", "effect": "NoExecute"}, {"key": key, "effect": effect}]});
    let cases = [
        (json!({}), json!({}), false),
        (json!({LABEL_STATUS: "faulty"}), json!({}), true),
        (json!({LABEL_STATUS: "healthy"}), json!({}), false),
        (json!({}), taint(TAINT_FAULTY, "NoSchedule"), true),
        (json!({}), taint(TAINT_FAULTY, "NoExecute"), false),
        (json!({}), taint("somebody.io/faulty", "NoSchedule"), false),
    ];
    for (labels, spec, want) in cases {
        let node = json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": labels}, "spec": spec});
        assert_eq!((entry(&node).marked, NodeFacts::from_json(&node).unwrap().marked()), (want, want), "{node}");
    }
}

#[test]
fn gpus_addresses_and_conditions_are_what_the_node_says() {
    let kept = entry(&whole());
    assert_eq!((kept.capacity_gpus, kept.allocatable_gpus, kept.has_gpus), (8, 7, true));
    assert_eq!((kept.condition("Ready"), kept.condition("DiskPressure")), (Some("True"), None));
    assert!(kept.is_at([10, 0, 0, 7].into()) && !kept.is_at([10, 0, 0, 8].into()));
    assert!(kept.has_taint("other") && !kept.has_taint("another"));
    assert_eq!((&*kept.boot_id, kept.created_unix_ms), ("boot-1", 1_795_979_100_000));
    let none = entry(&json!({"metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "0"}}}));
    assert!(!none.has_gpus);
}

#[test]
fn what_nodes_have_in_common_is_kept_once() {
    let mut pools = Pools::default();
    let mut made = |name: &str| {
        let mut node = whole();
        node["metadata"]["name"] = json!(name);
        NodeEntry::of(serde_json::from_value(node).unwrap(), &mut pools).unwrap()
    };
    let (a, b) = (made("a"), made("b"));
    let pair = |entry: &NodeEntry| Arc::clone(&entry.labels.as_ref().unwrap()[0]);
    assert!(Arc::ptr_eq(&pair(&a), &pair(&b)));
    assert!(Arc::ptr_eq(&a.conditions[0], &b.conditions[0]));
}
