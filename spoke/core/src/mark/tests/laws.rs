//! Whatever we and others write to a node, in whatever order and however often a race is lost: what is others' stays as they
//! left it, and after a release nothing of ours is left but the three annotations.

use gpuheal_proto::{command::Others, kubernetes::FIELD_MANAGER};
use proptest::{prelude::*, test_runner::TestCaseError};

use super::*;

/// What others do to a node between our reads and writes.
#[derive(Clone, Debug)]
enum Foreign {
    Label(u8, Option<u8>),
    Annotation(u8, u8),
    Taint(u8),
    Untaint(u8),
    Cordon(Option<bool>),
    Condition(u8, bool),
    /// Somebody takes our label off.
    Unlabel,
}

fn foreign() -> impl Strategy<Value = Foreign> {
    prop_oneof![
        (0..3_u8, proptest::option::of(any::<u8>())).prop_map(|(k, v)| Foreign::Label(k, v)),
        (0..3_u8, any::<u8>()).prop_map(|(k, v)| Foreign::Annotation(k, v)),
        (0..4_u8).prop_map(Foreign::Taint),
        (0..4_u8).prop_map(Foreign::Untaint),
        proptest::option::of(any::<bool>()).prop_map(Foreign::Cordon),
        (0..3_u8, any::<bool>()).prop_map(|(k, v)| Foreign::Condition(k, v)),
    ]
}

fn object<'a>(node: &'a mut Value, map: &str) -> &'a mut serde_json::Map<String, Value> {
    let slot = &mut node["metadata"][map];
    if slot.is_null() {
        *slot = json!({});
    }
    slot.as_object_mut().unwrap()
}

