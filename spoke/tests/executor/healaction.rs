//! HealActions as people and their tools see them: complete once ended, unchangeable in what was decided, on one screen.

use bytes::Bytes;
use gpuheal_proto::{
    ids::{ClusterId, CommandId, NodeName},
    link::v1::CommandState,
};
use gpuheal_spoke::{
    healaction::{HealAction, HealActionStatus, Tombstone, bounded, name_of, new_spec},
    ports::Down,
};
use serde_json::{Value, json};
use testkube::settled;

use crate::{
    hub::{cancel, drain, mark, release, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    whatever_ends_is_complete_for_kubectl_wait,
    what_was_decided_is_changed_by_nobody,
    a_number_that_no_record_of_ours_holds_gets_into_none,
    kubectl_get_healactions_tells_the_story_in_eighty_columns,
    a_drain_that_a_budget_holds_does_not_look_like_one_that_gets_on,
];

/// The reason of the condition Complete.
fn complete(action: &Value) -> Option<String> {
    let conditions = action["status"]["conditions"].as_array()?;
    let complete = conditions.iter().find(|condition| condition["type"] == "Complete" && condition["status"] == "True")?;
    Some(complete["reason"].as_str()?.to_owned())
}

async fn is_complete(w: &World, id: CommandId, reason: &str) {
    settled::is_true("it is called complete", || async {
        w.action(id).await.is_some_and(|action| complete(&action).as_deref() == Some(reason))
    })
    .await;
}

async fn whatever_ends_is_complete_for_kubectl_wait(w: World) {
    // Left behind by somebody whose bytes nobody can believe: ended by whoever finds it.
    let left = w.command("n2", 1, vec![mark()]).await;
    let spec = new_spec(&left, b"no envelope", "dead", 1);
    w.leave_action(&HealAction::named(&left.id.to_string(), &w.home, spec)).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    is_complete(&w, left.id, "Ended").await;
    let done = w.command("n1", 1, vec![mark()]).await;
    assert_eq!(spoke.carry_out(&done).await.state(), CommandState::Succeeded);
    is_complete(&w, done.id, "Succeeded").await;
    let mut foreign = w.command("n1", 2, vec![mark()]).await;
    foreign.audience = ClusterId::parse("c2").unwrap();
    assert_eq!(spoke.carry_out(&foreign).await.state(), CommandState::Refused);
    is_complete(&w, foreign.id, "Ended").await;
    let called_off = w.command("n1", 3, vec![mark()]).await;
    spoke.down.send(Down::Cancel(Bytes::from(cancel(called_off.id)))).await.unwrap();
    assert_eq!(spoke.ended(called_off.id).await.state(), CommandState::Cancelled);
    is_complete(&w, called_off.id, "Ended").await;
}

async fn what_was_decided_is_changed_by_nobody(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    spoke.carry_out(&command).await;
    let wrong = [
        json!({"spec": {"action": "levitate"}}),
        json!({"spec": {"undo": [{"kind": "finalizer"}]}}),
        json!({"spec": {"node": "n".repeat(300)}}),
    ];
    for patch in wrong {
        assert_eq!(w.try_change_action(command.id, &patch).await.code, 422, "{patch}");
    }
    // Rules in CEL only Kubernetes itself evaluates.
    if w.is_kubernetes() {
        for patch in [json!({"spec": {"node": "other"}}), json!({"spec": {"undo": null}}), json!({"spec": {"envelope": null}})] {
            let answer = w.try_change_action(command.id, &patch).await;
            assert_eq!(answer.code, 422, "{patch}");
            assert!(answer.json["message"].as_str().unwrap().contains("does not change"), "{}", answer.json);
        }
    }
    assert_eq!(w.try_change_action(command.id, &json!({"metadata": {"labels": {"seen-by": "oncall"}}})).await.code, 200);
}

/// One record that cannot be read would keep the list of all of them from being read, and with it every command from being executed.
async fn a_number_that_no_record_of_ours_holds_gets_into_none(w: World) {
    for (n, (field, number)) in [
        ("commandSeq", json!(u64::MAX)),
        ("planRevision", json!(1_u64 << 54)),
        ("hubTerm", json!(1e30)),
        ("leaseTransitions", json!(1_u64 << 31)),
        ("pods", json!([{"namespace": "ml", "name": "p", "uid": "u", "state": "gone", "evictionCalls": 1_u64 << 32}])),
    ]
    .into_iter()
    .enumerate()
    {
        let left = w.command("n2", n as u64 + 1, vec![mark()]).await;
        let action = HealAction::named(&left.id.to_string(), &w.home, new_spec(&left, b"no envelope", "dead", 1));
        let mut action = serde_json::to_value(action).unwrap();
        action["spec"][field] = number;
        let answer = w.try_leave_action(&action).await;
        assert_eq!(answer.code, 422, "{field}: {}", answer.json);
    }
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let done = w.command("n1", 1, vec![mark()]).await;
    assert_eq!(spoke.carry_out(&done).await.state(), CommandState::Succeeded);
}

async fn kubectl_get_healactions_tells_the_story_in_eighty_columns(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let done = w.command("n1", 1, vec![mark()]).await;
    let marked = spoke.carry_out(&done).await;
    spoke.carry_out(&w.command("n1", 2, vec![release(marked.undo)]).await).await;
    // The widest of each: a node's name, a fault, what is done and how it ended.
    let mut wide = w.command("n2", 9, vec![release(None)]).await;
    let widest = format!("{}.{}", "n".repeat(63), "d".repeat(63));
    wide.target.node.name = NodeName::parse(&widest).unwrap();
    wide.reason = "node_condition KernelDeadlockOfTheWorst: said so".to_owned();
    let mut action = HealAction::named(&wide.id.to_string(), &w.home, new_spec(&wide, b"no envelope", "dead", 1));
    action.spec.tombstone = Some(Tombstone { state: "CANCELLED".into(), ..Tombstone::default() });
    w.leave_action(&action).await;
    let status = bounded(HealActionStatus { state: "CANCELLED".into(), ..HealActionStatus::default() });
    w.write_action_status(wide.id, &serde_json::to_value(status).unwrap()).await;
    let Some(text) = w.kubectl(&["get", "healactions", "-n", &w.home]).await else { return };
    let wide = w.kubectl(&["get", "healactions", "-n", &w.home, "-o", "wide"]).await.unwrap();
    let columns = |text: &str| text.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(columns(&wide)[5..], ["COMMAND", "MACHINE", "FAULT", "LEVEL", "REASON"]);
    assert!(wide.contains(&done.id.to_string()), "by the id that the hub and the log name: {wide}");
    assert!(wide.contains(&widest) && wide.contains("node_condition KernelDea"), "the whole names: {wide}");
    assert_eq!(columns(&text), ["NAME", "NODE", "WHAT", "STATE", "AGE"]);
    let lines: Vec<_> = text.lines().collect();
    let told = lines.iter().find(|line| line.starts_with(&*name_of(&done.id.to_string()))).unwrap();
    for part in [&*w.name("n1"), " mark xid 79 ", "SUCCEEDED"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    for (what, state) in [("release node_c~", "CANCELLED"), ("release xid 79", "SUCCEEDED")] {
        assert!(lines.iter().any(|line| line.contains(what) && line.contains(state)), "{what}: {text}");
    }
    // An age may take five letters, and takes fewer here.
    let room = |line: &&&str| line.trim_end().len() - line.split_whitespace().last().unwrap().len() + 5;
    assert!(lines[1..].iter().all(|line| room(&line) <= 80), "{text}");
}

/// The condition of this type, as its status and message.
fn condition(action: &Value, kind: &str) -> Option<(String, String)> {
    let conditions = action["status"]["conditions"].as_array()?;
    let known = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some((known["status"].as_str()?.to_owned(), known["message"].as_str()?.to_owned()))
}

async fn a_drain_that_a_budget_holds_does_not_look_like_one_that_gets_on(w: World) {
    w.guarded_pod().await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    let blocked = || async { w.action(command.id).await.and_then(|action| condition(&action, "Blocked")) };
    settled::is_true("it says that it is held", || async { blocked().await.is_some_and(|(status, _)| status == "True") }).await;
    let held = w.action(command.id).await.unwrap();
    let (_, message) = condition(&held, "Blocked").unwrap();
    assert!(
        message.contains(&format!("{}/guarded-1: ", w.ns)) && message.contains("guarded") && message.contains('1'),
        "{message}"
    );
    assert_eq!((&held["status"]["state"], &held["status"]["shownState"]), (&json!("STARTED"), &json!("BLOCKED")));
    if let Some(text) = w.kubectl(&["get", "healactions", "-n", &w.home]).await {
        assert!(text.contains("BLOCKED"), "{text}");
        w.kubectl(&["wait", "-n", &w.home, "--for=condition=Blocked", &format!("ha/{}", name_of(&command.id.to_string()))]).await;
    }
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let action = w.action(command.id).await.unwrap();
    assert_eq!(condition(&action, "Blocked").unwrap().0, "False");
    assert_eq!(action["status"]["shownState"], "SUCCEEDED");
}
