//! Laws that hold for any sequence of pages, alerts, silences, boots and restarts.

use std::time::Duration;

use gpuheal_proto::fault::FaultClass;
use proptest::prelude::*;

use super::testing::*;
use super::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    Page(Vec<Gpu>),
    FrozenPage(Vec<Gpu>),
    NoPage,
    Alert(bool, u16, u8),
    Object(bool, u8),
    Reboot,
    Wait(u16),
}

fn any_gpu(index: u8) -> impl Strategy<Value = Option<Gpu>> {
    let xid = prop::sample::select(vec![0_u16, 13, 31, 48, 79]);
    let temp = prop::sample::select(vec![40_u16, 82, 90]);
    let verdict = prop::sample::select(vec![0_u8, 10, 20]);
    let told = (0..3_u16, prop::bool::weighted(0.2));
    (prop::option::weighted(0.9, 0..2_u8), xid, temp, 0..8_u32, 0..3_u8, 0..2_u8, verdict, told).prop_map(
        move |(board, xid, temp, count, dbe, remap, verdict, (rows, slotless))| {
            let gpu = gpu(index).board(board? * 16 + index).temp(temp);
            let gpu = if slotless { gpu.slotless() } else { gpu };
            let gpu = if rows > 0 { gpu.xid(xid) } else { gpu };
            let gpu = if rows > 1 { gpu.count(48, count).row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", dbe) } else { gpu };
            let gpu = gpu.row("DCGM_FI_DEV_ROW_REMAP_FAILURE", remap);
            Some(gpu.labelled(
                "DCGM_EXP_GPU_HEALTH_STATUS",
                ",health_watch=\"MEM\",health_error_code=\"DCGM_FR_XID_ERROR\"",
                verdict,
            ))
        },
    )
}

fn any_page() -> impl Strategy<Value = Vec<Gpu>> {
    (any_gpu(0), any_gpu(1), any_gpu(2)).prop_map(|(a, b, c)| [a, b, c].into_iter().flatten().collect())
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_page().prop_map(Step::Page),
        1 => any_page().prop_map(Step::FrozenPage),
        1 => Just(Step::NoPage),
        2 => (any::<bool>(), prop::sample::select(vec![13_u16, 79]), 0..3_u8).prop_map(|(firing, xid, board)| Step::Alert(firing, xid, board)),
        2 => (any::<bool>(), 0..9_u8).prop_map(|(ready, offered)| Step::Object(ready, offered)),
        1 => Just(Step::Reboot),
        1 => (0..2_000_u16).prop_map(Step::Wait),
    ]
}

fn take(scene: &mut Scene, step: &Step) -> Outcome {
    match step {
        Step::Page(gpus) => scene.page(gpus),
        Step::FrozenPage(gpus) => scene.page_of_energy(7, gpus),
        Step::NoPage => scene.no_page(NoPage::Unreachable),
        Step::Alert(firing, xid, board) => {
            let (status, xid, uuid) = (if *firing { "firing" } else { "resolved" }, xid.to_string(), uuid(*board));
            let labels = [("alertname", "GPUXid"), ("node", "gpu-1"), ("err_code", &xid), ("UUID", &uuid)];
            scene.alerts(&alert(status, &labels, "2026-11-29T19:00:00Z"))
        }
        Step::Object(ready, offered) => {
            let status = if *ready { "True" } else { "False" };
            let offered = offered.to_string();
            scene.object(&[("AcceleratedHardwareReady", status, "NvidiaXID79Error", "")], &[("nvidia.com/gpu", "8", &offered)])
        }
        Step::Reboot => {
            scene.node.boot_id.push('x');
            Outcome::default()
        }
        Step::Wait(seconds) => {
            scene.wait_s((*seconds).into());
            scene.held.tick(&scene.settings, scene.now)
        }
    }
}

fn told(outcome: Outcome) -> (Vec<String>, Vec<Evidence>, BTreeMap<Skip, u32>) {
    (brief(&outcome), outcome.evidence, outcome.skips)
}

