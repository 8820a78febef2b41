//! Xids from gauge and counts, lost GPUs, health watches.

use gpuheal_proto::fault::{Onset, Witness};

use super::super::testing::*;
use super::super::*;

const XID_LABELS: &str = ",err_code=\"79\"";

#[test]
fn a_change_of_the_gauge_between_two_scrapes_is_an_edge_told_once() {
    let mut scene = Scene::new();
    assert_eq!(brief(&scene.page(&[gpu(0).xid(0), gpu(1).xid(0)])), Vec::<String>::new());
    let fault = only(&scene.page(&[gpu(0).xid(0), gpu(1).labelled("DCGM_FI_DEV_XID_ERRORS", XID_LABELS, 79)]));
    assert!(is(&fault, Onset::Edge, Witness::ExporterGauge));
    assert_eq!(fault.gpu.as_ref().unwrap().slot.as_ref().unwrap().as_str(), slot(1));
    for _ in 0..500 {
        assert_eq!(scene.page(&[gpu(0).xid(0), gpu(1).xid(79)]).faults, [], "the gauge stays for days");
    }
    assert_eq!(scene.standing(&fault), Standing::Present);
}

/// Failure table, row 1.
#[test]
fn an_xid_at_first_sight_is_standing_and_not_dropped() {
    let fault = only(&Scene::new().page(&[gpu(0).xid(79)]));
    assert!(is(&fault, Onset::Standing, Witness::ExporterGauge));
}

#[test]
fn the_gauge_back_at_0_is_no_recovery() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let fault = only(&scene.page(&[gpu(0).xid(79)]));
    scene.page(&[gpu(0).xid(0)]);
    for _ in 0..100 {
        scene.page(&[gpu(0).xid(0)]);
        assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Stale, Standing::Unknown));
    }
}

#[test]
fn an_event_ends_with_a_new_boot_and_the_gpu_there_again() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let fault = only(&scene.page(&[gpu(0).xid(79)]));
    scene.reboot();
    scene.no_page(NoPage::Unreachable);
    assert_ne!(scene.state(&fault), EvidenceState::Clear, "a boot alone shows nothing");
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Clear, Standing::Cleared));
    let again = only(&scene.page(&[gpu(0).xid(79)]));
    assert!(is(&again, Onset::Edge, Witness::ExporterGauge), "what comes after is a new episode");
}

#[test]
fn another_board_in_the_slot_ends_the_old_ones_events() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let fault = only(&scene.page(&[gpu(0).xid(79)]));
    scene.page(&[gpu(0).board(9).xid(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
}

#[test]
fn a_row_that_is_absent_until_the_first_xid_still_gives_an_edge() {
    let mut scene = Scene::new();
    assert_eq!(scene.page(&[gpu(0).temp(40)]).faults, []);
    assert!(is(&only(&scene.page(&[gpu(0).temp(40).xid(79)])), Onset::Edge, Witness::ExporterGauge));
}

#[test]
fn a_blank_is_no_0_from_which_an_edge_could_rise() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).row("DCGM_FI_DEV_XID_ERRORS", 2_147_483_632_u32), gpu(1).xid(0)]);
    let fault = only(&scene.page(&[gpu(0).xid(79), gpu(1).xid(0)]));
    assert_eq!(fault.onset, Onset::Standing);
}

#[test]
fn what_follows_a_restart_of_the_exporter_is_standing() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    scene.no_page(NoPage::Unreachable);
    assert_eq!(only(&scene.page(&[gpu(0).xid(79)])).onset, Onset::Standing, "a scrape failed, and nobody knows why");

    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!(only(&scene.page_of_energy(5, &[gpu(0).xid(79)])).onset, Onset::Standing, "energy went back");

    let mut scene = Scene::new();
    scene.start = "pod-a/0";
    scene.page(&[gpu(0).xid(0)]);
    scene.no_page(NoPage::Unreachable);
    assert_eq!(only(&scene.page(&[gpu(0).xid(79)])).onset, Onset::Edge, "the same process, one lost answer");
    scene.start = "pod-a/1";
    assert_eq!(only(&scene.page(&[gpu(0).xid(48)])).onset, Onset::Standing, "its container restarted");
}

