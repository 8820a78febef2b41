//! ECC counters, row remapping, link counters.

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

const DBE: &str = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL";
const DBE_LIFETIME: &str = "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL";
const REMAP_FAILURE: &str = "DCGM_FI_DEV_ROW_REMAP_FAILURE";
const REMAPPED: &str = "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS";

#[test]
fn an_uncorrectable_error_counted_live_is_an_edge_by_counter() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).row(DBE, 0).row(DBE_LIFETIME, 3)]);
    let fault = only(&scene.page(&[gpu(0).row(DBE, 1).row(DBE_LIFETIME, 4)]));
    assert!(is(&fault, Onset::Edge, Witness::ExporterCounter), "both counters are one fault");
    assert_eq!(scene.page(&[gpu(0).row(DBE, 1).row(DBE_LIFETIME, 4)]).faults, []);
}

#[test]
fn errors_counted_before_we_came_are_standing() {
    let fault = only(&Scene::new().page(&[gpu(0).row(DBE, 2)]));
    assert!(is(&fault, Onset::Standing, Witness::ExporterCounter));
}

#[test]
fn a_lifetime_counter_at_first_sight_is_history() {
    let mut scene = Scene::new();
    let out = scene.page(&[gpu(0).row(DBE_LIFETIME, 3).row(REMAPPED, 2)]);
    assert_eq!((out.faults.len(), out.skips[&Skip::CounterHistory]), (0, 2));
    let fault = only(&scene.page(&[gpu(0).row(DBE_LIFETIME, 3).row(REMAPPED, 3)]));
    assert_eq!((fault.class.as_str(), fault.code.as_str(), fault.onset), ("row_remap", "pending", Onset::Edge));
}

#[test]
fn a_row_remap_failure_is_told_once_and_survives_a_reboot() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).row(REMAP_FAILURE, 0)]);
    let fault = only(&scene.page(&[gpu(0).row(REMAP_FAILURE, 1)]));
    assert!(is(&fault, Onset::Edge, Witness::ExporterCounter));
    scene.reboot();
    assert_eq!(scene.page(&[gpu(0).row(REMAP_FAILURE, 1)]).faults, []);
    assert_eq!(scene.state(&fault), EvidenceState::Seen);
}

#[test]
fn a_counter_that_begins_anew_is_no_edge() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).row(DBE, 5)]);
    assert_eq!(scene.page(&[gpu(0).row(DBE, 2)]).faults, []);
}

#[test]
fn a_few_replays_are_ordinary_and_a_thousand_an_hour_are_not() {
    let mut scene = Scene::new();
    let row = |count: u32| [gpu(0).row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", count)];
    scene.page(&row(7));
    assert_eq!(scene.page(&row(40)).faults, []);
    assert_eq!(brief(&scene.page(&row(1_200))), ["pcie replay 0000:10:00 edge exporter_counter"]);
}

#[test]
fn what_may_have_been_lost_is_told_again_as_standing_and_its_next_edge_is_news() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).row(DBE, 0), gpu(1).row(REMAP_FAILURE, 0)]);
    let fault = only(&scene.page(&[gpu(0).row(DBE, 1), gpu(1).row(REMAP_FAILURE, 0)]));
    let uid = fault.node.uid.clone();
    assert_eq!(scene.held.nodes_with_faults(), std::slice::from_ref(&uid));
    let again = scene.held.again(&uid, |_| true);
    assert_eq!(brief(&again), ["ecc uncorrectable 0000:10:00 standing exporter_counter"]);
    assert_eq!((again.faults[0].key, &again.faults[0].gpu), (fault.key, &fault.gpu));
    assert!(again.touched.contains(&uid), "what it remembers of being told has changed");
    assert_eq!(scene.held.again(&uid, |witness| witness == Witness::Alert).faults, [], "a standby speaks for its alerts alone");
    assert_eq!(scene.page(&[gpu(0).row(DBE, 1), gpu(1).row(REMAP_FAILURE, 0)]).faults, [], "that it stands is no news");
    let next = only(&scene.page(&[gpu(0).row(DBE, 2), gpu(1).row(REMAP_FAILURE, 0)]));
    assert!(is(&next, Onset::Edge, Witness::ExporterCounter));
}
