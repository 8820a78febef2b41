//! Mark, release and drain: planned by the shipping core, sent as calls, planned anew after a lost race.

use gpuheal_proto::command::{CommandState, Drain, Refusal, Step, Undo};
use gpuheal_spoke::healaction::{self, UndoEntry};
use gpuheal_spoke_core::{
    drain::{self, Claims, PodFacts, Rules},
    gpu_resources::GpuResources,
    mark::{Marking, NodeFacts, Stamp, Want, mark as plan_mark},
    release::release as plan_release,
    verify::unmarked,
};
use serde_json::Value;

use super::{
    Spoke,
    cache::shown,
    guard::Halt,
    run::{ATTEMPTS_MAX, After, Phase, Run},
};
use crate::{
    api::{Answer, Call, Fault},
    body::NAMESPACE,
    mutation::Mutation,
};

/// What a pod asks for.
const GPU: &str = "nvidia.com/gpu";

impl Spoke {
    fn stamp(&self, run: &Run) -> Stamp {
        let at = self.hub_now().map_or(self.now.wall, |now| now.at);
        Stamp { incident: run.command.incident, plan_rev: run.command.plan_rev, at }
    }

    /// The record that the intent holds: of the first mark, as our watch shows the node now.
    pub(super) fn planned_undo(&self, run: &Run) -> Undo {
        let want = run.command.steps.iter().find_map(|step| match step {
            Step::Mark { label, taint, cordon } => Some(Want { label: *label, taint: *taint, cordon: *cordon }),
            _ => None,
        });
        let node = self.cache.facts(run.command.target.node.name.as_str());
        let (Some(want), Some(node)) = (want, node) else { return Undo::default() };
        let earlier = self.standing_undo(&node, run.id());
        plan_mark(&node, want, self.stamp(run), &earlier).undo().clone()
    }

    /// The node as read or as watched; still the same machine, and not passed by a newer plan. Nothing: it is being read.
    fn current(&mut self, run: &mut Run) -> Result<Option<NodeFacts>, Halt> {
        let target = &run.command.target.node;
        let watched = (run.attempts == 0).then(|| self.cache.facts(target.name.as_str())).flatten();
        let known = run.facts.take().or(watched.filter(|facts| facts.uid == target.uid.as_str()));
        let Some(facts) = known else {
            self.pass(run)?;
            run.phase = Phase::Reading;
            let name = target.name.to_string();
            self.ask(run, Call::GetNode(name));
            return Ok(None);
        };
        if facts.uid != target.uid.as_str() {
            return Err(gone(run));
        }
        match facts.plan_revision() {
            Some(seen) if seen > run.command.plan_rev => {
                let reason = format!("plan revision {}, node {} carries {seen}", run.command.plan_rev, facts.name);
                Err(Halt::End(CommandState::Cancelled, Some(Refusal::Superseded), reason))
            }
            Some(_) | None => Ok(Some(facts)),
        }
    }

    pub(super) fn node_read(&mut self, run: &mut Run, result: Result<Answer, Fault>) -> Result<(), Halt> {
        match result {
            Ok(Answer::Node(node)) => run.facts = Some(shown(&node)),
            Err(Fault::NotFound) => return Err(gone(run)),
            Ok(_) | Err(_) => {}
        }
        run.phase = Phase::Step;
        Ok(())
    }

    pub(super) fn mark(&mut self, run: &mut Run, want: Want) -> Result<(), Halt> {
        if run.attempts >= ATTEMPTS_MAX {
            return Err(Halt::failed(format!("the node was changed by others {ATTEMPTS_MAX} times in a row")));
        }
        let Some(facts) = self.current(run)? else { return Ok(()) };
        if let (None, Some(what)) = (run.marked, want.taken_away(&facts, run.command.plan_rev, &run.command.others)) {
            self.step_done(run, "was marked already");
            return Err(Halt::overridden(what, &facts));
        }
        let earlier = self.earlier_undo(run, &facts);
        match plan_mark(&facts, want, self.stamp(run), &earlier) {
            Marking::Done { undo } => {
                if self.me.mutations.has(Mutation::UndoAfterPatch) {
                    run.status.undo = undo.fields.iter().map(UndoEntry::from).collect();
                }
                run.marked = Some((want, run.command.plan_rev));
                self.step_done(run, "was marked already");
                Ok(())
            }
            Marking::Write { undo, patch } => {
                run.marked = None;
                let late = self.me.mutations.has(Mutation::UndoAfterPatch) || self.me.mutations.has(Mutation::ActBeforeIntent);
                if late {
                    run.late_undo = Some(undo);
                    return self.send_patch(run, patch);
                }
                if run.action.as_deref().map(healaction::undo_of) == Some(undo.clone()) {
                    return self.send_patch(run, patch);
                }
                run.status.undo = undo.fields.iter().map(UndoEntry::from).collect();
                run.status.state = CommandState::Started.to_string();
                self.save(run, After::Patch(patch), 0);
                Ok(())
            }
        }
    }

    /// What an earlier command has set on the node that this one drains. Before it counts as not marked it is read.
    pub(super) fn standing_mark(&mut self, run: &mut Run) -> Result<(), Halt> {
        let shown = self.cache.facts(run.command.target.node.name.as_str());
        if !shown.is_some_and(|facts| facts.quarantined()) {
            run.attempts = run.attempts.max(1);
        }
        let Some(facts) = self.current(run)? else { return Ok(()) };
        run.attempts = 0;
        let record = self.standing_undo(&facts, run.id());
        let Some(want) = Want::standing(&record, &facts) else {
            return Err(Halt::End(CommandState::Cancelled, Some(Refusal::Unmarked), unmarked(&facts)));
        };
        let plan_rev = facts.plan_revision().unwrap_or_default();
        if let Some(what) = want.taken_away(&facts, plan_rev, &run.command.others) {
            return Err(Halt::overridden(what, &facts));
        }
        run.marked = Some((want, plan_rev));
        Ok(())
    }

