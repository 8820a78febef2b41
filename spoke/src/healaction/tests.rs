use gpuheal_proto::command::CommandState;

use super::*;

/// Set `UPDATE=1` to write the file anew.
#[test]
#[expect(clippy::disallowed_methods, reason = "a developer's switch, which no program has")]
fn the_crd_in_deploy_is_the_one_that_the_code_defines() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/spoke/crd.yaml");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, crd_yaml()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), crd_yaml(), "run UPDATE=1 cargo test -p gpuheal-spoke the_crd");
}

#[test]
fn the_crd_has_the_columns_and_the_status_subresource_that_people_use() {
    let yaml = crd_yaml();
    for want in ["healactions.gpu-selfhealing.io", "status: {}", ".spec.node", ".status.shownState", ".metadata.creationTimestamp"]
    {
        assert!(yaml.contains(want), "{want} is not in\n{yaml}");
    }
}

#[test]
fn what_a_narrow_terminal_shows_is_node_action_with_fault_state_and_age() {
    use kube::CustomResourceExt as _;
    let version = HealAction::crd().spec.versions.remove(0);
    let columns = version.additional_printer_columns.unwrap();
    let shown = |wide: bool| {
        let wanted = columns.iter().filter(|column| (column.priority.unwrap_or(0) > 0) == wide);
        wanted.map(|column| column.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(shown(false), ["Node", "What", "State", "Age"]);
    assert_eq!(shown(true), ["Command", "Machine", "Fault", "Level", "Reason"]);
}

#[test]
fn an_intent_without_status_is_received_and_a_tombstone_is_final_from_its_first_moment() {
    let mut action = HealAction::named("id", "ns", HealActionSpec::default());
    assert_eq!((state(&action), seq(&action), begun(&action)), (CommandState::Received, 1, false));
    assert!(action.held());
    action.spec.tombstone = Some(Tombstone { state: "REFUSED".into(), refusal: "EXPIRED".into(), reason: "late".into() });
    assert_eq!(state(&action), CommandState::Refused);
    assert!(is_final(&action));
}

#[test]
fn a_state_of_a_newer_version_is_final_and_never_taken_up() {
    let mut action = HealAction::named("id", "ns", HealActionSpec::default());
    action.status = Some(HealActionStatus { state: "LEVITATING".into(), ..HealActionStatus::default() });
    assert_eq!(state(&action), CommandState::Unknown);
    assert!(is_final(&action));
}

#[test]
fn the_undo_record_of_the_status_wins_over_the_intents_plan() {
    let entry = |after: &str| UndoEntry { kind: "label".into(), after: after.into(), ..UndoEntry::default() };
    let mut action = HealAction::named("id", "ns", HealActionSpec { undo: vec![entry("1")], ..HealActionSpec::default() });
    assert_eq!(undo_of(&action).fields[0].after, "1");
    action.status = Some(HealActionStatus { undo: vec![entry("2")], ..HealActionStatus::default() });
    assert_eq!(undo_of(&action).fields[0].after, "2");
}
