//! A Node as a kubelet registers it: what it is made of, and the patches that change it later.
//! Pure: gives JSON, sends nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

/// What a machine is. Everything else (boot id, conditions) follows from it being up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// The Node's name.
    pub name: String,
    /// Labels beside the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// Capacity and allocatable of `nvidia.com/gpu`; with none there is no such resource.
    pub gpus: u32,
    /// True for a node that a person has cordoned already.
    pub unschedulable: bool,
}

impl NodeSpec {
    /// A node with `gpus` GPUs, without labels of its own.
    #[must_use]
    pub fn new(name: impl Into<String>, gpus: u32) -> Self {
        Self { name: name.into(), labels: BTreeMap::new(), gpus, unschedulable: false }
    }

    /// The same with one more label.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }
}

/// What identifies one machine, and one boot of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) machine: String,
    pub(crate) boot: String,
}

impl Identity {
    pub(crate) fn new_machine() -> Self {
        Self { machine: Uuid::new_v4().simple().to_string(), boot: Uuid::new_v4().to_string() }
    }

    pub(crate) fn rebooted(&self) -> Self {
        Self { machine: self.machine.clone(), boot: Uuid::new_v4().to_string() }
    }
}

/// The Node to create.
pub(crate) fn manifest(spec: &NodeSpec, identity: &Identity, now: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": spec.name, "labels": labels(spec) },
        "spec": if spec.unschedulable { json!({ "unschedulable": true }) } else { json!({}) },
        "status": status(spec, identity, now),
    })
}

/// The status of a node that has just come up.
pub(crate) fn status(spec: &NodeSpec, identity: &Identity, now: &str) -> Value {
    let resources = resources(spec);
    json!({
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            { "type": "InternalIP", "address": "127.0.0.1" },
            { "type": "Hostname", "address": spec.name },
        ],
        "conditions": conditions(true, now),
        "nodeInfo": {
            "machineID": identity.machine,
            "systemUUID": identity.machine,
            "bootID": identity.boot,
            "kernelVersion": "6.8.0-stand-in",
            "osImage": "stand-in",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "containerRuntimeVersion": "stand-in://1.0",
            "kubeletVersion": "v1.36.3",
            "kubeProxyVersion": "",
        },
    })
}

/// Ready and the three pressures, as a kubelet keeps them.
pub(crate) fn conditions(ready: bool, now: &str) -> Value {
    let condition = |kind: &str, status: bool, reason: &str| {
        let status = if status { "True" } else { "False" };
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!([
        condition("MemoryPressure", false, "KubeletHasSufficientMemory"),
        condition("DiskPressure", false, "KubeletHasNoDiskPressure"),
        condition("PIDPressure", false, "KubeletHasSufficientPID"),
        condition("Ready", ready, if ready { "KubeletReady" } else { "KubeletNotReady" }),
    ])
}

fn resources(spec: &NodeSpec) -> Value {
    let mut resources = json!({ "cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110" });
    if spec.gpus > 0 {
        resources["nvidia.com/gpu"] = json!(spec.gpus.to_string());
    }
    resources
}

fn labels(spec: &NodeSpec) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        ("kubernetes.io/hostname".to_owned(), spec.name.clone()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
    ]);
    if spec.gpus > 0 {
        labels.insert("nvidia.com/gpu.present".to_owned(), "true".to_owned());
    }
    labels.extend(spec.labels.clone());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_gpus_has_no_such_resource() {
        let node = manifest(&NodeSpec::new("cpu-1", 0), &Identity::new_machine(), "2026-01-01T00:00:00Z");
        assert_eq!(node["status"]["capacity"]["nvidia.com/gpu"], Value::Null);
        let node = manifest(&NodeSpec::new("gpu-1", 8), &Identity::new_machine(), "2026-01-01T00:00:00Z");
        assert_eq!(node["status"]["allocatable"]["nvidia.com/gpu"], "8");
    }

    #[test]
    fn a_reboot_keeps_the_machine_and_changes_the_boot() {
        let before = Identity::new_machine();
        let after = before.rebooted();
        assert_eq!(before.machine, after.machine);
        assert_ne!(before.boot, after.boot);
    }
}
