//! Webhook bodies as Alertmanager 0.34 posts them.

use serde_json::{Value, json};

/// One alert of a group.
#[derive(Clone, Debug)]
pub struct Alert {
    /// `alertname`.
    pub name: &'static str,
    /// Node it names.
    pub node: String,
    /// GPU it names: UUID and PCI address.
    pub gpu: Option<(String, String)>,
    /// `err_code`, the Xid.
    pub xid: Option<u32>,
    /// Extra labels.
    pub labels: Vec<(&'static str, String)>,
    /// Or resolved.
    pub firing: bool,
    /// RFC 3339.
    pub starts_at: String,
}

impl Alert {
    /// A firing Xid alert of one GPU.
    #[must_use]
    pub fn xid(node: &str, gpu: &crate::exporter::Gpu, xid: u32, starts_at: String) -> Self {
        Self {
            name: "GPUXidCritical",
            node: node.to_owned(),
            gpu: Some((gpu.uuid.clone(), gpu.pci.clone())),
            xid: Some(xid),
            labels: vec![],
            firing: true,
            starts_at,
        }
    }

    fn body(&self) -> Value {
        let mut labels = json!({
            "alertname": self.name,
            "Hostname": self.node,
            "node": self.node,
            "severity": "critical",
            "job": "nvidia-dcgm-exporter",
            "namespace": "gpu-operator",
        });
        if let Some((uuid, pci)) = &self.gpu {
            labels["UUID"] = json!(uuid);
            labels["pci_bus_id"] = json!(pci);
        }
        if let Some(xid) = self.xid {
            labels["err_code"] = json!(xid.to_string());
        }
        for (key, value) in &self.labels {
            labels[*key] = json!(value);
        }
        let (status, ends_at) =
            if self.firing { ("firing", "0001-01-01T00:00:00Z".to_owned()) } else { ("resolved", self.starts_at.clone()) };
        json!({
            "status": status,
            "labels": labels,
            "annotations": {"summary": format!("{} on {}", self.name, self.node)},
            "startsAt": self.starts_at,
            "endsAt": ends_at,
            "generatorURL": "http://prometheus.example.com/graph",
            "fingerprint": "",
        })
    }
}

/// A group's body. Its status is firing when any alert fires, as Alertmanager has it.
#[must_use]
pub fn group(alerts: &[Alert]) -> Value {
    let status = if alerts.iter().any(|alert| alert.firing) { "firing" } else { "resolved" };
    json!({
        "receiver": "gpu-heal",
        "status": status,
        "alerts": alerts.iter().map(Alert::body).collect::<Vec<_>>(),
        "groupLabels": {"alertname": alerts.first().map_or("", |alert| alert.name)},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager.example.com",
        "version": "4",
        "groupKey": "{}:{alertname=\"GPUXidCritical\"}",
        "notification_reason": "new alerts added",
        "truncatedAlerts": 0,
    })
}
