//! The field of a chaos run: two hubs on one Postgres, clusters with two spokes each, and a wire of our own between any two
//! of them. It knows what is meant to be down, and starts again what ended by itself, as a kubelet would.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use sqlx::PgPool;

use super::{
    database::Database,
    proxy::{Proxy, Weather},
    schedule::{HUBS, Program, REPLICAS, Wire},
};
use crate::{
    cluster::{Cluster, Kind, Machine, SpokeSettings},
    fleet::{HubPorts, Place, first_hub, make_pki, migrate, start_hub, taken_over},
    process::{Process, Programs},
    workload::{self, Shape},
};

/// The policy of a run.
pub const POLICY: &str = include_str!("policy.yaml");
/// Ids of the clusters, as many as a run asks for.
pub const CLUSTERS: [&str; 3] = ["alpha", "beta", "gamma"];
/// The cluster whose owner has set a ceiling, and the ceiling.
pub const CEILING: (usize, usize) = (1, 3);
/// GPUs of each node.
pub const GPUS: u32 = 4;
/// How long whoever ended by itself stays away: a kubelet's first restart is as quick.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What a field is made of.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Seed of the GPUs' names.
    pub seed: u64,
    /// Clusters, at most three.
    pub clusters: usize,
    /// GPU nodes of each.
    pub nodes: usize,
    /// Lease duration, renew deadline, retry.
    pub lease: [&'static str; 3],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    /// Killed, and meant to be away.
    Away,
    Paused,
}

struct Hub {
    name: String,
    ports: HubPorts,
    process: Process,
    wire: Arc<Proxy>,
    state: State,
    ended_at: Option<Instant>,
}

struct Spoke {
    name: String,
    settings: SpokeSettings,
    wire: Proxy,
    state: State,
    ended_at: Option<Instant>,
}

/// Where each cluster's spokes take webhooks now.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<Vec<Vec<String>>>>);

impl Book {
    /// The addresses of one cluster.
    #[must_use]
    pub fn of(&self, cluster: usize) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(cluster).cloned().unwrap_or_default()
    }
}

/// The field.
pub struct Field {
    /// Its clusters.
    pub clusters: Vec<Cluster>,
    /// The run's own way to the database, which is never ill by itself.
    pub pool: PgPool,
    /// The database.
    pub database: Database,
    /// Where everything that it writes is.
    pub place: Place,
    /// The spokes' webhook addresses.
    pub book: Book,
    /// The webhook's token.
    pub token: String,
    /// Programs that ended by themselves and were started again, by name.
    pub ended: BTreeMap<String, u32>,
    hubs: Vec<Hub>,
    spokes: BTreeMap<(usize, usize), Spoke>,
    people: Proxy,
    programs: Programs,
}

