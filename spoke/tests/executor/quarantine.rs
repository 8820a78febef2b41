//! Marking: how often a node is written, and what is there before it is.

use gpuheal_proto::{
    command::{Command, Step},
    link::v1::{CommandState, StepState},
};
use serde_json::json;

use crate::harness::{Cluster, Spoke, command, drain, eventually, mark, marks, signed};

/// The Event on the command's HealAction, the last call of all.
fn told(cluster: &Cluster, command: &Command) -> bool {
    cluster.sim.store().list("events").iter().any(|event| event["involvedObject"]["name"] == command.id.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_is_one_write_of_the_node() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(marks(&cluster.node("n1")), (true, 1, true));
    assert_eq!(cluster.sim.recorder().writes_to("nodes").len(), 1);
    assert_eq!(cluster.node("n1")["metadata"]["annotations"]["gpu-selfhealing.io/plan-revision"], "1");
    assert_eq!(end.undo.unwrap().fields.len(), 3, "the hub keeps the record for the release");
}

#[tokio::test(flavor = "multi_thread")]
async fn intent_and_undo_record_exist_before_the_node_is_touched() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    spoke.carry_out(&command(&cluster, "n1", 1, vec![mark()])).await;
    let writes = cluster.writes_since(0);
    let intent = writes.iter().find(|w| w.resource == "healactions" && w.verb == "create").unwrap();
    let patch = writes.iter().find(|w| w.resource == "nodes").unwrap();
    assert!(intent.seq < patch.seq);
    assert_eq!(intent.body.as_ref().unwrap()["spec"]["undo"].as_array().unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn from_command_to_drained_and_reported_takes_at_most_seven_requests() {
    let cluster = Cluster::start().await;
    cluster.gpu_pod("web-1", "n1", json!({}));
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    // The first command under a key epoch writes the fence; that is once per epoch, not per command.
    let first = command(&cluster, "n2", 1, vec![mark()]);
    spoke.carry_out(&first).await;
    eventually("its last Event is posted", || async { told(&cluster, &first) }).await;
    let from = cluster.sim.recorder().mark();
    let command = command(&cluster, "n1", 2, vec![mark(), drain()]);
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    eventually("the last Event is posted", || async { told(&cluster, &command) }).await;
    let requests: Vec<_> = cluster.requests_since(from).iter().map(|r| format!("{} {} {}", r.verb, r.target(), r.code)).collect();
    assert!(requests.len() <= 7, "{requests:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_bytes_a_hundred_times_are_one_command() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    for _ in 0..50 {
        spoke.send(signed(&command)).await;
    }
    spoke.ended(command.id).await;
    for _ in 0..50 {
        spoke.send(signed(&command)).await;
    }
    spoke.ended(command.id).await;
    assert_eq!(cluster.sim.recorder().writes_to("nodes").len(), 1);
    assert_eq!(cluster.sim.recorder().writes_to("healactions").iter().filter(|w| w.verb == "create").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_race_is_rebased_and_the_foreign_taint_stays() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    // Changed behind the watch's back: the planned patch is one version too old.
    cluster.sim.faults().stall_watches("nodes");
    let foreign = json!([{"key": "example.com/x", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]);
    cluster.sim.store().patch_merge("nodes", "", "n1", &json!({"spec": {"taints": foreign}})).unwrap();
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let taints = cluster.node("n1")["spec"]["taints"].clone();
    assert_eq!(taints[0], foreign[0]);
    assert_eq!(taints[1]["key"], "gpu-selfhealing.io/faulty");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_found_by_reason_on_the_node_and_in_our_namespace() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    spoke.carry_out(&command).await;
    eventually("both Events", || async {
        let events = cluster.sim.store().list("events");
        let ours = |namespace: &str, kind: &str| {
            events.iter().any(|event| {
                event["reason"] == "GPUSelfHealing"
                    && event["metadata"]["namespace"] == namespace
                    && event["involvedObject"]["kind"] == kind
            })
        };
        ours("default", "Node") && ours("gpu-selfhealing", "HealAction")
    })
    .await;
    let events = cluster.sim.store().list("events");
    let on_node = events.iter().find(|event| event["involvedObject"]["kind"] == "Node").unwrap();
    let message = on_node["message"].as_str().unwrap();
    for part in ["quarantined", "xid 79", &command.incident.to_string(), &command.id.to_string()] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
}

/// Messages of the Events on the command's node, by this command.
fn on_node(cluster: &Cluster, command: &Command) -> Vec<String> {
    let id = command.id.to_string();
    let all = cluster.sim.store().list("events");
    let on_node =
        all.iter().filter(|event| event["involvedObject"]["kind"] == "Node" && event["metadata"]["namespace"] == "default");
    on_node.filter_map(|event| event["message"].as_str()).filter(|text| text.contains(&id)).map(str::to_owned).collect()
}

fn notify(command: &Command) -> Step {
    Step::Notify { message: command.reason.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_event_says_what_was_done_and_why_once_whether_the_hub_asked_for_one_or_not() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    for (node, asked) in [("n1", true), ("n2", false)] {
        let mut command = command(&cluster, node, 1, vec![mark(), drain()]);
        if asked {
            command.steps.insert(0, notify(&command));
        }
        let end = spoke.carry_out(&command).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
        let told = on_node(&cluster, &command);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("quarantined: label, taint, cordon; GPU pods are being evicted; why: xid 79"), "{}", told[0]);
        assert_eq!(told[0].matches(&command.reason).count(), 1, "{}", told[0]);
        assert!(told[0].contains(&command.incident.to_string()), "{}", told[0]);
        if asked {
            assert_eq!((end.steps[0].state(), end.steps[0].message.as_str()), (StepState::Done, "Event posted"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_alone_is_a_warning_that_says_why_once() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let mut command = command(&cluster, "n1", 1, vec![]);
    command.steps.push(notify(&command));
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let told = on_node(&cluster, &command);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("warned: xid 79"), "{}", told[0]);
    assert_eq!(told[0].matches(&command.reason).count(), 1, "{}", told[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_not_posted_is_never_called_posted_and_a_command_that_was_nothing_else_has_failed() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    cluster.sim.faults().deny("create", "events", None);
    let mut alone = command(&cluster, "n1", 1, vec![]);
    alone.steps.push(notify(&alone));
    let end = spoke.carry_out(&alone).await;
    assert_eq!(end.state(), CommandState::Failed);
    assert!(end.reason.contains("Event not posted"), "{}", end.reason);
    let mut with_mark = command(&cluster, "n2", 2, vec![mark()]);
    with_mark.steps.insert(0, notify(&with_mark));
    let end = spoke.carry_out(&with_mark).await;
    assert_eq!(end.state(), CommandState::Succeeded, "the mark does not hang on it: {}", end.reason);
    assert_eq!(end.steps[0].state(), StepState::Failed);
    assert!(end.steps[0].message.contains("Event not posted"), "{}", end.steps[0].message);
}
