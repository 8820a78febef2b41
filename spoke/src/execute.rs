//! The hand: takes what the link brings down, checks it, creates the intent, acts step by step, records, reports. Only
//! the leader acts; only on what `verify` has passed; each side effect is preceded by [`guard`]. One task per command;
//! the loop here owns who is at work on what, so that two commands cannot both be admitted under the last place of a
//! ceiling. A HealAction that is open and that nobody here works on is taken up: at the start of a reign, and whenever
//! one appears later.

pub mod api;
mod asked;
mod cancel;
pub mod dates;
mod drain;
mod guard;
mod hand;
mod intake;
mod mark;
mod notify;
mod patience;
mod record;
mod release;
mod restart;
mod run;
mod store;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::FutureExt as _;
use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId, NodeUid, ReplicaId},
    link::v1,
};
use gpuheal_spoke_core::{
    ceiling::Config,
    mark::NodeFacts,
    verify::{Fence, Trust},
};
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::{api::Kube, drain::Attachments, hand::HandLoop, record::Records, run::Ended, store::Actions};
pub use self::{
    drain::{DRA_GROUP, DRA_VERSION},
    restart::RESTARTED_BY,
};
use crate::{
    ceiling::{self, Flags},
    clock::HubClock,
    elector::ElectorHandle,
    events::Events,
    fence::{self, FenceStore},
    metrics::Metrics,
    ports::{Attachment, Down, FaultView, GpuUsers, Leadership, LocalConfig, Seen},
    report::Reports,
    tasks,
    watch::{Heard, Nodes},
};

/// Commands at work at once: each holds one watch and a few KiB; more are asked to come again.
pub const RUNNING_MAX: usize = 256;
/// Open commands that Hello names.
const OPEN_MAX: usize = 4096;
/// How often the truth is looked at when nothing woke us.
const TICK: Duration = Duration::from_secs(1);
/// How often what has run out is collected, and what was let go of in vain is tried again. Costs a look at what we have in
/// memory; calls only for what is found.
const COLLECT_EVERY: Duration = Duration::from_secs(30);
/// How long a superseded command has to stop: longer than one API call.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// What the hand needs.
#[derive(Clone)]
pub struct Deps {
    /// A client that does not retry by itself, and whose answers are [witnessed](dates::witnessed).
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
    /// Which pods use which GPU.
    pub users: Arc<dyn GpuUsers>,
    /// Do we lead?
    pub leadership: watch::Receiver<Leadership>,
    /// What is left of the Lease.
    pub elector: ElectorHandle,
    /// The cluster owner's ConfigMap; must have been read once before the hand starts.
    pub config: watch::Receiver<LocalConfig>,
    /// How old the news of each watch is, the ConfigMap's among them.
    pub heard: Arc<Heard>,
    /// What the flags narrow.
    pub flags: Flags,
    /// Is the hub there?
    pub attachment: watch::Receiver<Attachment>,
    /// For Hello.
    pub seen: watch::Sender<Seen>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// What all tasks share.
struct Ctx {
    deps: Deps,
    kube: Kube,
    attachments: Attachments,
    events: Events,
    records: Records,
    actions: Arc<Actions>,
    reports: Reports,
    fences: FenceStore,
    /// The reign in which it was read, and what it said.
    fence: Mutex<Option<(u64, Fence)>>,
    config: watch::Receiver<Arc<Config>>,
    /// Ends every task without a last word: leadership is gone, or the process ends.
    halt: CancellationToken,
}

impl Ctx {
    /// The fence, once it was read in this reign: what another leader raised since an earlier one is not in what was read then.
    fn fence(&self) -> Option<Fence> {
        let known = *self.fence.lock().expect("no holder of this lock panics");
        known.filter(|(reign, _)| self.reign() == Some(*reign)).map(|(_, fence)| fence)
    }

    /// What is known of it, in whichever reign it was read.
    fn fence_heard(&self) -> Fence {
        self.fence.lock().expect("no holder of this lock panics").map(|(_, fence)| fence).unwrap_or_default()
    }

    /// It was read or raised in this reign. The object only rises: of two answers that overtook each other the higher counts.
    fn set_fence(&self, reign: u64, read: Fence) {
        let mut known = self.fence.lock().expect("no holder of this lock panics");
        *known = match *known {
            Some((of, fence)) if of > reign => Some((of, fence)),
            Some((of, fence)) if of == reign => Some((reign, fence.and(read))),
            _ => Some((reign, read)),
        };
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
    uid: NodeUid,
    plan_rev: u64,
    harmful: bool,
    changes_node: bool,
    stop: watch::Sender<Option<StopWord>>,
    done: CancellationToken,
}

/// What tasks bring back to the loop.
enum Back {
    Ended(CommandId, Ended),
    Node {
        bytes: Vec<u8>,
        id: CommandId,
        node: Result<Option<Box<NodeFacts>>, api::Error>,
    },
    Fence(u64, Result<Fence, fence::Error>),
    Settled(CommandId),
    /// Its refusal could not be written: why.
    NotBuried(CommandId, String),
    /// The task of this command panicked.
    Died(CommandId),
    Done,
}

/// What a command's task brings back, also when it panics: a command that nobody works on must hold up no other of its node.
async fn caught(id: CommandId, work: impl Future<Output = Back>) -> Back {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or(Back::Died(id))
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
        let (watched, all) = (deps.clone(), Arc::clone(&actions));
        let mut watching = tokio::spawn(async move { store::follow(&watched, all).await });
        let reports = Reports::new(up);
        let records = Records::new(kube.clone(), deps.namespace.clone(), Arc::clone(&actions), reports.clone(), deps.nodes.clone());
        let ctx = Arc::new(Ctx {
            attachments: Attachments::new(kube.clone()),
            events: Events::new(kube.clone(), deps.replica.to_string()),
            records,
            reports,
            fences: FenceStore::new(kube.clone(), deps.namespace.clone()),
            fence: Mutex::new(None),
            config: ceiling::follow(deps.config.clone(), deps.flags),
            halt: stop.child_token(),
            actions,
            kube,
            deps,
        });
        let mut hand = HandLoop::new(ctx);
        tokio::select! {
            () = hand.serve(down, stop) => {}
            Err(error) = &mut watching => tasks::panic_with(error),
        }
        hand.ctx.halt.cancel();
        while hand.tasks.join_next().await.is_some() {}
        watching.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_commands_task_that_panics_says_which_command_it_was() {
        let id = CommandId::parse("018f6f2e-0000-7000-8000-000000000001").unwrap();
        let dies = async {
            assert!(tokio::task::id().to_string().is_empty(), "it dies here");
            Back::Done
        };
        assert!(matches!(tokio::spawn(caught(id, dies)).await.unwrap(), Back::Died(died) if died == id));
        assert!(matches!(caught(id, async { Back::Settled(id) }).await, Back::Settled(_)));
    }
}
