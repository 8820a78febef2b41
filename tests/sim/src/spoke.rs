//! One replica of a spoke: its process as a machine that takes answers, messages and time, and puts out calls and
//! messages. What it judges by is the shipping core: derive, verify, mark, release, the outbox, the HealAction's own
//! reading. Only the order in which a real one waits for its IO is retold here.

mod cache;
mod detect;
mod elect;
mod guard;
mod intake;
mod link;
mod report;
mod run;
mod steps;
mod tell;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    time::Duration,
};

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId, FaultKey, ReplicaId},
    link::v1::{self, attach_request::Message as Up},
    time::Timestamp,
};
use gpuheal_spoke::{
    healaction::{self, HealAction},
    ports::Audience,
    report::Owed,
};
use gpuheal_spoke_core::{
    ceiling::Config,
    derive::{Held, Settings},
    verify::{Cancel, Fence, Trust},
};

use crate::{
    api::{Answer, Call, Fault},
    chance::Chance,
    hub_time::Reading,
    journal::Journal,
    mutation::Mutations,
};

pub use cache::Cache;
use elect::Elect;
pub use link::Session;
use run::Run;

/// This machine's own clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Since boot, suspend included.
    pub boot: Duration,
    /// What it believes the time to be.
    pub wall: Timestamp,
}

/// What a replica puts out.
/// What a hub has asked for in one session.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// The epoch under which it asked for all; 0: it did not.
    term: u64,
    /// How often it asked for the state alone.
    snapshots: u64,
}

#[derive(Clone, Debug)]
pub enum Out {
    /// A call to the API server, for a command if there is one.
    Call(u64, Call, Option<CommandId>),
    /// A message to the hub.
    Up(Up),
    /// It wants a stream to some hub.
    Dial,
    /// It ends its stream.
    Hang,
    /// Its journal wants a sync.
    Sync,
    /// The process ends by itself: the Lease is lost.
    Die,
    /// It tells a hub how a command ended, for ever.
    Word(CommandId, CommandState),
    /// Something worth a line in the trace.
    Say(String),
}

/// Whom an answer is for.
#[derive(Clone, Debug)]
enum Wait {
    LeaseRead,
    LeasePut {
        begun: Duration,
    },
    FenceRead,
    Run(CommandId),
    /// A tombstone.
    Bury(CommandId),
    /// The end of an open action that nobody works on; false: of an older one, that its own run may end too.
    End(Option<CommandId>),
    LookUp(CommandId, Vec<u8>),
    Nothing,
}

/// What never changes about a replica.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its cluster.
    pub cluster: ClusterId,
    /// UID of the cluster's kube-system namespace.
    pub kube_system_uid: String,
    /// Its name.
    pub replica: ReplicaId,
    /// Whose signatures count.
    pub trust: Rc<Trust>,
    /// Guards taken away.
    pub mutations: Mutations,
}

/// The replica.
pub struct Spoke {
    /// Who it is.
    pub me: Identity,
    /// Outlives the process.
    pub disk: Journal,
    now: Clocks,
    /// New at each start.
    pub boot_id: String,
    out: Vec<Out>,
    waits: BTreeMap<u64, Wait>,
    token: u64,
    chance: Chance,
    /// What its watches show.
    pub cache: Cache,
    elect: Elect,
    clock: Option<Reading>,
    /// The stream to the hub, once welcomed.
    pub session: Option<Session>,
    dialled_at: Option<Duration>,
    dial_at: Duration,
    failures: u32,
    settings: Rc<Settings>,
    held: Held,
    evidence: BTreeMap<FaultKey, v1::Evidence>,
    told: tell::Told,
    /// What the hub has asked for in this session.
    wanted: Wanted,
    /// What the last heartbeat said of leadership.
    proof_told: Option<u64>,
    /// Commands that the hub has asked for and was not told of yet.
    asked: BTreeSet<String>,
    config: Config,
    fence: Option<(u64, Fence)>,
    fence_asked: bool,
    running: BTreeMap<CommandId, Run>,
    pending: BTreeSet<CommandId>,
    /// What the hub has called off and has no end yet.
    called_off: BTreeMap<CommandId, Cancel>,
    reported: Option<Audience>,
    /// The hub's term for which even what it had acked was told last.
    reported_term: Option<u64>,
    /// What the hub has yet to ack of it, and when that was told last.
    owed: Owed,
    owed_told: Duration,
    /// The highest that a hub has told.
    hub_term: u64,
    acked: BTreeMap<String, u64>,
    /// The highest number of a status that was told, by command.
    told_seq: BTreeMap<String, u64>,
    statuses: VecDeque<v1::CommandStatus>,
}

impl Spoke {
    /// What its clocks show now, set by the world before each call.
    pub fn at(&mut self, now: Clocks) {
        self.now = now;
        self.held.read_clock(now.wall, now.boot);
    }

