//! Node objects: conditions of every platform, and GPUs held back from allocation.

use gpuheal_proto::fault::{FaultClass, Onset};

use super::super::testing::*;
use super::super::*;

const GPU: &str = "nvidia.com/gpu";

#[test]
fn a_condition_counts_after_its_own_hold_whatever_its_reason_says() {
    let mut scene = Scene::new();
    scene.object(&[("AcceleratedHardwareReady", "True", "", "")], &[]);
    let mut faults = Vec::new();
    for at in 0..10 {
        let reason = if at % 2 == 0 { "NvidiaXID79Error" } else { "NvidiaDoubleBitError" };
        faults.extend(scene.object(&[("AcceleratedHardwareReady", "False", reason, "")], &[]).faults);
        scene.wait_s(30);
    }
    assert_eq!(faults.len(), 1);
    assert_eq!(
        (faults[0].class, faults[0].code.as_str(), faults[0].onset),
        (FaultClass::NodeCondition, "AcceleratedHardwareReady", Onset::Edge)
    );
}

#[test]
fn polarity_is_each_conditions_own() {
    let mut scene = Scene::new();
    let good = [("GPUDeviceLost", "False", "", ""), ("AcceleratedHardwareReady", "True", "", ""), ("Ready", "Unknown", "", "")];
    for _ in 0..5 {
        assert_eq!(scene.object(&good, &[]).faults, []);
        scene.wait_s(60);
    }
}

#[test]
fn a_blind_monitor_is_a_source_fault() {
    let mut scene = Scene::new();
    let blind = [("AcceleratedHardwareReady", "False", "DCGMError", "cannot reach DCGM")];
    scene.object(&blind, &[]);
    scene.wait_s(120);
    assert_eq!(only(&scene.object(&blind, &[])).class, FaultClass::Source);
}

#[test]
fn an_agent_that_wants_nothing_done_starts_nothing() {
    let mut scene = Scene::new();
    let none = [("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", "Detected XID 31 for GPU 4 Recommended Action=NONE;")];
    scene.object(&none, &[]);
    scene.wait_s(600);
    let out = scene.object(&none, &[]);
    assert_eq!((out.faults.len(), out.skips[&Skip::ConditionActionNone]), (0, 1));
}

#[test]
fn seven_of_eight_counts_when_it_lasts() {
    let mut scene = Scene::new();
    scene.object(&[], &[(GPU, "8", "8")]);
    assert_eq!(scene.object(&[], &[(GPU, "8", "7")]).faults, []);
    scene.wait_s(170);
    assert_eq!(scene.object(&[], &[(GPU, "8", "7")]).faults, []);
    scene.wait_s(10);
    let fault = only(&scene.object(&[], &[(GPU, "8", "7")]));
    assert_eq!((fault.class, fault.onset, fault.value, fault.threshold), (FaultClass::Allocatable, Onset::Edge, 7.0, 8.0));
    scene.wait_s(3600);
    assert_eq!(scene.object(&[], &[(GPU, "8", "7")]).faults, [], "it stays so until the plugin restarts");
    scene.object(&[], &[(GPU, "8", "8")]);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
}

#[test]
fn of_slices_that_are_held_back_no_number_of_gpus_is_told() {
    let counted = |resource: &str| {
        let mut scene = Scene::new();
        scene.object(&[], &[(resource, "8", "8")]);
        scene.object(&[], &[(resource, "8", "5")]);
        scene.wait_s(180);
        let fault = only(&scene.object(&[], &[(resource, "8", "5")]));
        (fault.class, fault.count)
    };
    assert_eq!(counted(GPU), (FaultClass::Allocatable, 3));
    assert_eq!(counted("nvidia.com/mig-1g.5gb"), (FaultClass::Allocatable, 0));
    assert_eq!(counted("nvidia.com/gpu.shared"), (FaultClass::Allocatable, 0));
}

#[test]
fn a_plugin_that_restarts_takes_no_gpu_away() {
    let mut scene = Scene::new();
    scene.object(&[], &[(GPU, "8", "8")]);
    for offered in ["0", "0", "8", "7", "8"] {
        scene.wait_s(20);
        assert_eq!(scene.object(&[], &[(GPU, "8", offered)]).faults, []);
    }
    scene.object(&[], &[(GPU, "8", "0")]);
    scene.wait_s(200);
    let started = scene.now;
    let out = scene.object_with_plugin(&[], &[(GPU, "8", "5")], Some(started));
    assert_eq!((out.faults.len(), out.skips[&Skip::AllocatablePluginRestart]), (0, 1));
}

#[test]
fn nothing_offered_at_all_is_a_plugin_that_is_gone() {
    let mut scene = Scene::new();
    scene.object(&[], &[(GPU, "8", "8")]);
    scene.object(&[], &[(GPU, "8", "0")]);
    scene.wait_s(301);
    assert_eq!(brief(&scene.object(&[], &[(GPU, "8", "0")])), ["source device_plugin_gone node edge allocatable"]);
}

#[test]
fn a_mig_relayout_loses_no_gpu() {
    let mut scene = Scene::new();
    let mig = "nvidia.com/mig-1g.5gb";
    scene.object(&[], &[(GPU, "8", "8")]);
    for _ in 0..8 {
        assert_eq!(scene.object(&[], &[(GPU, "7", "7"), (mig, "7", "7")]).faults, []);
        scene.wait_s(60);
    }
}
