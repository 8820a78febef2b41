//! The objects that tests about healing start from: GPU nodes, and the workloads of the demo's first case.
//! Pure: gives manifests. Every pod is kept on its pool's nodes, so that tests can share a cluster.

use kube::Client;
use serde_json::{Value, json};

use crate::kubelet::{EXIT_AFTER_MS, NodeSpec};
use crate::raw;

/// The label that ties a pool's pods to its nodes.
pub const POOL: &str = "gpu-selfhealing.io/test-pool";

/// How long a seeded pod's containers take to exit, in ms: visible in a timeline, no burden on a test.
pub const EXIT_MS: u32 = 50;

/// Where seeded objects live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The namespace of the pods.
    pub namespace: String,
    /// The value of [`POOL`] on nodes and selectors.
    pub name: String,
}

impl Pool {
    /// `count` nodes `<pool>-1` and so on, each with `gpus` GPUs.
    #[must_use]
    pub fn nodes(&self, count: u32, gpus: u32) -> Vec<NodeSpec> {
        (1..=count).map(|number| NodeSpec::new(format!("{}-{number}", self.name), gpus).label(POOL, &self.name)).collect()
    }

    /// A pod that uses `gpus` GPUs; none makes it a CPU-only pod.
    #[must_use]
    pub fn pod(&self, name: &str, gpus: u32) -> Value {
        let mut pod = self.template(name, gpus);
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(self.namespace);
        pod
    }

    /// A Deployment whose pods bear the label `app=<name>`.
    #[must_use]
    pub fn deployment(&self, name: &str, replicas: u32, gpus: u32) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": self.template(name, gpus),
            },
        })
    }

    /// A PodDisruptionBudget over `app=<app>`.
    #[must_use]
    pub fn pdb(&self, name: &str, app: &str, min_available: u32) -> Value {
        json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": { "minAvailable": min_available, "selector": { "matchLabels": { "app": app } } },
        })
    }

    /// A StatefulSet whose only pod has a claim, and the volume that the claim will be bound to.
    #[must_use]
    pub fn stateful_set(&self, name: &str, gpus: u32) -> [Value; 2] {
        let class = format!("{}-{name}", self.name);
        let storage = json!({ "storage": "1Gi" });
        let mut template = self.template(name, gpus);
        template["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": { "name": class },
            "spec": {
                "capacity": storage, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "hostPath": { "path": "/nowhere" },
            },
        });
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": {
                "replicas": 1, "serviceName": name,
                "selector": { "matchLabels": { "app": name } },
                "template": template,
                "volumeClaimTemplates": [{
                    "metadata": { "name": "data" },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                        "resources": { "requests": storage },
                    },
                }],
            },
        });
        [volume, set]
    }

    /// A DaemonSet on all nodes of the pool; its pods hold no GPU.
    #[must_use]
    pub fn daemon_set(&self, name: &str) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": { "name": name, "namespace": self.namespace },
            "spec": {
                "selector": { "matchLabels": { "app": name } },
                "template": self.template(name, 0),
            },
        })
    }

    /// One of each kind: the Deployment `infer` of three with a budget of two, the StatefulSet `train` with
    /// its claim, the DaemonSet `agent` and the pod `cpu-only`. On one node of eight GPUs all find room.
    #[must_use]
    pub fn one_of_each(&self) -> Vec<Value> {
        let [volume, train] = self.stateful_set("train", 1);
        vec![
            self.deployment("infer", 3, 1),
            self.pdb("infer", "infer", 2),
            volume,
            train,
            self.daemon_set("agent"),
            self.pod("cpu-only", 0),
        ]
    }

    fn template(&self, app: &str, gpus: u32) -> Value {
        let resources = match gpus {
            0 => json!({ "requests": { "cpu": "100m" } }),
            gpus => json!({ "limits": { "nvidia.com/gpu": gpus.to_string() } }),
        };
        json!({
            "metadata": { "labels": { "app": app }, "annotations": { EXIT_AFTER_MS: EXIT_MS.to_string() } },
            "spec": {
                "nodeSelector": { POOL: self.name },
                "containers": [{ "name": "main", "image": "registry.invalid/none", "resources": resources }],
            },
        })
    }
}

/// Creates each object in turn.
///
/// # Panics
/// When one is refused.
pub async fn create(client: &Client, manifests: &[Value]) {
    for manifest in manifests {
        raw::post(client, &collection(manifest), manifest).await.expect(201);
    }
}

/// The path of the collection that an object belongs to.
pub(crate) fn collection(manifest: &Value) -> String {
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (api, kind) = (text("/apiVersion"), text("/kind"));
    let root = if api.contains('/') { format!("/apis/{api}") } else { format!("/api/{api}") };
    let kind = kind.to_lowercase();
    let plural = kind.strip_suffix('y').map_or_else(|| format!("{kind}s"), |stem| format!("{stem}ies"));
    match text("/metadata/namespace") {
        "" => format!("{root}/{plural}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collection_path_follows_from_the_object_alone() {
        let pool = Pool { namespace: "n".into(), name: "p".into() };
        assert_eq!(collection(&pool.pod("a", 1)), "/api/v1/namespaces/n/pods");
        assert_eq!(collection(&pool.pdb("a", "b", 1)), "/apis/policy/v1/namespaces/n/poddisruptionbudgets");
        assert_eq!(collection(&pool.stateful_set("a", 1)[0]), "/api/v1/persistentvolumes");
        let policy = json!({ "apiVersion": "x.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {} });
        assert_eq!(collection(&policy), "/apis/x.io/v1/validatingadmissionpolicies");
    }
}
