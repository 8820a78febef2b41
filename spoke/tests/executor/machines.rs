//! Machines that go or are replaced, and what cannot be read: a name is nobody, a UID is; and what nobody can read is neither gone
//! nor empty.

use gpuheal_proto::{
    command::Command,
    ids::{IncidentId, uuid_v7},
    link::v1::{CommandState, RefusalCode},
    time::Timestamp,
};
use gpuheal_spoke::ports::Standing;
use kubesim::build;
use serde_json::json;
use testkube::settled;

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    a_machine_under_the_name_of_one_that_was_marked_inherits_neither_its_revision_nor_its_cooldown_nor_its_place,
    a_drain_whose_machine_was_replaced_while_nobody_led_ends_as_gone_and_the_new_one_is_left_alone,
    a_node_deleted_mid_drain_ends_it_as_gone_once_and_frees_its_place,
    a_node_that_cannot_be_read_is_not_gone,
    a_node_whose_pods_cannot_be_listed_is_not_called_drained,
    a_pod_made_anew_under_the_name_of_one_that_went_is_another,
    a_fault_that_is_gone_by_the_time_its_command_comes_is_not_acted_on,
    whatever_is_listed_is_asked_for_in_pages,
];

/// A drain of `n1` under way, which its budget holds.
async fn held_drain(w: &World, spoke: &Spoke, plan_rev: u64) -> Command {
    w.guarded_pod().await;
    let command = w.command("n1", plan_rev, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    command
}

async fn is_open(w: &World, command: &Command) -> bool {
    let action = w.action(command.id).await.unwrap();
    matches!(action["status"]["state"].as_str(), None | Some("RECEIVED" | "STARTED"))
}

/// The same for another incident.
fn of_another_incident(mut command: Command) -> Command {
    command.incident = IncidentId::from_uuid(uuid_v7(Timestamp::from_unix_ms(2), &[3; 32]));
    command
}

async fn a_machine_under_the_name_of_one_that_was_marked_inherits_neither_its_revision_nor_its_cooldown_nor_its_place(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "cooldown: 30m\nceiling: {nodesOut: 1}").await;
    let marked = spoke.carry_out(&w.command("n1", 7, vec![mark()]).await).await;
    assert_eq!(marked.state(), CommandState::Succeeded, "{}", marked.reason);
    spoke.sees(&w, "n1").await;
    let held = spoke.carry_out(&of_another_incident(w.command("n1", 8, vec![mark()]).await)).await;
    assert_eq!(held.refusal(), RefusalCode::Cooldown, "the machine itself is in its cooldown: {}", held.reason);
    w.replace_node("n1").await;
    spoke.sees(&w, "n1").await;
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
    // Of a lower revision, of another incident, and the only one that may be out.
    let end = spoke.carry_out(&of_another_incident(w.command("n1", 3, vec![mark()]).await)).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let node = w.node("n1").await;
    assert_eq!(node["metadata"]["annotations"]["gpu-selfhealing.io/plan-revision"], "3");
}

async fn a_drain_whose_machine_was_replaced_while_nobody_led_ends_as_gone_and_the_new_one_is_left_alone(w: World) {
    let first = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &first, 1).await;
    w.kill_and_free(first).await;
    w.replace_node("n1").await;
    let mut next = Spoke::start(&w, "b", "").await;
    let end = next.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Failed, RefusalCode::NodeGone), "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false), "the new machine is left alone");
    let by_next = w.wire.evictions().into_iter().filter(|sent| sent.replica == "b").count();
    assert_eq!(by_next, 0, "its pods are those of another machine");
}

async fn a_node_deleted_mid_drain_ends_it_as_gone_once_and_frees_its_place(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {nodesOut: 1}").await;
    let command = held_drain(&w, &spoke, 1).await;
    let full = spoke.carry_out(&w.command("n2", 2, vec![mark()]).await).await;
    assert_eq!(full.refusal(), RefusalCode::OverCeiling, "n1 has the only place: {}", full.reason);
    w.delete_node("n1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Failed, RefusalCode::NodeGone), "{}", end.reason);
    let asked = w.wire.evictions().len();
    let action = w.action(command.id).await.unwrap();
    assert_eq!(action["status"]["state"], "FAILED");
    // Another whole command goes by, and nobody tries again.
    let next = spoke.carry_out(&w.command("n3", 3, vec![mark(), drain()]).await).await;
    assert_eq!(next.state(), CommandState::Succeeded, "its place is free: {}", next.reason);
    assert_eq!(w.wire.evictions().len(), asked);
    assert_eq!(spoke.carry_out(&command).await.refusal(), RefusalCode::NodeGone, "the same answer again");
}

async fn a_node_that_cannot_be_read_is_not_gone(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke, 1).await;
    let path = format!("/api/v1/nodes/{}", w.name("n1"));
    w.wire.fail_reads(Some(path));
    w.hide_node("n1").await;
    settled::is_true("it is asked for again and again", || async { w.wire.reads_failed() >= 3 }).await;
    assert!(is_open(&w, &command).await, "nobody knows that it is gone");
    w.wire.fail_reads(None);
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

async fn a_node_whose_pods_cannot_be_listed_is_not_called_drained(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    w.wire.fail_reads(Some("spec.nodeName".to_owned()));
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("they are listed again and again", || async { w.wire.reads_failed() >= 3 }).await;
    assert!(is_open(&w, &command).await, "an unread node is no empty one");
    assert!(w.wire.evictions().is_empty());
    w.wire.fail_reads(None);
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.evictions().await.len(), 1);
}

async fn a_pod_made_anew_under_the_name_of_one_that_went_is_another(w: World) {
    let mut set = build::statefulset(&w.ns, "train", 1, 1, &[("app", "train")]);
    set["spec"].as_object_mut().unwrap().remove("volumeClaimTemplates");
    set["spec"]["template"]["spec"]["nodeSelector"] = w.own_nodes();
    w.create_workload("statefulsets", &set).await;
    let before = w.ready_pod("train-0").await;
    let node = w.node_of(&before);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command(&node, 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.evictions().await.len(), 1);
    let after = settled::until("its controller has made it anew", || async {
        w.pod("train-0").await.filter(|pod| pod["metadata"]["uid"] != before["metadata"]["uid"])
    })
    .await;
    assert!(after["metadata"]["deletionTimestamp"].is_null(), "the new one is left alone");
}

async fn a_fault_that_is_gone_by_the_time_its_command_comes_is_not_acted_on(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    *spoke.faults.0.lock().unwrap() = Standing::Cleared;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::FaultCleared), "{}", end.reason);
    assert_eq!(w.writes_to("nodes").await, []);
}

async fn whatever_is_listed_is_asked_for_in_pages(w: World) {
    w.stateful_pod("db-1", "n1").await;
    w.allow_stateful_eviction().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_ne!(end.state(), CommandState::NotNow, "{}", end.reason);
    let lists: Vec<_> =
        w.asked_by_account().await.into_iter().filter(|entry| entry.verb == "list").map(|entry| entry.uri).collect();
    let whole: Vec<_> = lists.iter().filter(|uri| !uri.contains("limit=")).collect();
    assert!(lists.len() >= 5, "nodes, pods, HealActions, the ConfigMap, and more: {lists:?}");
    assert!(whole.is_empty(), "asked for at once, however many there are: {whole:?}");
}
