//! Chaos at the level of processes: the shipping programs, a real Postgres, two hubs behind proxies of our own, and a seed
//! that says what is killed, stopped, cut, filled and put back while GPUs break and people act. When the troubles end, it
//! must come to rest, and what was injected is compared with what Postgres and the clusters hold.

pub mod act;
pub mod checks;
pub mod database;
pub mod effects;
pub mod field;
pub mod ledger;
pub mod people;
pub mod proxy;
pub mod schedule;
pub mod signed;
pub mod table;
pub mod watcher;

use std::time::Duration;

use anyhow::{Context as _, Result};

use self::{
    act::Actor,
    field::{Field, Make},
    schedule::{Force, Size, schedule},
    watcher::Watcher,
};
use crate::{show::Screen, timeline::Timeline};

/// How a run is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything that is drawn.
    pub seed: u64,
    /// How long troubles begin.
    pub span: Duration,
    /// How long it may take to come to rest after that.
    pub rest_within: Duration,
    /// Clusters, at most three.
    pub clusters: usize,
    /// GPU nodes of each.
    pub nodes: usize,
    /// How hard.
    pub force: Force,
    /// Lease duration, renew deadline, retry of the spokes.
    pub lease: [&'static str; 3],
    /// The first of them as a span.
    pub lease_lasts: Duration,
    /// Where it is told as it goes, if anywhere.
    pub screen: Option<Screen>,
}

/// Plays a run to its end. The error names every check that does not hold, and where the logs are.
pub async fn run(options: Options) -> Result<()> {
    let Options { seed, screen, .. } = options;
    let say = |stage: &str, text: &str| {
        if let Some(screen) = screen {
            screen.line("", stage, text);
        }
    };
    let make = Make { seed, clusters: options.clusters, nodes: options.nodes, lease: options.lease };
    let mut field = Field::start(make, |what| say("start", what)).await?;
    let dir = field.place.dir.clone();
    let played = play(&mut field, options).await;
    match played {
        Ok(()) => field.stop(),
        Err(error) => {
            field.place.keep();
            Err(error).with_context(|| format!("seed {seed}; logs and data are in {}", dir.display()))
        }
    }
}

async fn play(field: &mut Field, options: Options) -> Result<()> {
    let Options { screen, .. } = options;
    let size = Size {
        span: options.span,
        clusters: options.clusters,
        nodes: options.nodes,
        force: options.force,
        lease: options.lease_lasts,
    };
    let steps = schedule(options.seed, size);
    let watcher = Watcher::start(&field.clusters, field.pool.clone());
    let timeline = screen.map(|screen| Timeline::start(screen, field.pool.clone(), &field.clusters));
    let mut actor = Actor::new(field, screen);
    actor.play(&steps, options.span).await?;
    actor.heal().await?;
    let found = checks::at_rest(&mut actor, &watcher, options.rest_within).await?;
    if let Some(timeline) = timeline {
        timeline.told().await;
    }
    if let Some(screen) = screen {
        table::print(&screen, &actor, &watcher, &found).await?;
    }
    checks::verdict(&found)
}
