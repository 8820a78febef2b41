//! What is read of an object as it comes from the API server, and nothing else: what is not named here is skipped while the
//! text is read, and never takes memory. A node of a real cluster is 20 KiB of text, a pod 8.

use std::{collections::BTreeMap, fmt::Debug};

use gpuheal_proto::time::Timestamp;
use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use serde::{Deserialize, de::DeserializeOwned, de::IgnoredAny};
use serde_json::Value;

/// An object that a watch brings.
pub(crate) trait Seen: DeserializeOwned + Clone + Debug + Send + Sync + 'static {
    /// Its `metadata.resourceVersion`.
    fn version(&self) -> Option<&str>;
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "K: DeserializeOwned"))]
pub(super) struct Page<K> {
    #[serde(default)]
    pub(super) metadata: PageMeta,
    /// Must be there, though it may be null: any other object would pass for an empty list.
    #[serde(deserialize_with = "Deserialize::deserialize")]
    pub(super) items: Option<Vec<K>>,
}

/// Where the next page is, and the version that all are of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMeta {
    pub(super) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(super) more: Option<String>,
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSeen {
    pub(super) metadata: NodeMeta,
    pub(super) spec: NodeSpec,
    pub(super) status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeMeta {
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) creation_timestamp: Option<Time>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
    pub(super) managed_fields: Option<Vec<Managed>>,
}

/// Who wrote which fields: of these only who wrote `spec.unschedulable`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Managed {
    pub(super) manager: Option<String>,
    pub(super) fields_v1: Option<Fields>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Fields {
    #[serde(rename = "f:spec")]
    pub(super) spec: Option<SpecFields>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SpecFields {
    #[serde(rename = "f:unschedulable")]
    pub(super) unschedulable: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeSpec {
    pub(super) taints: Option<Vec<Value>>,
    pub(super) unschedulable: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NodeStatus {
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) addresses: Option<Vec<Address>>,
    pub(super) capacity: Option<BTreeMap<String, Quantity>>,
    pub(super) allocatable: Option<BTreeMap<String, Quantity>>,
    pub(super) node_info: NodeInfo,
}

/// One condition of a node or a pod. Its times are left out: agents reset them, and without them many nodes say the same.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Condition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Address {
    pub(super) address: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeInfo {
    #[serde(rename = "bootID")]
    pub(super) boot_id: Option<String>,
}

/// A Pod: of GPUs, of an exporter or of a device plugin.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct PodSeen {
    pub(super) metadata: PodMeta,
    pub(super) spec: PodSpec,
    pub(super) status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodMeta {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
    pub(super) labels: Option<PodLabels>,
    pub(super) annotations: Option<PodAnnotations>,
    pub(super) owner_references: Option<Vec<OwnerReference>>,
    pub(super) deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PodLabels {
    #[serde(rename = "gpu-selfhealing.io/evict")]
    pub(super) evict: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct PodAnnotations {
    #[serde(rename = "kubernetes.io/config.mirror")]
    pub(super) mirror: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct OwnerReference {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) controller: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodSpec {
    pub(super) node_name: Option<String>,
    pub(super) containers: Option<Vec<Container>>,
    pub(super) init_containers: Option<Vec<Container>>,
    pub(super) resource_claims: Option<Vec<ClaimReference>>,
    pub(super) volumes: Option<Vec<Volume>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container {
    /// Of an init container `Always`, when it is a sidecar.
    pub(super) restart_policy: Option<String>,
    pub(super) resources: Option<Resources>,
    pub(super) ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Resources {
    pub(super) limits: Option<BTreeMap<String, Quantity>>,
    pub(super) requests: Option<BTreeMap<String, Quantity>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Port {
    pub(super) name: Option<String>,
    pub(super) container_port: i32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimReference {
    pub(super) name: Option<String>,
    pub(super) resource_claim_name: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Volume {
    pub(super) persistent_volume_claim: Option<ClaimVolume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimVolume {
    pub(super) claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) start_time: Option<Time>,
    pub(super) resource_claim_statuses: Option<Vec<ClaimReference>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerStatus {
    pub(super) restart_count: i32,
    pub(super) state: Option<ContainerState>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ContainerState {
    pub(super) running: Option<Running>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Running {
    pub(super) started_at: Option<Time>,
}

/// The owner's ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ConfigMapSeen {
    pub(super) metadata: PageMeta,
    pub(super) data: Option<BTreeMap<String, String>>,
}

impl Seen for NodeSeen {
    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl Seen for PodSeen {
    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

impl Seen for ConfigMapSeen {
    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

/// A time of the API server's as ours.
pub(super) fn moment(at: &Time) -> Timestamp {
    Timestamp::from_unix_ms(at.0.as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_items_is_a_list() {
        let read = |text| serde_json::from_str::<Page<NodeSeen>>(text).map(|page| page.items.unwrap_or_default().len());
        assert_eq!(read(r#"{"metadata": {"resourceVersion": "5"}, "items": [{}]}"#).unwrap(), 1);
        assert_eq!(read(r#"{"metadata": {"resourceVersion": "5"}, "items": null}"#).unwrap(), 0);
        for other in ["{}", r#"{"kind": "Status", "status": "Failure"}"#] {
            assert!(read(other).is_err(), "{other}");
        }
    }
}
