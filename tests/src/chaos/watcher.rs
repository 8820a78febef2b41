//! Who looks on during the run: takes every write from the API servers' records before these forget, and looks at the
//! budgets in Postgres again and again. Reads only.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kubesim::{Record, Recorder};
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::cluster::Cluster;

/// How often. A record holds 20,000 requests: more than two minutes of what a cluster of this size is asked.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// What was seen of one API server.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Its writes, in order.
    pub writes: Vec<Record>,
    /// Its start by the wall clock, in milliseconds since 1970: late by as long as the quickest look took.
    pub started_ms: u64,
    next: u64,
}

#[derive(Default)]
struct All {
    clusters: BTreeMap<String, Seen>,
    overspent: BTreeSet<String>,
}

/// The onlooker; ends when dropped.
pub struct Watcher {
    all: Arc<Mutex<All>>,
    recorders: Vec<(String, Recorder)>,
    task: JoinHandle<()>,
}

fn lock(all: &Mutex<All>) -> MutexGuard<'_, All> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Milliseconds since 1970 by the wall clock.
#[must_use]
pub fn wall_ms() -> u64 {
    u64::try_from(chrono::Utc::now().timestamp_millis()).unwrap_or_default()
}

impl Watcher {
    /// Starts looking.
    #[must_use]
    pub fn start(clusters: &[Cluster], pool: PgPool) -> Self {
        let recorders: Vec<(String, Recorder)> =
            clusters.iter().filter_map(|cluster| Some((cluster.id.clone(), cluster.sim()?.recorder().clone()))).collect();
        let all = Arc::new(Mutex::new(All::default()));
        let (kept, asked) = (Arc::clone(&all), recorders.clone());
        let task = tokio::spawn(async move {
            loop {
                take(&kept, &asked);
                // While Postgres is away there is nothing to look at.
                if let Ok(overspent) = overspent(&pool).await {
                    lock(&kept).overspent.extend(overspent);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { all, recorders, task }
    }

    /// Everything that one API server was asked to write, up to now.
    #[must_use]
    pub fn seen(&self, cluster: &str) -> Seen {
        take(&self.all, &self.recorders);
        lock(&self.all).clusters.get(cluster).cloned().unwrap_or_default()
    }

    /// Budgets that were seen overspent at any moment.
    #[must_use]
    pub fn overspent(&self) -> Vec<String> {
        lock(&self.all).overspent.iter().cloned().collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn take(all: &Mutex<All>, recorders: &[(String, Recorder)]) {
    for (cluster, recorder) in recorders {
        let mut all = lock(all);
        let seen = all.clusters.entry(cluster.clone()).or_default();
        let new = recorder.requests_since(seen.next);
        let Some(last) = new.last() else { continue };
        let started_ms = wall_ms().saturating_sub(last.at_ms);
        seen.started_ms = if seen.started_ms == 0 { started_ms } else { seen.started_ms.min(started_ms) };
        seen.next = last.seq + 1;
        seen.writes.extend(new.into_iter().filter(judged));
    }
}

/// What the checks look at: nodes, evictions, the Lease.
fn judged(record: &Record) -> bool {
    let node = record.resource == "nodes" && record.subresource.is_empty();
    record.is_write() && (node || record.subresource == "eviction" || record.resource == "leases")
}

async fn overspent(pool: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT cluster_id || ' ' || scope || ': ' || out || ' out of ' || allowed FROM budgets WHERE out > allowed")
        .fetch_all(pool)
        .await
}
