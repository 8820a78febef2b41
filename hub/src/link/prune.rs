//! Forgets replicas and journals that are long gone: each rollout gives every cluster new pods, and each pod a session and a
//! journal of its own. Never touches what an auditor reads: gaps, records that could not be read, the chains.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics,
    store::{
        self, Labelled as _,
        pool::answered,
        prune::{journals_prune, sessions_prune, streams_prune},
    },
};

/// How long rows of what is gone are kept. 5,000 clusters of two replicas that are rolled out once a day leave 300,000 sessions,
/// journals and streams in it, at 300 bytes a row with its index 270 MB.
pub const KEEP: Duration = Duration::from_secs(30 * 24 * 3600);
/// Between two looks.
const EVERY: Duration = Duration::from_secs(600);
/// Rows of each table that one look takes: some 20 ms. A hub's 144 looks a day take 288,000, thirty rollouts' worth.
pub const BATCH: i64 = 2_000;

/// Looks every ten minutes until told to stop.
pub async fn run(pool: PgPool, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        match answered("prune.round", prune(&pool)).await {
            Ok(0) => {}
            Ok(rows) => tracing::debug!(rows, "what is long gone was forgotten"),
            Err(error) => {
                metrics::STAGE_FAILURES.inc(["prune"]);
                tracing::warn!(error = %crate::chain::chain(&error), "what is long gone could not be forgotten");
            }
        }
    }
}

/// One batch of each; returns how many rows went. Journals go before their streams.
///
/// # Errors
/// When the database fails.
pub async fn prune(pool: &PgPool) -> Result<u64, store::Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let sessions = sessions_prune(&mut conn, KEEP, BATCH).await?;
    let journals = journals_prune(&mut conn, KEEP, BATCH).await?;
    let streams = streams_prune(&mut conn, KEEP, BATCH).await?;
    Ok(sessions + journals + streams)
}
