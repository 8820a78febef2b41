//! The hand's loop: owns who is at work on what, takes messages, hands work to tasks, takes up what is open. Never waits
//! for the API server itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpuheal_proto::{
    command::{Command, CommandState, Refusal},
    ids::CommandId,
    link::v1,
};
use gpuheal_spoke_core::verify::{Cancel, Envelope, Known, Refused, Verified};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Back, COLLECT_EVERY, Ctx, OPEN_MAX, RUNNING_MAX, Running, STOP_WAIT, StopWord, TICK,
    asked::Asked,
    caught, mark,
    run::{self, Ended},
};
use crate::{
    healaction::{self, HealAction},
    ports::{Audience, Down, Seen},
    report,
};

/// The loop's own state.
pub(super) struct HandLoop {
    pub(super) ctx: Arc<Ctx>,
    pub(super) running: BTreeMap<CommandId, Running>,
    /// Ids that a short task is looking up, burying or ending.
    pub(super) pending: BTreeSet<CommandId>,
    /// What the hub has called off and has no end yet.
    pub(super) called_off: BTreeMap<CommandId, Cancel>,
    /// What the hub has asked for and was not told yet.
    pub(super) asked: Asked,
    /// Whose task panicked here.
    left_alone: BTreeSet<CommandId>,
    pub(super) tasks: JoinSet<Back>,
    pub(super) fence_asked: bool,
    /// To whom everything was told last.
    pub(super) told: Option<Audience>,
    /// The hub's term for which even what it had acked was told last.
    pub(super) told_term: Option<u64>,
}

impl HandLoop {
    pub(super) fn new(ctx: Arc<Ctx>) -> Self {
        Self {
            ctx,
            running: BTreeMap::new(),
            pending: BTreeSet::new(),
            called_off: BTreeMap::new(),
            asked: Asked::default(),
            left_alone: BTreeSet::new(),
            tasks: JoinSet::new(),
            fence_asked: false,
            told: None,
            told_term: None,
        }
    }

