//! One command from intent to outcome. The intent, with the undo record of the first write, exists before anything is
//! done; steps run in order from the cursor; what is idempotent needs no write of its own; the last status tells all.

use std::sync::Arc;

use gpuheal_proto::{
    chain::chain,
    command::{Command, CommandState, Step, Undo},
    words::Action,
};
use gpuheal_spoke_core::{
    mark::{NodeFacts, Want},
    verify::{Envelope, Verified},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Duration, Instant},
};

use super::{
    Ctx, StopWord,
    api::Error,
    drain,
    guard::{Guard, Halt},
    mark, notify,
    record::Created,
    release, restart,
};
use crate::{
    events::{Kind, Moment},
    healaction::{self, HealAction, HealActionStatus, PodRecord, StepRecord, UndoEntry},
    metrics,
    verify::record_now,
};

/// Between two writes of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Before the first: what is over by then needs one write, not two.
const PROGRESS_FIRST: Duration = Duration::from_secs(2);
/// Attempts at the last status: nobody else may end what is ours.
const SAVE_ATTEMPTS: u32 = 6;

/// How a task ended.
pub(super) enum Ended {
    /// With its last status written.
    Final,
    /// Without: the next leader, or the next tick, takes it up.
    Lost(String),
    /// Before there was an intent: nobody takes up what left no trace, so the hub is to send it again.
    NotBegun(String),
}

/// A running command.
pub(super) struct Run<'a> {
    pub(super) ctx: &'a Ctx,
    pub(super) command: &'a Command,
    pub(super) guard: Guard<'a>,
    pub(super) status: HealActionStatus,
    action: Arc<HealAction>,
    /// What is told on the side, each with the step that stands and falls with it.
    side: JoinSet<(Option<usize>, Result<(), Error>)>,
    progress_at: Instant,
    effect: bool,
    taken_up: bool,
}

/// Executes a verified command, new or taken up.
#[tracing::instrument(name = "spoke.execute", skip_all)]
pub(super) async fn run(
    ctx: &Arc<Ctx>,
    envelope: Envelope<Verified>,
    existing: Option<Arc<HealAction>>,
    stop: watch::Receiver<Option<StopWord>>,
) -> Ended {
    let command = envelope.command();
    for note in envelope.notes() {
        tracing::warn!(command.id = %command.id, note, "odd, and no reason to stop");
    }
    let taken_up = existing.is_some();
    let lost = |why| if taken_up { Ended::Lost(why) } else { Ended::NotBegun(why) };
    let Some(reign) = ctx.reign() else { return lost("the Lease was lost".to_owned()) };
    if let Some(fence) = ctx.fence().unwrap_or_default().raised_by(command, ctx.deps.trust.version) {
        match ctx.fences.raise(fence).await {
            Ok(fence) => ctx.set_fence(reign, fence),
            Err(error) => return lost(error.to_string()),
        }
    }
    cancel_older(ctx, command, reign).await;
    let action = match existing {
        Some(action) => action,
        None => match create(ctx, &envelope, reign).await {
            Ok(action) => action,
            Err(ended) => return ended,
        },
    };
    let effect = taken_up && mark::begun(&ctx.deps.nodes, &action, command);
    let by = if effect { command.times.finish_by } else { command.times.start_by };
    let mut run = Run {
        guard: Guard { ctx, command, stop, reign, by, marked: None },
        status: healaction::status_of(&action),
        action,
        side: JoinSet::new(),
        progress_at: Instant::now() + PROGRESS_FIRST,
        effect,
        taken_up,
        ctx,
        command,
    };
    if taken_up {
        // The swap fences off whoever was at work before: its next write is a conflict.
        let state = if effect { CommandState::Started } else { CommandState::Received };
        run.status.state = state.to_string();
        if let Err(Halt::Lost(why)) = run.save().await {
            return Ended::Lost(why);
        }
        dies_at!("execute.taken-up");
    } else {
        ctx.reports.tell(&run.action).await;
    }
    let end = run.steps().await;
    run.finish(end).await
}

