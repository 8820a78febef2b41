//! Any bytes as the body of a webhook. Proves: every alert of a body that is read is used or refused with a short path; each is
//! read by itself, so that one bad alert costs no other; a body that is none is refused with a byte that lies within it; and the
//! faults that come of it are ones that the hub believes, from a memory that survives a restart and knows the repeat.

use std::{net::IpAddr, time::Duration};

use gpuheal_proto::fault::NodeRef;
use gpuheal_spoke_core::{
    derive::{Held, Nodes, Settings},
    scrape::webhook::{Error, Fingerprint, REFUSED_KEPT, Webhook, decode},
};
use serde_json::{Value, json};

use crate::{
    believable::{START, assert_believed, assert_remembered, cluster, node},
    samples::sample,
};

/// Alerts of one body that are also read alone.
const ALONE_MAX: usize = 8;

/// A cluster in which every name and address is the one node.
struct OneNode;

impl Nodes for OneNode {
    fn named(&self, _: &str) -> Option<NodeRef> {
        Some(node())
    }
    fn at(&self, _: IpAddr) -> Option<NodeRef> {
        Some(node())
    }
    fn of_pod(&self, _: &str) -> Option<NodeRef> {
        Some(node())
    }
}

pub(crate) fn run(body: &[u8]) {
    let settings = Settings::default();
    match decode(body, &settings.alert_labels) {
        Ok(webhook) => {
            every_alert_is_accounted_for(body, &webhook, &settings);
            faults_are_believed(&webhook, &settings);
        }
        Err(Error::NoJson { offset, line, column, .. }) => {
            assert!(offset <= body.len() && line >= 1 && column <= body.len() + 1, "a place within the body");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn every_alert_is_accounted_for(body: &[u8], webhook: &Webhook, settings: &Settings) {
    let whole: Value = serde_json::from_slice(body).expect("it was read before");
    let sent = whole["alerts"].as_array().expect("it was read before");
    assert_eq!(webhook.alerts.len() + webhook.refused_total as usize, sent.len(), "each alert is used or refused");
    assert!(webhook.refused.len() <= REFUSED_KEPT && webhook.refused.iter().all(|refused| refused.path.len() <= 128));
    let mut used = webhook.alerts.iter();
    for alert in sent.iter().take(ALONE_MAX) {
        let alone = json!({ "alerts": [alert] }).to_string();
        // The only reasons to refuse a body are its size and its shape, which a part of it keeps.
        let alone = decode(alone.as_bytes(), &settings.alert_labels).expect("a body of one alert is a body");
        if let Some(alert) = alone.alerts.first() {
            assert_eq!(used.next(), Some(alert), "each alert is read by itself");
        }
    }
    for alert in &webhook.alerts {
        assert_eq!(Fingerprint::parse(&alert.fingerprint.to_string()), Some(alert.fingerprint));
        assert!(alert.labels.len() <= 128);
    }
}

fn faults_are_believed(webhook: &Webhook, settings: &Settings) {
    let mut held = Held::new(cluster());
    assert_believed(&held.take_alerts(webhook, &OneNode, settings, START));
    assert_remembered(&held);
    let again = held.take_alerts(webhook, &OneNode, settings, START.after(Duration::from_secs(1)));
    assert_believed(&again);
    assert_believed(&held.again(&node().uid, |_| true));
    assert_remembered(&held);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let names = ["alert-constructed-gpu-mixed-0.34.json", "alert-real-0.22-firing.json", "alert-real-empty-fingerprint.json"];
    let odd = [
        json!({"alerts": [{"status": "firing", "labels": {"alertname": "A", "node": "n", "xid": 79, "gpu": "3"}}]}),
        json!({"alerts": [{"labels": {"alert_name": "B", "instance": "[::1]:9400", "gpu_temp": "91"}, "endsAt": "0001-01-01T00:00:00Z"}]}),
        json!({"alerts": [7, {}, {"labels": {"a": []}}, {"labels": {"alertname": "C", "Hostname": "h", "UUID": "GPU-1",
            "pci_bus_id": "00000000:5D:00.0", "exported_pod": "p", "exported_namespace": "ns"}, "startsAt": "2026-09-14T03:12:41.221Z"}]}),
    ];
    names.iter().map(|name| sample(name)).chain(odd.iter().map(|body| body.to_string().into_bytes())).collect()
}
