mod laws;

use json_patch::{PatchErrorKind, patch as apply};

use super::*;
use crate::release::release;

fn stamp(plan_rev: u64) -> Stamp {
    let at = Timestamp::from_unix_ms(1_764_442_800_000);
    Stamp { incident: IncidentId::from_uuid(gpuheal_proto::ids::uuid_v7(at, &[7; 32])), plan_rev, at }
}

const ALL: Want = Want { label: true, taint: true, cordon: true };

fn bare() -> Value {
    json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "1"}, "spec": {}, "status": {}})
}

/// As the API server does: a stale resourceVersion is a conflict, anything else that fails is invalid, such as to take away what
/// somebody else has taken away meanwhile.
fn send(server: &mut Value, patch: &Value) -> Result<(), u16> {
    let current = server["metadata"]["resourceVersion"].clone();
    let ops: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    let mut next = server.clone();
    apply(&mut next, &ops).map_err(|error| {
        let gone = server["metadata"]["resourceVersion"] != patch[1]["value"];
        assert!(gone || matches!(error.kind, PatchErrorKind::TestFailed), "only a test may fail: {error}");
        422_u16
    })?;
    if next["metadata"]["resourceVersion"] != current {
        return Err(409);
    }
    bump(&mut next);
    *server = next;
    Ok(())
}

fn bump(node: &mut Value) {
    let version: u64 = node["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    node["metadata"]["resourceVersion"] = json!((version + 1).to_string());
}

fn facts(node: &Value) -> NodeFacts {
    NodeFacts::from_json(node).unwrap()
}

fn marked(server: &mut Value, want: Want, plan_rev: u64, earlier: &Undo) -> Undo {
    match mark(&facts(server), want, stamp(plan_rev), earlier) {
        Marking::Write { undo, patch } => {
            send(server, &patch).unwrap();
            undo
        }
        Marking::Done { undo } => undo,
    }
}

#[test]
fn an_uncordon_by_what_policy_calls_an_automation_is_no_persons_hand() {
    let mut server = bare();
    marked(&mut server, ALL, 4, &Undo::default());
    server["spec"]["unschedulable"] = json!(false);
    server["metadata"]["managedFields"] =
        json!([{"manager": "driver-manager", "operation": "Apply", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]);
    let said = |name: &str| Others { automations: vec![name.to_owned()], ..Others::default() };
    assert_eq!(ALL.taken_away(&facts(&server), 4, &said("driver-manager")), None);
    assert_eq!(ALL.taken_away(&facts(&server), 4, &said("karpenter")), Some("the cordon"));
    assert_eq!(ALL.taken_away(&facts(&server), 4, &Others::default()), Some("the cordon"), "an empty list is the careful one");
    server["metadata"]["managedFields"] = json!([]);
    assert_eq!(ALL.taken_away(&facts(&server), 4, &said("driver-manager")), Some("the cordon"), "nobody says whose hand it was");
}

#[test]
fn what_a_standing_mark_has_set_is_told_by_its_record_and_without_one_by_the_node() {
    let mut server = bare();
    let undo = marked(&mut server, Want { taint: false, ..ALL }, 4, &Undo::default());
    assert_eq!(Want::standing(&undo, &facts(&bare())), Some(Want { taint: false, ..ALL }), "whatever is left of it");
    assert_eq!(Want::standing(&Undo::default(), &facts(&bare())), None);
    server["spec"]["unschedulable"] = json!(false);
    let left = Want { label: true, taint: false, cordon: false };
    assert_eq!(Want::standing(&Undo::default(), &facts(&server)), Some(left));
}

#[test]
fn a_quarantine_is_one_patch_with_label_taint_annotations_and_cordon() {
    let mut server = bare();
    marked(&mut server, ALL, 4, &Undo::default());
    let node = facts(&server);
    assert_eq!(node.label(LABEL_STATUS), Some(STATUS_FAULTY));
    assert_eq!(node.taints, vec![taint()]);
    assert_eq!(node.unschedulable, Some(true));
    assert_eq!(node.plan_revision(), Some(4));
    assert_eq!(node.annotation(ANNOTATION_LAST_PROCESS_TIME), Some("2025-11-29T19:00:00.000Z"));
    assert_eq!(node.resource_version, "2", "one write");
}

#[test]
fn marking_a_node_that_is_as_asked_writes_nothing() {
    let mut server = bare();
    let undo = marked(&mut server, ALL, 4, &Undo::default());
    assert_eq!(mark(&facts(&server), ALL, stamp(4), &undo), Marking::Done { undo });
}

#[test]
fn a_higher_plan_revision_is_written_even_when_the_marks_stand() {
    let mut server = bare();
    let undo = marked(&mut server, ALL, 4, &Undo::default());
    assert!(matches!(mark(&facts(&server), ALL, stamp(5), &undo), Marking::Write { .. }));
}

#[test]
fn another_machine_under_the_same_name_is_not_patched() {
    let mut server = bare();
    let Marking::Write { patch, .. } = mark(&facts(&server), ALL, stamp(1), &Undo::default()) else { panic!("nothing to write") };
    server["metadata"]["uid"] = json!("other");
    assert_eq!(send(&mut server, &patch), Err(422));
}

#[test]
fn a_patch_planned_before_a_foreign_write_conflicts() {
    let mut server = bare();
    let Marking::Write { patch, .. } = mark(&facts(&server), ALL, stamp(1), &Undo::default()) else { panic!("nothing to write") };
    bump(&mut server);
    assert_eq!(send(&mut server, &patch), Err(409));
}

#[test]
fn foreign_taints_keep_their_order_and_time_added_and_ours_stands_once() {
    let mut server = bare();
    let foreign = |key: &str| json!({"key": key, "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z", "new": 1});
    server["spec"]["taints"] = json!([foreign("a"), taint(), foreign("b"), taint()]);
    marked(&mut server, ALL, 1, &Undo::default());
    assert_eq!(server["spec"]["taints"], json!([foreign("a"), taint(), foreign("b")]));
}

#[test]
fn a_cordon_of_a_person_is_recorded_and_survives_the_release() {
    let mut server = bare();
    server["spec"]["unschedulable"] = json!(true);
    let undo = marked(&mut server, ALL, 1, &Undo::default());
    let plan = release(&facts(&server), &undo, &Undo::default(), stamp(2)).unwrap();
    send(&mut server, &plan.patch).unwrap();
    assert_eq!(server["spec"]["unschedulable"], json!(true));
    assert!(!facts(&server).marked());
}

#[test]
fn a_cordon_that_is_there_is_not_written_so_that_its_manager_stays() {
    let mut server = bare();
    server["spec"]["unschedulable"] = json!(true);
    let Marking::Write { patch, .. } = mark(&facts(&server), ALL, stamp(1), &Undo::default()) else { panic!("nothing to write") };
    assert!(!patch.to_string().contains("unschedulable"), "{patch}");
}

#[test]
fn a_second_mark_inherits_the_first_ones_record() {
    let mut server = bare();
    let first = marked(&mut server, ALL, 1, &Undo::default());
    let second = marked(&mut server, ALL, 2, &first);
    assert_eq!(second, first, "else the second release would take our own mark for a foreign one");
}
