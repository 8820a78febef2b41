//! Pure: one row of a table, in the order of `columns.rs`.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::{age, columns, jsonpath};
use crate::obj;
use crate::registry::ResourceKind;

const NONE: &str = "<none>";

pub(super) fn of(kind: &ResourceKind, object: &Value, now: DateTime<Utc>) -> Vec<Value> {
    if let Some(custom) = &kind.custom {
        let own = custom.columns.iter().map(|column| custom_cell(column, object, now));
        let age = custom.columns.is_empty().then(|| json!(since(object, "/metadata/creationTimestamp", now)));
        return std::iter::once(json!(obj::name(object))).chain(own).chain(age).collect();
    }
    let (narrow, wide) = columns::words(&kind.storage);
    narrow.iter().chain(wide).map(|column| json!(cell(&kind.storage, column, object, now))).collect()
}

fn custom_cell(column: &Value, object: &Value, now: DateTime<Utc>) -> Value {
    let found = jsonpath::first(object, obj::text(column, "/jsonPath"));
    match (obj::text(column, "/type"), found) {
        (_, None | Some(Value::Null)) => Value::Null,
        ("date", Some(value)) => json!(age::since(value.as_str().unwrap_or_default(), now)),
        ("string", Some(value)) if !value.is_string() => json!(value.to_string()),
        (_, Some(value)) => value.clone(),
    }
}

fn since(object: &Value, pointer: &str, now: DateTime<Utc>) -> String {
    age::since(obj::text(object, pointer), now)
}

fn cell(storage: &str, column: &str, object: &Value, now: DateTime<Utc>) -> String {
    match column {
        "Name" => obj::name(object).to_owned(),
        "Age" => since(object, "/metadata/creationTimestamp", now),
        "Containers" => joined(object, "/spec/template/spec/containers", "/name"),
        "Images" => joined(object, "/spec/template/spec/containers", "/image"),
        "Selector" => pairs(object, "/spec/selector/matchLabels"),
        "Node Selector" => pairs(object, "/spec/template/spec/nodeSelector"),
        _ => match storage {
            "nodes" => node(column, object),
            "pods" => pod(column, object),
            "events" => event(column, object, now),
            _ => other(storage, column, object),
        },
    }
}

fn node(column: &str, node: &Value) -> String {
    let info = |field: &str| or(obj::text(node, &format!("/status/nodeInfo/{field}")), "<unknown>");
    let address = |kind: &str| {
        let found = obj::list(node, "/status/addresses").iter().find(|address| obj::text(address, "/type") == kind);
        or(found.map(|address| obj::text(address, "/address")).unwrap_or_default(), NONE)
    };
    match column {
        "Status" => {
            let ready = match obj::condition(node, "Ready").map(|ready| obj::text(ready, "/status")) {
                Some("True") => "Ready",
                Some(_) => "NotReady",
                None => "Unknown",
            };
            let cordoned = if obj::flag(node, "/spec/unschedulable") { ",SchedulingDisabled" } else { "" };
            format!("{ready}{cordoned}")
        }
        "Roles" => {
            let roles: Vec<&str> = obj::entries(node, "/metadata/labels")
                .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
                .collect();
            or(&roles.join(","), NONE)
        }
        "Version" => or(obj::text(node, "/status/nodeInfo/kubeletVersion"), ""),
        "Internal-IP" => address("InternalIP"),
        "External-IP" => address("ExternalIP"),
        "OS-Image" => info("osImage"),
        "Kernel-Version" => info("kernelVersion"),
        "Container-Runtime" => info("containerRuntimeVersion"),
        _ => String::new(),
    }
}

fn pod(column: &str, pod: &Value) -> String {
    let statuses = obj::list(pod, "/status/containerStatuses");
    match column {
        "Ready" => format!(
            "{}/{}",
            statuses.iter().filter(|status| obj::flag(status, "/ready")).count(),
            obj::list(pod, "/spec/containers").len()
        ),
        "Status" if obj::terminating(pod) => "Terminating".into(),
        "Status" if obj::text(pod, "/status/phase") == "Succeeded" => "Completed".into(),
        "Status" => or(obj::text(pod, "/status/reason"), obj::text(pod, "/status/phase")),
        "Restarts" => statuses.iter().filter_map(|status| obj::int(status, "/restartCount")).sum::<i64>().to_string(),
        "IP" => or(obj::text(pod, "/status/podIP"), NONE),
        "Node" => or(obj::text(pod, "/spec/nodeName"), NONE),
        _ => NONE.into(),
    }
}