#[test]
fn a_predecessor_older_than_the_stale_limit_is_none() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    scene.wait_s(7 * 24 * 3600);
    assert_eq!(only(&scene.page(&[gpu(0).xid(79)])).onset, Onset::Standing);
}

#[test]
fn standing_becomes_an_edge_when_the_change_is_seen() {
    let mut scene = Scene::new();
    assert_eq!(only(&scene.page(&[gpu(0).xid(79)])).onset, Onset::Standing);
    assert_eq!(scene.page(&[gpu(0).xid(0)]).faults, []);
    assert_eq!(only(&scene.page(&[gpu(0).xid(79)])).onset, Onset::Edge);
}

#[test]
fn a_count_that_rises_is_a_second_witness_and_tells_again_at_the_threshold() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0).labelled("DCGM_EXP_XID_ERRORS_COUNT", ",window_size_in_ms=\"300000\"", 0)]);
    let both = scene.page(&[gpu(0).xid(48).count(48, 1)]);
    assert_eq!(brief(&both), ["xid 48 0000:10:00 edge exporter_gauge", "xid 48 0000:10:00 edge exporter_counter"]);
    assert_eq!(both.faults[0].key, both.faults[1].key);
    assert_eq!(scene.page(&[gpu(0).xid(48).count(48, 4)]).faults, [], "below the threshold it is a repeat");
    let fault = only(&scene.page(&[gpu(0).xid(48).count(48, 6)]));
    assert_eq!((fault.count, fault.threshold), (6, 5.0));
    assert_eq!(scene.page(&[gpu(0).xid(48).count(48, 4)]).faults, []);
    assert_eq!(scene.page(&[gpu(0).xid(48).count(48, 5)]).faults, [], "the window slides around the threshold");
}

#[test]
fn the_window_that_slides_empty_is_no_recovery() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).labelled("DCGM_EXP_XID_ERRORS_COUNT", ",window_size_in_ms=\"300000\"", 0)]);
    let fault = only(&scene.page(&[gpu(0).count(79, 2)]));
    scene.page(&[gpu(0).labelled("DCGM_EXP_XID_ERRORS_COUNT", ",window_size_in_ms=\"300000\"", 0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Stale);
}

#[test]
fn counts_show_the_xid_that_the_gauge_hides() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0).labelled("DCGM_EXP_XID_ERRORS_COUNT", ",window_size_in_ms=\"300000\"", 0)]);
    let codes: Vec<_> = brief(&scene.page(&[gpu(0).xid(45).count(45, 3).count(62, 1)]));
    assert!(codes.contains(&"xid 62 0000:10:00 edge exporter_counter".to_owned()), "{codes:?}");
}

#[test]
fn an_xid_of_a_mig_instance_is_its_gpus() {
    let mut scene = Scene::new();
    let mig = ",GPU_I_PROFILE=\"1g.5gb\",GPU_I_ID=\"13\"";
    scene.page(&[gpu(0).xid(0).labelled("DCGM_FI_DEV_XID_ERRORS", mig, 0)]);
    let fault = only(&scene.page(&[gpu(0).xid(0).labelled("DCGM_FI_DEV_XID_ERRORS", mig, 94)]));
    assert_eq!((fault.code.as_str(), fault.onset), ("94", Onset::Edge));
}

#[test]
fn pods_that_come_and_go_make_no_new_fault() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let fault = only(&scene.page(&[gpu(0).labelled("DCGM_FI_DEV_XID_ERRORS", ",namespace=\"ml\",pod=\"train-0\"", 79)]));
    assert_eq!(fault.workload, "ml/train-0");
    assert_eq!(scene.page(&[gpu(0).xid(79)]).faults, []);
    assert_eq!(scene.page(&[gpu(0).labelled("DCGM_FI_DEV_XID_ERRORS", ",namespace=\"ml\",pod=\"train-1\"", 79)]).faults, []);
}

#[test]
fn a_gpu_is_lost_after_three_scrapes_without_its_rows_beside_fresh_neighbours() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    assert_eq!(scene.page(&[gpu(0).xid(0)]).faults, []);
    assert_eq!(scene.page(&[gpu(0).xid(0)]).faults, []);
    assert_eq!(scene.held.gpus(&scene.node.uid).len(), 1);
    let fault = only(&scene.page(&[gpu(0).xid(0)]));
    assert_eq!(
        brief(&Outcome { faults: vec![fault.clone()], ..Outcome::default() }),
        ["gpu_lost lost 0000:11:00 edge missing_rows"]
    );
    assert_eq!(scene.page(&[gpu(0).xid(0)]).faults, []);
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Clear);
    assert_eq!(scene.held.gpus(&scene.node.uid).len(), 2);
}

