//! Pure: common objects as JSON, for tests and the demo. Each builder makes what a usual cluster holds.

use serde_json::{Value, json};

/// GPUs are asked for under this name.
pub const GPU: &str = "nvidia.com/gpu";

/// A Ready node with GPUs, labelled as GPU feature discovery does.
pub fn gpu_node(name: &str, gpus: u32, model: &str) -> Value {
    let mut node = cpu_node(name);
    for list in ["capacity", "allocatable"] {
        node["status"][list][GPU] = json!(gpus.to_string());
    }
    node["metadata"]["labels"]["nvidia.com/gpu.present"] = json!("true");
    node["metadata"]["labels"]["nvidia.com/gpu.count"] = json!(gpus.to_string());
    node["metadata"]["labels"]["nvidia.com/gpu.product"] = json!(model);
    node
}

/// A Ready node without GPUs.
pub fn cpu_node(name: &str) -> Value {
    let resources = json!({ "cpu": "64", "memory": "512Gi", "pods": "110" });
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64" } },
        "spec": { "providerID": format!("kubesim://{name}") },
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }, { "type": "Hostname", "address": name }],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.1.4", "operatingSystem": "linux", "architecture": "amd64",
                "osImage": "Debian GNU/Linux 12", "kernelVersion": "6.1.0", "bootID": "b0000000-0000-4000-8000-000000000001",
                "machineID": "0", "systemUUID": "0", "kubeProxyVersion": "",
            },
        },
    })
}

fn containers(gpus: u32) -> Value {
    let mut container = json!({ "name": "main", "image": "registry.example/work:1", "resources": {} });
    if gpus > 0 {
        let amount = json!({ GPU: gpus.to_string() });
        container["resources"] = json!({ "limits": amount, "requests": amount });
    }
    json!([container])
}

fn template(gpus: u32, labels: &[(&str, &str)]) -> Value {
    json!({ "metadata": { "labels": map(labels) }, "spec": { "containers": containers(gpus) } })
}

fn map(pairs: &[(&str, &str)]) -> Value {
    Value::Object(pairs.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect())
}

fn workload(kind: &str, namespace: &str, name: &str, gpus: u32, labels: &[(&str, &str)]) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": { "namespace": namespace, "name": name, "labels": map(labels) },
        "spec": { "selector": { "matchLabels": map(labels) }, "template": template(gpus, labels) },
    })
}

/// A Deployment whose pods ask for GPUs each.
pub fn deployment(namespace: &str, name: &str, replicas: u32, gpus: u32, labels: &[(&str, &str)]) -> Value {
    let mut object = workload("Deployment", namespace, name, gpus, labels);
    object["spec"]["replicas"] = json!(replicas);
    object
}

/// A StatefulSet with one PersistentVolumeClaim per pod.
pub fn statefulset(namespace: &str, name: &str, replicas: u32, gpus: u32, labels: &[(&str, &str)]) -> Value {
    let mut object = workload("StatefulSet", namespace, name, gpus, labels);
    object["spec"]["replicas"] = json!(replicas);
    object["spec"]["serviceName"] = json!(name);
    object["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": { "requests": { "storage": "10Gi" } } },
    }]);
    object
}

/// A DaemonSet for every node.
pub fn daemonset(namespace: &str, name: &str, labels: &[(&str, &str)]) -> Value {
    workload("DaemonSet", namespace, name, 0, labels)
}

/// A PodDisruptionBudget; `min_available` is a number or a percentage.
pub fn pdb(namespace: &str, name: &str, min_available: impl Into<Value>, labels: &[(&str, &str)]) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "namespace": namespace, "name": name },
        "spec": { "minAvailable": min_available.into(), "selector": { "matchLabels": map(labels) } },
    })
}

/// A bare pod that holds GPUs; an empty node leaves it to the scheduler.
pub fn gpu_pod(namespace: &str, name: &str, node: &str, gpus: u32, labels: &[(&str, &str)]) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": namespace, "name": name, "labels": map(labels) },
        "spec": { "containers": containers(gpus) },
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

/// A bare pod without GPUs.
pub fn cpu_pod(namespace: &str, name: &str, node: &str, labels: &[(&str, &str)]) -> Value {
    gpu_pod(namespace, name, node, 0, labels)
}

/// A DCGM exporter's pod on a node, whose metrics are really served at 127.0.0.1 on the given port.
pub fn exporter_pod(namespace: &str, node: &str, port: u16) -> Value {
    let mut pod = cpu_pod(
        namespace,
        &format!("dcgm-exporter-{node}"),
        node,
        &[("app", "nvidia-dcgm-exporter"), ("app.kubernetes.io/name", "dcgm-exporter")],
    );
    pod["metadata"]["annotations"] = json!({
        "prometheus.io/scrape": "true", "prometheus.io/port": port.to_string(), "prometheus.io/path": "/metrics", POD_IP: "127.0.0.1",
    });
    pod["spec"]["containers"][0]["name"] = json!("exporter");
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "metrics", "containerPort": port, "protocol": "TCP" }]);
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "dcgm-exporter", "uid": "00000000-0000-4000-8000-0000000000d5", "controller": true,
    }]);
    pod
}

/// Annotation on a pod: the address its kubelet reports.
pub const POD_IP: &str = "kubesim.gpu-selfhealing.io/pod-ip";
/// Annotation on a pod: milliseconds between deletion and the end of its containers.
pub const EXIT_AFTER_MS: &str = "kubesim.gpu-selfhealing.io/exit-after-ms";
/// Annotation on a pod, `"true"`: never ends, not even after its grace, until deleted with grace 0.
pub const HANG: &str = "kubesim.gpu-selfhealing.io/hang";
/// Annotation on a pod, `"false"`: runs, and never becomes Ready.
pub const READY: &str = "kubesim.gpu-selfhealing.io/ready";
/// Annotation on a pod: milliseconds between binding and running.
pub const START_AFTER_MS: &str = "kubesim.gpu-selfhealing.io/start-after-ms";
/// Annotation on a node, `"dead"`: nothing on it starts or ends any more.
pub const KUBELET: &str = "kubesim.gpu-selfhealing.io/kubelet";
