//! Which board sits where: a boot may number the bus anew, boards are replaced, an exporter tells slots from one day on.

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

const REMAP_FAILURE: &str = "DCGM_FI_DEV_ROW_REMAP_FAILURE";

fn xid79(index: u8) -> String {
    format!("NVRM: Xid (PCI:{}): 79, GPU has fallen off the bus.", slot(index))
}

fn firing(labels: &[(&str, &str)]) -> String {
    let labels = [&[("alertname", "GPUBad"), ("node", "gpu-1")], labels].concat();
    alert("firing", &labels, "2026-11-29T19:00:00Z")
}

/// Slot and UUID as the fault has them.
fn names(fault: &Fault) -> (Option<String>, Option<String>) {
    let gpu = fault.gpu.clone().unwrap_or_default();
    (gpu.slot.map(|slot| slot.as_str().to_owned()), gpu.uuid.map(|uuid| uuid.as_str().to_owned()))
}

#[test]
fn until_a_page_of_the_new_boot_nobody_says_which_board_is_in_a_slot() {
    for restarts in [false, true] {
        let mut scene = Scene::new();
        scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
        assert_eq!(names(&only(&scene.kernel(&[&xid79(1)]))), (Some(slot(1)), Some(uuid(1))));
        scene.reboot();
        scene.no_page(NoPage::Unreachable);
        if restarts {
            scene.restart();
        }
        assert_eq!(names(&only(&scene.kernel(&[&xid79(0)]))), (Some(slot(0)), None));
        assert_eq!(names(&only(&scene.alerts(&firing(&[("UUID", &uuid(0))])))), (None, Some(uuid(0))));
        let slots: Vec<_> = scene.held.gpus(&scene.node.uid).into_iter().map(|gpu| gpu.slot).collect();
        assert_eq!(slots, [None, None], "the hub names nobody by them either");
        let again = scene.held.again(&scene.node.uid, |witness| witness == Witness::KernelLine);
        assert!(again.faults.iter().all(|fault| names(fault).1.is_none()), "{:?}", again.faults);
        scene.page(&[gpu(0).board(1).xid(0), gpu(1).board(0).xid(0)]);
        scene.wait_s(600);
        let (out, uuid) = (scene.kernel(&["NVRM: Xid (PCI:0000:10:00): 48, DBE"]), uuid(1));
        assert_eq!(names(&only(&out)), (Some(slot(0)), Some(uuid)), "the page of this boot has told it");
    }
}

#[test]
fn a_slot_that_another_board_has_taken_names_that_one_and_the_lost_one_is_told_by_its_uuid() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    scene.reboot();
    let mut told = Vec::new();
    for _ in 0..4 {
        told.extend(scene.page(&[gpu(0).board(1).xid(0)]).faults);
    }
    let [lost] = &*told else { panic!("{told:?}") };
    assert_eq!((lost.class.as_str(), names(lost)), ("gpu_lost", (None, Some(uuid(0)))));
    assert_eq!(scene.state(lost), EvidenceState::Seen, "whoever sits in its slot is not it");
    assert_eq!(names(&only(&scene.kernel(&[&xid79(0)]))), (Some(slot(0)), Some(uuid(1))));
}

#[test]
fn what_a_source_says_of_a_gpu_itself_is_kept_as_it_says_it() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    let fault = only(&scene.alerts(&firing(&[("UUID", &uuid(1)), ("pci_bus_id", &slot(0))])));
    assert_eq!(names(&fault), (Some(slot(0)), Some(uuid(1))));
}

#[test]
fn what_was_told_of_a_slot_that_a_boot_left_empty_ends_by_what_its_board_shows_elsewhere() {
    let mut scene = Scene::new();
    let bad = |index: u8| gpu(index).board(0).xid(0).row(REMAP_FAILURE, 1);
    scene.page(&[gpu(0).xid(0).row(REMAP_FAILURE, 0)]);
    let fault = only(&scene.page(&[bad(0)]));
    let line = only(&scene.kernel(&[&xid79(0)]));
    scene.reboot();
    scene.wait_s(600);
    let there = only(&scene.page(&[bad(5)]));
    assert_eq!(names(&there), (Some(slot(5)), Some(uuid(0))), "what it still has is told where it is");
    assert_eq!(
        (scene.state(&fault), scene.state(&line)),
        (EvidenceState::Stale, EvidenceState::Clear),
        "a boot ends an event alone"
    );
    assert_eq!(scene.state(&there), EvidenceState::Seen);
    scene.page(&[gpu(5).board(0).xid(0)]);
    assert_ne!(scene.state(&fault), EvidenceState::Clear, "a reading that is not there ends nothing");
    scene.restart();
    scene.page(&[gpu(5).board(0).xid(0).row(REMAP_FAILURE, 0)]);
    assert_eq!((scene.state(&fault), scene.state(&there)), (EvidenceState::Clear, EvidenceState::Clear));
}

