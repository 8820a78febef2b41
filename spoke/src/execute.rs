//! The hand: takes what the link brings down, checks it, creates the intent, acts step by step, records, reports. Only
//! the leader acts; only on what `verify` has passed; each side effect is preceded by [`guard`]. One task per command;
//! the loop here owns who is at work on what, so that two commands cannot both be admitted under the last place of a
//! ceiling. A HealAction that is open and that nobody here works on is taken up: at the start of a reign, and whenever
//! one appears later.

pub mod api;
mod drain;
mod guard;
mod intake;
mod mark;
mod notify;
mod record;
mod release;
mod restart;
mod run;
mod store;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId, ReplicaId},
    link::v1,
};
use gpuheal_spoke_core::{
    ceiling::Config,
    mark::NodeFacts,
    verify::{Envelope, Fence, Known, Trust},
};
use kube::Client;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::{api::Kube, record::Records, run::Ended, store::Actions};
use crate::{
    ceiling::{self, Flags},
    clock::HubClock,
    elector::ElectorHandle,
    events::Events,
    fence::{self, FenceStore},
    healaction::{self, HealAction},
    metrics::Metrics,
    ports::{Attachment, Down, FaultView, Leadership, LocalConfig, Seen},
    report::Reports,
    watch::Nodes,
};

