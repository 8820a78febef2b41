//! Nodes and pods as long as those of real clusters: feature labels, images, managed fields, environment, mounts. Pure.

use kubesim::build;
use serde_json::{Value, json};

/// Labels of a node that feature discovery sets and every node of a pool has.
const FEATURES: usize = 70;
/// Images that a kubelet tells of: 50 by its default.
const IMAGES: usize = 50;
/// Owners of the pods: deployments and jobs of a cluster.
const OWNERS: usize = 2000;

/// A node.
pub(super) fn node(name: &str, n: usize, gpus: u32, model: &str) -> Value {
    let mut node = if gpus > 0 { build::gpu_node(name, gpus, &model.replace(' ', "-")) } else { build::cpu_node(name) };
    let labels = node["metadata"]["labels"].as_object_mut().expect("the builder gives it labels");
    for feature in 0..FEATURES {
        labels.insert(format!("feature.node.kubernetes.io/cpu-cpuid.FEATURE{feature:02}"), json!("true"));
    }
    for (key, value) in [
        ("topology.kubernetes.io/zone", format!("zone-{}", n % 3)),
        ("topology.kubernetes.io/rack", format!("rack-{}", n / 32)),
        ("node.kubernetes.io/instance-type", "p5.48xlarge".to_owned()),
        ("pool", format!("pool-{}", n % 5)),
    ] {
        labels.insert(key.to_owned(), json!(value));
    }
    node["metadata"]["annotations"] = json!({
        "csi.volume.kubernetes.io/nodeid": format!("{{\"csi.example.com\":\"i-{n:017x}\"}}"),
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    node["spec"]["providerID"] = json!(format!("example:///zone-{}/i-{n:017x}", n % 3));
    node["status"]["nodeInfo"]["bootID"] = json!(format!("b0000000-0000-4000-8000-{n:012x}"));
    node["status"]["addresses"] = json!([
        {"type": "InternalIP", "address": format!("10.{}.{}.{}", n >> 16, (n >> 8) & 255, n & 255)},
        {"type": "Hostname", "address": name},
    ]);
    let image =
        |i: usize| json!({"names": [format!("registry.example.com/team/image-{i}@sha256:{i:064x}")], "sizeBytes": 1_000_000 + i});
    node["status"]["images"] = (0..IMAGES).map(image).collect();
    node
}

/// A pod with its environment, its mounts and its status. `gpus` of 0 is one of the many without.
pub(super) fn pod(node: &str, n: usize, of_node: usize, gpus: u32) -> Value {
    let owner = (n * 31 + of_node) % OWNERS;
    let name = format!("workload-{owner:04}-{n:08x}-{of_node:03}");
    let mut pod =
        build::gpu_pod("ml", &name, node, gpus, &[("app", &format!("workload-{owner:04}")), ("pod-template-hash", "5d9c7b8f6d")]);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("workload-{owner:04}-5d9c7b8f6d"),
        "uid": format!("00000000-0000-4000-8000-{owner:012x}"), "controller": true, "blockOwnerDeletion": true,
    }]);
    pod["metadata"]["annotations"] = json!({"example.com/config-digest": format!("{owner:064x}")});
    let container = &mut pod["spec"]["containers"][0];
    let variable = |i: usize| json!({"name": format!("SETTING_{i}"), "value": format!("value-of-setting-{i}-of-workload-{owner}")});
    container["env"] = (0..20).map(variable).collect();
    container["volumeMounts"] =
        (0..6).map(|i| json!({"name": format!("volume-{i}"), "mountPath": format!("/var/lib/workload/{i}")})).collect();
    container["livenessProbe"] = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3});
    pod["spec"]["volumes"] =
        (0..6).map(|i| json!({"name": format!("volume-{i}"), "configMap": {"name": format!("config-{i}")}})).collect();
    pod["spec"]["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    let condition = |kind: &&str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let conditions: Value = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].iter().map(condition).collect();
    pod["status"] = json!({
        "phase": "Running", "podIP": format!("10.{}.{}.{}", 128 + (n >> 8), n & 255, of_node), "startTime": "2026-01-01T00:00:00Z",
        "conditions": conditions,
        "containerStatuses": [{
            "name": "main", "ready": true, "restartCount": 0, "image": "registry.example/work:1",
            "imageID": format!("registry.example/work@sha256:{owner:064x}"), "containerID": format!("containerd://{n:064x}"),
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }],
    });
    pod
}

/// The pod of a node's exporter, served on a port of this machine.
pub(super) fn exporter(node: &str, n: usize, port: u16) -> Value {
    let mut pod = pod(node, n, 900, 0);
    let built = build::exporter_pod("gpu-operator", node, port);
    for part in ["namespace", "name", "labels", "ownerReferences"] {
        pod["metadata"][part] = built["metadata"][part].clone();
    }
    pod["spec"]["containers"][0]["ports"] = built["spec"]["containers"][0]["ports"].clone();
    pod["status"]["podIP"] = json!("127.0.0.1");
    pod
}
