//! Stage `scrape`, the part with sockets: asks each exporter for its page, one request at a time per exporter and a
//! bounded number at once, and hands the bytes on. The leader asks at the interval of the settings; a standby now and then,
//! for the inventory alone. What a page says is for `derive`; here it is told only whether one came, and why not.

mod fetch;
mod rounds;
mod targets;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    clock,
    derive::Derive,
    metrics::{self, Metrics},
    ports::Leadership,
    settings::Settings,
    tasks,
    watch::ServicePods,
};

pub use fetch::{Failure, Fetcher};
pub use rounds::Rounds;
pub(crate) use targets::all as targets;
pub use targets::{StaticTarget, Target};

/// Requests at once: at 8 MiB a page at most, 256 MiB, and 1,000 exporters of 20 ms each are asked in under a second.
const AT_ONCE: usize = 32;
/// How long changes of exporter pods are gathered: a list of 5,000 is a handful of looks and not 5,000.
const GATHER: Duration = Duration::from_millis(50);
/// A standby looks this much less often, to know which GPU sits where: alerts that reach it name GPUs by UUID.
const STANDBY_INTERVALS: u32 = 10;

/// Everything that scraping touches.
#[derive(Clone)]
pub struct Deps {
    /// Exporter pods as the watch has them.
    pub exporters: ServicePods,
    /// Bumped when they change.
    pub changes: watch::Receiver<u64>,
    /// Exporters given by hand.
    pub fixed: Arc<[StaticTarget]>,
    /// Port of a pod that names none.
    pub port: u16,
    /// Interval and timeout.
    pub settings: Arc<Settings>,
    /// From the elector.
    pub leadership: watch::Receiver<Leadership>,
    /// Pages go to it.
    pub derive: Arc<Derive>,
    /// Who was asked in this reign.
    pub rounds: Arc<Rounds>,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Scrapes until cancelled. Panics with the loop of any exporter: one that nobody asks any more would hold every release.
pub async fn run(mut deps: Deps, cancel: CancellationToken) {
    let shared = Arc::new(Shared { deps: deps.clone(), fetcher: Fetcher::new(), permits: Semaphore::new(AT_ONCE) });
    let mut running: BTreeMap<Arc<Target>, CancellationToken> = BTreeMap::new();
    let mut loops = JoinSet::new();
    loop {
        let listed = *deps.changes.borrow_and_update() > 0;
        let wanted: BTreeSet<Target> = deps.exporters.look(|pods| targets::all(pods, &deps.fixed, deps.port)).into_iter().collect();
        running.retain(|target, stop| {
            let stays = wanted.contains(&**target);
            if !stays {
                stop.cancel();
            }
            stays
        });
        let mut begin = Vec::new();
        for target in wanted {
            if running.contains_key(&target) {
                continue;
            }
            let (target, stop) = (Arc::new(target), cancel.child_token());
            begin.push((Arc::clone(&target), stop.clone()));
            running.insert(target, stop);
        }
        // Before any of them is asked: what is not expected does not count.
        if listed {
            deps.rounds.expect(running.keys());
        }
        for (target, stop) in begin {
            loops.spawn(One { target, shared: Arc::clone(&shared) }.run(stop));
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            never = tasks::watch_over(&mut loops) => match never {},
            Ok(()) = deps.changes.changed() => tokio::time::sleep(GATHER).await,
            else => return,
        }
    }
}

/// What the loops of all exporters have in common.
struct Shared {
    deps: Deps,
    fetcher: Fetcher,
    permits: Semaphore,
}

/// One exporter's loop. Most of the time it sleeps, and there are thousands: whatever it holds then counts.
struct One {
    target: Arc<Target>,
    shared: Arc<Shared>,
}

impl One {
    async fn run(self, stop: CancellationToken) {
        let mut leadership = self.shared.deps.leadership.clone();
        let mut settings = self.shared.deps.settings.changes();
        // All exporters are looked at at once when something changed: a takeover is one scrape away. From there each goes over to
        // a beat of its own, so that their pages come spread over the interval and never a thousand at a time.
        let mut in_step = true;
        loop {
            let reign = leadership.borrow_and_update().transitions();
            tokio::select! {
                () = stop.cancelled() => return,
                // On the heap while it lasts: a request on its way is several KiB.
                () = Box::pin(self.once()) => {}
            }
            if let Some(reign) = reign {
                self.shared.deps.rounds.asked(&self.target, reign);
            }
            let wait = self.wait(reign.is_some(), std::mem::take(&mut in_step));
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = leadership.changed() => in_step = true,
                Ok(()) = settings.changed() => in_step = true,
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn wait(&self, leads: bool, in_step: bool) -> Duration {
        let interval = self.shared.deps.settings.detect().scrape_interval * if leads { 1 } else { STANDBY_INTERVALS };
        let chance = crate::chance::chance(0.5);
        interval.mul_f64(if in_step { chance } else { 0.9 + 0.2 * chance })
    }

    #[tracing::instrument(name = "spoke.scrape", skip_all, fields(node.name = %self.target.node))]
    async fn once(&self) {
        let Shared { deps, fetcher, permits } = &*self.shared;
        if deps.settings.detect().scrape_off {
            return;
        }
        let Ok(_permit) = permits.acquire().await else { return };
        let started = clock::boottime();
        let page = fetcher.get(&self.target.url, deps.settings.scrape_timeout()).await;
        deps.metrics.observe(metrics::SCRAPE_SECONDS, &[], (clock::boottime() - started).as_secs_f64());
        let outcome = page.as_ref().map_or_else(Failure::word, |page| if page.cut { "cut" } else { "ok" });
        deps.metrics.inc(metrics::SCRAPES, &[("outcome", outcome)]);
        if let Err(failure) = &page {
            let node = self.target.node.as_str();
            tracing::debug!(node.name = node, url = %self.target.url, error = %gpuheal_proto::chain::chain(failure), "no page");
        }
        deps.derive.page(&self.target, page.as_ref().map(|page| page.bytes.as_slice()), deps.derive.now()).await;
    }
}

#[cfg(test)]
mod tests;
