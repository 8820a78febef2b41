//! Tells journals that are gone for good, with the disks of their replicas, as gaps: what is committed of them is known here, how
//! far they went their replicas said at each attach, with their heartbeats and as their last word. Looks once a minute; takes no
//! part in taking faults. A journal that comes back after all goes on where it was.

use std::time::Duration;

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics,
    store::{
        self, Labelled as _,
        journal::{Gone, journal_vanish, journals_gone},
        moment,
        pool::answered,
    },
};

/// A replica that has not been seen for so long, while another of its cluster was attached, is gone. Kubernetes evicts the pods of
/// a silent node after 5 minutes, and the new one attaches within another.
pub const GONE_AFTER: Duration = Duration::from_secs(600);
/// Between two looks: a tenth of that.
const EVERY: Duration = Duration::from_secs(60);
/// Told in one look; the next takes the rest. A rollout that loses the disks of 5,000 clusters at once is told within an hour.
const BATCH: i64 = 200;

/// Looks each minute until told to stop.
pub async fn run(pool: PgPool, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
        if let Err(error) = answered("gone.sweep", sweep(&pool)).await {
            metrics::STAGE_FAILURES.inc(["gone"]);
            tracing::warn!(error = %crate::chain::chain(&error), "journals that are gone were not looked for");
        }
    }
}

/// Tells what is gone; returns how many journals that are.
///
/// # Errors
/// When the database fails.
pub async fn sweep(pool: &PgPool) -> Result<u64, store::Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let gone = journals_gone(&mut conn, GONE_AFTER, BATCH).await?;
    drop(conn);
    let mut told = 0;
    for journal in gone {
        told += u64::from(tell(pool, &journal).await?);
    }
    Ok(told)
}

/// One journal in its own transaction.
async fn tell(pool: &PgPool, gone: &Gone) -> Result<bool, store::Error> {
    let reason = reason(gone);
    let mut tx = pool.begin().await.label("gone.begin")?;
    let now = moment::now(&mut tx).await?;
    if !journal_vanish(&mut tx, gone, &reason, now).await? {
        return Ok(false);
    }
    tx.commit().await.label("gone.commit")?;
    metrics::JOURNALS_VANISHED.inc([if gone.told_upto > gone.acked_upto { "lost" } else { "unclosed" }]);
    tracing::warn!(cluster.id = %gone.cluster, replica.id = gone.replica, stream.id = %gone.stream, reason, "a journal is gone");
    Ok(true)
}

/// In words, for the gap and its entry.
#[must_use]
pub fn reason(gone: &Gone) -> String {
    let how = match gone.seen_at {
        Some(at) => format!("replica {} has not been seen since {at}, and its journal is gone with it", gone.replica),
        None => format!("replica {} came again without this journal", gone.replica),
    };
    let (from, to) = (gone.acked_upto + 1, gone.told_upto);
    match (to.saturating_sub(gone.acked_upto), gone.ended) {
        (0, _) => format!("{how}; it was not closed, so what was found after record {}, if anything, never came", gone.acked_upto),
        (lost, true) => format!("{how}; {lost} records, {from} to {to}, never came"),
        (lost, false) => format!("{how}; {lost} records, {from} to {to}, never came, and it was not closed, so there may be more"),
    }
}