    pub(super) async fn serve(&mut self, mut down: mpsc::Receiver<Down>, stop: CancellationToken) {
        let mut leadership = self.ctx.deps.leadership.clone();
        let mut attachment = self.ctx.deps.attachment.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut collect = tokio::time::interval(COLLECT_EVERY);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                message = down.recv() => match message {
                    Some(message) => self.take(message),
                    None => return,
                },
                Some(back) = self.tasks.join_next() => match back {
                    Ok(back) => self.back(back),
                    Err(error) => {
                        tracing::error!(error = %gpuheal_proto::chain::chain(&error), "a task of the executor died");
                        // If it was the one that reads the fence, nothing else would have it read again.
                        self.fence_asked = false;
                    }
                },
                Ok(()) = leadership.changed() => {
                    leadership.borrow_and_update();
                    self.resume();
                }
                Ok(()) = attachment.changed() => {
                    attachment.borrow_and_update();
                    self.report_again();
                }
                _ = tick.tick() => self.resume(),
                _ = collect.tick() => self.collect(),
            }
        }
    }

    fn take(&mut self, message: Down) {
        match message {
            Down::Command(bytes) => self.command(bytes.to_vec(), None),
            Down::Cancel(bytes) => self.cancel(&bytes),
            Down::StatusAck(ack) => self.acked(&ack),
            Down::Tell(ids) => self.asked_for(ids),
        }
    }

    fn back(&mut self, back: Back) {
        match back {
            Back::Ended(id, ended) => {
                if let Some(running) = self.running.remove(&id) {
                    running.done.cancel();
                }
                match ended {
                    Ended::Final => {}
                    Ended::Lost(why) => tracing::warn!(command.id = %id, %why, "command left to the next leader"),
                    Ended::NotBegun(why) => self.not_begun(id, why),
                }
            }
            Back::Node { bytes, id, node } => {
                self.pending.remove(&id);
                match node {
                    Ok(node) => self.command(bytes, Some(node.map(|node| *node))),
                    Err(error) => {
                        self.not_begun(id, format!("its node could not be read: {}", gpuheal_proto::chain::chain(&error)));
                    }
                }
            }
            Back::Fence(reign, result) => {
                self.fence_asked = false;
                match result {
                    Ok(fence) => {
                        self.ctx.set_fence(reign, fence);
                        self.resume();
                    }
                    Err(error) => {
                        tracing::error!(error = %gpuheal_proto::chain::chain(&error), "fence not read, nothing is executed")
                    }
                }
            }
            Back::Settled(id) => drop(self.pending.remove(&id)),
            // Told only once it is looked up no more: what comes again meanwhile would be passed over without a word.
            Back::NotBuried(id, why) => {
                self.pending.remove(&id);
                tracing::warn!(command.id = %id, %why, "command not refused yet, the hub is asked for it again");
                self.say_not_now(id, Refused::new(Refusal::Busy, why));
            }
            Back::Died(id) => self.died(id),
            Back::Done => {}
        }
    }

    /// Begins a short task about a command that nothing else is done about until it comes back.
    pub(super) fn attend(&mut self, id: CommandId, work: impl Future<Output = Back> + Send + 'static) {
        self.pending.insert(id);
        self.tasks.spawn(caught(id, work));
    }

    /// A defect of ours. This process leaves the command alone, or it would die of it once a second; the next leader tries again, and the
    /// hub says UNKNOWN when its time is over.
    fn died(&mut self, id: CommandId) {
        tracing::error!(command.id = %id, "the task of a command panicked: it is left to the next leader, please report this");
        self.pending.remove(&id);
        if let Some(running) = self.running.remove(&id) {
            running.done.cancel();
        }
        self.left_alone.insert(id);
    }

    /// The API server could not be written to or read from, and there is no trace of the command: the hub sends it again.
    fn not_begun(&mut self, id: CommandId, why: String) {
        tracing::warn!(command.id = %id, %why, "command not begun, the hub is asked for it again");
        self.say_not_now(id, Refused::new(Refusal::Busy, why));
    }

    /// Takes up every open action that nobody here works on, and tells each end that nobody has told. Only when it leads, with
    /// all that is needed to judge.
    pub(super) fn resume(&mut self) {
        self.tell_seen();
        self.report_again();
        self.answer_asked();
        let Some(reign) = self.ctx.reign().filter(|_| self.ctx.actions.ready()) else { return };
        if self.ctx.fence().is_none() {
            self.ask_fence(reign);
            return;
        }
        self.call_off();
        let (actions, left_alone) = (&self.ctx.actions, &mut self.left_alone);
        left_alone.retain(|id| actions.get(&id.to_string()).is_some_and(|action| !healaction::is_final(&action)));
        for action in self.ctx.actions.all() {
            let id = CommandId::parse(action.id());
            let Ok(id) = id else { continue };
            if self.left_alone.contains(&id)
                || self.running.contains_key(&id)
                || self.pending.contains(&id)
                || self.called_off.contains_key(&id)
            {
                continue;
            }
            if !healaction::is_final(&action) {
                if self.running.len() < RUNNING_MAX {
                    self.adopt(id, &action);
                }
            } else if action.held() && !self.ctx.reports.told(&action) {
                // Its last write was done and the answer lost: nobody else would tell it in this session.
                self.tell(action);
            }
        }
    }

    fn ask_fence(&mut self, reign: u64) {
        if !std::mem::replace(&mut self.fence_asked, true) {
            let ctx = Arc::clone(&self.ctx);
            self.tasks.spawn(async move {
                // A watch may lag behind what the last leader did: a new reign begins with what the API server holds.
                let read = match ctx.records.list().await {
                    Ok(()) => ctx.fences.read().await,
                    Err(error) => Err(error.into()),
                };
                Back::Fence(reign, read)
            });
        }
    }

    /// A new session, a new reign, or a hub that asks: everything that it has not acked is told again, by the leader alone,
    /// once all that there is has been listed. A hub whose database may have lost what it acked is told that too.
    fn report_again(&mut self) {
        let attachment = *self.ctx.deps.attachment.borrow();
        let to = self.ctx.reign().and_then(|reign| attachment.audience(reign));
        // Without the fence nobody knows whether the term has risen.
        let (Some(to), Some(fence), true) = (to, self.ctx.fence(), self.ctx.actions.ready()) else { return };
        if self.told == Some(to) {
            return;
        }
        self.told = Some(to);
        let term = self.told_term.unwrap_or(fence.hub_term);
        let forgetful = attachment.hub_term > term || to.asked_term > 0;
        self.told_term = Some(term.max(attachment.hub_term));
        let ctx = Arc::clone(&self.ctx);
        let told = report::again(self.ctx.actions.all(), forgetful);
        ctx.reports.owes(to, &told);
        told.iter().for_each(|told| ctx.reports.will_tell(&told.action));
        self.tasks.spawn(async move {
            let lives = || ctx.reign().and_then(|reign| ctx.deps.attachment.borrow().audience(reign)) == Some(to);
            report::tell_until_acked(&ctx.reports, (to, report::RETELL), told, |id| ctx.actions.get(id), lives).await;
            Back::Done
        });
    }

    /// For Hello and heartbeats. Sent only when something changed.
    fn tell_seen(&self) {
        // Before what it says of: what is listed after this look is in the next.
        let whole_in = self.ctx.reign().filter(|_| self.ctx.fence().is_some() && self.ctx.actions.ready());
        let fence = self.ctx.fence_heard();
        let all = self.ctx.actions.all();
        let reign_known = self.ctx.deps.attachment.borrow().reign_known;
        self.ctx.deps.elector.outranks(all.iter().map(|action| healaction::reign(action)).chain([reign_known]));
        let open = all.iter().filter(|action| !healaction::is_final(action)).map(|action| action.id().to_owned());
        let (cmd_seq, cmd_id) = healaction::highest(all.iter().map(|action| &**action));
        let seen = Seen {
            whole_in,
            hub_term: fence.hub_term,
            cmd_seq,
            cmd_id: cmd_id.to_owned(),
            trust_version: self.ctx.deps.trust.version.max(fence.trust_version),
            open_commands: open.take(OPEN_MAX).collect(),
            cordons: self.ctx.records.cordons(),
            told_again: self.ctx.reports.whole_for().filter(|_| self.all_on_record()),
        };
        self.ctx.deps.seen.send_if_modified(|old| {
            let changed = *old != seen;
            *old = seen;
            changed
        });
    }

    /// No command is being looked up or begun of which there is no record yet, and so nothing that could be told.
    fn all_on_record(&self) -> bool {
        self.pending.is_empty() && self.running.keys().all(|id| self.ctx.actions.get(&id.to_string()).is_some())
    }

    /// Nodes that admitted commands are about to take out, or have, and our watch does not show it yet.
    pub(super) fn admitted(&self) -> BTreeSet<String> {
        let all = self.ctx.actions.all();
        let mut nodes =
            healaction::unshown(all.iter().map(|action| &**action), |name, uid| self.ctx.deps.nodes.plan_revision(name, uid));
        nodes.extend(self.running.values().filter(|running| running.harmful).map(|running| running.node.clone()));
        nodes
    }

    /// The highest plan revision of another command that changes this one's node and is at work on it.
    pub(super) fn at_work(&self, command: &Command) -> Option<u64> {
        let uid = &command.target.node.uid;
        let others = self.running.iter().filter(|(id, running)| **id != command.id && running.changes_node && running.uid == *uid);
        others.map(|(_, running)| running.plan_rev).max()
    }

    fn acked(&mut self, ack: &v1::StatusAck) {
        dies_at!("report.acked");
        self.ctx.reports.ack(&ack.command_id, ack.status_seq, ack.hub_term);
        let Some(action) = self.ctx.actions.get(&ack.command_id) else { return };
        if self.ctx.reign().is_some() && healaction::is_final(&action) && self.ctx.reports.acked(&action) {
            let ctx = Arc::clone(&self.ctx);
            self.tasks.spawn(async move {
                ctx.records.let_go(&action).await;
                Back::Done
            });
        }
    }

    fn collect(&mut self) {
        self.ctx.attachments.forget_old();
        if self.ctx.reign().is_some() && self.ctx.actions.ready() {
            let ctx = Arc::clone(&self.ctx);
            let now = crate::verify::record_now(&ctx.deps.clock);
            self.tasks.spawn(async move {
                ctx.records.collect(now).await;
                Back::Done
            });
        }
    }

    /// What is known of a command here.
    pub(super) fn known(&self, command: &Command) -> (Known, Option<Arc<HealAction>>) {
        match self.ctx.actions.get(&command.id.to_string()) {
            None => (Known::No, None),
            Some(action) if healaction::is_final(&action) => (Known::Final, Some(action)),
            Some(action) => (Known::Open { begun: self.begun(&action, command) }, Some(action)),
        }
    }

    /// Whether an effect may have happened, by the record or by the node.
    pub(super) fn begun(&self, action: &HealAction, command: &Command) -> bool {
        mark::begun(&self.ctx.deps.nodes, action, command)
    }

    pub(super) fn spawn_run(&mut self, envelope: Envelope<Verified>, existing: Option<Arc<HealAction>>) {
        let command = envelope.command();
        let id = command.id;
        let node = command.target.node.name.to_string();
        let (stop, stopped) = watch::channel(None);
        let done = CancellationToken::new();
        let mut older = Vec::new();
        if command.changes_node() {
            for running in self.running.values().filter(|running| running.node == node && running.plan_rev < command.plan_rev) {
                let reason = format!("superseded by plan revision {}", command.plan_rev);
                running.stop.send_replace(Some(StopWord { state: CommandState::Cancelled, reason }));
                older.push(running.done.clone());
            }
        }
        let (plan_rev, harmful, changes_node) = (command.plan_rev, command.harmful(), command.changes_node());
        let uid = command.target.node.uid.clone();
        let running = Running { node, uid, plan_rev, harmful, changes_node, stop, done };
        self.running.insert(id, running);
        let ctx = Arc::clone(&self.ctx);
        self.tasks.spawn(caught(id, async move {
            for done in older {
                let _ = tokio::time::timeout(STOP_WAIT, done.cancelled()).await;
            }
            Back::Ended(id, run::run(&ctx, envelope, existing, stopped).await)
        }));
    }
}