#[test]
fn a_gpu_that_changes_its_index_is_not_lost() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0), gpu(1).xid(0)]);
    for _ in 0..5 {
        let mut moved = gpu(1).xid(0);
        moved.index = 1;
        assert_eq!(scene.page(&[moved, gpu(0).xid(0)]).faults, []);
    }
}

#[test]
fn a_health_watch_that_repeats_an_applications_xid_says_nothing() {
    let mut scene = Scene::new();
    let watch = |code: &str| format!(",health_watch=\"MEM\",health_error_code=\"{code}\"");
    scene.page(&[gpu(0).xid(0).labelled("DCGM_EXP_GPU_HEALTH_STATUS", &watch("DCGM_FR_OK"), 0)]);
    let out = scene.page(&[gpu(0).xid(31).labelled("DCGM_EXP_GPU_HEALTH_STATUS", &watch("DCGM_FR_XID_ERROR"), 10)]);
    assert_eq!((brief(&out).len(), out.skips[&Skip::HealthOfApplication]), (1, 1), "{:?}", brief(&out));
    let out = scene.page(&[gpu(0).xid(31).labelled("DCGM_EXP_GPU_HEALTH_STATUS", &watch("DCGM_FR_VOLATILE_DBE_DETECTED"), 20)]);
    assert_eq!(brief(&out), ["health_watch MEM 0000:10:00 edge dcgm_health"]);
}

#[test]
fn a_watch_that_passes_after_a_restart_of_its_host_engine_clears_nothing() {
    let mut scene = Scene::new();
    let row = |value: u8| gpu(0).labelled("DCGM_EXP_GPU_HEALTH_STATUS", ",health_watch=\"PCIE\",health_error_code=\"X\"", value);
    scene.page(&[row(0)]);
    let fault = only(&scene.page(&[row(20)]));
    scene.no_page(NoPage::Status(500));
    scene.page(&[row(0)]);
    scene.page(&[row(0)]);
    assert_eq!(scene.state(&fault), EvidenceState::Stale);
}

fn used(index: u8, pod: &str) -> Gpu {
    gpu(index).labelled("DCGM_FI_DEV_XID_ERRORS", &format!(",container=\"c\",namespace=\"ml\",pod=\"{pod}\""), 0)
}

fn users(scene: &Scene) -> Result<Users, Unknown> {
    scene.held.users(&scene.node.uid, &scene.settings, scene.now)
}

#[test]
fn which_pods_use_which_gpu_is_known_by_a_fresh_page_that_names_pods() {
    let mut scene = Scene::new();
    assert_eq!(users(&scene), Err(Unknown::NoPage));
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!(users(&scene), Err(Unknown::NoPage), "how old the first page is nobody knows");
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!(users(&scene), Err(Unknown::NamesNoPods), "an exporter without the mapping");
    scene.page(&[used(0, "a"), used(1, "b"), gpu(2).xid(0)]);
    let want = |scene: &Scene, uses: &[(&str, u8)]| {
        let mut want = Users::new(scene.now);
        (0..3).for_each(|board| want.shows(&uuid(board)));
        uses.iter().for_each(|(pod, board)| want.uses(pod, &uuid(*board)));
        want
    };
    assert_eq!(users(&scene), Ok(want(&scene, &[("ml/a", 0), ("ml/b", 1)])));
    scene.page(&[used(0, "c"), gpu(2).xid(0)]);
    assert_eq!(users(&scene), Ok(want(&scene, &[("ml/c", 0)])), "who uses a GPU without rows is not known, that it is there is");
    let stale = scene.settings.stale_after.as_secs() + 1;
    scene.wait_s(stale);
    assert_eq!(users(&scene), Err(Unknown::NoPage));
}

