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
    let plan = release(&node, &undo, &Undo::default(), stamp()).unwrap();
    assert!(plan.restored.is_empty());
    assert_eq!(plan.left.len(), 2, "the uncordon of a person is not undone either");
    assert!(!plan.patch.to_string().contains("labels"));
}

#[test]
fn a_record_that_names_a_key_of_somebody_else_is_refused_whole() {
    let node = node(&json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "9"}, "spec": {}}));
    let undo = Undo { fields: vec![field(UndoKind::Label, "kubernetes.io/hostname", "", "\"n\"")] };
    assert!(matches!(release(&node, &Undo::default(), &undo, stamp()), Err(Error::ForeignKey { .. })));
    let undo = Undo { fields: vec![field(UndoKind::Taint, TAINT_FAULTY, r#"{"key":"x","effect":"NoExecute"}"#, "")] };
    assert!(matches!(release(&node, &Undo::default(), &undo, stamp()), Err(Error::Value { .. })));
}

#[test]
fn an_empty_record_restores_nothing_and_still_raises_the_plan_revision() {
    let node = node(&json!({"metadata": {"name": "n", "uid": "u", "resourceVersion": "9"}, "spec": {"unschedulable": true}}));
    let plan = release(&node, &Undo::default(), &Undo::default(), stamp()).unwrap();
    assert!(plan.patch.to_string().contains("plan-revision"));
    assert!(!plan.patch.to_string().contains("unschedulable"));
}

/// A cordon's record.
fn of_cordon(before: &str) -> Undo {
    Undo { fields: vec![field(UndoKind::Unschedulable, "", before, "true")] }
}

#[test]
fn whatever_the_hub_asks_a_cordon_goes_only_when_the_cluster_itself_says_that_it_is_ours() {
    let (ours, theirs, none) = (of_cordon(""), of_cordon("true"), Undo::default());
    let cases: [(&[&str], &Undo, bool); 11] = [
        (&["gpu-selfhealing"], &ours, true),
        (&["gpu-selfhealing"], &none, true),
        (&["gpu-selfhealing"], &theirs, false),
        (&[], &ours, true),
        (&[], &none, false),
        (&[], &theirs, false),
        (&["ancient-changes"], &ours, true),
        (&["ancient-changes"], &none, false),
        // Uncordoned and cordoned again by a person while our mark stood; set by both.
        (&["kubectl-cordon"], &ours, false),
        (&["kubectl-cordon"], &none, false),
        (&["gpu-selfhealing", "argocd"], &ours, false),
    ];
    for (by, record, goes) in cases {
        let managed: Vec<_> = by.iter().map(|manager| json!({"manager": manager})).collect();
        let node = node(&json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "9", "managedFields": managed},
            "spec": {"unschedulable": true},
        }));
        // As from a backup of before the cluster's own record.
        let plan = release(&node, record, &of_cordon(""), stamp()).unwrap();
        let gone = plan.patch.to_string().contains("/spec/unschedulable");
        assert_eq!((gone, plan.left.len()), (goes, usize::from(!goes)), "{by:?} {record:?}: {:?}", plan.left);
    }
}

#[test]
fn a_manager_counts_only_for_the_field_that_it_manages() {
    let node = node(&json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "9", "managedFields": [
            {"manager": "gpu-selfhealing", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
            {"manager": "kubectl-cordon", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
        ]},
        "spec": {"unschedulable": true},
    }));
    assert_eq!(node.unschedulable_by, ["kubectl-cordon".to_owned()].into());
}

#[test]
fn what_the_clusters_record_does_not_name_the_hubs_tells() {
    let node = node(&json!({
        "metadata": {"name": "n", "uid": "u", "resourceVersion": "9", "labels": {LABEL_STATUS: "faulty"},
            "managedFields": [{"manager": "gpu-selfhealing"}]},
        "spec": {"unschedulable": true},
    }));
    let record = Undo { fields: vec![field(UndoKind::Label, LABEL_STATUS, "", "\"faulty\"")] };
    let plan = release(&node, &record, &of_cordon(""), stamp()).unwrap();
    assert_eq!(plan.restored, ["label", "unschedulable"]);
}
