//! One command from intent to outcome, as a machine that waits for one answer at a time. The intent, with the undo record
//! of the first write, exists before anything is done; steps run in order from the cursor.

use std::{rc::Rc, time::Duration};

use gpuheal_proto::{
    command::{Command, CommandState, Step, Undo},
    ids::CommandId,
    time::Timestamp,
};
use gpuheal_spoke::healaction::{self, HealAction, HealActionStatus, StepRecord, UndoEntry};
use gpuheal_spoke_core::{
    drain::{Unknown, Users},
    mark::{NodeFacts, Want},
};

use super::{Spoke, Wait, guard::Halt};
use crate::{
    api::{Answer, Call, Fault},
    mutation::Mutation,
};

/// How long a superseded command has to stop.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Attempts at one patch.
pub(super) const ATTEMPTS_MAX: u32 = 12;
/// Attempts at a status.
const SAVE_ATTEMPTS: u32 = 6;

/// Where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Phase {
    /// Waits for older ones of its node to stop.
    Older,
    /// Raises the fence.
    Fence,
    /// Creates the intent.
    Intent,
    /// Takes over an open action by a write that fences off whoever was at work.
    Claim,
    /// Is about to begin the step at the cursor.
    Step,
    /// Writes a status, then goes on with what follows.
    Saving(After, u32),
    /// Reads the action again after a lost race.
    Rereading(After, u32),
    /// Reads the node.
    Reading,
    /// Has sent a patch.
    Patching,
    /// Has sent an eviction.
    Evicting,
    /// Waits for pods to go.
    Draining,
}

/// What follows a write of the status.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum After {
    /// The steps.
    Steps,
    /// The patch that the undo record was written for.
    Patch(serde_json::Value),
    /// Nothing: it was the last word.
    End,
}

/// A command at work.
pub(super) struct Run {
    pub(super) command: Rc<Command>,
    bytes: Vec<u8>,
    pub(super) action: Option<Rc<HealAction>>,
    pub(super) status: HealActionStatus,
    pub(super) phase: Phase,
    /// An answer is awaited.
    pub(super) asked: bool,
    pub(super) reign: u64,
    pub(super) by: Timestamp,
    pub(super) marked: Option<(Want, u64)>,
    pub(super) stop: Option<(CommandState, String)>,
    pub(super) effect: bool,
    pub(super) attempts: u32,
    /// Who used which GPU when the drain began here, as far as that was known.
    pub(super) users: Option<Result<Users, Unknown>>,
    /// The node as it was read, when the watch was not enough.
    pub(super) facts: Option<NodeFacts>,
    /// Our own patch went through with what the undo record was to be.
    pub(super) late_undo: Option<Undo>,
    older: Vec<CommandId>,
    begun: Duration,
}

impl Run {
    pub(super) fn new(
        command: Command,
        bytes: Vec<u8>,
        existing: Option<Rc<HealAction>>,
        effect: bool,
        older: Vec<CommandId>,
        reign: u64,
        boot: Duration,
    ) -> Self {
        let by = if effect { command.times.finish_by } else { command.times.start_by };
        let status = existing.as_deref().map(healaction::status_of).unwrap_or_default();
        Self {
            command: Rc::new(command),
            bytes,
            action: existing,
            status,
            phase: Phase::Older,
            asked: false,
            reign,
            by,
            marked: None,
            stop: None,
            effect,
            attempts: 0,
            users: None,
            facts: None,
            late_undo: None,
            older,
            begun: boot,
        }
    }

    pub(super) fn cursor(&self) -> usize {
        self.status.cursor as usize
    }

    pub(super) fn id(&self) -> CommandId {
        self.command.id
    }
}

impl Spoke {
    /// Goes on with every command that waits for no answer.
    pub(super) fn runs_tick(&mut self) {
        let idle: Vec<CommandId> = self.running.iter().filter(|(_, run)| !run.asked).map(|(id, _)| *id).collect();
        for id in idle {
            self.with(id, Self::drive);
        }
    }