/// Commands at work at once: each holds one watch and a few KiB; more are asked to come again.
pub const RUNNING_MAX: usize = 256;
/// Open commands that Hello names.
const OPEN_MAX: usize = 4096;
/// How often the truth is looked at when nothing woke us.
const TICK: Duration = Duration::from_secs(1);
/// How often what has run out is collected.
const COLLECT_EVERY: Duration = Duration::from_secs(600);
/// How long a superseded command has to stop: longer than one API call.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// What the hand needs.
#[derive(Clone)]
pub struct Deps {
    /// A client that does not retry by itself.
    pub client: Client,
    /// Namespace of our own objects.
    pub namespace: String,
    /// Who we are.
    pub replica: ReplicaId,
    /// The cluster that commands must be for.
    pub cluster: ClusterId,
    /// Whose signatures count.
    pub trust: Arc<Trust>,
    /// The hub's time.
    pub clock: Arc<HubClock>,
    /// Nodes and pods as our watches show them.
    pub nodes: Nodes,
    /// How faults stand.
    pub faults: Arc<dyn FaultView>,
    /// Do we lead?
    pub leadership: watch::Receiver<Leadership>,
    /// What is left of the Lease.
    pub elector: ElectorHandle,
    /// The cluster owner's ConfigMap; must have been read once before the hand starts.
    pub config: watch::Receiver<LocalConfig>,
    /// What the flags narrow.
    pub flags: Flags,
    /// Is the hub there?
    pub attachment: watch::Receiver<Attachment>,
    /// For Hello.
    pub seen: watch::Sender<Seen>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// A number in 0..1 for jitter.
#[must_use]
pub fn chance() -> f64 {
    let mut bytes = [0; 4];
    // Without randomness there is no jitter, which is no reason to stop.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

/// What all tasks share.
struct Ctx {
    deps: Deps,
    kube: Kube,
    events: Events,
    records: Records,
    actions: Arc<Actions>,
    reports: Reports,
    fences: FenceStore,
    fence: Mutex<Option<Fence>>,
    config: watch::Receiver<Arc<Config>>,
    /// Ends every task without a last word: leadership is gone, or the process ends.
    halt: CancellationToken,
}

impl Ctx {
    fn fence(&self) -> Option<Fence> {
        *self.fence.lock().expect("no holder of this lock panics")
    }

    fn set_fence(&self, fence: Fence) {
        *self.fence.lock().expect("no holder of this lock panics") = Some(fence);
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    fn reign(&self) -> Option<u64> {
        self.deps.leadership.borrow().transitions()
    }
}

/// Why a running command is to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StopWord {
    state: CommandState,
    reason: String,
}

/// A command at work.
struct Running {
    node: String,
    plan_rev: u64,
    harmful: bool,
    stop: watch::Sender<Option<StopWord>>,
    done: CancellationToken,
}

/// What tasks bring back to the loop.
enum Back {
    Ended(CommandId, Ended),
    Node { bytes: Vec<u8>, id: CommandId, node: Result<Option<NodeFacts>, api::Error> },
    Fence(Result<Fence, fence::Error>),
    Settled(CommandId),
    Done,
}

/// Executes commands.
#[derive(Debug)]
pub struct Hand;

impl Hand {
    /// Runs until `stop`, then halts what is at work between two steps, joins it and returns: the Lease may be released
    /// after that. Returns early when the link's side of `down` is gone.
    pub async fn run(deps: Deps, down: mpsc::Receiver<Down>, up: mpsc::Sender<v1::CommandStatus>, stop: CancellationToken) {
        let kube = Kube::new(deps.client.clone());
        let actions = Arc::new(Actions::default());
        let watching = tokio::spawn(store::follow(deps.client.clone(), deps.namespace.clone(), Arc::clone(&actions)));
        let ctx = Arc::new(Ctx {
            events: Events::new(kube.clone(), deps.replica.to_string()),
            records: Records::new(kube.clone(), deps.namespace.clone(), Arc::clone(&actions)),
            reports: Reports::new(up),
            fences: FenceStore::new(kube.clone(), deps.namespace.clone()),
            fence: Mutex::new(None),
            config: ceiling::follow(deps.config.clone(), deps.flags),
            halt: stop.child_token(),
            actions,
            kube,
            deps,
        });
        let mut hand = HandLoop {
            ctx,
            running: BTreeMap::new(),
            pending: BTreeSet::new(),
            tasks: JoinSet::new(),
            fence_asked: false,
            told: None,
        };
        hand.serve(down, stop).await;
        hand.ctx.halt.cancel();
        while hand.tasks.join_next().await.is_some() {}
        watching.abort();
    }
}

struct HandLoop {
    ctx: Arc<Ctx>,
    running: BTreeMap<CommandId, Running>,
    /// Ids that a short task is looking up, burying or ending.
    pending: BTreeSet<CommandId>,
    tasks: JoinSet<Back>,
    fence_asked: bool,
    /// Reign, session and request for which everything was told last.
    told: Option<(u64, u64, u64)>,
}

impl HandLoop {
    async fn serve(&mut self, mut down: mpsc::Receiver<Down>, stop: CancellationToken) {
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
                    Err(error) => tracing::error!(%error, "a task of the executor died"),
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
        }
    }

    fn back(&mut self, back: Back) {
        match back {
            Back::Ended(id, ended) => {
                if let Some(running) = self.running.remove(&id) {
                    running.done.cancel();
                }
                if let Ended::Lost(why) = ended {
                    tracing::warn!(command.id = %id, %why, "command left to the next leader");
                }
            }
            Back::Node { bytes, id, node } => {
                self.pending.remove(&id);
                match node {
                    Ok(node) => self.command(bytes, Some(node)),
                    Err(error) => tracing::warn!(command.id = %id, %error, "node not read, the command may come again"),
                }
            }
            Back::Fence(result) => {
                self.fence_asked = false;
                match result {
                    Ok(fence) => {
                        self.ctx.set_fence(fence);
                        self.resume();
                    }
                    Err(error) => tracing::error!(%error, "fence not read, nothing is executed"),
                }
            }
            Back::Settled(id) => drop(self.pending.remove(&id)),
            Back::Done => {}
        }
    }

    /// Takes up every open action that nobody here works on. Only when it leads, with all that is needed to judge.
    fn resume(&mut self) {
        self.tell_seen();
        self.report_again();
        if self.ctx.reign().is_none() || !self.ctx.actions.ready() {
            return;
        }
        if self.ctx.fence().is_none() {
            self.ask_fence();
            return;
        }
        for action in self.ctx.actions.all() {
            let id = CommandId::parse(action.id());
            let Ok(id) = id else { continue };
            let idle = !self.running.contains_key(&id) && !self.pending.contains(&id);
            if idle && !healaction::is_final(&action) && self.running.len() < RUNNING_MAX {
                self.adopt(id, &action);
            }
        }
    }

    fn ask_fence(&mut self) {
        if !std::mem::replace(&mut self.fence_asked, true) {
            let ctx = Arc::clone(&self.ctx);
            self.tasks.spawn(async move { Back::Fence(ctx.fences.read().await) });
        }
    }

    /// A new session, a new reign, or a hub that asks: everything that it has not acked is told again, by the leader alone,
    /// once all that there is has been listed.
    fn report_again(&mut self) {
        let attachment = *self.ctx.deps.attachment.borrow();
        let asked = self.ctx.reign().zip(attachment.generation).map(|(reign, session)| (reign, session, attachment.report_again));
        if asked.is_none() || asked == self.told || !self.ctx.actions.ready() {
            return;
        }
        self.told = asked;
        let ctx = Arc::clone(&self.ctx);
        self.tasks.spawn(async move {
            for action in ctx.actions.all() {
                if action.held() {
                    ctx.reports.tell(&action).await;
                }
            }
            Back::Done
        });
    }

    /// For Hello. Sent only when something changed.
    fn tell_seen(&self) {
        let fence = self.ctx.fence().unwrap_or_default();
        let all = self.ctx.actions.all();
        let open = all.iter().filter(|action| !healaction::is_final(action)).map(|action| action.id().to_owned());
        let seen = Seen {
            hub_term: fence.hub_term,
            cmd_seq: all.iter().map(|action| action.spec.command_seq).max().unwrap_or(0),
            trust_version: self.ctx.deps.trust.version.max(fence.trust_version),
            open_commands: open.take(OPEN_MAX).collect(),
        };
        self.ctx.deps.seen.send_if_modified(|old| {
            let changed = *old != seen;
            *old = seen;
            changed
        });
    }

    /// Nodes that admitted commands are about to take out.
    fn admitted(&self) -> BTreeSet<String> {
        self.running.values().filter(|running| running.harmful).map(|running| running.node.clone()).collect()
    }

    fn acked(&mut self, ack: &v1::StatusAck) {
        self.ctx.reports.ack(&ack.command_id, ack.status_seq);
        let Some(action) = self.ctx.actions.get(&ack.command_id) else { return };
        if self.ctx.reign().is_some() && healaction::is_final(&action) && self.ctx.reports.acked(&action) {
            let ctx = Arc::clone(&self.ctx);
            self.tasks.spawn(async move {
                ctx.records.let_go(&action, &ctx.reports).await;
                Back::Done
            });
        }
    }

    fn collect(&mut self) {
        if self.ctx.reign().is_some() && self.ctx.actions.ready() {
            let ctx = Arc::clone(&self.ctx);
            let now = crate::verify::record_now(&ctx.deps.clock);
            self.tasks.spawn(async move {
                ctx.records.collect(now).await;
                Back::Done
            });
        }
    }

    /// What is known of an id here.
    fn known(&self, id: CommandId) -> (Known, Option<Arc<HealAction>>) {
        match self.ctx.actions.get(&id.to_string()) {
            None => (Known::No, None),
            Some(action) if healaction::is_final(&action) => (Known::Final, Some(action)),
            Some(action) => (Known::Open { begun: healaction::begun(&action) }, Some(action)),
        }
    }

    fn spawn_run(&mut self, envelope: Envelope<gpuheal_spoke_core::verify::Verified>, existing: Option<Arc<HealAction>>) {
        let command = envelope.command();
        let id = command.id;
        let node = command.target.node.name.to_string();
        let (stop, stopped) = watch::channel(None);
        let done = CancellationToken::new();
        let mut older = Vec::new();
        if command.writes_node() || command.harmful() {
            for running in self.running.values().filter(|running| running.node == node && running.plan_rev < command.plan_rev) {
                let reason = format!("superseded by plan revision {}", command.plan_rev);
                running.stop.send_replace(Some(StopWord { state: CommandState::Cancelled, reason }));
                older.push(running.done.clone());
            }
        }
        let running = Running { node, plan_rev: command.plan_rev, harmful: command.harmful(), stop, done };
        self.running.insert(id, running);
        let ctx = Arc::clone(&self.ctx);
        self.tasks.spawn(async move {
            for done in older {
                let _ = tokio::time::timeout(STOP_WAIT, done.cancelled()).await;
            }
            Back::Ended(id, run::run(&ctx, envelope, existing, stopped).await)
        });
    }
}
