use gpuheal_proto::command::Drain;

use super::*;
use crate::verify::testing::{command, drain, mark, release_step};

const FULL: &str = "
cooldown: 30m
alertLevel: P0
notifyOnly: false
thresholds: {xidErrors: 5, gpuTempHigh: 85, gpuTempWarn: 80}
actions: {evict: true, taint: true, notify: true}
ceiling:
  mode: heal
  namespaces: [ml, team-*]
  nodesOut: {count: 3, percent: 50}
  protectedLabels: [node-role.kubernetes.io/control-plane, pool=serving]
  graceMax: 10m
  stop: false
";

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

const SMALL: Out = Out { others: 0, gpu_nodes: 10, target: false };

#[test]
fn the_full_form_is_read_and_an_empty_one_narrows_nothing() {
    let config = parse(FULL).unwrap();
    assert_eq!(config.cooldown(), Duration::from_secs(1800));
    assert_eq!(config.ceiling.nodes_out, Some(3));
    assert_eq!(config.ceiling.protected_labels.get("pool").map(String::as_str), Some("serving"));
    assert!(config.namespace_allowed("team-a") && config.namespace_allowed("ml") && !config.namespace_allowed("mlx"));
    for text in ["", "{}", "# nothing\n"] {
        assert_eq!(parse(text).unwrap(), Config::default(), "{text:?}");
    }
}

#[test]
fn every_error_has_its_place() {
    let errors = parse("cooldown: soon\nalertLevel: P9\nceiling: {mode: wild, nodesOut: lots}\nthresholds: {xid: 5}").unwrap_err();
    let places: Vec<_> = errors.iter().map(|error| error.place.as_str()).collect();
    assert_eq!(places, ["thresholds.xid", "cooldown", "alertLevel", "ceiling.nodesOut", "ceiling.mode"]);
    let error = &parse("ceiling:\n  modes: heal\n").unwrap_err()[0];
    assert!(error.place.contains("line 2"), "{error}");
    assert!(error.message.contains("modes"), "{error}");
}

#[test]
fn a_count_over_the_ceiling_is_refused_with_its_arithmetic() {
    let config = parse("ceiling: {nodesOut: 3}").unwrap();
    let refused = config.admit(&command(vec![mark()]), &none(), Out { others: 3, ..SMALL });
    assert_eq!(refused, Err((Refusal::OverCeiling, "3 of 10 GPU nodes are out, the ceiling allows 3".into())));
    assert_eq!(config.admit(&command(vec![mark()]), &none(), Out { others: 2, ..SMALL }), Ok(()));
    assert_eq!(
        config.admit(&command(vec![drain()]), &none(), Out { others: 3, target: true, ..SMALL }),
        Ok(()),
        "it is out already"
    );
}

#[test]
fn a_share_rounds_down_but_never_below_one_unless_it_is_zero() {
    let admits = |text: &str, others| {
        parse(text).unwrap().admit(&command(vec![mark()]), &none(), Out { others, gpu_nodes: 4, target: false }).is_ok()
    };
    assert!(admits("ceiling: {nodesOut: 10%}", 0) && !admits("ceiling: {nodesOut: 10%}", 1));
    assert!(!admits("ceiling: {nodesOut: 0%}", 0), "zero allows nothing");
    assert!(!admits("ceiling: {nodesOut: 0}", 0));
    assert!(
        admits("ceiling: {nodesOut: {count: 3, percent: 50}}", 1) && !admits("ceiling: {nodesOut: {count: 3, percent: 50}}", 2)
    );
}

#[test]
fn the_stop_switch_ends_everything_but_releases() {
    let config = parse("ceiling: {stop: true, nodesOut: 0, mode: observe}").unwrap();
    for steps in [vec![mark()], vec![drain()], vec![crate::verify::testing::notify()]] {
        assert_eq!(config.admit(&command(steps), &none(), SMALL).unwrap_err().0, Refusal::Stopped);
    }
    assert_eq!(config.admit(&command(vec![release_step()]), &none(), SMALL), Ok(()));
}

#[test]
fn the_narrower_of_short_form_and_ceiling_wins() {
    for (text, want) in [
        ("notifyOnly: true", Mode::Notify),
        ("actions: {evict: false}", Mode::Mark),
        ("actions: {taint: false}", Mode::Notify),
        ("ceiling: {mode: mark}", Mode::Mark),
        ("ceiling: {mode: observe}\nactions: {evict: false}", Mode::Observe),
    ] {
        assert_eq!(parse(text).unwrap().mode(), want, "{text}");
    }
    let config = parse("ceiling: {mode: mark}").unwrap();
    let (refusal, why) = config.admit(&command(vec![mark(), drain()]), &none(), SMALL).unwrap_err();
    assert_eq!(refusal, Refusal::OverCeiling);
    assert_eq!(why, "evict needs mode heal, the cluster's own limit is mark");
}

#[test]
fn under_approve_only_what_a_person_asked_for_evicts() {
    let config = parse("ceiling: {mode: approve}").unwrap();
    let mut command = command(vec![drain()]);
    assert!(config.admit(&command, &none(), SMALL).is_err());
    command.level = MANUAL.into();
    assert!(config.admit(&command, &none(), SMALL).is_ok());
}

#[test]
fn a_protected_node_is_refused_by_the_label_that_protects_it() {
    let config = parse(FULL).unwrap();
    let labels = BTreeMap::from([("pool".to_owned(), "serving".to_owned())]);
    let (_, why) = config.admit(&command(vec![mark()]), &labels, SMALL).unwrap_err();
    assert_eq!(why, "the node carries pool, which the ceiling protects");
    let labels = BTreeMap::from([("pool".to_owned(), "training".to_owned())]);
    assert!(config.admit(&command(vec![mark()]), &labels, SMALL).is_ok());
}

#[test]
fn a_level_below_the_clusters_alert_level_is_refused() {
    let config = parse("alertLevel: P0").unwrap();
    let mut command = command(vec![mark()]);
    command.level = "P1".into();
    assert!(config.admit(&command, &none(), SMALL).is_err());
}

#[test]
fn spans_need_units() {
    assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5400)));
    for text in ["", "15", "m", "15x", "1h 30m", "99999999999999999999s"] {
        assert_eq!(parse_duration(text), None, "{text}");
    }
}

#[test]
fn a_budget_is_passed_only_by_a_command_that_a_person_asked_for_and_the_refusal_says_so() {
    let Step::Drain(drain) = drain() else { unreachable!() };
    let bypass = Step::Drain(Drain { on_deadline: DeadlineOutcome::BypassPdb, allow_pdb_bypass: true, ..drain });
    let mut asked = command(vec![mark(), bypass]);
    let (refusal, why) = Config::default().admit(&asked, &none(), SMALL).unwrap_err();
    assert_eq!(refusal, Refusal::OverCeiling);
    assert!(why.contains("PodDisruptionBudget") && why.contains("by hand"), "{why}");
    asked.level = MANUAL.to_owned();
    assert_eq!(Config::default().admit(&asked, &none(), SMALL), Ok(()));
}
