//! The real and the constructed bodies, and each trap of the format.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::scrape::webhook::subject::NodeIdentity::{Address, MaybeName, Name};

fn sample(name: &str) -> Webhook {
    let path = format!("{}/../../tests/data/samples/{name}", env!("CARGO_MANIFEST_DIR"));
    decode(&std::fs::read(path).unwrap(), &AlertLabels::default()).unwrap()
}

fn read(body: serde_json::Value) -> Webhook {
    decode(body.to_string().as_bytes(), &AlertLabels::default()).unwrap()
}

fn with_labels(labels: serde_json::Value) -> Alert {
    read(json!({"alerts": [{"status": "firing", "labels": labels}]})).alerts.remove(0)
}

fn nodes(alert: &Alert) -> Vec<NodeIdentity> {
    alert.subject.node.iter().map(|candidate| candidate.identity.clone()).collect()
}

#[test]
fn the_fingerprint_of_the_real_capture_is_computed_alike() {
    let body = sample("alert-real-0.22-firing.json");
    assert_eq!(Fingerprint::of(&body.alerts[0].labels).to_string(), "c32443c5c37325c8");
    assert_eq!(body.alerts[0].fingerprint.to_string(), "c32443c5c37325c8");
    assert_eq!((body.receiver.as_str(), body.truncated_alerts), ("web\\.hook", 0));
}

#[test]
fn an_empty_fingerprint_is_computed_and_tells_alerts_apart() {
    let body = sample("alert-real-empty-fingerprint.json");
    assert_eq!(body.alerts.len(), 2);
    assert!(body.alerts.iter().all(|alert| alert.status == Status::Firing && alert.fingerprint == Fingerprint::of(&alert.labels)));
    assert_ne!(body.alerts[0].fingerprint, body.alerts[1].fingerprint);
    assert_eq!(body.alerts[0].starts_at, Some(Timestamp::from_unix_ms(1_615_706_988_504)));
    assert_eq!(body.alerts[0].ends_at, None);
}

#[test]
fn a_resolved_alert_in_a_firing_group_is_resolved() {
    let body = sample("alert-constructed-gpu-mixed-0.34.json");
    let facts: Vec<_> = body
        .alerts
        .iter()
        .map(|alert| {
            let gpu = alert.subject.gpu.as_ref().unwrap();
            (alert.status, nodes(alert)[0].clone(), gpu.index_hint, gpu.slot.unwrap().to_string(), alert.subject.readings[0])
        })
        .collect();
    let node = |name: &str| MaybeName(name.to_owned());
    assert_eq!(
        facts,
        [
            (Status::Firing, node("gpu-node-1"), Some(3), "0000:5d:00".to_owned(), AlertReading::XidCode(79)),
            (Status::Resolved, node("gpu-node-1"), Some(5), "0000:9b:00".to_owned(), AlertReading::XidCode(95)),
            (Status::Firing, node("gpu-node-2"), Some(0), "0000:18:00".to_owned(), AlertReading::XidCode(48)),
        ]
    );
    assert!(body.alerts.iter().all(|alert| alert.fingerprint == Fingerprint::of(&alert.labels)));
    assert_eq!((body.truncated_alerts, body.notification_reason.as_str()), (2, "some alerts resolved"));
}

#[test]
fn the_job_and_not_the_exporter_is_the_workload() {
    let body = sample("alert-constructed-gpu-mixed-0.34.json");
    let want = AlertWorkload { namespace: "ml".into(), pod: "train-worker-0".into(), container: "trainer".into() };
    assert_eq!(body.alerts[0].subject.workload, Some(want));
    assert_eq!(body.alerts[1].subject.workload, None);
}

#[test]
fn a_missing_gpu_label_is_never_gpu_0() {
    assert_eq!(with_labels(json!({"node": "n", "UUID": "b1c2"})).subject.gpu, None);
}

#[test]
fn node_labels_are_taken_in_the_order_of_trust() {
    let table = [
        (json!({"node": "a", "kubernetes_node": "b", "instance": "10.0.0.1:9400"}), vec![Name("a".into()), Name("b".into())]),
        (json!({"nodename": "10.0.15.233", "Hostname": "x"}), vec![Name("10.0.15.233".into())]),
        (
            json!({"instance": "10.0.172.246:9400", "exported_instance": "n7:9100", "hostname": "dcgm-abc"}),
            vec![MaybeName("dcgm-abc".into()), MaybeName("n7".into()), Address("10.0.172.246".parse().unwrap())],
        ),
        (json!({"instance": "[fd00::1]:9400"}), vec![Address("fd00::1".parse().unwrap())]),
        (json!({"instance": "fd00::1"}), vec![Address("fd00::1".parse().unwrap())]),
        (json!({"node": "", "severity": "critical"}), vec![]),
    ];
    for (labels, want) in table {
        assert_eq!(nodes(&with_labels(labels.clone())), want, "{labels}");
    }
}

