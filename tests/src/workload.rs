//! The objects that a run puts into its clusters: namespaces, exporters, and the workloads that a drain meets.

use serde_json::{Value, json};

/// Namespace of the training jobs; its owner lets stateful pods be evicted.
pub const JOBS: &str = "ml";
/// Namespace of the exporters.
pub const OPERATOR: &str = "gpu-operator";

/// A namespace with labels.
#[must_use]
pub fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// The exporter's pod of one node, bound to it, scraped on `port` of the pod's address.
#[must_use]
pub fn exporter(node: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("nvidia-dcgm-exporter-{node}"), "namespace": OPERATOR, "labels": {"app": "nvidia-dcgm-exporter"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "nvidia-dcgm-exporter",
                "image": "registry.example.com/dcgm-exporter:4.5.3-4.8.2",
                "ports": [{"name": "metrics", "containerPort": port}],
            }],
        },
    })
}

fn pod_spec(gpus: u32, grace_s: u32) -> Value {
    let resources = if gpus == 0 { json!({}) } else { json!({"limits": {"nvidia.com/gpu": gpus.to_string()}}) };
    json!({
        "terminationGracePeriodSeconds": grace_s,
        "containers": [{"name": "main", "image": "registry.example.com/train:1", "resources": resources}],
    })
}

/// How a workload looks to a drain.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Pods.
    pub replicas: u32,
    /// GPUs of each pod.
    pub gpus: u32,
    /// Grace of each pod.
    pub grace_s: u32,
    /// How long a pod really takes to end.
    pub exit_after_ms: u32,
}

fn template(app: &str, shape: Shape) -> Value {
    json!({
        "metadata": {
            "labels": {"app": app},
            "annotations": {"kubesim.gpu-selfhealing.io/exit-after-ms": shape.exit_after_ms.to_string()},
        },
        "spec": pod_spec(shape.gpus, shape.grace_s),
    })
}

/// A Deployment of GPU pods.
#[must_use]
pub fn deployment(name: &str, shape: Shape) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": JOBS},
        "spec": {
            "replicas": shape.replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, shape),
        },
    })
}

/// A StatefulSet of GPU pods, each with a claim of its own.
#[must_use]
pub fn stateful_set(name: &str, shape: Shape) -> Value {
    let mut template = template(name, shape);
    template["spec"]["volumes"] = json!([{"name": "state", "persistentVolumeClaim": {"claimName": format!("state-{name}-0")}}]);
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": JOBS},
        "spec": {
            "serviceName": name,
            "replicas": shape.replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    })
}

/// The claim of a StatefulSet's first pod, and the volume that it is bound to.
#[must_use]
pub fn bound_claim(stateful_set: &str) -> [Value; 2] {
    let claim = format!("state-{stateful_set}-0");
    let volume = format!("pv-{stateful_set}-0");
    [
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": {"namespace": JOBS, "name": claim},
                "hostPath": {"path": "/var/lib/none"},
            },
        }),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": JOBS},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": "",
                "volumeName": volume,
            },
        }),
    ]
}

/// A DaemonSet without GPUs: what a drain must leave alone.
#[must_use]
pub fn daemon_set(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": JOBS},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, Shape { replicas: 0, gpus: 0, grace_s: 0, exit_after_ms: 0 }),
        },
    })
}

/// A pod without GPUs, bound to a node: not ours to move.
#[must_use]
pub fn cpu_pod(name: &str, node: &str) -> Value {
    let mut spec = pod_spec(0, 0);
    spec["nodeName"] = json!(node);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": JOBS, "labels": {"app": name}}, "spec": spec})
}

/// A PDB over an app.
#[must_use]
pub fn budget(app: &str, min_available: u32) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app, "namespace": JOBS},
        "spec": {"minAvailable": min_available, "selector": {"matchLabels": {"app": app}}},
    })
}

/// A pod with one GPU, bound to a node, that takes this long to end. Its owner is of a group that no controller here knows: nobody makes
/// another in its place, and a drain does not take it for one that would be gone for good.
#[must_use]
pub fn gpu_pod(name: &str, node: &str, exit_after: std::time::Duration) -> Value {
    let mut spec = pod_spec(1, 30);
    spec["nodeName"] = json!(node);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": JOBS,
            "labels": {"app": "job"},
            "ownerReferences": [{
                "apiVersion": "apps.kruise.io/v1beta1", "kind": "CloneSet", "name": "job", "uid": "uid-job", "controller": true,
            }],
            "annotations": {"kubesim.gpu-selfhealing.io/exit-after-ms": exit_after.as_millis().to_string()},
        },
        "spec": spec,
    })
}
