//! Releasing: what goes and what stays.

use gpuheal_proto::{
    ids::CommandId,
    link::v1::{CommandState, RefusalCode, UndoField, UndoKind, UndoRecord},
};
use gpuheal_spoke::healaction::name_of;
use serde_json::json;
use testkube::settled;

use crate::{
    hub::{mark, release},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    a_release_takes_off_what_is_ours_and_leaves_a_persons_cordon,
    our_own_cordon_goes_and_without_a_record_from_the_hub_the_clusters_own_is_used,
    no_record_of_a_hub_takes_a_persons_cordon_off,
    without_any_record_the_cordons_own_manager_tells_whose_it_is,
    the_record_of_a_mark_is_kept_until_its_release_is_acked,
    a_release_whose_clean_up_failed_is_cleaned_up_later,
    the_record_of_a_node_that_is_gone_is_let_go,
    a_release_leaves_an_event_on_the_node_and_on_its_healaction_and_is_about_the_incidents_fault,
];

async fn a_release_takes_off_what_is_ours_and_leaves_a_persons_cordon(w: World) {
    w.change_node("n1", json!({"spec": {"unschedulable": true}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let first = w.command("n1", 1, vec![mark()]).await;
    let marked = spoke.carry_out(&first).await;
    assert_eq!(marks(&w.node("n1").await), (true, 1, true));
    w.told_all(&first).await;
    spoke.sees(&w, "n1").await;
    let from = w.mark().await;
    let second = w.command("n1", 2, vec![release(marked.undo)]).await;
    let end = spoke.carry_out(&second).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let node = w.node("n1").await;
    assert_eq!(marks(&node), (false, 0, true), "the cordon was there before us");
    assert_eq!(node["metadata"]["annotations"]["gpu-selfhealing.io/plan-revision"], "2", "the fence stays");
    w.told_all(&second).await;
    let requests: Vec<_> = w.requests_since(from).await.iter().map(testkube::AuditEntry::brief).collect();
    assert!(requests.len() <= 5, "{requests:#?}");
}

async fn our_own_cordon_goes_and_without_a_record_from_the_hub_the_clusters_own_is_used(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {nodesOut: 1}").await;
    spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    spoke.configured(&w, "ceiling: {stop: true}").await;
    let end = spoke.carry_out(&w.command("n1", 2, vec![release(None)]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "a release waits for no ceiling: {}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (false, 0, false));
}

/// What a hub sends whose database was restored from before the mark: that the cordon had been ours.
fn old_record() -> UndoRecord {
    let field = UndoField { kind: UndoKind::Unschedulable.into(), after: "true".into(), ..UndoField::default() };
    UndoRecord { fields: vec![field] }
}

/// Failure table, row 18.
async fn no_record_of_a_hub_takes_a_persons_cordon_off(w: World) {
    let cordon = |on: bool| json!({"spec": {"unschedulable": on.then_some(true)}});
    w.change_node("n1", cordon(true)).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    for node in ["n1", "n2"] {
        spoke.carry_out(&w.command(node, 1, vec![mark()]).await).await;
    }
    // Somebody has freed the second, and taken it out again.
    w.change_node("n2", cordon(false)).await;
    w.change_node("n2", cordon(true)).await;
    for node in ["n1", "n2"] {
        spoke.sees(&w, node).await;
        let end = spoke.carry_out(&w.command(node, 2, vec![release(Some(old_record()))]).await).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{node}: {}", end.reason);
        assert!(end.reason.contains("left unschedulable"), "{node}: {}", end.reason);
        assert_eq!(marks(&w.node(node).await), (false, 0, true), "{node}: {}", end.reason);
    }
}

async fn without_any_record_the_cordons_own_manager_tells_whose_it_is(w: World) {
    w.change_node("n1", json!({"spec": {"unschedulable": true}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    for node in ["n1", "n2"] {
        let command = w.command(node, 1, vec![mark()]).await;
        spoke.carry_out(&command).await;
        w.told_all(&command).await;
    }
    w.kill_and_free(spoke).await;
    w.lose_actions().await;
    let mut next = Spoke::start(&w, "b", "").await;
    for (node, stays) in [("n1", true), ("n2", false)] {
        let command = w.command(node, 2, vec![release(Some(old_record()))]).await;
        let end = next.decided(&command, RefusalCode::Unspecified).await;
        assert_eq!(end.state(), CommandState::Succeeded, "{node}: {}", end.reason);
        assert_eq!(w.node(node).await["spec"]["unschedulable"] == true, stays, "{node}: {}", end.reason);
    }
}

async fn held(w: &World, id: CommandId) -> bool {
    w.action(id).await.unwrap()["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

async fn the_record_of_a_mark_is_kept_until_its_release_is_acked(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let first = w.command("n1", 1, vec![mark()]).await;
    let marked = spoke.carry_out(&first).await;
    spoke.ack(&marked).await;
    let second = w.command("n1", 2, vec![release(marked.undo)]).await;
    let released = spoke.carry_out(&second).await;
    assert!(held(&w, first.id).await, "a node may come back from repair after weeks");
    assert!(held(&w, second.id).await, "its outcome has not reached the hub");
    spoke.ack(&released).await;
    settled::is_true("both are let go", || async { !held(&w, first.id).await && !held(&w, second.id).await }).await;
}

async fn a_release_whose_clean_up_failed_is_cleaned_up_later(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let first = w.command("n1", 1, vec![mark()]).await;
    let marked = spoke.carry_out(&first).await;
    spoke.ack(&marked).await;
    let second = w.command("n1", 2, vec![release(marked.undo)]).await;
    let released = spoke.carry_out(&second).await;
    w.wire.deny_patches(Some(name_of(&first.id.to_string()).into_owned()));
    spoke.ack(&released).await;
    settled::is_true("the mark could not be let go", || async { w.wire.patches_refused() > 0 }).await;
    assert!(held(&w, first.id).await);
    assert!(held(&w, second.id).await, "nobody else tells that the mark may go");
    w.wire.deny_patches(None);
    settled::is_true("both are let go", || async { !held(&w, first.id).await && !held(&w, second.id).await }).await;
}

async fn the_record_of_a_node_that_is_gone_is_let_go(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (gone, stays) = (w.command("n1", 1, vec![mark()]).await, w.command("n2", 1, vec![mark()]).await);
    for command in [&gone, &stays] {
        let marked = spoke.carry_out(command).await;
        spoke.ack(&marked).await;
    }
    // Out of our watch's sight is not gone.
    w.hide_node("n2").await;
    w.replace_node("n1").await;
    settled::is_true("the record is let go", || async { !held(&w, gone.id).await }).await;
    settled::is_true("the other node is asked for", || async { w.wire.node_reads(&w.name("n2")) > 0 }).await;
    assert!(held(&w, stays.id).await, "its release is still to come");
}

async fn a_release_leaves_an_event_on_the_node_and_on_its_healaction_and_is_about_the_incidents_fault(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let marked = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    let mut back = w.command("n1", 2, vec![release(marked.undo)]).await;
    back.reason = "clear for 15 min".into();
    let end = spoke.carry_out(&back).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.told_all(&back).await;
    let (id, all) = (back.id.to_string(), w.events().await);
    let told = |kind: &str, namespace: &str| {
        let ours = all.iter().filter(|event| event["message"].as_str().is_some_and(|text| text.contains(&id)));
        ours.filter(|event| event["involvedObject"]["kind"] == kind && event["metadata"]["namespace"] == namespace).count()
    };
    assert_eq!((told("Node", "default"), told("HealAction", &w.home)), (1, 1));
    assert_eq!(w.action(back.id).await.unwrap()["spec"]["fault"], "xid 79");
}
