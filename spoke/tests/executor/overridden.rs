//! What comes in between while a drain is under way: a person, the cluster's owner, another controller, another machine under
//! the node's name. Each is asked before every further eviction.

use gpuheal_proto::{
    command::{Command, Others},
    link::v1::{CommandState, CommandStatus, RefusalCode},
};
use gpuheal_spoke::ports::Standing;
use gpuheal_spoke_core::verify::marker;
use serde_json::{Value, json};
use testkube::settled;

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::{World, marks},
};

testkube::claims![
    a_node_replaced_mid_drain_ends_as_gone_and_no_pod_is_evicted_any_more,
    a_node_that_our_watch_does_not_show_is_asked_for_and_its_drain_goes_on,
    an_opt_out_label_mid_drain_stops_it,
    an_uncordon_mid_drain_is_an_order,
    anothers_marker_mid_drain_stops_it,
    a_marker_that_the_commands_policy_ignores_neither_refuses_nor_stops_it_and_any_other_does,
    an_uncordon_by_what_the_commands_policy_calls_an_automation_is_no_order,
    a_label_that_the_ceiling_protects_stops_a_drain_under_way,
    a_mode_that_is_lowered_mid_drain_stops_it_and_the_mark_stays,
    a_fault_that_is_gone_wakes_a_drain_that_only_waits_for_a_pod_to_finish,
    an_uncordon_is_an_order_also_to_a_drain_of_what_was_marked_before,
    a_taint_taken_off_is_an_order_also_to_a_drain_of_what_was_marked_before,
    a_label_taken_off_is_an_order_also_to_a_drain_of_what_was_marked_before,
    what_was_taken_off_while_nobody_led_is_an_order_also_to_a_drain_of_what_was_marked_before,
    a_node_that_nothing_quarantines_is_not_drained_and_a_watch_that_is_late_is_no_reason_not_to,
];

/// A drain of `n1` under way, and its budget has said no.
async fn held_drain(w: &World, spoke: &Spoke) -> Command {
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    command
}