/// What the page says again and again, as leader or as its standby; how long after its first sight it still tells anything.
fn told_for_s(learns: bool) -> u64 {
    let mut scene = Scene::new();
    let look = |scene: &mut Scene, energy: u64| match learns {
        true => scene.learn(energy, &[used(0, "a"), gpu(1).xid(0)]),
        false => drop(scene.page_of_energy(energy, &[used(0, "a"), gpu(1).xid(0)])),
    };
    look(&mut scene, 1);
    assert_eq!(users(&scene), Err(Unknown::NoPage), "it may have stood still for hours");
    look(&mut scene, 2);
    let new_at = scene.now;
    let mut last = new_at;
    while let Ok(told) = users(&scene) {
        let mut want = Users::new(new_at);
        want.shows(&uuid(1));
        want.uses("ml/a", &uuid(0));
        assert_eq!(told, want, "the same page again makes nothing younger");
        last = scene.now;
        look(&mut scene, 2);
        assert!(scene.now.since(new_at) < std::time::Duration::from_secs(3600), "it never ends");
    }
    last.since(new_at).as_secs()
}

#[test]
fn a_page_that_stands_still_is_as_old_as_when_it_was_new_for_the_leader_and_for_its_standby() {
    let stale = Settings::default().stale_after.as_secs();
    for learns in [false, true] {
        assert!(told_for_s(learns) <= stale, "learns: {learns}");
    }
}

#[test]
fn a_page_that_moved_once_while_nobody_asked_and_stood_still_since_tells_of_no_pod() {
    for restarts in [false, true] {
        for learns in [false, true] {
            let mut scene = Scene::new();
            scene.page_of_energy(1, &[used(0, "a")]);
            scene.page_of_energy(2, &[used(0, "a")]);
            if restarts {
                scene.restart();
            }
            scene.wait_s(3_600);
            let look = |scene: &mut Scene, energy| match learns {
                true => scene.learn(energy, &[used(0, "a")]),
                false => drop(scene.page_of_energy(energy, &[used(0, "a")])),
            };
            for _ in 0..4 {
                look(&mut scene, 3);
                assert_eq!(users(&scene), Err(Unknown::NoPage), "restarts: {restarts}, learns: {learns}");
            }
            look(&mut scene, 4);
            assert!(users(&scene).is_ok(), "now it was seen to move");
        }
    }
}

#[test]
fn a_page_in_which_nothing_moves_tells_of_no_pod() {
    let mut scene = Scene::new();
    let row = format!("DCGM_FI_DEV_XID_ERRORS{{gpu=\"0\",UUID=\"{}\",namespace=\"ml\",pod=\"a\"}} 0\n", uuid(0));
    scene.page(&[used(0, "a")]);
    scene.page(&[used(0, "a")]);
    assert!(users(&scene).is_ok());
    for _ in 0..2 {
        scene.text(&row);
        assert_eq!(users(&scene), Err(Unknown::NoPage));
    }
}

#[test]
fn another_boot_gives_the_gpus_out_anew() {
    let mut scene = Scene::new();
    scene.page(&[used(0, "a")]);
    scene.page(&[used(0, "a")]);
    assert!(users(&scene).is_ok());
    scene.reboot();
    scene.no_page(NoPage::Unreachable);
    assert_eq!(users(&scene), Err(Unknown::NoPage));
}

#[test]
fn gpus_without_a_slot_have_faults_of_their_own_by_their_uuid() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(0)]);
    let first = only(&scene.page(&[gpu(0).slotless().xid(79), gpu(1).slotless().xid(0)]));
    let second = only(&scene.page(&[gpu(0).slotless().xid(79), gpu(1).slotless().xid(79)]));
    assert_ne!(first.key, second.key);
    let named = |fault: &Fault| fault.gpu.clone().and_then(|gpu| gpu.uuid).unwrap().as_str().to_owned();
    assert_eq!((named(&first), named(&second)), (uuid(0), uuid(1)));
    scene.page(&[gpu(0).slotless().xid(0), gpu(1).slotless().xid(79)]);
    assert_eq!((scene.state(&first), scene.state(&second)), (EvidenceState::Stale, EvidenceState::Seen), "each ends by itself");
    scene.restart();
    let again = scene.held.again(&scene.node.uid, |_| true);
    let named: std::collections::BTreeSet<_> = again.faults.iter().map(named).collect();
    assert_eq!(named, [uuid(0), uuid(1)].into(), "told again under their own names");
}
