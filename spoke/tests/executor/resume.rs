//! Crashes: what the next leader makes of what it finds.

use gpuheal_proto::{kubernetes::NAMESPACE, link::v1::CommandState};
use gpuheal_spoke::healaction::{HealAction, new_spec};
use gpuheal_spoke::ports::Attachment;
use kubesim::build;
use serde_json::json;

use crate::harness::{Cluster, Spoke, command, drain, eventually, existing, mark, marks, signed};

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_was_left_behind_is_taken_up_by_the_next_leader() {
    let cluster = Cluster::start().await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let spec = new_spec(&command, &signed(&command), "dead", 1);
    existing(&cluster, &HealAction::named(&command.id.to_string(), NAMESPACE, spec)).await;
    let mut spoke = Spoke::start(&cluster, "a", "").await;
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Succeeded);
    assert_eq!(marks(&cluster.node("n1")), (true, 1, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intent_that_appears_later_is_adopted() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let spec = new_spec(&command, &signed(&command), "late", 0);
    existing(&cluster, &HealAction::named(&command.id.to_string(), NAMESPACE, spec)).await;
    assert_eq!(spoke.ended(command.id).await.state(), CommandState::Succeeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_killed_mid_drain_is_followed_and_no_pod_is_evicted_twice() {
    let cluster = Cluster::start().await;
    // The first pod hangs in its termination, the second is held by its budget.
    cluster.gpu_pod(
        "slow",
        "n1",
        json!({"metadata": {"annotations": {build::EXIT_AFTER_MS: "9000"}}, "spec": {"terminationGracePeriodSeconds": 60}}),
    );
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let first = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    first.send(signed(&command)).await;
    eventually("both were asked for", || async { cluster.evictions().len() >= 2 }).await;
    first.kill();
    let mut second = Spoke::start(&cluster, "b", "").await;
    cluster.gpu_pod("guarded-2", "n2", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let accepted = |name: &str| cluster.evictions().iter().filter(|r| r.name == name && r.code == 201).count();
    assert_eq!((accepted("slow"), accepted("guarded-1")), (1, 1));
    assert_eq!(cluster.sim.recorder().writes_to("nodes").len(), 1, "marked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_patch_and_record_marks_once_and_keeps_whose_cordon_it_was() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    spoke.carry_out(&command).await;
    // As if the last status had never been written.
    let undo = cluster.action(command.id).unwrap()["spec"]["undo"].clone();
    cluster
        .sim
        .store()
        .edit("healactions.gpu-selfhealing.io", NAMESPACE, &command.id.to_string(), |action| action["status"] = json!(null))
        .unwrap();
    spoke.kill();
    let mut next = Spoke::start(&cluster, "b", "").await;
    let end = next.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(cluster.sim.recorder().writes_to("nodes").len(), 1);
    let told: Vec<_> = end.undo.unwrap().fields.iter().map(|field| field.before.clone()).collect();
    let was: Vec<_> =
        undo.as_array().unwrap().iter().map(|field| field["before"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(told, was, "the cordon is still known to be ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_is_told_again_at_a_new_session_until_it_is_acked() {
    let cluster = Cluster::start().await;
    let mut spoke = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let told = spoke.carry_out(&command).await;
    spoke.attachment.send_replace(Attachment { generation: Some(2), hub_term: 1, report_again: 0 });
    let again = spoke.ended(command.id).await;
    assert_eq!((again.status_seq, again.state()), (told.status_seq, told.state()));
    spoke.ack(&again).await;
    eventually("Hello would tell its number", || async { spoke.seen.borrow().cmd_seq == 1 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_old_leader_could_not_report_is_told_by_the_next() {
    let cluster = Cluster::start().await;
    let mut first = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark()]);
    let told = first.carry_out(&command).await;
    first.kill();
    let mut second = Spoke::start(&cluster, "b", "").await;
    let again = second.ended(command.id).await;
    assert_eq!((again.status_seq, again.state()), (told.status_seq, told.state()));
    assert_eq!(cluster.sim.recorder().writes_to("nodes").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_taken_up_keeps_the_first_leaders_pods_in_its_record() {
    let cluster = Cluster::start().await;
    for pod in ["web-1", "web-2"] {
        cluster.gpu_pod(pod, "n1", json!({}));
    }
    cluster.create(build::pdb("ml", "guarded", 1, &[("app", "guarded")]));
    cluster.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let first = Spoke::leading(&cluster, "a", "").await;
    let command = command(&cluster, "n1", 1, vec![mark(), drain()]);
    first.send(signed(&command)).await;
    eventually("two are gone, the third is held", || async {
        cluster.pod("web-1").is_none() && cluster.pod("web-2").is_none() && cluster.evictions().len() >= 3
    })
    .await;
    let planned = cluster.action(command.id).unwrap()["spec"]["pods"].as_array().unwrap().len();
    assert_eq!(planned, 3, "the plan was there before the first eviction");
    // Before any progress was written: what the intent says is all that the next leader has.
    first.kill();
    let mut second = Spoke::start(&cluster, "b", "").await;
    let id = command.id.to_string();
    second.told("progress", |status| status.command_id == id && status.state() == CommandState::Started).await;
    cluster.gpu_pod("guarded-2", "n2", json!({"metadata": {"labels": {"app": "guarded"}}}));
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(end.reason.contains("3 of 3 pods gone"), "{}", end.reason);
    let names: Vec<_> = end.steps[1].pods.iter().map(|pod| (pod.name.as_str(), pod.state.as_str())).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names.iter().all(|(_, state)| *state == "gone"), "{names:?}");
}
