//! The exporter itself: empty, broken, frozen, switched off.

use super::super::testing::*;
use super::super::*;

fn eight() -> Vec<Gpu> {
    (0..8).map(|index| gpu(index).xid(0)).collect()
}

#[test]
fn a_page_that_is_gone_is_one_source_fault_and_not_eight_lost_gpus() {
    for why in [NoPage::Empty, NoPage::Status(500), NoPage::Unreachable, NoPage::Unreadable] {
        let mut scene = Scene::new();
        scene.page(&eight());
        let mut faults = Vec::new();
        for _ in 0..20 {
            let out = if why == NoPage::Empty { scene.text("# HELP x\n") } else { scene.no_page(why) };
            faults.extend(brief(&out));
        }
        assert_eq!(faults, ["source exporter_broken node edge exporter_gauge"], "{why}");
        assert_eq!(scene.held.sources(&scene.settings, scene.now)[0].health, SourceHealth::Broken);
        assert_eq!(scene.held.gpus(&scene.node.uid).len(), 8, "nobody saw them go");
    }
}

#[test]
fn a_source_fault_clears_with_a_good_page() {
    let mut scene = Scene::new();
    let mut broken = None;
    for _ in 0..8 {
        broken = scene.no_page(NoPage::Unreachable).faults.pop().or(broken);
    }
    scene.page(&eight());
    assert_eq!(scene.state(&broken.unwrap()), EvidenceState::Clear);
    assert_eq!(scene.held.sources(&scene.settings, scene.now)[0].health, SourceHealth::Fresh);
}

#[test]
fn readings_that_do_not_move_prove_nothing() {
    let mut scene = Scene::new();
    scene.page_of_energy(9, &[gpu(0).temp(90)]);
    let fault = only(&scene.page_of_energy(10, &[gpu(0).temp(90)]));
    for _ in 0..3 {
        scene.page_of_energy(11, &[gpu(0).temp(60)]);
    }
    for _ in 0..10 {
        let out = scene.page_of_energy(11, &[gpu(0).temp(60)]);
        scene.held.tick(&scene.settings, scene.now);
        assert!(out.skips.contains_key(&Skip::PageFrozen));
    }
    assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Stale, Standing::Unknown));
    let view = &scene.held.sources(&scene.settings, scene.now)[0];
    assert_eq!((view.health, view.reason.as_str()), (SourceHealth::Broken, "its readings do not move"));
}

#[test]
fn a_repeated_page_between_two_collections_is_not_frozen() {
    let mut scene = Scene::new();
    for energy in [1_u64, 1, 2, 2, 3, 3, 4, 4] {
        assert!(scene.page_of_energy(energy, &eight()).skips.is_empty());
    }
}

#[test]
fn bad_rows_leave_the_good_ones_to_speak() {
    let mut scene = Scene::new();
    let uuid = uuid(0);
    scene.text(&format!(
        "DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",UUID=\"{uuid}\"}} 60\nDCGM_FI_DEV_XID_ERRORS{{gpu=\"0\",UUID=\"{uuid}\"}} 0\n"
    ));
    let page = format!(
        "DCGM_FI_DEV_GPU_TEMP{{gpu=\"0\",UUID=\"{uuid}\"}} 61\nDCGM_FI_DEV_ECC{{gpu=\"0\"}} ERROR - FAILED TO CONVERT TO STRING\nDCGM_FI_DEV_XID_ERRORS{{gpu=\"0\",UUID=\"{uuid}\"}} 79\n"
    );
    assert_eq!(only(&scene.text(&page)).code, "79");
}

#[test]
fn signals_that_an_exporter_does_not_have_are_told() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).temp(50)]);
    let view = &scene.held.sources(&scene.settings, scene.now)[0];
    assert!(view.reason.contains("xid_last") && !view.reason.contains("gpu_temp"), "{}", view.reason);
}

#[test]
fn settings_switch_sources_off() {
    let mut scene = Scene::new();
    (scene.settings.scrape_off, scene.settings.webhook_off) = (true, true);
    assert_eq!(scene.page(&[gpu(0).xid(79)]).skips[&Skip::SourceOff], 1);
    assert_eq!(scene.alerts(&alert("firing", &[("alertname", "X"), ("node", "gpu-1")], "2026-11-29T19:00:00Z")).faults, []);
}

#[test]
fn a_quiet_node_is_journaled_often_enough_to_be_a_predecessor() {
    let mut scene = Scene::new();
    let kept = (0..10).filter(|_| !scene.page(&eight()).touched.is_empty()).count();
    assert_eq!(kept, 5, "at a scrape a minute and a stale limit of three, every other page");
}

#[test]
fn gpus_that_an_index_alone_names_share_a_key_and_a_cool_one_clears_no_hot_one() {
    let mut scene = Scene::new();
    scene.settings.thermal.dwell = std::time::Duration::ZERO;
    let mut page = |hot: [u32; 2], energy: u32| {
        let row = |gpu: usize| {
            let labels = format!("gpu=\"{gpu}\"");
            format!("DCGM_FI_DEV_GPU_TEMP{{{labels}}} {}\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n", hot[gpu])
        };
        scene.text(&[row(0), row(1)].concat())
    };
    let fault = only(&page([50, 90], 1));
    for energy in 2..9 {
        assert_eq!(page([50, 90], energy).faults, []);
    }
    let edge = only(&page([90, 50], 9));
    assert_eq!((edge.key, edge.onset), (fault.key, gpuheal_proto::fault::Onset::Edge), "this one was seen to become hot");
    page([50, 50], 10);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
}

#[test]
fn a_source_fault_that_the_journal_refused_is_told_again() {
    let mut scene = Scene::new();
    scene.no_page(NoPage::Unreachable);
    scene.wait_s(600);
    let refused = scene.held.tick(&scene.settings, scene.now);
    scene.held.untell(&refused.faults);
    assert_eq!(brief(&scene.held.tick(&scene.settings, scene.now)), brief(&refused));
}
