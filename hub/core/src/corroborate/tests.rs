use gpuheal_proto::fault::{FaultClass, Onset, Witness};

use super::*;
use crate::{
    snapshot::Evidence,
    story::{at, fault, fault_on, gpu, now, seen},
};
use FaultClass::*;
use Onset::{Edge, Standing as Found};
use Witness::{DcgmHealth, ExporterCounter, ExporterGauge, KernelLine, MissingRows, SecondField};

fn judge(primary: &KnownFault, others: &[KnownFault]) -> Standing {
    let settings = Settings::default();
    let mut all = vec![primary.clone()];
    all.extend_from_slice(others);
    corroborate(primary, &classify(primary, &settings, None), &all, &settings, now())
}

fn stands(primary: &KnownFault, others: &[KnownFault]) -> bool {
    matches!(judge(primary, others), Standing::Stands(_))
}

#[test]
fn a_decoded_kernel_line_stands_alone() {
    assert!(stands(&fault(Xid, "79", KernelLine, Edge), &[]));
    assert!(stands(&fault(Xid, "79", KernelLine, Found), &[]));
}

#[test]
fn an_xid_gauge_alone_waits_however_long() {
    let mut gauge = fault(Xid, "79", ExporterGauge, Edge);
    gauge.first_at = at(-100 * 86_400);
    let Standing::Waits(why) = judge(&gauge, &[]) else { panic!() };
    assert!(why.starts_with("only exporter says so: waits for one other kind"), "{why}");
}

#[test]
fn what_is_waited_for_is_never_the_kind_that_is_there() {
    for (class, kind) in [
        (Xid, ExporterGauge),
        (Xid, Witness::Alert),
        (GpuLost, MissingRows),
        (NodeCondition, Witness::NodeCondition),
        (Alert, Witness::Alert),
        (Thermal, SecondField),
        (Thermal, Witness::Alert),
    ] {
        let Standing::Waits(why) = judge(&fault(class, if class == Thermal { "high" } else { "79" }, kind, Edge), &[]) else {
            panic!("{class} {kind}")
        };
        let (_, wanted) = why.split_once("waits for").unwrap();
        assert!(!wanted.contains(group(kind)), "{class}: {why}");
        assert!(kind == ExporterGauge || wanted.contains("exporter"), "{class}: {why}");
    }
}

#[test]
fn gauge_and_count_of_one_exporter_are_one_witness() {
    let mut gauge = fault(Xid, "79", ExporterGauge, Edge);
    gauge.witnesses.push(seen(ExporterCounter, Edge));
    assert!(!stands(&gauge, &[]));
}

#[test]
fn an_xid_gauge_stands_with_any_other_kind_on_its_gpu_or_node() {
    let gauge = fault(Xid, "79", ExporterGauge, Edge);
    for other in [
        fault(GpuLost, "", MissingRows, Edge),
        fault_on(None, Allocatable, "", Witness::Allocatable, Edge),
        fault_on(None, NodeCondition, "GPUUnhealthy", Witness::NodeCondition, Edge),
        fault_on(None, Alert, "GPUXidCritical", Witness::Alert, Edge),
        fault_on(None, Xid, "79", Witness::Alert, Edge),
        fault(PodFailure, "UnexpectedAdmissionError", Witness::PodFailure, Edge),
        fault(HealthWatch, "PCIE", DcgmHealth, Edge),
    ] {
        assert!(stands(&gauge, std::slice::from_ref(&other)), "{} {}", other.class, other.code);
    }
}

#[test]
fn an_alert_and_a_gauge_edge_of_one_fault_are_two_kinds() {
    let mut gauge = fault(Xid, "79", ExporterGauge, Edge);
    gauge.witnesses.push(seen(Witness::Alert, Edge));
    assert!(stands(&gauge, &[]));
    let mut alert = fault(Xid, "79", Witness::Alert, Edge);
    alert.witnesses.push(seen(Witness::Alert, Edge));
    assert!(!stands(&alert, &[]), "two alerts are one kind");
}

#[test]
fn what_says_nothing_of_this_gpu_corroborates_nothing() {
    let gauge = fault(Xid, "79", ExporterGauge, Edge);
    for other in [
        fault_on(Some(gpu(0x5e)), GpuLost, "", MissingRows, Edge),
        fault_on(None, Source, "stale", Witness::NodeCondition, Edge),
        fault(Xid, "31", KernelLine, Edge),
        fault(Utilisation, "zero", Witness::Alert, Edge),
        fault_on(None, NodeCondition, "ReadonlyFilesystem", Witness::NodeCondition, Edge),
        fault(Thermal, "warn", SecondField, Edge),
    ] {
        assert!(!stands(&gauge, std::slice::from_ref(&other)), "{} {}", other.class, other.code);
    }
}

