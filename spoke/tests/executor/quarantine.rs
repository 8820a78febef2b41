//! Marking: how often a node is written, and what is there before it is.

use gpuheal_proto::{
    command::{Command, Step},
    link::v1::{CommandState, StepState},
};
use gpuheal_spoke::healaction::name_of;
use serde_json::json;

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    a_quarantine_is_one_write_of_the_node,
    intent_and_undo_record_exist_before_the_node_is_touched,
    from_command_to_drained_and_reported_takes_at_most_seven_requests_and_one_for_its_pods_event,
    the_same_bytes_a_hundred_times_are_one_command,
    a_lost_race_is_rebased_and_the_foreign_taint_stays,
    events_are_found_by_reason_on_the_node_and_in_our_namespace,
    the_nodes_event_says_what_was_done_and_why_once_whether_the_hub_asked_for_one_or_not,
    an_event_alone_is_a_warning_that_says_why_once,
    an_event_that_was_not_posted_is_never_called_posted_and_a_command_that_was_nothing_else_has_failed,
];

async fn a_quarantine_is_one_write_of_the_node(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let node = w.node("n1").await;
    assert_eq!(marks(&node), (true, 1, true));
    assert_eq!(w.writes_to("nodes").await.len(), 1);
    assert_eq!(node["metadata"]["annotations"]["gpu-selfhealing.io/plan-revision"], "1");
    assert_eq!(end.undo.unwrap().fields.len(), 3, "the hub keeps the record for the release");
}

async fn intent_and_undo_record_exist_before_the_node_is_touched(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    let sent = w.wire.sent();
    let intent = sent.iter().position(|sent| sent.method == "POST" && sent.path.ends_with("/healactions")).unwrap();
    let patch = sent.iter().position(|sent| sent.method == "PATCH" && sent.path.contains("/nodes/")).unwrap();
    assert!(intent < patch, "the intent is asked for and answered before the node is");
    assert_eq!(sent[intent].code, Some(201));
    assert_eq!(sent[intent].body["spec"]["undo"].as_array().unwrap().len(), 3);
}

async fn from_command_to_drained_and_reported_takes_at_most_seven_requests_and_one_for_its_pods_event(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    // The first command under a key epoch writes the fence; that is once per epoch, not per command.
    let first = w.command("n2", 1, vec![mark()]).await;
    spoke.carry_out(&first).await;
    w.told_all(&first).await;
    let from = w.mark().await;
    let command = w.command("n1", 2, vec![mark(), drain()]).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.told_all(&command).await;
    let requests = w.requests_since(from).await;
    // What takes longer than two seconds, as on a slow machine, tells its progress: that many more.
    let progress = requests.iter().filter(|entry| entry.subresource == "status").count() - 1;
    let told: Vec<_> = requests.iter().map(testkube::AuditEntry::brief).collect();
    assert!(requests.len() - progress <= 8, "{told:#?}");
}

/// Failure table, row 8.
async fn the_same_bytes_a_hundred_times_are_one_command(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    for _ in 0..50 {
        spoke.send(signed(&command)).await;
    }
    let told = spoke.ended(command.id).await;
    assert_eq!(told.state(), CommandState::Succeeded, "{}", told.reason);
    for _ in 0..50 {
        let again = spoke.carry_out(&command).await;
        assert_eq!((again.state(), again.status_seq), (told.state(), told.status_seq), "its end is the answer: {}", again.reason);
    }
    assert_eq!(w.writes_to("nodes").await.len(), 1);
    assert_eq!(w.writes_to("healactions").await.iter().filter(|entry| entry.verb == "create").count(), 1);
}