#[test]
fn labels_may_carry_the_readings_themselves() {
    let alert = with_labels(json!({"node": "n", "xid_errors": "5", "gpu_temp": 91, "xid": "48"}));
    assert_eq!(alert.subject.readings, [AlertReading::XidCode(48), AlertReading::XidCount(5), AlertReading::GpuTemp(91.0)]);
    assert_eq!(with_labels(json!({"gpu_temp": "9223372036854775794", "err_code": "0", "xid": "lots"})).subject.readings, []);
}

#[test]
fn a_label_named_status_is_only_a_label() {
    let body = read(json!({"status": "firing", "alerts": [{"status": "resolved", "labels": {"status": "firing"}}]}));
    assert_eq!((body.alerts[0].status, body.alerts[0].labels["status"].as_str()), (Status::Resolved, "firing"));
}

#[test]
fn without_a_status_of_its_own_the_end_decides_and_not_the_group() {
    let body = read(json!({"status": "firing", "alerts": [
        {"labels": {}, "endsAt": "0001-01-01T00:00:00Z"}, {"labels": {}, "endsAt": "2021-08-22T06:47:54Z"}]}));
    assert_eq!(body.alerts.iter().map(|alert| alert.status).collect::<Vec<_>>(), [Status::Firing, Status::Resolved]);
}

#[test]
fn rancher_and_grafana_bodies_are_read() {
    let rancher = read(json!({"receiver": "c", "status": "firing", "alerts": [{"status": "firing",
        "labels": {"alert_name": "GPU lost", "node": "n"}, "annotations": {}, "startsAt": "2020-01-01T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z"}]}));
    assert_eq!((rancher.alerts[0].name.as_str(), rancher.group_key.as_str()), ("GPU lost", ""));
    let grafana = read(
        json!({"receiver": "r", "orgId": 1, "title": "t", "state": "alerting", "message": "m", "version": "1", "alerts": [{
        "status": "firing", "labels": {"alertname": "A", "instance": "n:9400"}, "values": {"B": 1.5}, "valueString": "x", "silenceURL": "s", "fingerprint": "1"}]}),
    );
    assert_eq!((grafana.alerts[0].name.as_str(), grafana.alerts[0].fingerprint.get()), ("A", 1));
}

#[test]
fn garbage_is_answered_with_the_byte_where_it_begins() {
    let error = |body: &[u8]| decode(body, &AlertLabels::default()).unwrap_err();
    match error(b"{\"alerts\":\n [}") {
        Error::NoJson { offset, line: 2, column: 3, .. } => assert_eq!(offset, 13),
        other => panic!("{other}"),
    }
    assert!(matches!(error(b""), Error::NoJson { offset: 0, .. }));
    assert!(matches!(error(b"node=n"), Error::NoJson { .. }));
    assert_eq!(error(b"[]"), Error::WrongShape { path: "body", expected: "an object" });
    assert_eq!(error(b"{}"), Error::WrongShape { path: "alerts", expected: "a list" });
}

#[test]
fn size_depth_and_number_are_bounded() {
    let error = |body: &[u8]| decode(body, &AlertLabels::default()).unwrap_err();
    assert!(matches!(error(&vec![b' '; WEBHOOK_BYTES_MAX + 1]), Error::TooLarge { .. }));
    assert!(matches!(error("[".repeat(100_000).as_bytes()), Error::NoJson { .. }));
    assert!(matches!(error("[1,".repeat(VALUES_MAX).as_bytes()), Error::TooManyValues { .. }));
    let many = json!({"alerts": vec![json!({}); ALERTS_MAX + 1]}).to_string();
    assert!(matches!(error(many.as_bytes()), Error::TooManyAlerts { .. }));
}

#[test]
fn one_unreadable_alert_costs_only_itself() {
    let body = read(json!({"alerts": [
        {"labels": {"a": {"b": 1}}}, {"labels": {}, "startsAt": "soon"}, {"labels": {}, "status": "maybe"}, 7, {"labels": {"ok": "yes"}}]}));
    let paths: Vec<_> = body.refused.iter().map(|refused| refused.path.as_str()).collect();
    assert_eq!(paths, ["alerts[0].labels.a", "alerts[1].startsAt", "alerts[2].status", "alerts[3]"]);
    assert_eq!((body.alerts.len(), body.refused_total), (1, 4));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&body, &AlertLabels::default());
    }

    #[test]
    fn no_labels_make_it_panic(labels in proptest::collection::btree_map("node|UUID|gpu|instance|pci_bus_id|gpu_temp|xid", ".{0,20}", 0..7), at in ".{0,30}") {
        let _ = decode(json!({"alerts": [{"labels": labels, "startsAt": at}]}).to_string().as_bytes(), &AlertLabels::default());
    }
}