#[test]
fn a_witness_that_has_cleared_or_is_long_silent_counts_no_more() {
    let gauge = fault(Xid, "79", ExporterGauge, Edge);
    let mut other = fault_on(None, Allocatable, "", Witness::Allocatable, Edge);
    other.evidence = Evidence { state: EvidenceState::Clear, since: at(-1) };
    assert!(!stands(&gauge, std::slice::from_ref(&other)));
    other.evidence.state = EvidenceState::Stale;
    assert!(stands(&gauge, std::slice::from_ref(&other)), "seen a second ago");
    other.last_at = at(-301);
    assert!(!stands(&gauge, std::slice::from_ref(&other)));
}

#[test]
fn a_count_at_its_threshold_stands_alone_and_an_alerts_number_does_not() {
    for (kind, want) in [(ExporterCounter, true), (KernelLine, true), (Witness::Alert, false)] {
        let mut counted = fault(Xid, "63", kind, Edge);
        counted.count = 5;
        counted.witnesses[0].count = 5;
        assert_eq!(stands(&counted, &[]), want, "{kind}");
    }
}

#[test]
fn a_counter_that_rose_stands_alone_for_ecc_and_row_remap() {
    for class in [Ecc, RowRemap] {
        assert!(stands(&fault(class, "x", ExporterCounter, Edge), &[]));
        assert!(!stands(&fault(class, "x", ExporterCounter, Found), &[]), "a standing 1 at first sight needs another kind");
        assert!(stands(&fault(class, "x", ExporterCounter, Found), &[fault(HealthWatch, "MEM", DcgmHealth, Edge)]));
    }
}

#[test]
fn a_lost_gpu_needs_more_than_missing_rows() {
    let lost = fault(GpuLost, "", MissingRows, Edge);
    assert!(!stands(&lost, &[]));
    assert!(stands(&lost, &[fault_on(None, Allocatable, "", Witness::Allocatable, Edge)]));
    assert!(stands(&lost, &[fault_on(None, NodeCondition, "GPUUnhealthy", Witness::NodeCondition, Edge)]));
    assert!(stands(&fault(GpuLost, "", KernelLine, Edge), &[]), "fallen off the bus");
}

#[test]
fn temperature_warns_by_dwell_and_is_p0_only_with_a_second_field_or_an_alert() {
    assert!(stands(&fault(Thermal, "warn", ExporterGauge, Edge), &[]));
    let mut high = fault(Thermal, "high", ExporterGauge, Edge);
    assert!(!stands(&high, &[]));
    assert!(!stands(&high, &[fault_on(None, Allocatable, "", Witness::Allocatable, Edge)]), "allocatable knows no heat");
    assert!(stands(&high, &[fault_on(None, Thermal, "high", Witness::Alert, Edge)]));
    high.witnesses.push(seen(SecondField, Edge));
    assert!(stands(&high, &[]));
}

#[test]
fn a_condition_or_alert_stands_with_another_kind_or_when_the_policy_trusts_it() {
    let condition = fault_on(None, NodeCondition, "GPUUnhealthy", Witness::NodeCondition, Edge);
    assert!(!stands(&condition, &[]), "a latched condition alone replaces no node");
    assert!(stands(&condition, &[fault(HealthWatch, "PCIE", DcgmHealth, Edge)]));
    let mut settings = Settings::default();
    settings.corroboration.trusted_conditions.push("GPUUnhealthy".into());
    let classified = classify(&condition, &settings, None);
    let judged = corroborate(&condition, &classified, std::slice::from_ref(&condition), &settings, now());
    assert!(matches!(judged, Standing::Stands(_)));
}

#[test]
fn a_health_watch_that_an_applications_own_xid_explains_corroborates_nothing() {
    let condition = fault_on(None, NodeCondition, "GpuMemWatch", Witness::NodeCondition, Edge);
    let watch = fault(HealthWatch, "MEM", DcgmHealth, Edge);
    assert!(stands(&condition, std::slice::from_ref(&watch)));
    assert!(!stands(&condition, &[watch, fault(Xid, "31", ExporterGauge, Edge)]));
}

#[test]
fn what_was_found_standing_needs_another_kind_that_is_seen_now() {
    let found = fault(Xid, "79", ExporterGauge, Found);
    let mut other = fault_on(None, Allocatable, "", Witness::Allocatable, Edge);
    let Standing::Waits(why) = judge(&found, &[]) else { panic!() };
    assert!(why.contains("age unknown"), "{why}");
    other.evidence.state = EvidenceState::Stale;
    assert!(!stands(&found, std::slice::from_ref(&other)));
    other.evidence.state = EvidenceState::Seen;
    assert!(stands(&found, std::slice::from_ref(&other)));
}