/// Creates the intent with the undo record of its first write to the node.
async fn create(ctx: &Ctx, envelope: &Envelope<Verified>, reign: u64) -> Result<Arc<HealAction>, Ended> {
    let command = envelope.command();
    let mut spec = ctx.records.spec(command, envelope.bytes(), ctx.deps.replica.as_str(), reign);
    spec.pods = drain::expected(ctx, command);
    spec.undo = mark::planned_undo(ctx, command).fields.iter().map(UndoEntry::from).collect();
    let action = ctx.records.named(&command.id.to_string(), spec);
    dies_at!("execute.before-intent");
    match ctx.records.create(&action).await {
        Ok(Created::New(action)) => {
            dies_at!("execute.intent-written");
            tracing::info!(command.id = %command.id, node.name = %command.target.node.name, action = %command.action(), "intent created");
            Ok(action)
        }
        // Its state is the answer; an open one is taken up at the next tick.
        Ok(Created::Exists(action)) => {
            ctx.reports.tell(&action).await;
            Err(Ended::Lost("its HealAction exists already".to_owned()))
        }
        Err(error) => Err(Ended::NotBegun(format!("its HealAction could not be created: {}", chain(&error)))),
    }
}

/// Open actions of the same node under a lower plan revision, that nobody here works on, end now.
async fn cancel_older(ctx: &Ctx, command: &Command, reign: u64) {
    if !command.changes_node() {
        return;
    }
    let node = command.target.node.uid.as_str();
    for action in ctx.actions.all() {
        let older = action.spec.node_uid == node && action.spec.plan_revision < command.plan_rev && !healaction::is_final(&action);
        if older {
            let reason = format!("superseded by plan revision {}", command.plan_rev);
            match ctx.records.finish(&action, CommandState::Cancelled, "SUPERSEDED", &reason, reign).await {
                Ok(action) => ctx.reports.tell(&action).await,
                Err(error) => {
                    tracing::debug!(command.id = action.id(), error = %gpuheal_proto::chain::chain(&error), "older action not ended, its own guard will")
                }
            }
        }
    }
}

