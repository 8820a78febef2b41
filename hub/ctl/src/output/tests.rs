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