fn invariant_memory_is_bounded(held: &Held) {
    for part in held.nodes.values() {
        assert!(part.gpus.len() <= GPUS_MAX && part.known.iter().count() <= KNOWN_MAX && part.alerts.len() <= held::ALERTS_MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_restart_between_any_two_signals_tells_nothing_twice_and_loses_nothing(steps in prop::collection::vec(any_step(), 1..24)) {
        let (mut steady, mut restarted) = (Scene::new(), Scene::new());
        for step in &steps {
            restarted.restart();
            prop_assert_eq!(told(take(&mut steady, step)), told(take(&mut restarted, step)));
        }
        invariant_memory_is_bounded(&steady.held);
    }

    #[test]
    fn a_journal_that_refuses_loses_nothing(steps in prop::collection::vec(any_step(), 1..24)) {
        let mut scene = Scene::new();
        for step in &steps {
            let before = scene.held.checkpoint(&scene.node.uid);
            let (at, mut again) = (scene.now, scene.clone());
            let refused = told(take(&mut scene, step));
            scene.held.roll_back(&scene.node.uid, before);
            scene.now = at;
            again.held = scene.held.clone();
            prop_assert_eq!(&refused, &told(take(&mut again, step)));
            scene = again;
        }
    }

    #[test]
    fn a_page_that_comes_again_and_again_ends_in_silence(steps in prop::collection::vec(any_step(), 0..12), page in any_page()) {
        let mut scene = Scene::new();
        scene.settings.thermal.dwell = Duration::ZERO;
        steps.iter().for_each(|step| drop(take(&mut scene, step)));
        (0..8).for_each(|_| drop(scene.page(&page)));
        for _ in 0..10 {
            let out = scene.page(&page);
            prop_assert!(out.faults.is_empty(), "{:?}", brief(&out));
        }
    }

    #[test]
    fn within_one_boot_and_board_no_xid_is_ever_clear(steps in prop::collection::vec(any_step(), 1..40)) {
        let mut scene = Scene::new();
        for step in &steps {
            let step = match step.clone() {
                Step::Page(gpus) => Step::Page(gpus.into_iter().map(|gpu| { let index = gpu.index; gpu.board(index) }).collect()),
                Step::FrozenPage(gpus) => Step::FrozenPage(gpus.into_iter().map(|gpu| { let index = gpu.index; gpu.board(index) }).collect()),
                Step::Reboot => Step::NoPage,
                other => other,
            };
            let out = take(&mut scene, &step);
            let part = scene.held.nodes.values().next();
            let xids: Vec<_> = part.into_iter().flat_map(|part| part.known.iter()).filter(|known| known.class == FaultClass::Xid).map(|known| known.key).collect();
            let cleared = out.evidence.iter().find(|evidence| evidence.state == EvidenceState::Clear && xids.contains(&evidence.key));
            prop_assert!(cleared.is_none(), "{cleared:?} by {step:?}");
        }
    }

    #[test]
    fn any_text_is_taken_without_a_panic(pages in prop::collection::vec("(DCGM_FI_DEV_(XID_ERRORS|GPU_TEMP|TOTAL_ENERGY_CONSUMPTION)\\{gpu=\"[0-9]\",UUID=\"GPU-[ab]{0,2}\"\\} [0-9]{1,20}\n){0,6}", 1..6)) {
        let mut scene = Scene::new();
        for page in &pages {
            scene.text(page);
            scene.restart();
        }
        invariant_memory_is_bounded(&scene.held);
    }
}

#[test]
fn boards_and_nodes_that_come_and_go_leave_memory_bounded() {
    let mut scene = Scene::new();
    for at in 0..900_u32 {
        let xid = at % 700 + 1;
        let text = format!(
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu=\"0\",UUID=\"GPU-{at}\"}} {at}\nDCGM_FI_DEV_XID_ERRORS{{gpu=\"0\",UUID=\"GPU-{at}\"}} {xid}\n"
        );
        scene.text(&text);
        let at_s = format!("2026-11-29T19:00:00.{at:09}Z");
        scene.alerts(&alert("firing", &[("alertname", &format!("A{at}")), ("node", "gpu-1")], &at_s));
    }
    invariant_memory_is_bounded(&scene.held);
    assert!(scene.held.node_bytes(&scene.node.uid).len() < 1 << 20, "a part fits a record of the journal");
}

#[test]
fn a_node_that_is_gone_is_forgotten() {
    let mut scene = Scene::new();
    let fault = only(&scene.page(&[gpu(0).xid(79)]));
    scene.held.gone(&scene.node.uid);
    assert_eq!((scene.standing(&fault), scene.held.nodes()), (Standing::Unknown, 0));
    assert_eq!(scene.held.node_bytes(&scene.node.uid), Vec::<u8>::new());
}

#[test]
fn what_was_written_by_slot_is_carried_over_with_what_only_the_kernels_log_has_told() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(0)]);
    let line = only(&scene.kernel(&["NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus."]));
    let switch = only(&scene.kernel(&["nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up"]));
    let json = super::packed::unpack(&scene.held.node_bytes(&scene.node.uid)).unwrap();
    let now = String::from_utf8(json).unwrap();
    let then =
        now.replacen("\"format\":2", "\"format\":1", 1).replace("\"place\":{\"slot\":\"0000:10:00\"}", "\"slot\":\"0000:10:00\"");
    assert!(then.len() < now.len(), "{now}");
    scene.held.gone(&line.node.uid);
    scene.held.restore(then.as_bytes()).unwrap();
    assert_eq!((scene.state(&line), scene.state(&switch)), (EvidenceState::Seen, EvidenceState::Seen));
    scene.reboot();
    scene.page(&[gpu(0).xid(0)]);
    assert_eq!((scene.state(&line), scene.state(&switch)), (EvidenceState::Clear, EvidenceState::Clear), "and it has its end");
}

#[test]
fn another_format_is_refused_and_the_node_begins_anew() {
    let mut scene = Scene::new();
    scene.page(&[gpu(0).xid(79)]);
    let json = super::packed::unpack(&scene.held.node_bytes(&scene.node.uid)).unwrap();
    let text = String::from_utf8(json).unwrap().replacen("\"format\":2", "\"format\":9", 1);
    assert!(matches!(scene.held.restore(text.as_bytes()), Err(RestoreError::Format { got: 9 })));
    assert!(matches!(scene.held.restore(b"{"), Err(RestoreError::Parse(_))));
}