fn write(node: &mut Value, op: &Foreign) {
    match op {
        Foreign::Label(k, Some(v)) => drop(object(node, "labels").insert(format!("l/{k}"), json!(v.to_string()))),
        Foreign::Label(k, None) => drop(object(node, "labels").remove(&format!("l/{k}"))),
        Foreign::Annotation(k, v) => drop(object(node, "annotations").insert(format!("a~{k}"), json!(v.to_string()))),
        Foreign::Taint(k) => {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.push(json!({"key": format!("t{k}"), "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}));
            node["spec"]["taints"] = json!(taints);
        }
        Foreign::Untaint(k) => {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.retain(|taint| taint["key"] != json!(format!("t{k}")));
            node["spec"]["taints"] = json!(taints);
        }
        Foreign::Cordon(Some(value)) => node["spec"]["unschedulable"] = json!(value),
        Foreign::Cordon(None) => drop(node["spec"].as_object_mut().unwrap().remove("unschedulable")),
        Foreign::Condition(k, v) => node["status"]["conditions"][format!("c{k}")] = json!({"type": k, "status": v}),
        Foreign::Unlabel => drop(object(node, "labels").remove(LABEL_STATUS)),
    }
    bump(node);
}

/// What is not ours, in a form that can be compared.
fn foreign_part(server: &Value) -> (BTreeOf, BTreeOf, Vec<Value>, Value) {
    let node = facts(server);
    let strip = |map: Option<BTreeOf>| {
        let mut map = map.unwrap_or_default();
        map.retain(|key, _| !key.starts_with("gpu-selfhealing.io/"));
        map
    };
    (
        strip(node.labels.clone()),
        strip(node.annotations.clone()),
        node.taints.into_iter().filter(|taint| !node::is_ours(taint)).collect(),
        server["status"].clone(),
    )
}
type BTreeOf = std::collections::BTreeMap<String, String>;

/// What is done to a node, by us and by others, in any order.
#[derive(Clone, Debug)]
enum Turn {
    Others(Foreign),
    /// Another mark, over one that stands or over none.
    Mark {
        cordon: bool,
    },
    /// The last mark's command is taken up by another leader, which does not know whether its patch was sent.
    Adopt,
    Release,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => foreign().prop_map(Turn::Others),
        1 => Just(Turn::Others(Foreign::Unlabel)),
        3 => any::<bool>().prop_map(|cordon| Turn::Mark { cordon }),
        2 => Just(Turn::Adopt),
        2 => Just(Turn::Release),
    ]
}

/// A node on which we and others write, and the same node as it were without us.
struct Shared {
    server: Value,
    alone: Value,
    plan_rev: u64,
    /// What the last mark asked for, under which revision.
    marked: Option<(Want, u64)>,
    /// The record of the mark that stands, and what the hub has gathered of all since the last release.
    record: Undo,
    asked: Undo,
}

impl Shared {
    /// Whoever cordons a node that is cordoned has changed nothing: nobody can tell that it was there.
    fn others(&mut self, op: &Foreign) {
        let idle = matches!(op, Foreign::Cordon(value) if facts(&self.server).unschedulable == *value);
        for node in [&mut self.server, &mut self.alone] {
            if !idle {
                managed(node, "kubectl-cordon", |node| write(node, op));
            }
        }
    }

    /// Plans and sends until no foreign write has come between; each lost race is answered as one.
    fn ours<T>(
        &mut self,
        between: &mut impl Iterator<Item = Vec<Foreign>>,
        plan: impl Fn(&NodeFacts, &Self) -> (Option<Value>, T),
    ) -> Result<T, TestCaseError> {
        loop {
            let (patch, told) = plan(&facts(&self.server), self);
            let came = between.next().unwrap_or_default();
            came.iter().for_each(|op| self.others(op));
            let Some(patch) = patch else { return Ok(told) };
            let mut sent = Err(0);
            managed(&mut self.server, FIELD_MANAGER, |server| sent = send(server, &patch));
            match sent {
                Ok(()) => return Ok(told),
                Err(status) => prop_assert!(!came.is_empty() && matches!(status, 409 | 422), "{}: {:?}", status, came),
            }
        }
    }
}

impl Shared {
    /// Marks it under a revision, and keeps the record as spoke and hub do.
    fn mark(&mut self, between: &mut impl Iterator<Item = Vec<Foreign>>, want: Want, plan_rev: u64) -> Result<(), TestCaseError> {
        let undo = self.ours(between, |read, node| {
            // A person who has taken something away is obeyed.
            if want.taken_away(read, plan_rev, &Others::default()).is_some() {
                return (None, node.record.clone());
            }
            match mark(read, want, stamp(plan_rev), &node.record) {
                Marking::Write { undo, patch } => (Some(patch), undo),
                Marking::Done { undo } => (None, undo),
            }
        })?;
        self.asked.fields.retain(|old| undo.fields.iter().all(|new| new.kind != old.kind));
        self.asked.fields.extend(undo.fields.clone());
        self.record = undo;
        Ok(())
    }
}

/// A write by `manager`: the API server names who changed a cordon last, and nobody once it is gone.
fn managed(node: &mut Value, manager: &str, write: impl FnOnce(&mut Value)) {
    let before = node["spec"]["unschedulable"].clone();
    write(node);
    let after = &node["spec"]["unschedulable"];
    if *after != before {
        let fields = json!({"f:spec": {"f:unschedulable": {}}});
        let entry = json!({"manager": manager, "fieldsV1": fields});
        node["metadata"]["managedFields"] = if after.is_null() { json!([]) } else { json!([entry]) };
    }
}

proptest! {
    #[test]
    fn any_interleaving_with_foreign_writers_keeps_every_foreign_key_and_one_taint_of_ours(
        before in proptest::collection::vec(foreign(), 0..5),
        between in proptest::collection::vec(proptest::collection::vec(foreign(), 0..3), 0..4),
    ) {
        let (mut server, mut alone) = (bare(), bare());
        for op in &before { write(&mut server, op); write(&mut alone, op); }
        let mut rounds = between.into_iter();
        loop {
            let planned = mark(&facts(&server), ALL, stamp(1), &Undo::default());
            for op in rounds.next().unwrap_or_default() { write(&mut server, &op); write(&mut alone, &op); }
            let Marking::Write { patch, .. } = planned else { panic!("first mark always writes") };
            match send(&mut server, &patch) { Ok(()) => break, Err(status) => prop_assert!(matches!(status, 409 | 422)) }
        }
        prop_assert_eq!(foreign_part(&server), foreign_part(&alone));
        prop_assert_eq!(server["spec"]["taints"].as_array().unwrap().iter().filter(|taint| node::is_ours(taint)).count(), 1);
    }

    #[test]
    fn mark_then_release_restores_the_node_whatever_others_did_before(before in proptest::collection::vec(foreign(), 0..6), cordon in any::<bool>()) {
        let mut server = bare();
        for op in &before { write(&mut server, op); }
        let was = facts(&server);
        let undo = marked(&mut server, Want { cordon, ..ALL }, 1, &Undo::default());
        let plan = release(&facts(&server), &undo, &Undo::default(), stamp(2)).unwrap();
        send(&mut server, &plan.patch).unwrap();
        let is = facts(&server);
        prop_assert_eq!(is.labels.unwrap_or_default(), was.labels.unwrap_or_default());
        prop_assert_eq!(is.taints, was.taints);
        prop_assert_eq!(is.unschedulable, was.unschedulable);
        let theirs = cordon && was.unschedulable == Some(true);
        prop_assert_eq!(plan.left.len(), usize::from(theirs), "what was there before is left, and nothing else: {:?}", plan.left);
    }
    #[test]
    fn any_order_of_marks_releases_and_foreign_writes_leaves_the_node_as_it_were_without_us(
        turns in proptest::collection::vec(turn(), 1..14),
        between in proptest::collection::vec(proptest::collection::vec(foreign(), 0..2), 0..12),
    ) {
        let mut node = Shared { server: bare(), alone: bare(), plan_rev: 0, marked: None, record: Undo::default(), asked: Undo::default() };
        let mut between = between.into_iter();
        for turn in turns.into_iter().chain([Turn::Release]) {
            node.plan_rev += 1;
            match turn {
                Turn::Others(op) => node.others(&op),
                Turn::Mark { cordon } => {
                    let want = Want { cordon, ..ALL };
                    node.marked = Some((want, node.plan_rev));
                    node.mark(&mut between, want, node.plan_rev)?;
                    prop_assert!(facts(&node.server).has_taint(TAINT_FAULTY));
                }
                Turn::Adopt => {
                    let Some((want, plan_rev)) = node.marked else { continue };
                    node.mark(&mut between, want, plan_rev)?;
                }
                Turn::Release => {
                    node.ours(&mut between, |read, node| {
                        let plan = release(read, &node.record, &node.asked, stamp(node.plan_rev)).unwrap();
                        (Some(plan.patch), ())
                    })?;
                    (node.record, node.asked, node.marked) = (Undo::default(), Undo::default(), None);
                    let (is, without) = (facts(&node.server), facts(&node.alone));
                    prop_assert!(!is.marked(), "{:?}", is);
                    prop_assert_eq!(is.unschedulable, without.unschedulable);
                    prop_assert_eq!(&is.taints, &without.taints);
                    prop_assert_eq!(is.labels.unwrap_or_default(), without.labels.unwrap_or_default());
                }
            }
            prop_assert_eq!(foreign_part(&node.server), foreign_part(&node.alone));
            let ours = facts(&node.server).taints.iter().filter(|taint| node::is_ours(taint)).count();
            prop_assert!(ours <= 1);
        }
    }
}