    pub(super) fn release(&mut self, run: &mut Run, asked: &Undo) -> Result<(), Halt> {
        if run.attempts >= ATTEMPTS_MAX {
            return Err(Halt::failed(format!("the node was changed by others {ATTEMPTS_MAX} times in a row")));
        }
        let Some(facts) = self.current(run)? else { return Ok(()) };
        if facts.plan_revision() == Some(run.command.plan_rev) && !facts.marked() {
            self.step_done(run, "was released already");
            return Ok(());
        }
        let record = self.standing_undo(&facts, run.id());
        let release = plan_release(&facts, &record, asked, self.stamp(run)).map_err(|error| Halt::failed(error.to_string()))?;
        for left in &release.left {
            self.say(format!("leaves on {}: {left}", facts.name));
        }
        self.send_patch(run, release.patch)
    }

    pub(super) fn send_patch(&mut self, run: &mut Run, mut patch: Value) -> Result<(), Halt> {
        // What was planned is kept while margin is waited for.
        if let Err(halt) = self.pass(run) {
            run.phase = Phase::Step;
            return Err(halt);
        }
        if self.me.mutations.has(Mutation::AnyVersion)
            && let Some(ops) = patch.as_array_mut()
        {
            ops.retain(|op| op["path"] != "/metadata/resourceVersion");
        }
        run.phase = Phase::Patching;
        let name = run.command.target.node.name.to_string();
        self.ask(run, Call::PatchNode(name, patch));
        Ok(())
    }

    pub(super) fn patched(&mut self, run: &mut Run, result: Result<Answer, Fault>) -> Result<(), Halt> {
        run.phase = Phase::Step;
        match result {
            Ok(Answer::Node(_)) => {
                if let (Some(undo), true) = (&run.late_undo, self.me.mutations.has(Mutation::UndoAfterPatch)) {
                    run.status.undo = undo.fields.iter().map(UndoEntry::from).collect();
                }
                let step = run.command.steps.get(run.cursor()).cloned();
                if let Some(Step::Mark { label, taint, cordon }) = step {
                    run.marked = Some((Want { label, taint, cordon }, run.command.plan_rev));
                    self.step_done(run, "marked");
                } else {
                    self.step_done(run, "released");
                }
                Ok(())
            }
            Err(Fault::NotFound) => Err(gone(run)),
            // A conflict, or no answer: it is planned anew from a fresh read.
            Err(Fault::Conflict | Fault::Unanswered) => {
                run.attempts += 1;
                Ok(())
            }
            Ok(_) | Err(Fault::Invalid) => Err(Halt::failed("the node's patch is no good")),
        }
    }

    /// Evicts what is to go, one after the other, and waits until none is left.
    pub(super) fn drain_on(&mut self, run: &mut Run) -> Result<(), Halt> {
        let Some(Step::Drain(drain)) = run.command.steps.get(run.cursor()).cloned() else { return Ok(()) };
        let pods = self.pods_to_go(run, &drain);
        if pods.is_empty() {
            self.step_done(run, "drained");
            return Ok(());
        }
        self.pass(run)?;
        let next = pods.into_iter().find(|pod| !self.cache.pods.get(pod).is_some_and(|pod| pod.deleting));
        if let Some(uid) = next {
            run.phase = Phase::Evicting;
            self.ask(run, Call::Evict(uid));
        }
        Ok(())
    }

    /// Of a command for one GPU those that use it, and those of which nobody knows; where nobody knows that GPU, all.
    fn pods_to_go(&self, run: &mut Run, drain: &Drain) -> Vec<String> {
        let node = &run.command.target.node;
        let known = run.users.get_or_insert_with(|| self.held.users(&node.uid, &self.settings, self.now.wall)).as_ref().ok();
        let gpu = run.command.target.gpu.as_ref().and_then(|gpu| gpu.uuid.as_ref());
        let gpu = gpu.filter(|gpu| known.is_some_and(|known| known.knows(gpu)));
        let pods = self.cache.pods.values().filter(|pod| pod.node == node.name.as_str());
        let facts = pods.map(|pod| PodFacts {
            namespace: NAMESPACE.to_owned(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: pod.node.clone(),
            phase: "Running".to_owned(),
            deleting: pod.deleting,
            resources: [GPU.to_owned()].into(),
            amounts: [(GPU.to_owned(), 1)].into(),
            started: Some(pod.started),
            ready: true,
            ..PodFacts::default()
        });
        let (mut facts, gpus): (Vec<_>, _) = (facts.collect(), GpuResources::default());
        if gpu.is_some() {
            facts.iter_mut().for_each(|pod| drain::users::tell(pod, &gpus, known, &Claims::default()));
        }
        let allowed = |namespace: &str| self.config.namespace_allowed(namespace);
        let rules = Rules {
            drain,
            gpus: &gpus,
            gpu,
            namespace_allowed: &allowed,
            stateful_allowed: &Default::default(),
            bound_claims: &Default::default(),
            ready_by_owner: &Default::default(),
            other_devices: &Default::default(),
            spared: &Default::default(),
        };
        drain::plan(facts, &rules).planned().map(|planned| planned.pod.uid.clone()).collect()
    }
}

fn gone(run: &Run) -> Halt {
    let node = &run.command.target.node;
    Halt::End(CommandState::Failed, Some(Refusal::NodeGone), format!("node {} of UID {} is gone", node.name, node.uid))
}
