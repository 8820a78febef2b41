//! The world: clusters, spokes, hubs, their database and all wires between them, moved on by one event at a time. Every
//! delay and every loss is drawn from the seed, so that a seed is a run. Time jumps from event to event; there is no
//! other clock.

mod aim;
mod calls;
mod chaos;
mod forge;
mod hands;
mod hubs;
mod machines;
mod net;
mod places;
mod replica;
mod rest;
mod turn;
mod words;

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use gpuheal_proto::{
    ids::{ClusterId, CommandId, ReplicaId},
    link::v1::{attach_request::Message as Up, attach_response::Message as Down},
    time::Timestamp,
};

use crate::{
    api::{Answer, Api, Call, Change, Fault},
    body::Body,
    chance::Chance,
    hub::Hub,
    journal::Journal,
    keys,
    memory::Memory,
    mutation::{Mutation, Mutations},
    oracle::{Broken, Oracle},
    spoke::{Clocks, Identity, Spoke},
    store::{Due, Store as _},
    trace::Trace,
};
use chaos::Trouble;
use net::Conn;

/// The first moment of every run.
pub const START: Timestamp = Timestamp::from_unix_ms(1_764_442_800_000);
/// Spokes and hubs come up.
const CALM: Duration = Duration::from_secs(60);
/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(20 * 60);
/// How long the world then has to come to rest: what the policy commands, but for releases, lives 15 minutes at most.
const REST: Duration = Duration::from_secs(25 * 60);
/// A run is some 25,000 events. What goes round in a circle, each time with another command, makes ten times as many in a minute.
const EVENTS_MAX: u64 = 250_000;

/// What happens.
#[derive(Clone, Debug)]
pub enum Event {
    /// A hub's second.
    HubTick(usize, u64),
    /// A hub has something to do.
    HubWork(usize, u64),
    /// A hub starts.
    HubStart(usize),
    /// A hub notes what it has sent.
    Noted(usize, u64, Vec<Due>),
    /// A replica's second.
    SpokeTick(Place, u64),
    /// A replica starts.
    SpokeStart(Place),
    /// A replica dies.
    Dies(Place, u64),
    /// Its journal is on the disk.
    Synced(Place, u64),
    /// A call reaches the API server.
    Called(Place, u64, Rc<Calling>),
    /// Its answer reaches the replica.
    Answered(Place, u64, u64, Result<Answer, Fault>),
    /// A watch shows a change.
    Watched(Place, u64, u64, Change),
    /// A watch begins anew.
    Listed(Place, u64),
    /// A message reaches the hub.
    GoesUp(u64, Box<Up>),
    /// A message reaches the replica.
    GoesDown(u64, Box<Down>),
    /// The hub's end of a stream is closed, and the replica sees it.
    ClosedByHub(u64),
    /// The replica's end is closed, and the hub sees it.
    ClosedBySpoke(u64),
    /// A stream is lost, and both ends see it.
    Severed(u64),
    /// An owner takes back a no.
    SaysYes(usize, Option<String>),
    /// An exporter is asked.
    Scrape(usize, String),
    /// A pod's grace is over.
    PodGone(usize, String),
    /// A backup is taken.
    Backup,
    /// The way to the hubs is free again.
    Mended(Place),
    /// Something goes wrong.
    Trouble(Trouble),
    /// Everything goes well from now on.
    Peace,
}

/// A call on its way.
#[derive(Clone, Debug)]
pub struct Calling {
    token: u64,
    call: Call,
    by: Option<CommandId>,
    sent_at: Timestamp,
    led: bool,
    contact_at: Timestamp,
}

/// A replica: cluster and number.
pub type Place = (usize, usize);

/// A replica's machine.
pub struct Slot {
    me: Identity,
    /// The process, if it runs.
    pub spoke: Option<Spoke>,
    disk: Journal,
    /// Raised at each start: what was meant for an earlier process is void.
    life: u64,
    drift_ppm: i64,
    wall_off_ms: i64,
    conn: Option<u64>,
    /// No hub is reached until then.
    cut_until: Timestamp,
    /// The API server is not reached until then.
    api_cut_until: Timestamp,
    /// It stands still until then.
    paused_until: Timestamp,
    watch_at: Timestamp,
    watch_epoch: u64,
    contact_at: Timestamp,
}

/// A cluster.
pub struct Site {
    /// Its id.
    pub id: ClusterId,
    /// Its API server.
    pub api: Api,
    /// Its replicas.
    pub slots: Vec<Slot>,
    /// Its machines by name.
    pub bodies: BTreeMap<String, Body>,
    /// What people and other programs want of each node, by name.
    pub theirs: BTreeMap<String, hands::Theirs>,
    made: u32,
}

/// How a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Guards taken away.
    pub mutations: Mutations,
    /// Every line is kept.
    pub trace: bool,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// What was broken, if anything.
    pub broken: Option<Broken>,
    /// Events handled.
    pub events: u64,
    /// Effects seen.
    pub acts: u64,
    /// Incidents that were closed.
    pub closings: u64,
    /// All that was told, if anybody asked.
    pub trace: Vec<String>,
}