fn event(column: &str, event: &Value, now: DateTime<Utc>) -> String {
    let either = |core: &str, new: &str| {
        let given = obj::text(event, core);
        if given.is_empty() { obj::text(event, new).to_owned() } else { given.to_owned() }
    };
    let moment = |core: &str| {
        let given = either(core, "/eventTime");
        age::since(&if given.is_empty() { either("/metadata/creationTimestamp", "") } else { given }, now)
    };
    match column {
        "Last Seen" => {
            let series = obj::text(event, "/series/lastObservedTime");
            if series.is_empty() { moment("/lastTimestamp") } else { age::since(series, now) }
        }
        "First Seen" => moment("/firstTimestamp"),
        "Type" | "Reason" => obj::text(event, if column == "Type" { "/type" } else { "/reason" }).to_owned(),
        "Object" => format!(
            "{}/{}",
            either("/involvedObject/kind", "/regarding/kind").to_lowercase(),
            either("/involvedObject/name", "/regarding/name")
        ),
        "Message" => either("/message", "/note").trim().to_owned(),
        "Source" => either("/source/component", "/reportingComponent"),
        "Count" => obj::int(event, "/count").unwrap_or(1).to_string(),
        _ => String::new(),
    }
}

fn other(storage: &str, column: &str, object: &Value) -> String {
    let number = |pointer: &str| obj::int(object, pointer).unwrap_or(0).to_string();
    let of = |pointer: &str| {
        object.pointer(pointer).map_or_else(|| "N/A".to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
    };
    let entries = |pointer: &str| object.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len).to_string();
    match (storage, column) {
        ("deployments.apps" | "statefulsets.apps", "Ready") => {
            format!("{}/{}", number("/status/readyReplicas"), number("/spec/replicas"))
        }
        ("deployments.apps", "Up-to-date") => number("/status/updatedReplicas"),
        ("deployments.apps", "Available") => number("/status/availableReplicas"),
        ("replicasets.apps", "Desired") => number("/spec/replicas"),
        ("replicasets.apps", "Current") => number("/status/replicas"),
        ("replicasets.apps", "Ready") => number("/status/readyReplicas"),
        ("daemonsets.apps", "Desired") => number("/status/desiredNumberScheduled"),
        ("daemonsets.apps", "Current") => number("/status/currentNumberScheduled"),
        ("daemonsets.apps", "Ready") => number("/status/numberReady"),
        ("daemonsets.apps", "Up-to-date") => number("/status/updatedNumberScheduled"),
        ("daemonsets.apps", "Available") => number("/status/numberAvailable"),
        ("poddisruptionbudgets.policy", "Min Available") => of("/spec/minAvailable"),
        ("poddisruptionbudgets.policy", "Max Unavailable") => of("/spec/maxUnavailable"),
        ("poddisruptionbudgets.policy", "Allowed Disruptions") => number("/status/disruptionsAllowed"),
        ("leases.coordination.k8s.io", "Holder") => obj::text(object, "/spec/holderIdentity").to_owned(),
        (_, "Status") => obj::text(object, "/status/phase").to_owned(),
        (_, "Data") => entries("/data"),
        ("secrets", "Type") => obj::text(object, "/type").to_owned(),
        ("services", "Type") => or(obj::text(object, "/spec/type"), "ClusterIP"),
        (_, "Volume") => obj::text(object, "/spec/volumeName").to_owned(),
        (_, "StorageClass") => obj::text(object, "/spec/storageClassName").to_owned(),
        (_, "Cluster-IP" | "External-IP") => NONE.into(),
        (_, "Port(s)") => joined(object, "/spec/ports", "/port"),
        _ => String::new(),
    }
}

fn or(text: &str, fallback: &str) -> String {
    if text.is_empty() { fallback.to_owned() } else { text.to_owned() }
}

fn joined(object: &Value, list: &str, field: &str) -> String {
    let words: Vec<String> = obj::list(object, list)
        .iter()
        .filter_map(|item| item.pointer(field))
        .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
        .collect();
    words.join(",")
}

fn pairs(object: &Value, pointer: &str) -> String {
    let words: Vec<String> = obj::entries(object, pointer).map(|(key, value)| format!("{key}={value}")).collect();
    or(&words.join(","), NONE)
}
