//! What is kept of a pod says the same as the pod itself, and of a pod without GPUs nothing is kept.

use serde_json::{Value, json};

use super::*;

fn entry(pod: &Value) -> Option<PodEntry> {
    PodEntry::of(serde_json::from_value(pod.clone()).unwrap(), &mut Pools::default())
}

fn with(spec: &Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": spec})
}

#[test]
fn kept_are_pods_that_ask_for_gpus_slices_or_claims_and_no_others() {
    let asks = |name: &str| with(&json!({"containers": [{"name": "c", "resources": {"limits": {name: "1"}}}]}));
    assert!(entry(&asks("nvidia.com/gpu")).is_some());
    assert!(entry(&asks("nvidia.com/mig-1g.10gb")).is_some());
    assert!(entry(&asks("cpu")).is_none());
    assert!(entry(&with(&json!({"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]}))).is_some());
    let init = json!({"containers": [], "initContainers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]});
    assert!(entry(&with(&init)).is_some());
}

#[test]
fn what_is_kept_is_planned_by_as_the_pod_itself() {
    let pod = json!({
        "metadata": {
            "name": "p", "namespace": "ml", "uid": "u", "deletionTimestamp": "2026-11-29T19:05:00Z",
            "labels": {"app": "x", "gpu-selfhealing.io/evict": "never"},
            "annotations": {"kubernetes.io/config.mirror": "y"},
            "ownerReferences": [{"kind": "X", "name": "x", "uid": "1"}, {"kind": "ReplicaSet", "name": "r", "uid": "2", "controller": true}],
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4", "rdma/hca": "0"}, "requests": {"example.com/nic": "1"}}}],
            "initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "w", "emptyDir": {}}],
            "resourceClaims": [{"name": "a", "resourceClaimName": "by-name"}, {"name": "b", "resourceClaimTemplateName": "t"}, {"name": "c"}],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}],
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}],
        },
    });
    let mut want = PodFacts::from_json(&pod).unwrap();
    want.labels.remove("app");
    let kept = entry(&pod).unwrap();
    assert_eq!(kept.facts(), want);
    assert_eq!((kept.gpus, kept.ip), (2, Some([10, 0, 0, 9].into())));
    // Sidecars have theirs beside the containers, and whatever runs before those beside the sidecars begun by then.
    let gpus = |amount: &str| json!({"resources": {"limits": {"nvidia.com/gpu": amount}}});
    let sidecar = json!({"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    for (init, together) in [
        (json!([sidecar]), 3),
        (json!([sidecar, gpus("5")]), 6),
        (json!([gpus("5"), sidecar]), 5),
        (json!([{"restartPolicy": "OnFailure", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]), 2),
    ] {
        let mut pod = pod.clone();
        pod["spec"]["initContainers"] = init;
        let kept = entry(&pod).unwrap().facts();
        assert_eq!(kept.amounts, PodFacts::from_json(&pod).unwrap().amounts);
        assert_eq!(kept.amounts.get("nvidia.com/gpu"), Some(&together), "{pod}");
    }
    let finished = json!({"metadata": pod["metadata"], "spec": pod["spec"], "status": {"phase": "Failed"}});
    assert!(entry(&finished).unwrap().facts().finished());
}
