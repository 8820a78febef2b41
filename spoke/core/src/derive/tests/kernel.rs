//! Kernel events: the surest witness, under the same key as the exporter's.

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

#[test]
fn a_kernel_line_is_a_witness_of_the_exporters_fault() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let seen = only(&scene.page(&[gpu(0).xid(79)]));
    let line = only(&scene.kernel(&["NVRM: Xid (PCI:0000:10:00): 79, pid=1, name=x, GPU has fallen off the bus."]));
    assert!(is(&line, Onset::Edge, Witness::KernelLine));
    assert_eq!(line.key, seen.key);
}

#[test]
fn the_drivers_recovery_action_travels_by_its_number_and_none_is_no_fault() {
    let mut scene = Scene::new();
    let line = "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
    assert_eq!(only(&scene.kernel(&[line])).detail, "recovery action changed to 0x1");
    let line = "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";
    let out = scene.kernel(&[line]);
    assert_eq!((out.faults.len(), out.skips[&Skip::KernelActionNone]), (0, 1));
}

#[test]
fn a_burst_of_one_xid_is_one_fault_until_its_count_reaches_the_threshold() {
    let mut scene = Scene::new();
    let line = "NVRM: Xid (PCI:0000:10:00): 13, pid=7, name=train, Graphics Exception";
    let counts: Vec<_> = scene.kernel(&[line; 9]).faults.iter().map(|fault| fault.count).collect();
    assert_eq!(counts, [1, 5]);
}

#[test]
fn a_gpu_off_the_bus_has_the_key_of_the_lost_gpu() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    let lost = (0..3).map(|_| scene.page(&[gpu(0).xid(0)])).last().map(|out| only(&out)).unwrap();
    let line = only(&scene.kernel(&["NVRM: GPU 0000:11:00.0: GPU has fallen off the bus."]));
    assert_eq!((line.key, line.witness), (lost.key, Witness::KernelLine));
}

#[test]
fn an_injected_event_is_no_fault() {
    let mut scene = Scene::new();
    let line = "NVRM: Xid (PCI:0000:10:00): 149, NETIR_LINK_EVT  Fatal   XC0 i1 Link 00 (0x026001c6 0x00000000 0x0 0x0 0x0 0x0)";
    let out = scene.kernel(&[line]);
    assert_eq!((out.faults.len(), out.skips[&Skip::KernelInjected]), (0, 1));
}