    fn with(&mut self, id: CommandId, go: impl FnOnce(&mut Self, &mut Run) -> Result<(), Halt>) {
        let Some(mut run) = self.running.remove(&id) else { return };
        let keeps = match go(self, &mut run) {
            Ok(()) | Err(Halt::Wait) => true,
            Err(Halt::Lost(why)) => {
                self.say(format!("leaves {id} to the next: {why}"));
                false
            }
            Err(Halt::End(state, refusal, reason)) => self.finish(&mut run, state, refusal, &reason),
        };
        let over = run.phase == Phase::Saving(After::End, u32::MAX);
        if keeps && !over {
            self.running.insert(id, run);
        }
    }

    pub(super) fn run_answered(&mut self, id: CommandId, result: Result<Answer, Fault>) {
        self.with(id, |spoke, run| {
            run.asked = false;
            spoke.take(run, result)?;
            spoke.drive(run)
        });
    }

    pub(super) fn ask(&mut self, run: &mut Run, call: Call) {
        run.asked = true;
        self.call(Wait::Run(run.id()), call, Some(run.id()));
    }

    /// Does what comes next, until an answer or time is waited for.
    fn drive(&mut self, run: &mut Run) -> Result<(), Halt> {
        while !run.asked {
            match &run.phase {
                Phase::Older => {
                    let late = self.now.boot.saturating_sub(run.begun) > STOP_WAIT;
                    if !late && run.older.iter().any(|id| self.running.contains_key(id)) {
                        return Ok(());
                    }
                    run.phase = Phase::Fence;
                }
                Phase::Fence => self.fence_next(run),
                Phase::Intent => self.create(run)?,
                Phase::Claim => {
                    let state = if run.effect { CommandState::Started } else { CommandState::Received };
                    run.status.state = state.to_string();
                    self.save(run, After::Steps, 0);
                }
                Phase::Step => self.step(run)?,
                Phase::Draining => {
                    self.drain_on(run)?;
                    if run.phase == Phase::Draining {
                        return Ok(());
                    }
                }
                Phase::Saving(After::End, _) => return Ok(()),
                Phase::Saving(..) | Phase::Rereading(..) | Phase::Reading | Phase::Patching | Phase::Evicting => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(&mut self, run: &mut Run, result: Result<Answer, Fault>) -> Result<(), Halt> {
        match run.phase.clone() {
            Phase::Fence => self.fence_answered(run, result),
            Phase::Intent => self.created(run, result),
            Phase::Saving(after, attempt) => self.saved(run, after, attempt, result),
            Phase::Rereading(after, attempt) => self.reread(run, after, attempt, result),
            Phase::Reading => self.node_read(run, result),
            Phase::Patching => self.patched(run, result),
            Phase::Evicting => {
                run.phase = Phase::Draining;
                Ok(())
            }
            Phase::Older | Phase::Claim | Phase::Step | Phase::Draining => Ok(()),
        }
    }

    fn fence_next(&mut self, run: &mut Run) {
        let (version, fence) = self.fence.unwrap_or_default();
        match fence.raised_by(&run.command, self.me.trust.version) {
            Some(raised) => self.ask(run, Call::PutFence(version, raised)),
            None => self.older_end(run),
        }
    }

    fn fence_answered(&mut self, run: &mut Run, result: Result<Answer, Fault>) -> Result<(), Halt> {
        match result {
            Ok(Answer::Fence(version, fence)) => {
                self.fence = Some((version, fence));
                Ok(())
            }
            Err(Fault::Conflict) => {
                self.ask(run, Call::GetFence);
                Ok(())
            }
            Ok(_) | Err(_) => Err(Halt::Lost("the fence was not raised".to_owned())),
        }
    }

    /// Open actions of the same node under a lower plan revision end now.
    fn older_end(&mut self, run: &mut Run) {
        let command = Rc::clone(&run.command);
        if command.changes_node() {
            let node = command.target.node.uid.as_str();
            let older: Vec<Rc<HealAction>> = self
                .open_actions()
                .filter(|action| action.spec.node_uid == node && action.spec.plan_revision < command.plan_rev)
                .cloned()
                .collect();
            for action in older {
                let reason = format!("superseded by plan revision {}", command.plan_rev);
                let id = CommandId::parse(action.id()).ok();
                self.finish_open(&action, CommandState::Cancelled, "SUPERSEDED", &reason, id);
            }
        }
        run.phase = if run.action.is_some() { Phase::Claim } else { Phase::Intent };
        if self.me.mutations.has(Mutation::ActBeforeIntent) && run.action.is_none() {
            run.phase = Phase::Step;
        }
    }

    fn create(&mut self, run: &mut Run) -> Result<(), Halt> {
        let mut spec = self.spec(&run.command, &run.bytes);
        if !self.me.mutations.has(Mutation::UndoAfterPatch) {
            spec.undo = self.planned_undo(run).fields.iter().map(UndoEntry::from).collect();
        }
        let action = HealAction::named(&run.id().to_string(), "gpu-selfhealing", spec);
        self.ask(run, Call::CreateAction(Box::new(action)));
        Ok(())
    }

    fn created(&mut self, run: &mut Run, result: Result<Answer, Fault>) -> Result<(), Halt> {
        match result {
            Ok(Answer::Action(action)) => {
                if self.me.mutations.has(Mutation::ActBeforeIntent) {
                    return Ok(());
                }
                run.status = healaction::status_of(&action);
                self.report(&action);
                run.action = Some(action);
                run.phase = Phase::Step;
                Ok(())
            }
            Err(Fault::Conflict) => Err(Halt::Lost("its HealAction exists already".to_owned())),
            Ok(_) | Err(_) => Err(Halt::Lost("the intent was not created".to_owned())),
        }
    }

    /// The step at the cursor.
    fn step(&mut self, run: &mut Run) -> Result<(), Halt> {
        let command = Rc::clone(&run.command);
        run.status.steps.resize_with(command.steps.len(), StepRecord::default);
        for (index, step) in command.steps.iter().enumerate() {
            step.name().clone_into(&mut run.status.steps[index].name);
            if let (true, Step::Mark { label, taint, cordon }) = (index < run.cursor(), step) {
                run.marked = Some((Want { label: *label, taint: *taint, cordon: *cordon }, command.plan_rev));
            }
        }
        let index = run.cursor();
        let Some(step) = command.steps.get(index) else {
            return Err(Halt::End(CommandState::Succeeded, None, "done".to_owned()));
        };
        "running".clone_into(&mut run.status.steps[index].state);
        self.pass(run)?;
        run.effect = true;
        match step {
            Step::Notify { .. } | Step::RestartWorkload { .. } => self.step_done(run, "told"),
            Step::Mark { label, taint, cordon } => {
                return self.mark(run, Want { label: *label, taint: *taint, cordon: *cordon });
            }
            Step::Drain(_) if command.drains_marked() && run.marked.is_none() => return self.standing_mark(run),
            Step::Drain(_) => run.phase = Phase::Draining,
            Step::Release { undo, .. } => return self.release(run, undo),
        }
        Ok(())
    }

    pub(super) fn step_done(&mut self, run: &mut Run, message: &str) {
        let index = run.cursor();
        let record = &mut run.status.steps[index];
        "done".clone_into(&mut record.state);
        message.clone_into(&mut record.message);
        run.status.cursor += 1;
        run.by = run.command.times.finish_by;
        run.attempts = 0;
        run.facts = None;
        run.phase = Phase::Step;
    }

    pub(super) fn earlier_undo(&self, run: &Run, node: &NodeFacts) -> Undo {
        let own = run.action.as_deref().map(healaction::undo_of).unwrap_or_default();
        if own.fields.is_empty() { self.standing_undo(node, run.id()) } else { own }
    }

    /// Writes the status by compare-and-swap, then goes on.
    pub(super) fn save(&mut self, run: &mut Run, after: After, attempt: u32) {
        let Some(action) = run.action.clone() else {
            // Only without an intent: there is nothing to write to.
            run.phase = if after == After::End { Phase::Saving(After::End, u32::MAX) } else { Phase::Step };
            return;
        };
        run.status.holder = self.me.replica.to_string();
        run.status.lease_transitions = run.reign;
        run.status.status_seq = healaction::seq(&action) + 1;
        let version = action.metadata.resource_version.clone().unwrap_or_default();
        run.phase = Phase::Saving(after, attempt);
        self.ask(run, Call::PutStatus(action.id().to_owned(), version, Box::new(run.status.clone())));
    }

    fn saved(&mut self, run: &mut Run, after: After, attempt: u32, result: Result<Answer, Fault>) -> Result<(), Halt> {
        match result {
            Ok(Answer::Action(action)) => {
                self.report(&action);
                run.action = Some(action);
                self.go_on(run, after)
            }
            Err(Fault::NotFound) => Err(Halt::Lost("its HealAction was deleted".to_owned())),
            Err(Fault::Conflict | Fault::Unanswered) if attempt < SAVE_ATTEMPTS => {
                run.phase = Phase::Rereading(after, attempt + 1);
                self.ask(run, Call::GetAction(run.id().to_string()));
                Ok(())
            }
            Ok(_) | Err(_) => Err(Halt::Lost("its status could not be written".to_owned())),
        }
    }

    fn reread(&mut self, run: &mut Run, after: After, attempt: u32, result: Result<Answer, Fault>) -> Result<(), Halt> {
        if let Ok(Answer::Action(action)) = result {
            let theirs = action.status.as_ref().map_or(0, |status| status.lease_transitions) > run.reign;
            if healaction::is_final(&action) {
                // Our own last word may be there and its answer lost: nobody else would tell it in this session.
                self.report(&action);
            }
            if theirs || healaction::is_final(&action) {
                return Err(Halt::Lost("another writer has ended or taken up its HealAction".to_owned()));
            }
            run.action = Some(action);
        }
        self.save(run, after, attempt);
        Ok(())
    }

    fn go_on(&mut self, run: &mut Run, after: After) -> Result<(), Halt> {
        match after {
            After::Steps => {
                run.phase = Phase::Step;
                Ok(())
            }
            After::Patch(patch) => self.send_patch(run, patch),
            After::End => {
                run.phase = Phase::Saving(After::End, u32::MAX);
                Ok(())
            }
        }
    }

    /// The last word. True while it is being written.
    fn finish(
        &mut self,
        run: &mut Run,
        state: CommandState,
        refusal: Option<gpuheal_proto::command::Refusal>,
        reason: &str,
    ) -> bool {
        let state = if run.effect || state == CommandState::Succeeded { state } else { CommandState::Refused };
        run.status.refusal = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
        run.status.state = state.to_string();
        reason.clone_into(&mut run.status.outcome);
        let index = run.cursor();
        if state != CommandState::Succeeded
            && let Some(step) = run.status.steps.get_mut(index).filter(|step| step.state == "running")
        {
            "failed".clone_into(&mut step.state);
            reason.clone_into(&mut step.message);
        }
        self.say(format!("ends {} of {}: {state} {reason}", run.command.action(), run.command.target.node.name));
        self.save(run, After::End, 0);
        if self.me.mutations.has(Mutation::ActBeforeIntent) && run.action.is_none() {
            let mut spec = self.spec(&run.command, &run.bytes);
            spec.undo = run.late_undo.clone().unwrap_or_default().fields.iter().map(UndoEntry::from).collect();
            let action = HealAction::named(&run.id().to_string(), "gpu-selfhealing", spec);
            self.call(Wait::Bury(run.id()), Call::CreateAction(Box::new(action)), None);
        }
        true
    }
}