/// The world.
pub struct World {
    now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), Event>,
    number: u64,
    chance: Chance,
    odds: aim::Odds,
    db: Memory,
    backups: Vec<Memory>,
    db_away_until: Timestamp,
    mutations: Mutations,
    hubs: Vec<(Option<Hub>, u64)>,
    clusters: Vec<Site>,
    conns: BTreeMap<u64, Conn>,
    conn_number: u64,
    peace: bool,
    oracle: Oracle,
    trace: Trace,
    /// How many entries of each chain were put into the trace.
    audit_told: BTreeMap<String, usize>,
    events: u64,
}

impl World {
    /// The world of a seed, before its first event.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let mut chance = Chance::new(seed);
        let mut db = Memory::new(START, options.mutations);
        let yaml = places::policy(&mut chance);
        db.policy(&yaml).expect("the simulation's policy is one");
        let anybody = options.mutations.has(Mutation::AnySignature);
        let trust = Rc::new(if anybody { keys::trust_in_anybody() } else { keys::trust() });
        let clusters = (0..2).map(|at| places::cluster(at, &mut chance, &trust, options.mutations)).collect();
        let mut world = Self {
            now: START,
            queue: BTreeMap::new(),
            number: 0,
            odds: aim::Odds::drawn(&mut chance),
            chance,
            db,
            backups: Vec::new(),
            db_away_until: Timestamp::EPOCH,
            mutations: options.mutations,
            hubs: vec![(None, 0), (None, 0)],
            clusters,
            conns: BTreeMap::new(),
            conn_number: 0,
            peace: false,
            oracle: Oracle::default(),
            trace: Trace::new(options.trace),
            audit_told: BTreeMap::new(),
            events: 0,
        };
        world.set_up();
        world
    }

    fn set_up(&mut self) {
        for hub in 0..self.hubs.len() {
            self.soon(0, 1000, Event::HubStart(hub));
        }
        for (cluster, count) in self.clusters.iter().map(|cluster| cluster.slots.len()).enumerate().collect::<Vec<_>>() {
            for slot in 0..count {
                self.soon(0, 3000, Event::SpokeStart((cluster, slot)));
            }
            let nodes: Vec<String> = self.clusters[cluster].bodies.keys().cloned().collect();
            for node in nodes {
                self.soon(1000, 30_000, Event::Scrape(cluster, node));
            }
        }
        self.at(START.after(Duration::from_secs(30)), Event::Backup);
        self.plan_trouble(START.after(CALM), START.after(CALM + TROUBLE));
        self.at(START.after(CALM + TROUBLE), Event::Peace);
    }

    /// Runs to the end, or to the first broken invariant.
    pub fn run(mut self, seed: u64) -> Outcome {
        let end = START.after(CALM + TROUBLE + REST);
        while self.oracle.broken.is_none() {
            let Some(((at, _), event)) = self.queue.pop_first() else { break };
            if at > end {
                break;
            }
            self.now = at;
            self.events += 1;
            self.step(event);
            if self.events >= EVENTS_MAX {
                self.oracle.breaks(
                    "everything comes to rest",
                    self.now,
                    format!("{EVENTS_MAX} things happened and more are to come"),
                );
            }
        }
        if self.oracle.broken.is_none() {
            self.now = end;
            self.at_rest();
        }
        Outcome {
            seed,
            broken: self.oracle.broken,
            events: self.events,
            acts: self.oracle.acts,
            closings: self.oracle.closings,
            trace: self.trace.lines(),
        }
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.number += 1;
        self.queue.insert((at.max(self.now), self.number), event);
    }

    fn soon(&mut self, least_ms: u64, most_ms: u64, event: Event) {
        let after = self.chance.ms(least_ms, most_ms);
        self.at(self.now.after(after), event);
    }

    fn say(&mut self, words: impl FnOnce() -> String) {
        self.trace.say(self.now, words);
    }

    fn slot(&mut self, (cluster, slot): Place) -> &mut Slot {
        &mut self.clusters[cluster].slots[slot]
    }

    fn name((cluster, slot): Place) -> String {
        format!("c{cluster}/spoke-{slot}")
    }
}

impl Slot {
    fn clocks(&self, now: Timestamp) -> Clocks {
        let ms = i64::try_from(now.since(START).as_millis()).unwrap_or(0);
        let boot = ms + ms * self.drift_ppm / 1_000_000 + 100_000;
        let boot = Duration::from_millis(u64::try_from(boot).unwrap_or(0));
        Clocks { boot, wall: Timestamp::from_unix_ms(now.unix_ms() + self.wall_off_ms) }
    }

    fn replica(&self) -> &ReplicaId {
        &self.me.replica
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Outcome {
    World::new(seed, options).run(seed)
}