    /// A process that has just started, over this disk.
    #[must_use]
    pub fn start(me: Identity, mut disk: Journal, now: Clocks, mut chance: Chance) -> Self {
        let boot_id = chance.word();
        let reused = me.mutations.has(crate::mutation::Mutation::StreamReused);
        let restored = disk.open(&format!("s-{}", chance.word()), reused);
        let mut held = Held::new(me.cluster.clone());
        for bytes in restored.values() {
            // What cannot be read begins anew.
            let _ = held.restore(bytes);
        }
        held.read_clock(now.wall, now.boot);
        Self {
            disk,
            now,
            boot_id,
            out: Vec::new(),
            waits: BTreeMap::new(),
            token: 0,
            cache: Cache::default(),
            elect: Elect::new(),
            clock: None,
            session: None,
            dialled_at: None,
            dial_at: now.boot + chance.ms(0, 1000),
            failures: 0,
            settings: Rc::default(),
            held,
            evidence: BTreeMap::new(),
            told: tell::Told::default(),
            wanted: Wanted::default(),
            proof_told: None,
            asked: BTreeSet::new(),
            config: Config::default(),
            fence: None,
            fence_asked: false,
            running: BTreeMap::new(),
            pending: BTreeSet::new(),
            called_off: BTreeMap::new(),
            reported: None,
            reported_term: None,
            owed: Owed::default(),
            owed_told: Duration::ZERO,
            hub_term: 0,
            acked: BTreeMap::new(),
            told_seq: BTreeMap::new(),
            statuses: VecDeque::new(),
            chance,
            me,
        }
    }

    /// What it has put out since it was last asked.
    pub fn take_out(&mut self) -> Vec<Out> {
        std::mem::take(&mut self.out)
    }

    fn say(&mut self, words: impl Into<String>) {
        self.out.push(Out::Say(words.into()));
    }

    fn call(&mut self, wait: Wait, call: Call, by: Option<CommandId>) {
        self.token += 1;
        self.waits.insert(self.token, wait);
        self.out.push(Out::Call(self.token, call, by));
    }

    /// The API server has answered, or the call's time is over.
    pub fn answered(&mut self, token: u64, result: Result<Answer, Fault>) {
        let Some(wait) = self.waits.remove(&token) else { return };
        if let Ok(Answer::Action(action)) = &result {
            self.cache.put_action(Rc::clone(action));
            self.told.dirty = true;
        }
        match wait {
            Wait::LeaseRead => self.lease_read(result),
            Wait::LeasePut { begun } => self.lease_put(begun, result),
            Wait::FenceRead => {
                self.fence_asked = false;
                if let Ok(Answer::Fence(version, fence)) = result {
                    self.fence = Some((version, fence));
                    self.resume();
                }
            }
            Wait::Run(id) => self.run_answered(id, result),
            Wait::Bury(id) => {
                self.pending.remove(&id);
                self.told_of(&result, id);
            }
            Wait::End(id) => {
                if let Some(id) = id {
                    self.pending.remove(&id);
                    self.told_of(&result, id);
                }
            }
            Wait::LookUp(id, bytes) => {
                self.pending.remove(&id);
                match result {
                    Ok(Answer::Node(node)) => self.command(bytes, Some(Some(node.facts.clone()))),
                    Err(Fault::NotFound) => self.command(bytes, Some(None)),
                    Ok(_) | Err(_) => {}
                }
            }
            Wait::Nothing => {}
        }
    }

    fn told_of(&mut self, result: &Result<Answer, Fault>, id: CommandId) {
        match result {
            Ok(Answer::Action(action)) => {
                let action = Rc::clone(action);
                self.report(&action);
            }
            // It exists: that one is the truth.
            Err(Fault::Conflict) => self.call(Wait::End(Some(id)), Call::GetAction(id.to_string()), None),
            Ok(_) | Err(_) => {}
        }
    }

    /// Time goes by.
    pub fn tick(&mut self) {
        self.elect_tick();
        self.link_tick();
        self.detect_tick();
        self.resume();
        self.runs_tick();
        self.state_tick();
        self.disk.trim(self.now.boot);
    }

    /// The reign under which it leads.
    #[must_use]
    pub fn reign(&self) -> Option<u64> {
        self.elect.reign()
    }

    /// Whether a step may begin: what is left of the Lease.
    #[must_use]
    pub fn margin(&self) -> Option<Duration> {
        if self.me.mutations.has(crate::mutation::Mutation::AnyLeader) && self.elect.ever_led() {
            return Some(Duration::from_secs(3600));
        }
        self.elect.margin(self.now.boot)
    }

    fn action_of(&self, id: CommandId) -> Option<Rc<HealAction>> {
        self.cache.actions.get(&id.to_string()).cloned()
    }

    /// HealActions without a final state, for whoever checks.
    pub fn open_actions(&self) -> impl Iterator<Item = &Rc<HealAction>> {
        self.cache.actions.values().filter(|action| !healaction::is_final(action))
    }
}