#[test]
fn a_fault_that_was_told_by_uuid_goes_on_and_ends_when_the_exporter_begins_to_tell_slots() {
    let mut scene = Scene::new();
    let (old, new) = (|value: u8| gpu(0).slotless().row(REMAP_FAILURE, value), |value: u8| gpu(0).row(REMAP_FAILURE, value));
    scene.page(&[old(0)]);
    let fault = only(&scene.page(&[old(1)]));
    assert_eq!(brief(&scene.page(&[new(1)])), [""; 0], "it is the same fault");
    assert_eq!(scene.state(&fault), EvidenceState::Seen);
    scene.restart();
    scene.page(&[new(1)]);
    assert_eq!(scene.state(&fault), EvidenceState::Seen);
    scene.page(&[new(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
    let next = only(&scene.page(&[new(1)]));
    assert_eq!(names(&next), (Some(slot(0)), Some(uuid(0))), "the next one is of the slot");
}

#[test]
fn every_fault_that_goes_on_by_uuid_has_the_key_that_a_hub_derives_from_it() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(0)]);
    let first = only(&scene.page(&[gpu(0).slotless().xid(79), gpu(1).slotless().xid(0)]));
    scene.page(&[gpu(0).xid(79), gpu(1).xid(0)]);
    let more = only(&scene.alerts(&firing(&[("err_code", "79"), ("UUID", &uuid(0))])));
    assert_eq!((more.key, more.onset), (first.key, Onset::Edge), "another witness of the same fault");
    assert_eq!(more.derived_key(&ClusterId::parse("c1").unwrap()), more.key);
}

#[test]
fn an_event_that_was_told_by_uuid_ends_with_a_boot_and_not_before() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).slotless().xid(0)]);
    let fault = only(&scene.page(&[gpu(0).slotless().xid(79)]));
    let line = only(&scene.kernel(&[&xid79(7)]));
    for _ in 0..10 {
        scene.page(&[gpu(0).xid(0)]);
        assert_ne!(scene.state(&fault), EvidenceState::Clear, "that it is told no more is silence");
    }
    scene.reboot();
    scene.page(&[gpu(0).slotless().xid(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
    assert_ne!(scene.state(&line), EvidenceState::Clear, "some board may sit there that this exporter does not show");
}

#[test]
fn a_kernel_line_of_a_slot_that_the_exporter_does_not_tell_ends_with_a_boot_after_which_all_gpus_are_there() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(0)]);
    let line = only(&scene.kernel(&[&xid79(0)]));
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(0)]);
    scene.reboot();
    scene.page(&[gpu(0).slotless().xid(0)]);
    assert_ne!(scene.state(&line), EvidenceState::Clear, "one is missing: it may be the one");
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(0)]);
    assert_eq!(scene.state(&line), EvidenceState::Clear);
}

/// Two slotless GPUs, of which the first is ill and then lost; the faults.
fn lost(scene: &mut Scene) -> [Fault; 2] {
    let two = |value: u8| [gpu(0).slotless().row(REMAP_FAILURE, value), gpu(1).slotless().xid(0)];
    scene.page(&two(0));
    let ill = only(&scene.page(&two(1)));
    let mut told = Vec::new();
    for _ in 0..4 {
        told.extend(scene.page(&[gpu(1).slotless().xid(0)]).faults);
    }
    assert_eq!(told.len(), 1, "{told:?}");
    [ill, told.remove(0)]
}

fn states(scene: &Scene, faults: &[Fault]) -> Vec<EvidenceState> {
    faults.iter().map(|fault| scene.state(fault)).collect()
}

#[test]
fn the_faults_of_a_board_without_a_slot_end_when_another_has_replaced_it() {
    for tells_slots in [false, true] {
        let mut scene = Scene::new();
        let faults = lost(&mut scene);
        scene.reboot();
        let told = |gpu: Gpu| if tells_slots { gpu } else { gpu.slotless() };
        for _ in 0..4 {
            scene.page(&[told(gpu(0).board(9)).row(REMAP_FAILURE, 0), told(gpu(1)).xid(0)]);
        }
        assert_eq!(states(&scene, &faults), [EvidenceState::Clear; 2], "tells slots: {tells_slots}");
        scene.restart();
        assert_eq!(brief(&scene.page(&[told(gpu(0).board(9)).row(REMAP_FAILURE, 0), told(gpu(1)).xid(0)])), [""; 0]);
    }
}

#[test]
fn a_board_without_a_slot_stays_lost_without_a_boot_and_while_more_are_missing_than_came() {
    let mut scene = Scene::new();
    let faults = lost(&mut scene);
    for _ in 0..4 {
        scene.page(&[gpu(0).board(9).slotless().xid(0), gpu(1).slotless().xid(0)]);
    }
    assert_eq!(states(&scene, &faults), [EvidenceState::Stale, EvidenceState::Seen], "nobody has opened the machine");
    let mut scene = Scene::new();
    let faults = lost(&mut scene);
    scene.reboot();
    for _ in 0..4 {
        scene.page(&[gpu(0).board(9).slotless().xid(0)]);
    }
    assert_eq!(states(&scene, &faults), [EvidenceState::Stale, EvidenceState::Seen], "one came and two are missing");
}
