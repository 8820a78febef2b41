//! Faults that another replica found, told and can tell no more of.

use std::collections::BTreeSet;

use gpuheal_proto::{
    fault::{Asked, Onset, Witness},
    link::v1,
};

use super::super::testing::*;
use super::super::*;

const REMAP_FAILURE: &str = "DCGM_FI_DEV_ROW_REMAP_FAILURE";

/// What the hub asks of faults that one replica told, by way of the wire.
fn asked(told: &Outcome) -> Vec<Asked> {
    let mut all: BTreeMap<FaultKey, (Fault, BTreeSet<Witness>)> = BTreeMap::new();
    for fault in &told.faults {
        all.entry(fault.key).or_insert_with(|| (fault.clone(), BTreeSet::new())).1.insert(fault.witness);
    }
    let asked = all.into_values().map(|(fault, witnesses)| Asked { fault, witnesses });
    asked.map(|asked| Asked::try_from(v1::FaultAsked::from(&asked)).unwrap()).collect()
}

/// The replica that follows, which has seen nothing so far.
fn next(before: &Scene) -> Scene {
    let mut scene = Scene::new();
    (scene.now, scene.node) = (before.now, before.node.clone());
    scene
}

fn take_up(scene: &mut Scene, asked: &[Asked]) -> Outcome {
    let node = scene.node.clone();
    scene.held.take_up(&node, asked, &scene.settings, scene.now)
}

fn remapping(failed: u8) -> [Gpu; 1] {
    [gpu(0).row(REMAP_FAILURE, failed)]
}

#[test]
fn the_end_of_a_fault_that_another_replica_found_is_told_by_who_leads_then() {
    let mut first = Scene::new();
    first.page(&remapping(0));
    let told = first.page(&remapping(1));
    let fault = only(&told);
    let mut second = next(&first);
    second.page(&remapping(0));
    assert!(second.held.evidence().is_empty(), "who has not seen it sees nothing end");
    let out = take_up(&mut second, &asked(&told));
    assert!(out.faults.is_empty() && out.evidence.is_empty(), "nothing was found by it: {out:?}");
    assert_eq!(out.touched, [second.node.uid.clone()].into(), "the journal has it");
    let evidence = second.page(&remapping(0)).evidence;
    assert_eq!(evidence.iter().map(|one| (one.key, one.state)).collect::<Vec<_>>(), [(fault.key, EvidenceState::Clear)]);
}

#[test]
fn what_still_stands_is_no_new_fault_and_a_silent_source_makes_it_stale() {
    let mut first = Scene::new();
    first.page(&remapping(0));
    let told = first.page(&remapping(1));
    let fault = only(&told);
    let mut second = next(&first);
    take_up(&mut second, &asked(&told));
    assert_eq!(brief(&second.page(&remapping(1))), Vec::<String>::new());
    assert_eq!(second.state(&fault), EvidenceState::Seen);
    let mut third = next(&first);
    take_up(&mut third, &asked(&told));
    third.wait_s(200);
    third.held.tick(&third.settings, third.now);
    assert_eq!((third.state(&fault), third.standing(&fault)), (EvidenceState::Stale, Standing::Unknown));
}

/// An Xid ends with a boot, and a gauge that shows none proves nothing: by the boot in which it was seen it is known to be over.
#[test]
fn an_xid_of_an_earlier_boot_is_over_and_one_of_this_boot_is_not() {
    for (rebooted, state) in [(false, EvidenceState::Stale), (true, EvidenceState::Clear)] {
        let mut first = Scene::new();
        first.page(&[gpu(0).xid(0)]);
        let told = first.page(&[gpu(0).xid(79)]);
        let fault = only(&told);
        let mut second = next(&first);
        if rebooted {
            second.reboot();
        }
        second.page(&[gpu(0).xid(0)]);
        take_up(&mut second, &asked(&told));
        second.page(&[gpu(0).xid(0)]);
        assert_eq!(second.state(&fault), state, "rebooted: {rebooted}");
    }
}

#[test]
fn an_xid_of_a_board_that_was_replaced_since_is_over() {
    let mut first = Scene::new();
    first.page(&[gpu(0).xid(0)]);
    let told = first.page(&[gpu(0).xid(79)]);
    let mut second = next(&first);
    second.page(&[gpu(0).board(7).xid(0)]);
    take_up(&mut second, &asked(&told));
    second.page(&[gpu(0).board(7).xid(0)]);
    assert_eq!(second.state(&only(&told)), EvidenceState::Clear);
}

#[test]
fn what_is_known_is_told_as_it_is_and_a_key_of_another_fault_is_not_believed() {
    let mut scene = Scene::new();
    scene.page(&remapping(0));
    let told = scene.page(&remapping(1));
    let fault = only(&told);
    scene.page(&remapping(0));
    let out = take_up(&mut scene, &asked(&told));
    assert!(!out.changed);
    assert_eq!(scene.state(&fault), EvidenceState::Clear, "it knows better");
    // And says so: that it is clear was told once, to a hub that may have lost it.
    assert_eq!(out.evidence.iter().map(|one| (one.key, one.state)).collect::<Vec<_>>(), [(fault.key, EvidenceState::Clear)]);
    let mut forged = asked(&told);
    forged[0].fault.code = "pending".to_owned();
    let mut second = next(&scene);
    let out = take_up(&mut second, &forged);
    assert!(!out.changed && out.evidence.is_empty());
    assert!(second.held.evidence().is_empty());
}

#[test]
fn a_change_after_it_was_taken_up_is_an_edge() {
    let mut first = Scene::new();
    first.page(&remapping(0));
    let told = first.page(&remapping(1));
    let mut second = next(&first);
    take_up(&mut second, &asked(&told));
    second.page(&remapping(0));
    let again = only(&second.page(&remapping(1)));
    assert_eq!((again.key, again.onset), (told.faults[0].key, Onset::Edge), "another episode");
}

/// Told again after a boot under that boot's name, it would be taken for one of this boot by the next leader.
#[test]
fn what_is_told_again_after_a_boot_is_not_told_as_of_that_boot() {
    let mut first = Scene::new();
    first.page(&[gpu(0).xid(0)]);
    first.page(&[gpu(0).xid(79)]);
    let uid = first.node.uid.clone();
    assert_eq!(first.held.again(&uid, |_| true).faults[0].node.boot_id, "boot-1");
    first.reboot();
    first.no_page(NoPage::Unreachable);
    let again = first.held.again(&uid, |_| true);
    assert_eq!(again.faults[0].node.boot_id, "", "of one before this, and it is not known which");
}