impl Field {
    /// Starts all of it and waits until every cluster's leader is attached and its nodes are known.
    pub async fn start(make: Make, mut say: impl FnMut(&str)) -> Result<Self> {
        let place = Place::temporary()?;
        let dir = place.dir.clone();
        let programs = Programs::kept_in(&dir.join("bin"))?;
        say("a private Postgres, a development PKI");
        let mut database = Database::start(dir.join("postgres")).await?;
        let (_ours, url) = database.wire().await?;
        std::fs::write(dir.join("database.url"), &url)?;
        let pool =
            sqlx::postgres::PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(10)).connect(&url).await?;
        let ids: Vec<String> = CLUSTERS.iter().take(make.clusters).map(|id| (*id).to_owned()).collect();
        make_pki(&programs, &dir.join("pki"), &ids)?;
        let token = hex::encode(gpuheal_proto::ids::digest(&["webhook token", &make.seed.to_string()]));
        std::fs::write(dir.join("webhook.token"), &token)?;
        std::fs::write(dir.join("policy.yaml"), POLICY)?;
        migrate(&programs, &dir)?;
        say("two hubs on one Postgres");
        let mut hubs = vec![];
        for number in 0..HUBS {
            let name = format!("hub-{}", letter(number));
            let (wire, url) = database.wire().await?;
            std::fs::write(dir.join(format!("{name}.database.url")), url)?;
            let (ports, process) = first_hub(&programs, &dir, &name).await?;
            hubs.push(Hub { name, ports, process, wire, state: State::Up, ended_at: None });
        }
        let people = Proxy::start(parse(hubs.iter().map(|hub| &hub.ports.fleet))?).await?;
        let mut field = Self {
            clusters: vec![],
            pool,
            database,
            place,
            book: Book::default(),
            token,
            ended: BTreeMap::new(),
            hubs,
            spokes: BTreeMap::new(),
            people,
            programs,
        };
        for (number, id) in CLUSTERS.iter().take(make.clusters).enumerate() {
            say(&format!("cluster {id}: {} nodes on kubesim, two spokes", make.nodes));
            field.add_cluster(number, id, make).await?;
        }
        for cluster in &field.clusters {
            cluster.leader().await?;
            taken_over(&field.pool, cluster).await?;
        }
        Ok(field)
    }

    async fn add_cluster(&mut self, number: usize, id: &str, make: Make) -> Result<()> {
        let dir = self.place.dir.clone();
        let machines = (0..make.nodes)
            .map(|index| Machine { name: format!("{id}-{index:02}"), gpus: GPUS, model: "NVIDIA H100 80GB HBM3" })
            .collect();
        let mut cluster = Cluster::start(id, Kind::Sim, &dir, make.seed, machines).await?;
        if number == CEILING.0 {
            cluster.set_config(&format!("ceiling:\n  nodesOut: {}\n", CEILING.1)).await?;
        }
        let pods = make.nodes;
        let shape = Shape { replicas: u32::try_from(pods)?, gpus: 1, grace_s: 2, exit_after_ms: 200 };
        cluster.create(workload::deployment("train", shape)).await?;
        cluster.app_ready("train", pods).await?;
        for replica in 0..REPLICAS {
            let wire = Proxy::start(parse(self.hubs.iter().map(|hub| &hub.ports.link))?).await?;
            let settings = SpokeSettings {
                hub: format!("https://{}", wire.address()),
                identity: dir.join("pki/clusters").join(id),
                token_file: dir.join("webhook.token"),
                lease: make.lease,
                program: self.programs.spoke.clone(),
                dies_at: None,
                own_user: true,
            };
            let name = cluster.launch_replica(letter(replica), &settings)?;
            self.spokes.insert((number, replica), Spoke { name, settings, wire, state: State::Up, ended_at: None });
        }
        self.clusters.push(cluster);
        Ok(())
    }

    /// kill -9; it stays away until [`Self::back`].
    pub fn kill(&mut self, program: Program) -> Result<()> {
        match program {
            Program::Hub(number) => {
                let hub = &mut self.hubs[number];
                (hub.state, hub.ended_at) = (State::Away, None);
                hub.process.kill()
            }
            Program::Spoke(cluster, replica) => {
                let spoke = self.spokes.get_mut(&(cluster, replica)).context("a spoke of the run")?;
                (spoke.state, spoke.ended_at) = (State::Away, None);
                let running = self.clusters[cluster].replicas().get_mut(&spoke.name).context("it was started")?;
                running.http.clear();
                running.process.kill()
            }
        }
    }

    /// SIGSTOP, until [`Self::back`].
    pub fn pause(&mut self, program: Program) -> Result<()> {
        match program {
            Program::Hub(number) => {
                self.hubs[number].state = State::Paused;
                self.hubs[number].process.pause()
            }
            Program::Spoke(cluster, replica) => {
                let spoke = self.spokes.get_mut(&(cluster, replica)).context("a spoke of the run")?;
                spoke.state = State::Paused;
                self.clusters[cluster].replicas().get(&spoke.name).context("it was started")?.process.pause()
            }
        }
    }

    /// Ends an absence or a pause.
    pub fn back(&mut self, program: Program) -> Result<()> {
        match program {
            Program::Hub(number) => {
                let paused = self.hubs[number].state == State::Paused;
                if paused {
                    self.hubs[number].process.resume()?
                } else {
                    self.launch_hub(number)?
                }
                self.hubs[number].state = State::Up;
            }
            Program::Spoke(cluster, replica) => {
                let spoke = self.spokes.get_mut(&(cluster, replica)).context("a spoke of the run")?;
                let paused = spoke.state == State::Paused;
                spoke.state = State::Up;
                if paused {
                    self.clusters[cluster].replicas().get(&spoke.name).context("it was started")?.process.resume()?;
                } else {
                    self.clusters[cluster].launch_replica(letter(replica), &spoke.settings)?;
                }
            }
        }
        Ok(())
    }

    fn launch_hub(&mut self, number: usize) -> Result<()> {
        let hub = &mut self.hubs[number];
        hub.process = start_hub(&self.programs, &self.place.dir, &hub.name, &hub.ports)?;
        Ok(())
    }

    /// Whether a program is up as far as it is meant to be: neither away nor paused.
    #[must_use]
    pub fn meant_up(&self, program: Program) -> bool {
        match program {
            Program::Hub(number) => self.hubs[number].state == State::Up,
            Program::Spoke(cluster, replica) => self.spokes.get(&(cluster, replica)).is_some_and(|s| s.state == State::Up),
        }
    }

    /// A program's name.
    #[must_use]
    pub fn name(&self, program: Program) -> String {
        match program {
            Program::Hub(number) => self.hubs[number].name.clone(),
            Program::Spoke(cluster, replica) => format!("spoke {}", self.spokes[&(cluster, replica)].name),
        }
    }

    /// A replica's name, as its API server knows it.
    #[must_use]
    pub fn replica(&self, cluster: usize, replica: usize) -> String {
        self.spokes[&(cluster, replica)].name.clone()
    }

    fn proxy(&self, wire: Wire) -> &Proxy {
        match wire {
            Wire::Link(cluster, replica) => &self.spokes[&(cluster, replica)].wire,
            Wire::Database(hub) => &self.hubs[hub].wire,
        }
    }

    /// A wire's name.
    #[must_use]
    pub fn wire_name(&self, wire: Wire) -> String {
        match wire {
            Wire::Link(cluster, replica) => format!("{} to the hubs", self.spokes[&(cluster, replica)].name),
            Wire::Database(hub) => format!("{} to Postgres", self.hubs[hub].name),
        }
    }

    /// Changes the weather on a wire.
    pub fn set(&self, wire: Wire, weather: Weather) {
        self.proxy(wire).set(weather);
    }

    /// Resets what is open on a wire.
    pub fn reset(&self, wire: Wire) {
        self.proxy(wire).reset();
    }

    /// Starts again whoever ended by itself, and learns the addresses of those who have become ready.
    pub fn supervise(&mut self) -> Result<Vec<String>> {
        let mut told = vec![];
        for number in 0..self.hubs.len() {
            let hub = &mut self.hubs[number];
            if hub.state == State::Up && hub.process.ended() && waited(&mut hub.ended_at) {
                told.push(hub.name.clone());
                self.launch_hub(number)?;
            }
        }
        for ((cluster, replica), spoke) in &mut self.spokes {
            let cluster = &mut self.clusters[*cluster];
            let running = cluster.replicas().get_mut(&spoke.name).context("it was started")?;
            if running.http.is_empty()
                && let Some(ready) = running.process.ready_now()
            {
                ready["http"].as_str().unwrap_or_default().clone_into(&mut running.http);
            }
            if spoke.state == State::Up && running.process.ended() && waited(&mut spoke.ended_at) {
                told.push(format!("spoke {}", spoke.name));
                cluster.launch_replica(letter(*replica), &spoke.settings)?;
            }
        }
        for name in &told {
            *self.ended.entry(name.clone()).or_default() += 1;
        }
        let book: Vec<Vec<String>> = self
            .clusters
            .iter()
            .map(|cluster| cluster.webhooks().into_iter().filter(|address| !address.is_empty()).collect())
            .collect();
        *self.book.0.lock().unwrap_or_else(PoisonError::into_inner) = book;
        Ok(told)
    }

    /// Everybody is up and every wire is clear.
    pub fn heal(&mut self) -> Result<()> {
        let hubs = (0..self.hubs.len()).map(Program::Hub);
        let all: Vec<Program> = hubs.chain(self.spokes.keys().map(|(c, r)| Program::Spoke(*c, *r))).collect();
        for program in all {
            if !self.meant_up(program) {
                self.back(program)?;
            }
        }
        for hub in &self.hubs {
            hub.wire.set(Weather::Clear);
        }
        for spoke in self.spokes.values() {
            spoke.wire.set(Weather::Clear);
        }
        for cluster in &self.clusters {
            cluster.sim().context("clusters of a chaos run are simulated")?.faults().clear();
        }
        Ok(())
    }

    /// gpuhealctl and the arguments by which it reaches whichever hub answers.
    #[must_use]
    pub fn ctl(&self) -> (PathBuf, Vec<String>) {
        let identity = self.place.dir.join("pki/users/admin").display().to_string();
        let hub = format!("https://{}", self.people.address());
        (self.programs.ctl.clone(), vec!["--hub".into(), hub, "--identity".into(), identity])
    }

    /// The log files of every program, and of Postgres.
    #[must_use]
    pub fn logs(&self) -> Vec<PathBuf> {
        let dir = &self.place.dir;
        let hubs = self.hubs.iter().map(|hub| dir.join(format!("{}.log", hub.name)));
        let spokes = self.spokes.keys().map(|(c, r)| dir.join(&self.clusters[*c].id).join(format!("spoke-{}.log", letter(*r))));
        hubs.chain(spokes).collect()
    }

    /// Ends everything in good order, spokes first.
    pub fn stop(mut self) -> Result<()> {
        for cluster in &mut self.clusters {
            for replica in cluster.replicas().values_mut() {
                replica.process.stop()?;
            }
        }
        self.hubs.iter_mut().try_for_each(|hub| hub.process.stop())
    }
}

/// Remembers when an end was first seen; true, and forgotten, once it was long enough ago.
fn waited(ended_at: &mut Option<Instant>) -> bool {
    let since = *ended_at.get_or_insert_with(Instant::now);
    let waited = since.elapsed() >= AGAIN_AFTER;
    if waited {
        *ended_at = None;
    }
    waited
}

fn letter(number: usize) -> &'static str {
    ["a", "b", "c", "d"][number % 4]
}

fn parse<'a>(addresses: impl Iterator<Item = &'a String>) -> Result<Vec<std::net::SocketAddr>> {
    addresses.map(|address| address.parse().with_context(|| format!("{address} is no address"))).collect()
}
