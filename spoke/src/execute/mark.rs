//! The mark step: one patch of the node. A lost race is read again and rebased; a higher plan revision on the node means
//! that somebody newer has been there, and nothing is written.

use std::sync::Arc;

use gpuheal_proto::{
    command::{Command, CommandState, Refusal, Step, Undo},
    kubernetes::FIELD_MANAGER,
};
use gpuheal_spoke_core::{
    drain::backoff,
    mark::{Marking, NodeFacts, Stamp, Want, mark as plan},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::Value;

use super::{Ctx, api::Error, guard::Halt, notify, run::Run};
use crate::{
    events::Kind,
    healaction::{self, HealAction},
    metrics,
    verify::{cached_node, node_facts, record_now},
    watch::Nodes,
};

/// Attempts at one patch: a node's status is written every few seconds by its kubelet, so a few lost races are usual.
pub(super) const ATTEMPTS_MAX: u32 = 12;

/// The record that the intent holds: of the first mark, as our watch shows the node now.
pub(super) fn planned_undo(ctx: &Ctx, command: &Command) -> Undo {
    let want = command.steps.iter().find_map(|step| match step {
        Step::Mark { label, taint, cordon } => Some(Want { label: *label, taint: *taint, cordon: *cordon }),
        _ => None,
    });
    let node = cached_node(&ctx.deps.nodes, command.target.node.name.as_str());
    let (Some(want), Some(node)) = (want, node) else { return Undo::default() };
    let earlier = ctx.records.standing_undo(&node, command);
    plan(&node, want, stamp(ctx, command), &earlier).undo().clone()
}

pub(super) fn stamp(ctx: &Ctx, command: &Command) -> Stamp {
    Stamp { incident: command.incident, plan_rev: command.plan_rev, at: record_now(&ctx.deps.clock) }
}

/// Brings the node to `want`.
pub(super) async fn mark(run: &mut Run<'_>, want: Want) -> Result<String, Halt> {
    let mut node = cached_node(&run.ctx.deps.nodes, run.command.target.node.name.as_str());
    for attempt in 0..ATTEMPTS_MAX {
        let facts = current(run, node.take()).await?;
        // Our write shows, by whichever leader it was sent, and what it set does not.
        if let (None, Some(what)) = (run.guard.marked, want.taken_away(&facts, run.command.plan_rev, &run.command.others)) {
            run.was_done("was marked already");
            return Err(Halt::overridden(what, &facts));
        }
        let earlier = run.earlier_undo(&facts);
        let message = match plan(&facts, want, stamp(run.ctx, run.command), &earlier) {
            Marking::Done { .. } => "was marked already".to_owned(),
            Marking::Write { undo, patch } => {
                run.record_undo(&undo).await?;
                run.guard.pass().await?;
                dies_at!("execute.before-patch");
                match patch_node(run, &patch).await? {
                    Patched::Yes => "marked".to_owned(),
                    Patched::Again => {
                        pause(attempt).await;
                        continue;
                    }
                }
            }
        };
        run.guard.marked = Some((want, run.command.plan_rev));
        tell(run, want);
        return Ok(message);
    }
    run.ctx.deps.metrics.inc(metrics::ANNOTATION_FAILED, &[]);
    Err(Halt::failed(format!("the node was changed by others {ATTEMPTS_MAX} times in a row")))
}

/// What an earlier command has set on the node, for one that drains and marks nothing itself: what a person takes off that is an order as
/// well, also when nobody led at that moment. Our watch may be late: before a node counts as not marked it is read.
pub(super) async fn standing(run: &mut Run<'_>) -> Result<(), Halt> {
    let shown = cached_node(&run.ctx.deps.nodes, run.command.target.node.name.as_str());
    let facts = current(run, shown.filter(NodeFacts::quarantined)).await?;
    let record = run.ctx.records.standing_undo(&facts, run.command);
    let Some(want) = Want::standing(&record, &facts) else { return Err(Halt::unmarked(&facts)) };
    let plan_rev = facts.plan_revision().unwrap_or_default();
    if let Some(what) = want.taken_away(&facts, plan_rev, &run.command.others) {
        return Err(Halt::overridden(what, &facts));
    }
    run.guard.marked = Some((want, plan_rev));
    Ok(())
}

/// One Event on the node: what is on it now.
pub(super) fn tell(run: &mut Run<'_>, want: Want) {
    let all = [(want.label, "label"), (want.taint, "taint"), (want.cordon, "cordon")];
    let done: Vec<_> = all.into_iter().filter_map(|(set, name)| set.then_some(name)).collect();
    let drains = run.command.steps.iter().any(|step| matches!(step, Step::Drain(_)));
    let then = if drains { "; GPU pods are being evicted" } else { "" };
    notify::tell(run, "mark", Kind::Warning, format!("quarantined: {}{then}", done.join(", ")));
}

/// Whether an effect of a command may have happened, by its record or by the node as our watch shows it.
pub(super) fn begun(nodes: &Nodes, action: &HealAction, command: &Command) -> bool {
    healaction::may_have_begun(action, command, || cached_node(nodes, command.target.node.name.as_str()))
}

/// What came of a patch.
pub(super) enum Patched {
    /// Written.
    Yes,
    /// Read again and plan anew.
    Again,
}

/// Sends a JSON patch. What cannot be told is planned anew from a fresh read: the patch is bound to its
/// resourceVersion, so that a second one is a conflict if the first one happened.
pub(super) async fn patch_node(run: &Run<'_>, patch: &Value) -> Result<Patched, Halt> {
    let ops: json_patch::Patch = serde_json::from_value(patch.clone()).expect("our own patches are JSON patches");
    let api: Api<Node> = Api::all(run.ctx.kube.client());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = run.command.target.node.name.as_str();
    match run.ctx.kube.effect("patch node", api.patch(name, &params, &Patch::Json::<()>(ops))).await {
        Ok(_) => {
            dies_at!("execute.node-patched");
            Ok(Patched::Yes)
        }
        Err(error) if error.conflict() || error.transient() => {
            tracing::debug!(command.id = %run.command.id, error = %gpuheal_proto::chain::chain(&error), "node patch planned anew");
            Ok(Patched::Again)
        }
        Err(error) if error.not_found() => Err(Halt::gone(run.command)),
        Err(error) => {
            run.ctx.deps.metrics.inc(metrics::ANNOTATION_FAILED, &[]);
            Err(Halt::failed(error.to_string()))
        }
    }
}

/// The node as given, or read now; still the same machine, and not passed by a newer plan.
pub(super) async fn current(run: &Run<'_>, known: Option<NodeFacts>) -> Result<NodeFacts, Halt> {
    let target = &run.command.target.node;
    let facts = match known {
        Some(facts) if facts.uid == target.uid.as_str() => facts,
        Some(_) | None => read(run).await?,
    };
    if facts.uid != target.uid.as_str() {
        return Err(Halt::gone(run.command));
    }
    match facts.plan_revision() {
        Some(seen) if seen > run.command.plan_rev => Err(Halt::end(
            CommandState::Cancelled,
            Refusal::Superseded,
            format!("plan revision {}, node {} carries {seen}", run.command.plan_rev, facts.name),
        )),
        Some(_) | None => Ok(facts),
    }
}

async fn read(run: &Run<'_>) -> Result<NodeFacts, Halt> {
    let api: Api<Node> = Api::all(run.ctx.kube.client());
    let name = run.command.target.node.name.as_str();
    let mut attempt = 0;
    loop {
        run.guard.pass().await?;
        let result: Result<Node, Error> = run.ctx.kube.call("get node", api.get(name)).await;
        match result {
            Ok(node) => return node_facts(&node).ok_or_else(|| Halt::failed("the node has no UID")),
            Err(error) if error.not_found() => return Err(Halt::gone(run.command)),
            Err(error) if error.transient() => {
                pause(attempt).await;
                attempt += 1;
            }
            Err(error) => return Err(Halt::failed(error.to_string())),
        }
    }
}

/// A lost race is tried again soon, with jitter: the first at once.
pub(super) async fn pause(attempt: u32) {
    if attempt > 0 {
        tokio::time::sleep(backoff(attempt - 1, None, crate::chance::chance(0.0)) / 20).await;
    }
}

/// So that tests and the compiler see that a run can be shared between tasks.
const _: fn() = || {
    fn send<T: Send>() {}
    send::<Arc<Ctx>>();
};