/// Its pod may go now, a whole other command goes by, and nobody asked for it.
async fn nobody_is_evicted_any_more(w: &World, spoke: &mut Spoke) {
    let asked = w.wire.evictions().len();
    w.free_budget().await;
    let end = spoke.carry_out(&w.command("n3", 9, vec![mark(), drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(w.wire.evictions().len(), asked);
    assert!(w.pod("guarded-1").await.is_some());
}

async fn a_node_replaced_mid_drain_ends_as_gone_and_no_pod_is_evicted_any_more(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    w.replace_node("n1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Failed, RefusalCode::NodeGone), "{}", end.reason);
    nobody_is_evicted_any_more(&w, &mut spoke).await;
    assert_eq!(marks(&w.node("n1").await), (false, 0, false), "the new machine is left alone");
}

async fn a_node_that_our_watch_does_not_show_is_asked_for_and_its_drain_goes_on(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain(&w, &spoke).await;
    let name = w.name("n1");
    w.hide_node("n1").await;
    settled::is_true("our watch does not show it", || async { spoke.nodes.node(&name).is_none() }).await;
    settled::is_true("the API server is asked", || async { w.wire.node_reads(&name) > 0 }).await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

/// How a drain under way ends when its node is changed so.
async fn ends_when_node_is(w: &World, ceiling: &str, patch: Value) -> CommandStatus {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(w, "a", ceiling).await;
    let command = held_drain(w, &spoke).await;
    w.change_node("n1", patch).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled, "{}", end.reason);
    nobody_is_evicted_any_more(w, &mut spoke).await;
    end
}

async fn an_opt_out_label_mid_drain_stops_it(w: World) {
    let end = ends_when_node_is(&w, "", json!({"metadata": {"labels": {"gpu-selfhealing.io/opt-out": "true"}}})).await;
    assert_eq!(end.refusal(), RefusalCode::OptedOut, "{}", end.reason);
}

async fn an_uncordon_mid_drain_is_an_order(w: World) {
    let end = ends_when_node_is(&w, "", json!({"spec": {"unschedulable": null}})).await;
    assert!(end.reason.contains("overridden by a person: the cordon"), "{}", end.reason);
    assert_eq!(marks(&w.node("n1").await), (true, 1, false), "it is not set again");
}

async fn anothers_marker_mid_drain_stops_it(w: World) {
    let end = ends_when_node_is(&w, "", json!({"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}})).await;
    assert_eq!(end.refusal(), RefusalCode::ForeignMarker, "{}", end.reason);
    assert!(end.reason.contains("karpenter.sh/do-not-disrupt=true"), "{}", end.reason);
}

fn said(command: Command, markers: &[&str], automations: &[&str]) -> Command {
    let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
    Command { others: Others { markers_ignored: texts(markers), automations: texts(automations) }, ..command }
}

async fn a_marker_that_the_commands_policy_ignores_neither_refuses_nor_stops_it_and_any_other_does(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let marker = |key: &str| json!({"metadata": {"annotations": {key: "true"}}});
    w.change_node("n1", marker("karpenter.sh/do-not-disrupt")).await;
    settled::is_true("our watch shows it", || async {
        spoke.nodes.node(&w.name("n1")).is_some_and(|node| node.facts().is_some_and(|facts| !marker::all(&facts).is_empty()))
    })
    .await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!(end.refusal(), RefusalCode::ForeignMarker, "{}", end.reason);
    let command = said(w.command("n1", 2, vec![mark(), drain()]).await, &["karpenter.sh/do-not-disrupt=true"], &[]);
    spoke.send(signed(&command)).await;
    settled::is_true("it goes as far as the budget", || async { !w.wire.evictions().is_empty() }).await;
    w.change_node("n1", marker("karpenter.sh/do-not-evict")).await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::ForeignMarker), "{}", end.reason);
    assert!(end.reason.contains("karpenter.sh/do-not-evict=true"), "{}", end.reason);
}

async fn an_uncordon_by_what_the_commands_policy_calls_an_automation_is_no_order(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = said(w.command("n1", 1, vec![mark(), drain()]).await, &[], &["driver-manager"]);
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    w.apply_node("n1", "driver-manager", json!({"spec": {"unschedulable": false}})).await;
    let asked = w.wire.evictions().len();
    settled::is_true("it is asked for again", || async { w.wire.evictions().len() > asked + 1 }).await;
    assert_eq!(marks(&w.node("n1").await), (true, 1, false));
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
}

async fn a_label_that_the_ceiling_protects_stops_a_drain_under_way(w: World) {
    let ceiling = "ceiling: {protectedLabels: {team: inference}}";
    let end = ends_when_node_is(&w, ceiling, json!({"metadata": {"labels": {"team": "inference"}}})).await;
    assert_eq!(end.refusal(), RefusalCode::OverCeiling, "{}", end.reason);
    assert!(end.reason.contains("carries team"), "{}", end.reason);
}

async fn a_mode_that_is_lowered_mid_drain_stops_it_and_the_mark_stays(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "ceiling: {mode: heal}").await;
    let command = held_drain(&w, &spoke).await;
    spoke.configured(&w, "ceiling: {mode: mark}").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::OverCeiling), "{}", end.reason);
    let asked = w.wire.evictions().len();
    w.free_budget().await;
    let other = spoke.carry_out(&w.command("n3", 9, vec![mark()]).await).await;
    assert_eq!(other.state(), CommandState::Succeeded, "{}", other.reason);
    assert_eq!(w.wire.evictions().len(), asked);
    assert_eq!(marks(&w.node("n1").await), (true, 1, true), "what was done is the release's to undo");
}

async fn a_fault_that_is_gone_wakes_a_drain_that_only_waits_for_a_pod_to_finish(w: World) {
    let labels = json!({"gpu-selfhealing.io/evict": "after-completion"});
    w.gpu_pod("web-1", "n1", json!({"metadata": {"labels": labels}})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("it waits", || async {
        let action = w.action(command.id).await;
        action.is_some_and(|action| action["status"]["steps"][1]["pods"][0]["state"] == "waiting for its completion")
    })
    .await;
    *spoke.faults.0.lock().unwrap() = Standing::Cleared;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::FaultCleared), "{}", end.reason);
    assert_eq!(w.wire.evictions().len(), 0);
}

/// A drain of `n1` under way, which an earlier command has marked; its budget has said no.
async fn held_drain_of_marked(w: &World, spoke: &mut Spoke) -> Command {
    w.guarded_pod().await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    // Of the plan that marked, or of a later one.
    let command = w.command("n1", 2, vec![drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    command
}

async fn is_an_order(w: World, patch: Value, what: &str) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = held_drain_of_marked(&w, &mut spoke).await;
    w.change_node("n1", patch).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled, "{}", end.reason);
    assert!(end.reason.contains(&format!("overridden by a person: {what}")), "{}", end.reason);
    nobody_is_evicted_any_more(&w, &mut spoke).await;
}

async fn an_uncordon_is_an_order_also_to_a_drain_of_what_was_marked_before(w: World) {
    is_an_order(w, json!({"spec": {"unschedulable": null}}), "the cordon").await;
}

async fn a_taint_taken_off_is_an_order_also_to_a_drain_of_what_was_marked_before(w: World) {
    is_an_order(w, json!({"spec": {"taints": null}}), "the taint").await;
}

async fn a_label_taken_off_is_an_order_also_to_a_drain_of_what_was_marked_before(w: World) {
    is_an_order(w, json!({"metadata": {"labels": {"gpu-selfhealing.io/status": null}}}), "the label").await;
}

async fn what_was_taken_off_while_nobody_led_is_an_order_also_to_a_drain_of_what_was_marked_before(w: World) {
    let mut first = Spoke::leading(&w, "a", "").await;
    let command = held_drain_of_marked(&w, &mut first).await;
    w.kill_and_free(first).await;
    let all = json!({"metadata": {"labels": {"gpu-selfhealing.io/status": null}}, "spec": {"taints": null, "unschedulable": null}});
    w.change_node("n1", all).await;
    let asked = w.wire.evictions().len();
    w.free_budget().await;
    let mut second = Spoke::start(&w, "b", "").await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Cancelled, "{}", end.reason);
    assert!(end.reason.contains("overridden by a person: the label"), "{}", end.reason);
    assert!(w.pod("guarded-1").await.is_some());
    assert_eq!(w.wire.evictions().len(), asked);
}

async fn a_node_that_nothing_quarantines_is_not_drained_and_a_watch_that_is_late_is_no_reason_not_to(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![drain()]).await).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Refused, RefusalCode::Unmarked), "{}", end.reason);
    assert_eq!(w.wire.evictions().len(), 0);
    w.stall_node_watches();
    let end = spoke.carry_out(&w.command("n1", 2, vec![mark()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    let end = spoke.carry_out(&w.command("n1", 3, vec![drain()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("web-1").await;
}
