//! Heat: dwell, second field, recovery.

use std::time::Duration;

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

#[test]
fn heat_counts_when_it_lasts_and_not_before() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).temp(60)]);
    assert_eq!(scene.page(&[gpu(0).temp(82)]).faults, []);
    let fault = only(&scene.page(&[gpu(0).temp(83)]));
    assert_eq!((fault.code.as_str(), fault.onset, fault.value, fault.threshold), ("warn", Onset::Edge, 83.0, 80.0));
}

#[test]
fn one_hot_reading_between_cool_ones_is_nothing() {
    let mut scene = Scene::new();
    for celsius in [60, 95, 60, 95, 60, 95] {
        assert_eq!(scene.page(&[gpu(0).temp(celsius)]).faults, []);
    }
}

#[test]
fn high_heat_alone_has_one_witness() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).temp(90)]);
    let out = scene.page(&[gpu(0).temp(90)]);
    assert_eq!(brief(&out), ["thermal high 0000:10:00 standing exporter_gauge"]);
}

#[test]
fn each_second_field_that_agrees_is_a_second_witness_of_the_same_fault() {
    let agreeing = [
        gpu(0).temp(90).labelled("DCGM_EXP_CLOCK_EVENTS_COUNT", ",clock_event=\"hw_thermal\"", 4),
        gpu(0).temp(90).row("DCGM_FI_DEV_MEMORY_TEMP", 97),
        gpu(0).temp(90).row("DCGM_FI_DEV_SM_CLOCK", 900),
    ];
    for hot in agreeing {
        let mut scene = Scene::new();
        scene.page(&[gpu(0).temp(60).row("DCGM_FI_DEV_SM_CLOCK", 1_980)]);
        scene.page(&[gpu(0).temp(86).row("DCGM_FI_DEV_SM_CLOCK", 1_980)]);
        let out = scene.page(&[hot]);
        assert_eq!(brief(&out), ["thermal high 0000:10:00 edge exporter_gauge", "thermal high 0000:10:00 edge second_field"]);
        assert_eq!(out.faults[0].key, out.faults[1].key);
    }
}

#[test]
fn an_idle_clock_event_agrees_with_nothing() {
    let mut scene = Scene::new();
    let hot = || {
        [gpu(0).temp(90).labelled("DCGM_EXP_CLOCK_EVENTS_COUNT", ",clock_event=\"gpu_idle\"", 9).row("DCGM_FI_DEV_MEMORY_TEMP", 0)]
    };
    scene.page(&hot());
    assert_eq!(only(&scene.page(&hot())).witness, Witness::ExporterGauge);
}

#[test]
fn it_clears_with_a_fresh_cool_reading_only() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).temp(90)]);
    let fault = only(&scene.page(&[gpu(0).temp(90)]));
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Stale, "no reading is no coolness");
    scene.page(&[gpu(0).temp(90)]);
    scene.no_page(NoPage::Unreachable);
    scene.wait_s(600);
    scene.held.tick(&scene.settings, scene.now);
    assert_eq!(scene.standing(&fault), Standing::Unknown);
    scene.page(&[gpu(0).temp(60)]);
    assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Clear, Standing::Cleared));
    scene.page(&[gpu(0).temp(90)]);
    assert!(is(&only(&scene.page(&[gpu(0).temp(90)])), Onset::Edge, Witness::ExporterGauge), "a new episode");
}

#[test]
fn a_models_own_thresholds_hold_for_it() {
    let mut scene = Scene::new();
    let own = Thermal { warn_celsius: 70.0, high_celsius: 75.0, dwell: Duration::ZERO };
    scene.settings.thermal_by_model = vec![("H100".to_owned(), own)];
    assert_eq!(only(&scene.page(&[gpu(0).temp(72)])).threshold, 70.0);
}

#[test]
fn a_blank_temperature_is_no_heat() {
    let mut scene = Scene::new();
    for _ in 0..4 {
        assert_eq!(scene.page(&[gpu(0).row("DCGM_FI_DEV_GPU_TEMP", 9_223_372_036_854_775_794_u64)]).faults, []);
    }
}
