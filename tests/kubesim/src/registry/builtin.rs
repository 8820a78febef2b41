//! The table of built-in resources. A row per resource; nothing here has behaviour.

use std::sync::Arc;

use super::{ResourceKind, View};

const NAMESPACED: bool = true;
const CLUSTER: bool = false;

/// (group, version, plural, kind, namespaced, short names, subresources)
type Row = (&'static str, &'static str, &'static str, &'static str, bool, &'static str, &'static str);

const ROWS: &[Row] = &[
    ("", "v1", "nodes", "Node", CLUSTER, "no", "status"),
    ("", "v1", "namespaces", "Namespace", CLUSTER, "ns", "status finalize"),
    ("", "v1", "pods", "Pod", NAMESPACED, "po", "status eviction binding log"),
    ("", "v1", "events", "Event", NAMESPACED, "ev", ""),
    ("", "v1", "configmaps", "ConfigMap", NAMESPACED, "cm", ""),
    ("", "v1", "secrets", "Secret", NAMESPACED, "", ""),
    ("", "v1", "serviceaccounts", "ServiceAccount", NAMESPACED, "sa", "token"),
    ("", "v1", "services", "Service", NAMESPACED, "svc", "status"),
    ("", "v1", "endpoints", "Endpoints", NAMESPACED, "ep", ""),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", NAMESPACED, "pvc", "status"),
    ("", "v1", "persistentvolumes", "PersistentVolume", CLUSTER, "pv", "status"),
    ("", "v1", "replicationcontrollers", "ReplicationController", NAMESPACED, "rc", "status"),
    ("", "v1", "resourcequotas", "ResourceQuota", NAMESPACED, "quota", "status"),
    ("", "v1", "limitranges", "LimitRange", NAMESPACED, "limits", ""),
    ("apps", "v1", "deployments", "Deployment", NAMESPACED, "deploy", "status scale"),
    ("apps", "v1", "replicasets", "ReplicaSet", NAMESPACED, "rs", "status scale"),
    ("apps", "v1", "statefulsets", "StatefulSet", NAMESPACED, "sts", "status scale"),
    ("apps", "v1", "daemonsets", "DaemonSet", NAMESPACED, "ds", "status"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", NAMESPACED, "", ""),
    ("batch", "v1", "jobs", "Job", NAMESPACED, "", "status"),
    ("batch", "v1", "cronjobs", "CronJob", NAMESPACED, "cj", "status"),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", NAMESPACED, "pdb", "status"),
    ("coordination.k8s.io", "v1", "leases", "Lease", NAMESPACED, "", ""),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", CLUSTER, "", "status"),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", CLUSTER, "sc", ""),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", CLUSTER, "pc", ""),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", NAMESPACED, "", ""),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", NAMESPACED, "netpol", ""),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", NAMESPACED, "ing", "status"),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", NAMESPACED, "", ""),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", NAMESPACED, "", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", CLUSTER, "", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", CLUSTER, "", ""),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", CLUSTER, "", "status"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        CLUSTER,
        "",
        "",
    ),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", CLUSTER, "", ""),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", CLUSTER, "", ""),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", CLUSTER, "crd crds", "status"),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", NAMESPACED, "", "status"),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", CLUSTER, "", ""),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", CLUSTER, "", ""),
];

/// `metadata.generation` is kept for these.
const WITH_GENERATION: &[&str] = &[
    "deployments",
    "replicasets",
    "statefulsets",
    "daemonsets",
    "jobs",
    "cronjobs",
    "poddisruptionbudgets",
    "networkpolicies",
    "ingresses",
    "customresourcedefinitions",
    "validatingadmissionpolicies",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "resourceclaims",
];

/// A PUT of these must carry a resourceVersion.
const CONDITIONAL_UPDATE: &[&str] = &["leases", "poddisruptionbudgets", "customresourcedefinitions", "volumeattachments"];

pub(super) fn kinds() -> Vec<ResourceKind> {
    let mut kinds: Vec<ResourceKind> = ROWS.iter().map(from_row).collect();
    let core = kinds.iter().find(|kind| kind.plural == "events").expect("the table has events").clone();
    kinds.push(ResourceKind { group: "events.k8s.io".into(), view: View::EventsV1, ..core });
    kinds
}

fn from_row(&(group, version, plural, kind, namespaced, short, subresources): &Row) -> ResourceKind {
    let storage = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    ResourceKind {
        group: group.into(),
        version: version.into(),
        plural: plural.into(),
        singular: kind.to_lowercase(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        namespaced,
        short_names: words(short),
        categories: if short.is_empty() || !matches!(group, "" | "apps") { Vec::new() } else { categories(plural) },
        subresources: words(subresources),
        generation: WITH_GENERATION.contains(&plural),
        unconditional_update: !CONDITIONAL_UPDATE.contains(&plural),
        custom: None,
        storage: Arc::from(storage),
        view: View::Same,
        prefix: String::new(),
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn categories(plural: &str) -> Vec<String> {
    const ALL: &[&str] = &["pods", "services", "deployments", "replicasets", "statefulsets", "daemonsets"];
    if ALL.contains(&plural) { vec!["all".into()] } else { Vec::new() }
}
