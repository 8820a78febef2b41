use std::time::Duration;

use gpuheal_proto::words::{Level, Mode};
use proptest::prelude::*;

use super::*;

const LONG: &str = r#"apiVersion: gpu-selfhealing.io/v1
kind: FleetPolicy
metadata:
  name: fleet
spec:
  mode: heal
  cooldown: 20m
  detection:
    gpuTempHigh: 88
    gpuTempWarn: 82.5
    models:
      A100: {gpuTempHigh: 84, gpuTempWarn: 79}
    conditions:
      MyCondition: {badStatus: "False", hold: 2m}
  levels:
    xid/94: {level: P0}
    xid/43: {level: P1, userApp: false}
  response:
    cordon: true
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

fn problems(text: &str) -> Vec<String> {
    Policy::parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

fn of_spec(lines: &str) -> String {
    let lines: String = lines.lines().map(|line| format!("  {line}\n")).collect();
    format!("apiVersion: gpu-selfhealing.io/v1\nkind: FleetPolicy\nspec:\n{lines}")
}

#[test]
fn a_policy_says_what_it_says_and_the_defaults_say_the_rest() {
    let policy = Policy::parse(LONG).unwrap();
    let settings = &policy.settings;
    assert_eq!((policy.name.as_str(), settings.mode, settings.cooldown), ("fleet", Mode::Heal, Duration::from_secs(1200)));
    assert_eq!((settings.detection.thermal.high_celsius, settings.detection.thermal.warn_celsius), (88.0, 82.5));
    assert_eq!(settings.detection.thermal_by_model["A100"].high_celsius, 84.0);
    assert_eq!(settings.detection.conditions["MyCondition"].bad_status, "False");
    assert_eq!(settings.levels["xid/43"].user_app, Some(false));
    assert!(settings.response.cordon && settings.response.evict);
    assert_eq!(settings.budgets.cluster.allowed(100), 3);
    assert_eq!(settings.rates.cluster.milli_nodes_per_second, 500);
    assert_eq!(settings.windows, Settings::default().windows);
    let rule = &policy.rules["careful lab"];
    assert_eq!(
        (rule.mode, rule.priority, rule.scope.gpu_models.as_slice()),
        (Some(Mode::Notify), 10, ["H100".to_owned()].as_slice())
    );
}

#[test]
fn what_travels_in_each_command_is_bounded_in_number_and_length() {
    for (spec, path) in [
        (format!("markersIgnored: [{}]", vec!["a"; 33].join(", ")), "spec.markersIgnored"),
        (format!("markersIgnored: [{}]", "x".repeat(385)), "spec.markersIgnored[0]"),
        (format!("automations: [{}]", vec!["a"; 33].join(", ")), "spec.automations"),
        (format!("automations: [karpenter, {}]", "x".repeat(129)), "spec.automations[1]"),
    ] {
        let error = format!("{:?}", Policy::parse(&of_spec(&spec)).unwrap_err());
        assert!(error.contains(path) && error.contains("are allowed"), "{error}");
    }
}

#[test]
fn a_new_policy_observes() {
    assert_eq!(Policy::parse(&of_spec("cooldown: 15m")).unwrap().settings, Settings::default());
    assert_eq!(Policy::observing().settings.mode, Mode::Observe);
}

#[test]
fn every_error_of_a_document_is_told_at_once_with_its_place_and_path() {
    let text = of_spec(
        "mode: full\ncooldwn: 15m\nbudgets:\n  cluster: {percent: 120}\n  rack: {}\nwindows:\n  observation: 10\nrules: []\nresponse: {evict: maybe}",
    );
    let found = problems(&text);
    for (at, part) in [
        ("4:9: spec.mode: ", "one of observe, notify, mark, approve, heal is wanted, not \"full\""),
        ("5:3: spec.cooldwn: ", "unknown key; known here: actFrom"),
        ("7:24: spec.budgets.cluster.percent: ", "a whole number from 0 to 100 is wanted, not 120"),
        ("8:5: spec.budgets.rack: ", "unknown key; known here: cluster, fleet"),
        ("10:18: spec.windows.observation: ", "a span like 15m, 90s or 1h30m is wanted, not 10"),
        ("11:10: spec.rules: ", "a map is wanted here, not a list"),
        ("12:21: spec.response.evict: ", "true or false is wanted, not \"maybe\""),
    ] {
        assert!(found.iter().any(|line| line.starts_with(at) && line.contains(part)), "{at}{part} in {found:#?}");
    }
    assert_eq!(found.len(), 7, "{found:#?}");
}

#[test]
fn cluster_labels_are_refused_with_what_to_write_instead() {
    let found = problems(&of_spec("rules: {r: {mode: heal, scope: {clusterLabels: {env: prod}}}}"));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].contains("clusterLabels") && found[0].contains("no labels yet") && found[0].contains("under clusters"),
        "{found:?}"
    );
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (text, part) in [
        ("detection: {gpuTempHigh: 80, gpuTempWarn: 85}", "gpuTempWarn 85 is above gpuTempHigh 80"),
        ("response: {drain: {onDeadline: bypass-pdb}}", "needs allowPdbBypass"),
        ("response: {drain: {resourcePrefixes: [amd.com/gpu]}}", "--gpu-resource"),
        ("levels: {xyz/3: {level: P0}}", "not a fault"),
        ("levels: {xid/31: {level: P0}}", "say userApp: false too"),
        ("rules: {a: {faults: [heat], mode: heal}}", "\"heat\" is not a fault"),
        ("rules: {a: {scope: {clusters: [x]}}}", "at least one of mode, actFrom, level"),
    ] {
        let found = problems(&of_spec(text));
        assert!(found.len() == 1 && found[0].contains(part), "{part} in {found:?}");
    }
}

