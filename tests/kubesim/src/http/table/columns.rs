//! Pure: the columns of each resource's table. `cells.rs` fills them in the same order.

use serde_json::{Value, json};

use crate::registry::ResourceKind;

pub(super) fn of(kind: &ResourceKind) -> Vec<Value> {
    if let Some(custom) = &kind.custom {
        let own = custom.columns.iter().map(|column| {
            column_of(
                column["name"].as_str().unwrap_or_default(),
                column["type"].as_str().unwrap_or("string"),
                column["priority"].as_i64().unwrap_or(0),
            )
        });
        let age = custom.columns.is_empty().then(|| column_of("Age", "date", 0));
        return std::iter::once(name()).chain(own).chain(age).collect();
    }
    let (narrow, wide) = words(&kind.storage);
    let column = |priority: i64| move |word: &&str| if *word == "Name" { name() } else { column_of(word, "string", priority) };
    narrow.iter().map(column(0)).chain(wide.iter().map(column(1))).collect()
}

fn name() -> Value {
    json!({ "name": "Name", "type": "string", "format": "name", "description": "Name must be unique within a namespace.", "priority": 0 })
}

fn column_of(name: &str, kind: &str, priority: i64) -> Value {
    json!({ "name": name, "type": kind, "format": "", "description": "", "priority": priority })
}

/// (always shown, shown with `-o wide`)
pub(super) fn words(storage: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match storage {
        "nodes" => (
            &["Name", "Status", "Roles", "Age", "Version"],
            &["Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"],
        ),
        "pods" => (&["Name", "Ready", "Status", "Restarts", "Age"], &["IP", "Node", "Nominated Node", "Readiness Gates"]),
        "events" => {
            (&["Last Seen", "Type", "Reason", "Object", "Message"], &["Subobject", "Source", "First Seen", "Count", "Name"])
        }
        "deployments.apps" => (&["Name", "Ready", "Up-to-date", "Available", "Age"], &["Containers", "Images", "Selector"]),
        "replicasets.apps" => (&["Name", "Desired", "Current", "Ready", "Age"], &["Containers", "Images", "Selector"]),
        "statefulsets.apps" => (&["Name", "Ready", "Age"], &["Containers", "Images"]),
        "daemonsets.apps" => (&["Name", "Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age"], &[]),
        "poddisruptionbudgets.policy" => (&["Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age"], &[]),
        "leases.coordination.k8s.io" => (&["Name", "Holder", "Age"], &[]),
        "namespaces" => (&["Name", "Status", "Age"], &[]),
        "configmaps" => (&["Name", "Data", "Age"], &[]),
        "secrets" => (&["Name", "Type", "Data", "Age"], &[]),
        "persistentvolumeclaims" => (&["Name", "Status", "Volume", "Capacity", "Access Modes", "StorageClass", "Age"], &[]),
        "services" => (&["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"], &[]),
        _ => (&["Name", "Age"], &[]),
    }
}
