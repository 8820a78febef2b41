use gpuheal_proto::{ids::IncidentId, time::Timestamp};
use serde_json::json;

use super::*;

fn stamp() -> Stamp {
    let at = Timestamp::from_unix_ms(1);
    Stamp { incident: IncidentId::from_uuid(gpuheal_proto::ids::uuid_v7(at, &[1; 32])), plan_rev: 2, at }
}

fn field(kind: UndoKind, key: &str, before: &str, after: &str) -> UndoField {
    UndoField { kind, key: key.into(), before: before.into(), after: after.into(), resource_version: "1".into() }
}

fn node(value: &Value) -> NodeFacts {
    NodeFacts::from_json(value).unwrap()
}

#[test]
fn a_field_that_somebody_changed_since_is_left_as_they_left_it() {
    let node = node(
        &json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "9", "labels": {LABEL_STATUS: "inspected"}}, "spec": {}}),
    );
    let undo = Undo {
        fields: vec![field(UndoKind::Label, LABEL_STATUS, "", "\"faulty\""), field(UndoKind::Unschedulable, "", "", "true")],
    };
    let plan = release(&node, &undo, stamp()).unwrap();
    assert!(plan.restored.is_empty());
    assert_eq!(plan.left.len(), 2, "the uncordon of a person is not undone either");
    assert!(!plan.patch.to_string().contains("labels"));
}

#[test]
fn a_record_that_names_a_key_of_somebody_else_is_refused_whole() {
    let node = node(&json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "9"}, "spec": {}}));
    let undo = Undo { fields: vec![field(UndoKind::Label, "kubernetes.io/hostname", "", "\"n\"")] };
    assert!(matches!(release(&node, &undo, stamp()), Err(Error::ForeignKey { .. })));
    let undo = Undo { fields: vec![field(UndoKind::Taint, TAINT_FAULTY, r#"{"key":"x","effect":"NoExecute"}"#, "")] };
    assert!(matches!(release(&node, &undo, stamp()), Err(Error::Value { .. })));
}

#[test]
fn an_empty_record_restores_nothing_and_still_raises_the_plan_revision() {
    let node = node(&json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "9"}, "spec": {"unschedulable": true}}));
    let plan = release(&node, &Undo::default(), stamp()).unwrap();
    assert!(plan.patch.to_string().contains("plan-revision"));
    assert!(!plan.patch.to_string().contains("unschedulable"));
}
