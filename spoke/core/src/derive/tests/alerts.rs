//! Alerts: each by its own status, told once, about the node and GPU that they name and no other.

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

const AT: &str = "2026-11-29T19:00:00Z";

#[test]
fn an_alert_about_an_xid_is_a_second_witness_of_the_exporters_fault() {
    for labels in [("UUID", uuid(1)), ("pci_bus_id", "00000000:11:00.0".to_owned())] {
        let mut scene = Scene::new();
        scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
        let seen = only(&scene.page(&[gpu(0).xid(0), gpu(1).xid(79)]));
        let labels = [("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", "79"), (labels.0, &labels.1)];
        let told = only(&scene.alerts(&alert("firing", &labels, AT)));
        assert!(is(&told, Onset::Edge, Witness::Alert));
        assert_eq!(told.key, seen.key);
    }
}

#[test]
fn repeats_and_twins_of_an_alert_are_one() {
    let mut scene = Scene::new();
    let body = alert("firing", &[("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", "79")], AT);
    assert_eq!(scene.alerts(&body).faults.len(), 1);
    for _ in 0..5 {
        let out = scene.alerts(&body);
        assert_eq!((out.faults.len(), out.skips[&Skip::AlertRepeated]), (0, 1));
        scene.restart();
    }
}

#[test]
fn a_resolved_alert_starts_nothing_and_clears_nothing() {
    let mut scene = Scene::new();
    let labels = [("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", "79")];
    let out = scene.alerts(&alert("resolved", &labels, AT));
    assert_eq!((out.faults.len(), out.skips[&Skip::AlertResolved]), (0, 1));
    let fault = only(&scene.alerts(&alert("firing", &labels, AT)));
    scene.alerts(&alert("resolved", &labels, AT));
    assert_eq!(scene.state(&fault), EvidenceState::Stale);
}

#[test]
fn an_alert_without_a_gpu_is_the_nodes_and_never_gpu_0s() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    for extra in [("gpu", "0"), ("severity", "critical")] {
        let labels = [("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", "79"), extra];
        let out = scene.alerts(&alert("firing", &labels, AT));
        assert!(out.faults.iter().all(|fault| fault.gpu.as_ref().is_none_or(|gpu| gpu.slot.is_none())), "{:?}", brief(&out));
    }
}

#[test]
fn an_address_is_looked_up_and_a_pod_name_is_no_node() {
    for node in
        [("instance", "10.0.0.1:9400"), ("instance", "10.0.0.9:9100"), ("Hostname", "exporter-abc"), ("kubernetes_node", "gpu-1")]
    {
        let out = Scene::new().alerts(&alert("firing", &[("alertname", "GPUHot"), node], AT));
        assert_eq!(brief(&out), ["alert GPUHot node edge alert"], "{node:?}");
    }
    let out = Scene::new().alerts(&alert("firing", &[("alertname", "GPUHot"), ("node", "elsewhere")], AT));
    assert_eq!((out.faults.len(), out.skips[&Skip::AlertNodeUnknown]), (0, 1));
    let out = Scene::new().alerts(&alert("firing", &[("alertname", "GPUHot")], AT));
    assert_eq!((out.faults.len(), out.skips[&Skip::AlertNamesNoNode]), (0, 1));
}

#[test]
fn a_firing_group_with_a_resolved_alert_inside_fires_for_the_others_only() {
    let body = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/samples/alert-constructed-gpu-mixed-0.34.json"
    ));
    let mut scene = Scene::new();
    let out = scene.alerts(&body.unwrap().replace("gpu-node-1", "gpu-1"));
    let codes: Vec<_> = out.faults.iter().map(|fault| fault.code.as_str()).collect();
    assert_eq!(codes, ["79"], "95 is resolved, 48 is of another node");
    assert_eq!((out.skips[&Skip::AlertResolved], out.skips[&Skip::AlertNodeUnknown]), (1, 1));
}

#[test]
fn an_alert_that_nobody_repeats_fires_on_unless_something_measures_it() {
    let mut scene = Scene::new();
    let labels = [("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", "79"), ("UUID", &uuid(0))];
    let fault = only(&scene.alerts(&alert("firing", &labels, AT)));
    scene.wait_s(3_600);
    scene.held.tick(&scene.settings, scene.now);
    assert_eq!(scene.state(&fault), EvidenceState::Seen);
    scene.wait_s(4 * 3_600);
    scene.held.tick(&scene.settings, scene.now);
    assert_eq!(scene.state(&fault), EvidenceState::Stale, "a resolve may be lost");
}

#[test]
fn a_firing_alert_keeps_no_heat_that_the_exporter_saw_end() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).temp(90)]);
    let fault = only(&scene.page(&[gpu(0).temp(90)]));
    let labels = [("alertname", "GPUHot"), ("node", "gpu-1"), ("UUID", &uuid(0)), ("gpu_temp", "90")];
    let told = scene.alerts(&alert("firing", &labels, AT));
    for _ in 0..7 {
        scene.page(&[gpu(0).temp(50)]);
        scene.held.tick(&scene.settings, scene.now);
    }
    assert_eq!(scene.state(&fault), EvidenceState::Clear, "{:?}", brief(&told));
}