#[test]
fn what_is_no_policy_says_so_with_its_place() {
    for text in ["", "a: [", "- 1", "apiVersion: v2\nkind: Pod\n", "a: 1\na: 2\n", "\u{0}", "key: *nowhere", "!!binary x"] {
        let found = Policy::parse(text).unwrap_err();
        assert!(found.iter().all(|problem| problem.line >= 1), "{text:?}: {found:?}");
    }
    let huge = "# ".repeat(POLICY_BYTES_MAX);
    assert!(Policy::parse(&huge).unwrap_err()[0].message.contains("are allowed"));
}

#[test]
fn deep_nesting_and_alias_bombs_are_refused_and_not_followed() {
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    assert!(Policy::parse(&deep).is_err());
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, of) in [('b', 'a'), ('c', 'b'), ('d', 'c'), ('e', 'd'), ('f', 'e'), ('g', 'f'), ('h', 'g'), ('i', 'h')] {
        bomb.push_str(&format!("{name}: &{name} [*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of},*{of}]\n"));
    }
    assert!(Policy::parse(&bomb).is_err());
}

#[test]
fn the_short_form_expands_to_the_same_policy() {
    let short = "cooldown: 20m\nalertLevel: P1\nnotifyOnly: false\nthresholds: {xidErrors: 7, gpuTempHigh: 88, gpuTempWarn: 82}\nactions: {evict: true, taint: true, notify: false}\n";
    let long = of_spec(
        "mode: heal\nactFrom: P1\ncooldown: 20m\ndetection: {xidErrors: 7, gpuTempHigh: 88, gpuTempWarn: 82}\nresponse: {notify: false}",
    );
    let (short, long) = (Policy::parse(short).unwrap(), Policy::parse(&long).unwrap());
    assert_eq!(short.settings, long.settings);
    assert_eq!(short.digest, long.digest);
}

#[test]
fn the_short_forms_way_of_going_live_is_notify_then_mark_then_all() {
    for (text, mode) in [
        ("cooldown: 15m", Mode::Observe),
        ("notifyOnly: true", Mode::Notify),
        ("notifyOnly: false\nactions: {evict: false}", Mode::Mark),
        ("notifyOnly: false", Mode::Heal),
    ] {
        let settings = Policy::parse(text).unwrap().settings;
        assert_eq!((settings.mode, settings.act_from), (mode, Level::P0), "{text}");
    }
}

#[test]
fn a_clusters_own_config_map_narrows_and_may_hold_a_ceiling() {
    let text = "alertLevel: P0\nnotifyOnly: false\nactions: {evict: false}\nceiling:\n  stop: true\n  anything: [1]\n";
    let narrowing = Narrowing::parse(text).unwrap();
    assert_eq!((narrowing.alert_level, narrowing.notify_only, narrowing.evict_off), (Some(Level::P0), false, true));
    assert_eq!(Narrowing::parse("").unwrap(), Narrowing::default());
    let found = Narrowing::parse("cooldowns: 1m\nthresholds: {xidErrors: 0}\n").unwrap_err();
    assert_eq!(found.iter().map(|p| p.path.as_str()).collect::<Vec<_>>(), ["cooldowns", "thresholds.xidErrors"]);
    assert!(Policy::parse(text).is_err(), "a policy has no ceiling");
}

#[test]
fn a_clusters_own_settings_that_cannot_be_read_leave_nothing_but_notifying() {
    assert_eq!(Narrowing::in_force(""), (None, Vec::new()));
    let (read, problems) = Narrowing::in_force("actions: {evict: false}");
    assert!(read.is_some_and(|narrowing| narrowing.evict_off && !narrowing.notify_only) && problems.is_empty());
    let (unread, problems) = Narrowing::in_force("actions: {evict: fals");
    assert!(unread.is_some_and(|narrowing| narrowing.notify_only) && !problems.is_empty());
}

#[test]
fn a_digest_is_of_what_is_said_and_not_of_how() {
    let same = "# a comment\nkind: FleetPolicy\nspec: {cooldown: 900s, mode: observe}\napiVersion: gpu-selfhealing.io/v1\n";
    let one = Policy::parse(&of_spec("mode: observe\ncooldown: 15m")).unwrap();
    assert_eq!(one.digest, Policy::parse(same).unwrap().digest);
    assert_ne!(one.digest, Policy::parse(LONG).unwrap().digest);
    assert_eq!(one.digest, one.clone().with_revision(9).digest);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,200}") {
        let _ = Policy::parse(&text);
        let _ = Narrowing::parse(&text);
    }

    #[test]
    fn no_damage_to_a_good_policy_makes_the_parser_panic(at in 0usize..600, len in 0usize..40, put in "[-:{}\\[\\]&*!|>'\"%@`#,?a0 \n\t]{0,6}") {
        let mut text: Vec<char> = LONG.chars().collect();
        let at = at.min(text.len());
        let end = (at + len).min(text.len());
        text.splice(at..end, put.chars());
        let text: String = text.into_iter().collect();
        if let Err(found) = Policy::parse(&text) {
            prop_assert!(!found.is_empty());
        }
    }
}