async fn a_lost_race_is_rebased_and_the_foreign_taint_stays(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    // Changed behind the watch's back: the planned patch is one version too old.
    w.stall_node_watches();
    let foreign = json!([{"key": "example.com/x", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]);
    w.change_node("n1", json!({"spec": {"taints": foreign}})).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let answers: Vec<_> = w.writes_to("nodes").await.iter().map(|entry| entry.code).collect();
    assert_eq!(answers, [409, 200]);
    let taints = w.node("n1").await["spec"]["taints"].clone();
    assert_eq!(taints[0], foreign[0]);
    assert_eq!(taints[1]["key"], "gpu-selfhealing.io/faulty");
}

async fn events_are_found_by_reason_on_the_node_and_in_our_namespace(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark()]).await;
    spoke.carry_out(&command).await;
    w.told_all(&command).await;
    let told = on_node(&w, &command).await;
    for part in ["quarantined", "xid 79", &command.incident.to_string(), &command.id.to_string()] {
        assert!(told[0].contains(part), "{part} is not in {}", told[0]);
    }
    let name = name_of(&command.id.to_string()).into_owned();
    let events = w.events().await;
    let ours = events.iter().find(|event| event["involvedObject"]["name"] == name).unwrap();
    assert_eq!((&ours["reason"], &ours["involvedObject"]["kind"]), (&json!("GPUSelfHealing"), &json!("HealAction")));
    assert_eq!(ours["metadata"]["namespace"], w.home);
}

/// Messages of the Events on the command's node, by this command.
async fn on_node(w: &World, command: &Command) -> Vec<String> {
    let id = command.id.to_string();
    let all = w.events().await;
    let on_node = all.iter().filter(|event| {
        event["reason"] == "GPUSelfHealing"
            && event["involvedObject"]["kind"] == "Node"
            && event["involvedObject"]["name"] == command.target.node.name.as_str()
            && event["metadata"]["namespace"] == "default"
    });
    on_node.filter_map(|event| event["message"].as_str()).filter(|text| text.contains(&id)).map(str::to_owned).collect()
}

fn notify(command: &Command) -> Step {
    Step::Notify { message: command.reason.clone() }
}

async fn the_nodes_event_says_what_was_done_and_why_once_whether_the_hub_asked_for_one_or_not(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    for (node, asked) in [("n1", true), ("n2", false)] {
        let mut command = w.command(node, 1, vec![mark(), drain()]).await;
        if asked {
            command.steps.insert(0, notify(&command));
        }
        let end = spoke.carry_out(&command).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
        let told = on_node(&w, &command).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("quarantined: label, taint, cordon; GPU pods are being evicted; why: xid 79"), "{}", told[0]);
        assert_eq!(told[0].matches(&command.reason).count(), 1, "{}", told[0]);
        assert!(told[0].contains(&command.incident.to_string()), "{}", told[0]);
        if asked {
            assert_eq!((end.steps[0].state(), end.steps[0].message.as_str()), (StepState::Done, "Event posted"));
        }
    }
}

async fn an_event_alone_is_a_warning_that_says_why_once(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let mut command = w.command("n1", 1, vec![]).await;
    command.steps.push(notify(&command));
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let told = on_node(&w, &command).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("warned: xid 79"), "{}", told[0]);
    assert_eq!(told[0].matches(&command.reason).count(), 1, "{}", told[0]);
}

async fn an_event_that_was_not_posted_is_never_called_posted_and_a_command_that_was_nothing_else_has_failed(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    w.deny_events();
    let mut alone = w.command("n1", 1, vec![]).await;
    alone.steps.push(notify(&alone));
    let end = spoke.carry_out(&alone).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains("Event not posted"), "{}", end.reason);
    let mut with_mark = w.command("n2", 2, vec![mark()]).await;
    with_mark.steps.insert(0, notify(&with_mark));
    let end = spoke.carry_out(&with_mark).await;
    assert_eq!(end.state(), CommandState::Succeeded, "the mark does not hang on it: {}", end.reason);
    assert_eq!(end.steps[0].state(), StepState::Failed);
    assert!(end.steps[0].message.contains("Event not posted"), "{}", end.steps[0].message);
}
