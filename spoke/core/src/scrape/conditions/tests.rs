//! The collected conditions, and the traps of their polarity and timing.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn read(kind: &str, status: &str, reason: &str, message: &str) -> Option<Reading> {
    Conditions::default().read(&Condition { kind, status, reason, message })
}

fn bad(kind: &str, status: &str, reason: &str, message: &str) -> Bad {
    match read(kind, status, reason, message) {
        Some(Reading::Bad(bad)) => bad,
        other => panic!("{kind}={status}: {other:?}"),
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_ms(seconds * 1000)
}

#[test]
fn every_sample_is_bad_at_the_polarity_it_came_with() {
    let path = format!("{}/../../tests/data/samples/node-conditions.json", env!("CARGO_MANIFEST_DIR"));
    let samples: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for item in samples["items"].as_array().unwrap() {
        let text = |name: &str| item[name].as_str().unwrap();
        let other = if text("bad_status") == "True" { "False" } else { "True" };
        bad(text("type"), text("bad_status"), text("reason"), text("message"));
        assert_eq!(read(text("type"), other, "", ""), Some(Reading::NotBad), "{item}");
        assert_eq!(read(text("type"), "Unknown", "", ""), Some(Reading::Unknown), "{item}");
    }
}

#[test]
fn the_xid_is_found_in_each_platforms_words() {
    let sentinel = "ErrorCode:DCGM_FR_XID_ERROR GPU:4 PCI:0000:c4:00.0 GPU_UUID:GPU-d1816eb1-2926-4fbc-13f6-1cf1ba1b921b Detected XID 31 for GPU 4 Please consult the documentation. Recommended Action=NONE;";
    assert_eq!(bad("AcceleratedHardwareReady", "False", "NvidiaXID79Error", "").named.xids, [79]);
    assert_eq!(bad("XidCriticalError", "True", r#"{"79":true,"48":true,"63":false}"#, "boot-id").named.xids, [48, 79]);
    let named = bad("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", sentinel).named;
    assert_eq!(
        (named.xids.as_slice(), named.index_hint, named.slot.unwrap().to_string()),
        ([31].as_slice(), Some(4), "0000:c4:00".to_owned())
    );
    assert_eq!(
        (named.uuid.as_deref(), named.code.as_deref()),
        (Some("GPU-d1816eb1-2926-4fbc-13f6-1cf1ba1b921b"), Some("DCGM_FR_XID_ERROR"))
    );
}

#[test]
fn action_none_of_the_agent_is_kept() {
    assert!(bad("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy", "XID 31 Recommended Action=NONE;").named.action_none);
    assert!(
        !bad(
            "GpuNvlinkWatch",
            "True",
            "x",
            "ErrorCode:DCGM_FR_IMEX_UNHEALTHY GPU:0 IMEX daemon status is -3 Recommended Action=CONTACT_SUPPORT;"
        )
        .named
        .action_none
    );
}

#[test]
fn a_monitor_that_cannot_see_is_a_source_problem_and_no_hardware_fault() {
    assert_eq!(bad("AcceleratedHardwareReady", "False", "DCGMError", "cannot reach the host engine").topic, Topic::Source);
    assert_eq!(bad("GpuDcgmConnectivityFailure", "True", "x", "").topic, Topic::Source);
    assert_eq!(bad("AcceleratedHardwareReady", "False", "DCGMHealthCode101", "").topic, Topic::Gpu);
}

#[test]
fn two_alternating_reasons_do_not_reset_the_first_bad_time() {
    let mut first_bad = FirstBad::default();
    for step in 0..10 {
        let reason = if step % 2 == 0 { "NvidiaNVLinkError" } else { "NvidiaXID74Error" };
        let reading = read("AcceleratedHardwareReady", "False", reason, "").unwrap();
        let lasted = first_bad.observe("AcceleratedHardwareReady", &reading, at(30 * step));
        assert_eq!(lasted, Some(Duration::from_secs(30 * step as u64)));
    }
}

#[test]
fn unknown_is_neither_bad_nor_a_recovery() {
    let mut first_bad = FirstBad::default();
    assert_eq!(first_bad.observe("GPUMissing", &Reading::Unknown, at(0)), None);
    first_bad.observe("GPUMissing", &read("GPUMissing", "True", "", "").unwrap(), at(0));
    assert_eq!(first_bad.observe("GPUMissing", &Reading::Unknown, at(60)), Some(Duration::from_secs(60)));
    assert_eq!(first_bad.observe("GPUMissing", &Reading::NotBad, at(70)), None);
    assert_eq!(first_bad, FirstBad::default());
}

#[test]
fn a_condition_nobody_listed_is_none_of_ours_until_somebody_does() {
    assert_eq!(read("SiteGpuOk", "False", "", ""), None);
    let own = Conditions::default().with("SiteGpuOk", Rule { bad: BadWhen::False, topic: Topic::Gpu });
    assert!(matches!(own.read(&Condition { kind: "SiteGpuOk", status: "False", ..Condition::default() }), Some(Reading::Bad(_))));
}

#[test]
fn the_number_of_held_conditions_is_bounded() {
    let mut first_bad = FirstBad::default();
    let reading = read("GPUMissing", "True", "", "").unwrap();
    for kind in 0..1000 {
        assert_eq!(first_bad.observe(&kind.to_string(), &reading, at(kind)), Some(Duration::ZERO));
    }
    assert_eq!(first_bad.since.len(), CONDITIONS_MAX);
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(reason in ".{0,60}", message in "(GPU:|PCI:|GPU-|XID |ErrorCode:|Recommended Action=)?.{0,60}") {
        let _ = named_in(&reason, &message);
    }
}
