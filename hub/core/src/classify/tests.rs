use gpuheal_proto::fault::{FaultClass, Onset, Witness};
use gpuheal_proto::words::Level;

use super::*;
use crate::story::fault;

fn level(class: FaultClass, code: &str) -> Level {
    classify(&fault(class, code, Witness::ExporterGauge, Onset::Edge), &Settings::default(), None).level
}

#[test]
fn shipped_levels_are_those_of_the_table() {
    use FaultClass::*;
    for (class, code, want) in [
        (Xid, "79", Level::P0),
        (Xid, "94", Level::P1),
        (Xid, "31", Level::P2),
        (Ecc, "uncorrectable", Level::P0),
        (RowRemap, "failure", Level::P0),
        (RowRemap, "pending", Level::P2),
        (GpuLost, "", Level::P0),
        (Thermal, "high", Level::P0),
        (Thermal, "warn", Level::P1),
        (Driver, "probe", Level::P1),
        (Utilisation, "zero", Level::P2),
        (Source, "stale", Level::P2),
        (HealthWatch, "MEM", Level::P2),
    ] {
        assert_eq!(level(class, code), want, "{class} {code}");
    }
}

#[test]
fn a_code_that_nobody_knows_is_p2_and_told() {
    let classified = classify(&fault(FaultClass::Xid, "999", Witness::ExporterGauge, Onset::Edge), &Settings::default(), None);
    assert_eq!((classified.level, classified.notify), (Level::P2, true));
}

#[test]
fn a_count_at_its_threshold_is_p0_for_codes_that_are_not_the_applications() {
    for (code, count, want) in [("63", 5, Level::P0), ("63", 4, Level::P2), ("31", 500, Level::P2), ("999", 50, Level::P2)] {
        let mut fault = fault(FaultClass::Xid, code, Witness::ExporterCounter, Onset::Edge);
        fault.count = count;
        assert_eq!(classify(&fault, &Settings::default(), None).level, want, "{code} x {count}");
    }
}

#[test]
fn the_policys_own_table_overrides_the_shipped_one() {
    let mut settings = Settings::default();
    settings.levels.insert("xid/43".into(), LevelOverride { level: Some(Level::P1), user_app: Some(false) });
    settings.levels.insert("ecc".into(), LevelOverride { level: Some(Level::P2), user_app: None });
    let of = |class, code| classify(&fault(class, code, Witness::ExporterGauge, Onset::Edge), &settings, None);
    assert_eq!((of(FaultClass::Xid, "43").level, of(FaultClass::Xid, "43").user_app), (Level::P1, false));
    assert_eq!(of(FaultClass::Ecc, "dbe").level, Level::P2);
    let ruled =
        classify(&fault(FaultClass::Ecc, "dbe", Witness::ExporterGauge, Onset::Edge), &settings, Some(("strict", Level::P0)));
    assert_eq!((ruled.level, ruled.rule.as_str()), (Level::P0, "rule strict"));
}

#[test]
fn a_decoded_line_decides_over_the_number_for_nvlink_5() {
    let mut seen = fault(FaultClass::Xid, "145", Witness::KernelLine, Onset::Edge);
    for (detail, want) in [("RLW_REMAP Nonfatal XC0 i0", Level::P2), ("RLW_CTRL Fatal XC0 i0", Level::P0), ("", Level::P2)] {
        seen.witnesses[0].detail = detail.into();
        assert_eq!(classify(&seen, &Settings::default(), None).level, want, "{detail}");
    }
}

#[test]
fn xid_154_is_as_bad_as_the_action_that_it_asks_for() {
    let mut seen = fault(FaultClass::Xid, "154", Witness::KernelLine, Onset::Edge);
    for (detail, want) in [
        ("GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", Level::P0),
        ("recovery action 0x2 (Node Reboot Required)", Level::P0),
        ("recovery action 0x0 (None)", Level::P2),
        ("recovery action", Level::P2),
    ] {
        seen.witnesses[0].detail = detail.into();
        assert_eq!(classify(&seen, &Settings::default(), None).level, want, "{detail}");
    }
}

#[test]
fn xid_45_never_opens_an_incident_alone() {
    let classified = classify(&fault(FaultClass::Xid, "45", Witness::KernelLine, Onset::Edge), &Settings::default(), None);
    assert!(!classified.opens && classified.user_app);
}
