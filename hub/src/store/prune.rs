//! Takes away rows of what is long gone: replicas, and journals that are settled. Each statement takes a batch, and passes by
//! what somebody holds. Whatever it takes away is made anew by whoever comes back.

use std::time::Duration;

use sqlx::PgConnection;

use super::{Error, Labelled as _};

/// Deletes up to `most` sessions that ended, or were last seen, longer ago than `keep`. Whoever attaches under that name then
/// begins at generation 1 again: no hub has held the old ones since, as a session that hears nothing for 45 s is over.
///
/// # Errors
/// When the database fails.
pub async fn sessions_prune(conn: &mut PgConnection, keep: Duration, most: i64) -> Result<u64, Error> {
    delete(
        conn,
        "DELETE FROM sessions WHERE (cluster_id, replica_id) IN (
             SELECT cluster_id, replica_id FROM sessions WHERE COALESCE(detached_at, seen_at) < clock_timestamp() - $1 * interval '1 second'
             LIMIT $2 FOR UPDATE SKIP LOCKED)",
        keep,
        most,
        "sessions.prune",
    )
    .await
}

/// Deletes up to `most` journals that nobody has named for `keep` and that are settled: all of them is here, or they were found to
/// be gone that long ago, or their cluster is decommissioned. One of which neither is known stays: its cluster may come back.
///
/// # Errors
/// When the database fails.
pub async fn journals_prune(conn: &mut PgConnection, keep: Duration, most: i64) -> Result<u64, Error> {
    delete(
        conn,
        "DELETE FROM journals WHERE (cluster_id, stream_id) IN (
             SELECT j.cluster_id, j.stream_id FROM journals j
             WHERE j.named_at < clock_timestamp() - $1 * interval '1 second'
               AND (j.vanished_at < clock_timestamp() - $1 * interval '1 second'
                 OR j.vanished_at IS NULL AND j.ended AND j.told_upto <= COALESCE((SELECT t.acked_upto FROM streams t
                     WHERE t.cluster_id = j.cluster_id AND t.stream_id = j.stream_id), 0)
                 OR EXISTS (SELECT 1 FROM quarantines q WHERE q.cluster_id = j.cluster_id AND q.cause = 'decommissioned'))
             LIMIT $2 FOR UPDATE OF j SKIP LOCKED)",
        keep,
        most,
        "journals.prune",
    )
    .await
}

/// Deletes up to `most` streams that have not moved for `keep` and whose journal is forgotten. If it comes back after all it is
/// asked for from its first record on, and what is known of it is known by its key.
///
/// # Errors
/// When the database fails.
pub async fn streams_prune(conn: &mut PgConnection, keep: Duration, most: i64) -> Result<u64, Error> {
    delete(
        conn,
        "DELETE FROM streams WHERE (cluster_id, stream_id) IN (
             SELECT t.cluster_id, t.stream_id FROM streams t
             WHERE t.updated_at < clock_timestamp() - $1 * interval '1 second'
               AND NOT EXISTS (SELECT 1 FROM journals j WHERE j.cluster_id = t.cluster_id AND j.stream_id = t.stream_id)
             LIMIT $2 FOR UPDATE OF t SKIP LOCKED)",
        keep,
        most,
        "streams.prune",
    )
    .await
}

async fn delete(
    conn: &mut PgConnection,
    statement: &'static str,
    keep: Duration,
    most: i64,
    label: &'static str,
) -> Result<u64, Error> {
    let done = sqlx::query(statement).bind(keep.as_secs_f64()).bind(most).execute(conn).await.label(label)?;
    Ok(done.rows_affected())
}
