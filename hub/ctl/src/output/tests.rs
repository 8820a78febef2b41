use super::*;

#[test]
fn ages_are_read_in_one_unit() {
    let now = Timestamp::from_unix_ms(1_000_000_000);
    for (seconds, want) in [(0, "0s"), (119, "119s"), (120, "2m"), (7_200, "2h"), (172_800, "2d")] {
        assert_eq!(cell::age(now.unix_ms() - seconds * 1000, now), want);
    }
    assert_eq!(cell::age(0, now), "");
    assert_eq!(cell::until(now.unix_ms() + 60_000, now), "60s");
    assert_eq!(cell::until(now.unix_ms() - 1, now), "");
}

#[test]
fn faults_that_differ_only_in_the_gpu_are_judged_in_one_line() {
    let fault = |code: &str, slot: &str| FaultSummary {
        class: "xid".into(),
        code: code.into(),
        gpu_slot: slot.into(),
        level: "P2".into(),
        rule: "catalogue".into(),
        mode: "heal (policy)".into(),
        outcome: "recorded".into(),
        ..FaultSummary::default()
    };
    let faults = [fault("31", "0000:1b:00"), fault("31", "0000:2b:00"), fault("45", "0000:1b:00")];
    let want =
        ["xid 31 (2 GPUs): P2 by catalogue, mode heal (policy): recorded", "xid 45: P2 by catalogue, mode heal (policy): recorded"];
    assert_eq!(judged(&faults), want);
}

#[test]
fn a_kind_of_fault_on_several_gpus_is_told_once() {
    let fault = |code: &str, slot: &str| FaultSummary {
        class: "xid".into(),
        code: code.into(),
        gpu_slot: slot.into(),
        count: 2,
        ..FaultSummary::default()
    };
    let faults = vec![fault("31", "0000:1b:00"), fault("31", "0000:2b:00"), fault("31", "0000:2b:00"), fault("45", "0000:1b:00")];
    let incident = gpuheal_proto::fleet::v1::Incident { faults: faults.clone(), ..Default::default() };
    assert_eq!(incident.cells(Timestamp::EPOCH)[6], "xid 31 on 2 GPUs, xid 45");
    let rows: Vec<(String, u32)> = told_once(&faults).into_iter().map(|row| (row.gpu_slot, row.count)).collect();
    assert_eq!(rows, [("2 GPUs".to_owned(), 6), ("0000:1b:00".to_owned(), 2)]);
}