impl Run<'_> {
    async fn steps(&mut self) -> Result<(), Halt> {
        let command = self.command;
        self.status.steps.resize_with(command.steps.len(), StepRecord::default);
        for (index, step) in command.steps.iter().enumerate() {
            step.name().clone_into(&mut self.status.steps[index].name);
            if index < self.status.cursor as usize {
                self.done_before(step);
                continue;
            }
            self.begin(index);
            self.guard.pass().await?;
            let result = self.step(index, step).await;
            self.end(index, &result);
            result?;
            dies_at!("execute.step-done");
        }
        Ok(())
    }

    async fn step(&mut self, index: usize, step: &Step) -> Result<String, Halt> {
        self.effect = true;
        match step {
            Step::Notify { message } => Ok(notify::notify(self, message)),
            Step::Mark { label, taint, cordon } => mark::mark(self, Want { label: *label, taint: *taint, cordon: *cordon }).await,
            Step::Drain(drain) => drain::drain(self, index, drain).await,
            Step::RestartWorkload { owners } => restart::restart(self, owners).await,
            Step::Release { undo, .. } => release::release(self, undo).await,
        }
    }

    /// A mark that was made before we took the command up still tells what a person may have taken away. Nobody knows
    /// whether its Event was posted: a second one of the same name is none.
    fn done_before(&mut self, step: &Step) {
        match step {
            Step::Mark { label, taint, cordon } => {
                let want = Want { label: *label, taint: *taint, cordon: *cordon };
                self.guard.marked = Some((want, self.command.plan_rev));
                mark::tell(self, want);
            }
            Step::Notify { message } => drop(notify::notify(self, message)),
            Step::Drain(_) | Step::RestartWorkload { .. } | Step::Release { .. } => {}
        }
    }

    fn begin(&mut self, index: usize) {
        let now = record_now(&self.ctx.deps.clock).unix_ms();
        let record = &mut self.status.steps[index];
        "running".clone_into(&mut record.state);
        if record.started_unix_ms == 0 {
            record.started_unix_ms = now;
        }
    }

    fn end(&mut self, index: usize, result: &Result<String, Halt>) {
        self.guard.by = self.command.times.finish_by;
        let now = record_now(&self.ctx.deps.clock).unix_ms();
        let record = &mut self.status.steps[index];
        record.finished_unix_ms = now;
        match result {
            Ok(message) => {
                // An Event is done when it was answered for.
                let notifies = matches!(self.command.steps[index], Step::Notify { .. });
                if notifies { "running" } else { "done" }.clone_into(&mut record.state);
                record.message.clone_from(message);
                self.status.cursor = u32::try_from(index + 1).unwrap_or(u32::MAX);
            }
            // What was done stays done: the way back needs its record.
            Err(Halt::End { .. }) if record.state == "done" => {}
            Err(Halt::End { reason, .. }) => {
                "failed".clone_into(&mut record.state);
                record.message.clone_from(reason);
            }
            Err(Halt::Lost(_)) => {}
        }
    }

    /// The step at the cursor was done by whoever was at work before, and nobody wrote it down.
    pub(super) fn was_done(&mut self, message: &str) {
        if let Some(record) = self.status.steps.get_mut(self.status.cursor as usize) {
            "done".clone_into(&mut record.state);
            message.clone_into(&mut record.message);
            self.status.cursor += 1;
        }
    }

    /// Something that is told on the side: a failure of it stops nothing, yet it is joined before the last word, which says
    /// how `step` fared by it.
    pub(super) fn aside(&mut self, step: Option<usize>, task: impl Future<Output = Result<(), Error>> + Send + 'static) {
        self.side.spawn(async move { (step, task.await) });
    }

    /// Pods of a drain that whoever was at work before knew of.
    pub(super) fn pods_before(&self, index: usize) -> Vec<PodRecord> {
        match &self.status.steps[index].pods {
            recorded if !recorded.is_empty() => recorded.clone(),
            _ if self.taken_up => self.action.spec.pods.clone(),
            _ => Vec::new(),
        }
    }

    /// Waits for what is told on the side, and writes down how it went. A command that was to tell and nothing else fails
    /// with its Event.
    async fn settle_told(&mut self, end: Result<(), Halt>) -> Result<(), Halt> {
        while let Some(told) = self.side.join_next().await {
            let Ok((Some(index), result)) = told else { continue };
            let record = &mut self.status.steps[index];
            let (state, message) = match result {
                Ok(()) => ("done", "Event posted".to_owned()),
                Err(error) => ("failed", format!("Event not posted: {}", chain(&error))),
            };
            state.clone_into(&mut record.state);
            record.message = message;
        }
        let mut failed = None;
        for (record, step) in self.status.steps.iter_mut().zip(&self.command.steps) {
            if matches!(step, Step::Notify { .. }) && record.state == "running" {
                "skipped".clone_into(&mut record.state);
                "nothing was done that an Event could tell of".clone_into(&mut record.message);
            }
            if record.state == "failed" {
                failed = Some(record.message.clone());
            }
        }
        match failed {
            Some(why) if end.is_ok() && self.command.action() == Action::Notify => Err(Halt::failed(why)),
            Some(_) | None => end,
        }
    }

    /// What is ours on the node already, by this command or before it.
    pub(super) fn earlier_undo(&self, node: &NodeFacts) -> Undo {
        let own = healaction::undo_of(&self.action);
        if own.fields.is_empty() { self.ctx.records.standing_undo(node, self.command) } else { own }
    }

    /// The undo record, stored before the write that it tells of. No call when the intent holds it already.
    pub(super) async fn record_undo(&mut self, undo: &Undo) -> Result<(), Halt> {
        if healaction::undo_of(&self.action) == *undo {
            return Ok(());
        }
        self.status.undo = undo.fields.iter().map(UndoEntry::from).collect();
        self.started();
        self.save().await
    }

    /// Progress of a step, written at most once a second.
    pub(super) async fn progress(&mut self, index: usize, pods: Vec<PodRecord>) -> Result<(), Halt> {
        self.status.steps[index].pods = pods;
        if Instant::now() < self.progress_at {
            return Ok(());
        }
        self.started();
        healaction::set_blocked(&mut self.status, record_now(&self.ctx.deps.clock));
        self.save().await?;
        dies_at!("execute.progress-written");
        Ok(())
    }

    /// When progress may be written next.
    pub(super) const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    fn started(&mut self) {
        self.status.state = CommandState::Started.to_string();
    }

    /// Writes the status by compare-and-swap and tells the hub. A conflict is somebody's label or finalizer, or somebody
    /// else's reign: only the first is tried again.
    async fn save(&mut self) -> Result<(), Halt> {
        self.status.holder = self.ctx.deps.replica.to_string();
        self.status.lease_transitions = self.guard.reign;
        for attempt in 0..SAVE_ATTEMPTS {
            self.status.status_seq = healaction::seq(&self.action) + 1;
            match self.ctx.records.write_status(&self.action, self.status.clone()).await {
                Ok(action) => {
                    self.action = action;
                    self.progress_at = Instant::now() + PROGRESS_EVERY;
                    self.ctx.reports.tell(&self.action).await;
                    return Ok(());
                }
                Err(error) if error.not_found() => return Err(Halt::Lost("its HealAction was deleted".to_owned())),
                Err(error) if error.conflict() || error.transient() => {
                    if !error.conflict() {
                        tokio::time::sleep(gpuheal_spoke_core::drain::backoff(attempt, None, crate::chance::chance(0.0))).await;
                    }
                    self.reread().await?;
                }
                Err(error) => return Err(Halt::Lost(error.to_string())),
            }
        }
        Err(Halt::Lost(format!("its status could not be written in {SAVE_ATTEMPTS} attempts")))
    }

    /// Reads the action again and tells whether it is still ours.
    async fn reread(&mut self) -> Result<(), Halt> {
        let Ok(action) = self.ctx.records.read(self.action.name()).await else { return Ok(()) };
        let theirs = action.status.as_ref().map_or(0, |status| status.lease_transitions) > self.guard.reign;
        // Our own last word may be there and its answer lost: then the loop tells it.
        if theirs || healaction::is_final(&action) {
            return Err(Halt::Lost("another writer has ended or taken up its HealAction".to_owned()));
        }
        self.action = action;
        Ok(())
    }

    async fn finish(mut self, end: Result<(), Halt>) -> Ended {
        let end = self.settle_told(end).await;
        let (state, reason) = match end {
            Ok(()) => (CommandState::Succeeded, self.summary()),
            Err(Halt::Lost(why)) => return Ended::Lost(why),
            Err(Halt::End { state, refusal, reason }) => {
                let state = if self.effect { state } else { CommandState::Refused };
                self.status.refusal = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
                (state, reason)
            }
        };
        self.status.state = state.to_string();
        self.status.outcome.clone_from(&reason);
        let now = record_now(&self.ctx.deps.clock);
        healaction::set_blocked(&mut self.status, now);
        healaction::set_complete(&mut self.status, now);
        self.count(state);
        dies_at!("execute.before-outcome");
        if let Err(Halt::Lost(why)) = self.save().await {
            return Ended::Lost(why);
        }
        dies_at!("execute.outcome-written");
        tracing::info!(command.id = %self.command.id, node.name = %self.command.target.node.name, %state, reason, "command ended");
        self.last_event(state, &reason).await;
        Ended::Final
    }

    fn summary(&self) -> String {
        let step = |step: &StepRecord| format!("{}: {}", step.name, step.message);
        self.status.steps.iter().map(step).collect::<Vec<_>>().join("; ")
    }

    fn count(&self, state: CommandState) {
        let node = self.command.target.node.name.as_str();
        let action = self.command.action();
        if state == CommandState::Succeeded {
            self.ctx.deps.metrics.inc(metrics::PROCESSED, &[("node", node), ("action", action.as_str())]);
        } else {
            self.ctx.deps.metrics.inc(metrics::SKIPPED, &[("node", node), ("reason", state.as_str())]);
        }
    }

    /// On the HealAction, in our own namespace; and on the node when a person should look: what went well has told it.
    async fn last_event(&self, state: CommandState, reason: &str) {
        let good = state == CommandState::Succeeded;
        let kind = if good { Kind::Normal } else { Kind::Warning };
        let message = format!("{} of node {} {state}: {reason}", self.command.action(), self.command.target.node.name);
        let ended = Moment::once("ended");
        // The status is written: whether these come is only logged.
        if !good {
            let _ = self.ctx.events.on_node(self.command, &ended, kind, &message).await;
        }
        let _ = self.ctx.events.on_action(&self.action, self.command, &ended, kind, &message).await;
    }
}
