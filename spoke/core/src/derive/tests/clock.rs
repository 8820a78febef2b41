//! The wall clock is set while things are held that are dated by it.

use std::time::Duration;

use serde_json::Value;

use super::super::testing::*;
use super::super::*;
use crate::derive::packed;

const HOUR_MS: i64 = 3_600_000;
const REMAP_FAILURE: &str = "DCGM_FI_DEV_ROW_REMAP_FAILURE";

/// A fault that was seen and is clear by the last page.
fn cleared(scene: &mut Scene) -> Fault {
    scene.page(&[gpu(0).row(REMAP_FAILURE, 0)]);
    let fault = only(&scene.page(&[gpu(0).row(REMAP_FAILURE, 1)]));
    scene.page(&[gpu(0).row(REMAP_FAILURE, 0)]);
    assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Clear, Standing::Cleared));
    fault
}

#[test]
fn a_clock_that_is_set_keeps_no_silent_source_fresh_and_makes_no_fresh_one_silent() {
    for by in [-HOUR_MS, HOUR_MS] {
        let mut scene = Scene::new();
        let fault = cleared(&mut scene);
        scene.set_clock(by);
        scene.held.tick(&scene.settings, scene.now);
        assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Clear, Standing::Cleared), "{by}");
        scene.wait_s(200);
        scene.held.tick(&scene.settings, scene.now);
        assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Stale, Standing::Unknown), "{by}");
    }
}

#[test]
fn what_must_last_lasts_as_long_while_the_clock_is_set() {
    let heat = |by: i64| {
        let mut scene = Scene::new();
        scene.page(&[gpu(0).temp(50)]);
        scene.page(&[gpu(0).temp(96)]);
        scene.set_clock(by);
        (1..10).find(|_| !scene.page(&[gpu(0).temp(96)]).faults.is_empty())
    };
    assert_eq!((heat(-HOUR_MS), heat(HOUR_MS)), (heat(0), heat(0)));
    assert!(heat(0).is_some());
}

#[test]
fn who_uses_a_gpu_is_as_old_as_its_page_whatever_the_clock_is_set_to() {
    let mut scene = Scene::new();
    let used = || gpu(0).labelled("DCGM_FI_DEV_GPU_UTIL", ",namespace=\"ml\",pod=\"train-0\"", 90);
    scene.page(&[used()]);
    scene.page(&[used()]);
    scene.set_clock(-HOUR_MS);
    assert!(scene.held.users(&scene.node.uid, &scene.settings, scene.now).is_ok());
    scene.wait_s(200);
    assert!(scene.held.users(&scene.node.uid, &scene.settings, scene.now).is_err(), "its page is three minutes old");
}

#[test]
fn of_what_an_earlier_process_dated_later_than_now_nobody_knows_how_old_it_is() {
    let mut scene = Scene::new();
    let fault = cleared(&mut scene);
    scene.now = scene.now.moved(-HOUR_MS);
    scene.restart();
    assert_eq!(scene.read_clock(), 0, "one reading says nothing of the clock");
    scene.held.tick(&scene.settings, scene.now);
    assert_eq!((scene.state(&fault), scene.standing(&fault)), (EvidenceState::Stale, Standing::Unknown));
    let out = scene.page(&[gpu(0).row(REMAP_FAILURE, 1)]);
    assert_eq!(scene.standing(&fault), Standing::Present, "{:?}", brief(&out));
}

/// The journal refused what was found before the clock was set, and says so after.
#[test]
fn what_is_put_back_is_dated_by_the_clock_that_is_set_since() {
    let mut scene = Scene::new();
    let fault = cleared(&mut scene);
    let before = scene.held.checkpoint(&scene.node.uid);
    scene.set_clock(-HOUR_MS);
    scene.held.roll_back(&scene.node.uid.clone(), before);
    assert_eq!(scene.standing(&fault), Standing::Cleared);
    scene.wait_s(200);
    assert_eq!(scene.standing(&fault), Standing::Unknown);
}

#[test]
fn slewing_and_readings_that_are_not_of_one_moment_are_no_setting() {
    let mut held = Held::new(ClusterId::parse("c1").unwrap());
    let mut wall = START;
    for second in 0..1_000_u64 {
        wall = wall.after(Duration::from_micros(1_000_500)).after(Duration::from_millis(second % 300));
        assert_eq!(held.read_clock(wall, Duration::from_secs(second)), 0);
        wall = wall.before(Duration::from_millis(second % 300));
    }
}

/// All numbers that can be a date, by where they stand.
fn dates(value: &Value, at: &str, out: &mut BTreeMap<String, i64>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| dates(value, &format!("{at}/{key}"), out)),
        Value::Array(all) => all.iter().enumerate().for_each(|(n, value)| dates(value, &format!("{at}/{n}"), out)),
        Value::Number(number) => {
            let date = number.as_i64().filter(|ms| (*ms - START.unix_ms()).abs() < HOUR_MS * 2);
            out.extend(date.map(|date| (at.to_owned(), date)));
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[test]
fn every_date_that_is_held_moves_with_the_clock() {
    let mut scene = Scene::new();
    let bad = [("KernelDeadlock", "True", "DockerHung", "x"), ("Ready", "True", "KubeletReady", "")];
    for temp in [50, 96] {
        scene.page(&[
            gpu(0).xid(0).temp(temp).count(63, 1).row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1).row("DCGM_FI_DEV_GPU_UTIL", 0),
            gpu(1),
        ]);
        scene.object(&bad, &[("nvidia.com/gpu", "2", "1")]);
    }
    scene.kernel(&["NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus."]);
    scene.alerts(&alert("firing", &[("alertname", "A"), ("node", "gpu-1")], "2026-11-29T19:00:00Z"));
    scene.no_page(NoPage::Unreachable);
    let all = |scene: &Scene| {
        let json = packed::unpack(&scene.held.node_bytes(&scene.node.uid)).unwrap();
        let mut all = BTreeMap::new();
        dates(&serde_json::from_slice(&json).unwrap(), "", &mut all);
        all
    };
    let before = all(&scene);
    scene.set_clock(-HOUR_MS);
    let after = all(&scene);
    assert!(before.len() >= 20, "{before:?}");
    let expected: BTreeMap<_, _> = before.into_iter().map(|(at, date)| (at, date - HOUR_MS)).collect();
    assert_eq!(after, expected);
}
