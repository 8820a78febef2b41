//! Any text as a policy, as a cluster's short form, and as the spoke reads the same. Proves: what is refused says so with places
//! that lie within the text; what is accepted is the same after it was stored and read back, contradicts itself nowhere that is
//! checked, and gives detection settings that a spoke accepts; a cluster's own text never makes the fleet's settings more daring;
//! and where hub and spoke both accept a cluster's text they read the same in it.

use gpuheal_hub_core::policy::{Narrowing, Policy, Problem, Settings};
use gpuheal_proto::words::Mode;
use gpuheal_spoke_core::{ceiling, derive};

pub(crate) fn run(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match Policy::parse(text) {
        Ok(policy) => accepted(&policy),
        Err(problems) => refused(text, &problems),
    }
    let narrowing = Narrowing::parse(text);
    match &narrowing {
        Ok(narrowing) => narrows(narrowing),
        Err(problems) => refused(text, problems),
    }
    if let (Ok(hub), Ok(spoke)) = (narrowing, ceiling::parse(text)) {
        assert_eq!((hub.cooldown, hub.alert_level, hub.notify_only), (spoke.cooldown, spoke.alert_level, spoke.notify_only));
        let actions = spoke.actions;
        assert_eq!((hub.evict_off, hub.taint_off, hub.notify_off), (!actions.evict, !actions.taint, !actions.notify));
    }
}

fn refused(text: &str, problems: &[Problem]) {
    assert!(!problems.is_empty(), "a refusal says why");
    let lines = u32::try_from(text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count()).expect("a policy is small");
    for problem in problems {
        assert!((1..=lines + 1).contains(&problem.line) && problem.column >= 1, "{problem} of {lines} lines");
        assert!(!problem.message.is_empty());
    }
}

fn accepted(policy: &Policy) {
    let stored = serde_json::to_string(policy).expect("a policy is plain data");
    let read: Policy = serde_json::from_str(&stored).expect("what was stored is read");
    assert_eq!(&read, policy, "as stored");
    assert!(policy.digest.len() == 64 && policy.digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let thermal = &policy.settings.detection.thermal;
    assert!(thermal.warn_celsius <= thermal.high_celsius);
    if let Err(errors) = derive::Settings::parse(&policy.settings.detection_settings(1)) {
        panic!("the hub accepts what no spoke does: {errors:?}");
    }
}

fn narrows(narrowing: &Narrowing) {
    let mut settings = Settings { mode: Mode::Heal, ..Settings::default() };
    let before = settings.clone();
    narrowing.apply(&mut settings);
    assert!(settings.mode <= before.mode && settings.act_from >= before.act_from && settings.cooldown >= before.cooldown);
    let (now, then) = (&settings.detection, &before.detection);
    assert!(now.xid_errors >= then.xid_errors && now.thermal.high_celsius >= then.thermal.high_celsius);
    assert!(now.thermal.warn_celsius >= then.thermal.warn_celsius && now.thermal.warn_celsius <= now.thermal.high_celsius);
    assert!(settings.response.evict <= before.response.evict && settings.response.taint <= before.response.taint);
    let once = settings.clone();
    narrowing.apply(&mut settings);
    assert_eq!(settings, once, "narrowed once is narrowed");
}

const LONG: &str = r#"apiVersion: gpu-selfhealing.io/v1
kind: FleetPolicy
metadata:
  name: fleet
spec:
  mode: heal
  cooldown: 20m
  detection:
    gpuTempHigh: 88
    models:
      A100: {gpuTempHigh: 84, gpuTempWarn: 79}
    conditions:
      MyCondition: {badStatus: "False", hold: 2m}
  levels:
    xid/43: {level: P1, userApp: false}
  response:
    drain: {deadline: 10m, onDeadline: wait}
  budgets:
    cluster: {percent: 20, nodes: 3}
  rates:
    cluster: {nodesPerSecond: 0.5}
  rules:
    careful lab:
      scope: {clusters: [lab], nodeLabels: {pool: dev}, gpuModels: [H100]}
      faults: [xid/79, thermal]
      mode: notify
      priority: 10
"#;

const SHORT: &str = "cooldown: 15m\nalertLevel: P1\nnotifyOnly: false\nthresholds: {xidErrors: 5, gpuTempHigh: 90, gpuTempWarn: 80.5}\n\
                     actions:\n  evict: true\n  taint: false\n  notify: true\n";

const CEILING: &str = "cooldown: 1h30m\nceiling:\n  mode: mark\n  namespaces: [train-*, batch]\n  nodesOut: 10%\n  \
                       protectedLabels: [critical=yes]\n  graceMax: 5m\n  stop: true\n";

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let odd = [
        "",
        "a: &x [1, 2]\nb: *x\nc: !!str 3\nd: |\n  text\n  more\n",
        "apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nspec: {mode: full, windows: {observation: 10}, rules: []}\n",
        "ceiling: {nodesOut: {count: 3, percent: 10}, protectedLabels: {a: b}}\n",
    ];
    [LONG, SHORT, CEILING].iter().chain(&odd).map(|text| text.as_bytes().to_vec()).collect()
}
