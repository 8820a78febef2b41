//! Which replica holds which journal, and how far each said that it goes: what an attach and a heartbeat tell, and what of it
//! is gone. How far a journal is committed is in `streams`, which nothing here writes: taking faults waits for nobody here.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gpuheal_proto::{
    ids::{ClusterId, ReplicaId, StreamId},
    time::Timestamp,
};
use serde_json::json;
use sqlx::{FromRow, PgConnection};

use super::{Error, Labelled as _, moment::from_db, natural, read, session::SESSION_STALE, signed, stream::gap_insert};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    link::hello::{Hello, Journal},
};

/// Notes what journals a replica holds, as its Hello tells them; returns those of which something is committed here, and how
/// far. The caller holds the cluster's row.
///
/// Of those that it held before and names no more, the ones that it went on writing to the end of its time are at their end, if
/// it found its journals where it keeps them: a spoke lets go of what is acked, and of what is empty. If it found none they are gone.
///
/// # Errors
/// When the database fails.
pub async fn journals_name(conn: &mut PgConnection, hello: &Hello, now: Timestamp) -> Result<Vec<(String, u64)>, Error> {
    let streams: Vec<&str> = hello.journals.iter().map(|journal| journal.stream.as_str()).collect();
    let upto: Vec<i64> = hello.journals.iter().map(|journal| signed(journal.upto)).collect();
    // The last one is written.
    let ended: Vec<bool> = (1..=streams.len()).map(|at| at < streams.len()).collect();
    let named: Vec<(String, Option<i64>, bool)> = sqlx::query_as(
        "WITH named AS (
             SELECT stream_id, max(upto) AS upto, bool_and(ended) AS ended
             FROM unnest($3::text[], $4::bigint[], $5::boolean[]) AS n (stream_id, upto, ended) GROUP BY stream_id),
         back AS (SELECT j.stream_id FROM journals j JOIN named n USING (stream_id) WHERE j.cluster_id = $1 AND j.vanished_at IS NOT NULL),
         put AS (
             INSERT INTO journals AS j (cluster_id, stream_id, replica_id, told_upto, ended)
             SELECT $1, stream_id, $2, upto, ended FROM named ORDER BY stream_id
             ON CONFLICT (cluster_id, stream_id) DO UPDATE SET replica_id = EXCLUDED.replica_id,
                 told_upto = GREATEST(j.told_upto, EXCLUDED.told_upto), ended = EXCLUDED.ended, named_at = clock_timestamp(),
                 vanished_at = NULL),
         let_go AS (
             UPDATE journals j SET ended = true WHERE j.cluster_id = $1 AND j.replica_id = $2 AND NOT j.ended AND NOT $6
                 AND NOT EXISTS (SELECT 1 FROM named n WHERE n.stream_id = j.stream_id))
         SELECT n.stream_id, t.acked_upto, b.stream_id IS NOT NULL FROM named n
         LEFT JOIN streams t ON t.cluster_id = $1 AND t.stream_id = n.stream_id
         LEFT JOIN back b ON b.stream_id = n.stream_id ORDER BY n.stream_id",
    )
    .bind(hello.cluster.as_str())
    .bind(hello.replica.as_str())
    .bind(&streams)
    .bind(upto)
    .bind(ended)
    .bind(hello.journal_new)
    .fetch_all(&mut *conn)
    .await
    .label("journals.name")?;
    for (stream, acked, back) in &named {
        if *back {
            returned(conn, hello, stream, acked.unwrap_or_default(), now).await?;
        }
    }
    Ok(named.into_iter().filter_map(|(stream, acked, _)| Some((stream, natural(acked?)))).collect())
}

/// A journal that had vanished is there: what was said to be missing may still come. Of the gaps in it those past the mark are
/// ours alone, since what a spoke tells as lost is behind the mark at once.
async fn returned(conn: &mut PgConnection, hello: &Hello, stream: &str, acked: i64, now: Timestamp) -> Result<(), Error> {
    sqlx::query("DELETE FROM gaps WHERE cluster_id = $1 AND stream_id = $2 AND from_seq > $3")
        .bind(hello.cluster.as_str())
        .bind(stream)
        .bind(acked)
        .execute(&mut *conn)
        .await
        .label("journals.returned")?;
    let entry = Entry {
        kind: Kind::JournalReturned,
        actor: "hub/link".to_owned(),
        subject: format!("journal/{stream}"),
        incident: None,
        body: json!({"replica": hello.replica.as_str(), "committed_upto": acked}),
    };
    audit::append(conn, chain_of(&hello.cluster), &[entry], now).await
}

/// Notes how far journals go, where that is further than was told before.
///
/// # Errors
/// When the database fails.
pub async fn journals_told(conn: &mut PgConnection, told: &[(ClusterId, Journal)]) -> Result<(), Error> {
    if told.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE journals j SET told_upto = k.upto FROM unnest($1::text[], $2::text[], $3::bigint[]) AS k (cluster_id, stream_id, upto)
         WHERE j.cluster_id = k.cluster_id AND j.stream_id = k.stream_id AND j.told_upto < k.upto",
    )
    .bind(told.iter().map(|(cluster, _)| cluster.as_str()).collect::<Vec<_>>())
    .bind(told.iter().map(|(_, journal)| journal.stream.as_str()).collect::<Vec<_>>())
    .bind(told.iter().map(|(_, journal)| signed(journal.upto)).collect::<Vec<_>>())
    .execute(conn)
    .await
    .label("journals.told")?;
    Ok(())
}

/// Notes that a journal goes so far and no further, by the word of the session that owns its replica.
///
/// # Errors
/// When the database fails.
pub async fn journal_close(
    conn: &mut PgConnection,
    (cluster, replica, generation): (&ClusterId, &ReplicaId, u64),
    journal: &Journal,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE journals j SET told_upto = GREATEST(j.told_upto, $5), ended = true
         WHERE j.cluster_id = $1 AND j.replica_id = $2 AND j.stream_id = $4 AND EXISTS (SELECT 1 FROM sessions s
             WHERE s.cluster_id = $1 AND s.replica_id = $2 AND s.session_generation = $3)",
    )
    .bind(cluster.as_str())
    .bind(replica.as_str())
    .bind(signed(generation))
    .bind(journal.stream.as_str())
    .bind(signed(journal.upto))
    .execute(conn)
    .await
    .label("journal.close")?;
    Ok(())
}

/// A journal that nobody holds any more, and of which something is not here, or may not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Which.
    pub stream: StreamId,
    /// Who held it.
    pub replica: String,
    /// When that replica was last seen; none when it is here, without it.
    pub seen_at: Option<Timestamp>,
    /// How far it is committed.
    pub acked_upto: u64,
    /// How far it was told of.
    pub told_upto: u64,
    /// That was its end.
    pub ended: bool,
    named_at: DateTime<Utc>,
}

#[derive(FromRow)]
struct GoneRow {
    cluster_id: String,
    stream_id: String,
    replica_id: String,
    seen_at: Option<DateTime<Utc>>,
    acked_upto: i64,
    told_upto: i64,
    ended: bool,
    named_at: DateTime<Utc>,
}

/// Journals that are gone, and not whole here: their replica came again without them; or it has not been seen for `after`, for
/// as long as which another replica of its cluster has been attached, so that it is neither the hub nor the cluster's way to it.
///
/// # Errors
/// When the database fails.
pub async fn journals_gone(conn: &mut PgConnection, after: Duration, most: i64) -> Result<Vec<Gone>, Error> {
    let rows: Vec<GoneRow> = sqlx::query_as(
        "SELECT j.cluster_id, j.stream_id, j.replica_id, CASE WHEN NOT w.again THEN w.seen_at END AS seen_at,
             COALESCE(t.acked_upto, 0) AS acked_upto, j.told_upto, j.ended, j.named_at
         FROM journals j
         LEFT JOIN sessions s ON s.cluster_id = j.cluster_id AND s.replica_id = j.replica_id
         LEFT JOIN streams t ON t.cluster_id = j.cluster_id AND t.stream_id = j.stream_id
         CROSS JOIN LATERAL (SELECT COALESCE(s.detached_at, s.seen_at, j.named_at) AS seen_at, COALESCE(s.detached_at IS NULL
             AND s.seen_at > clock_timestamp() - $2 * interval '1 second' AND j.named_at < s.attached_at, false) AS again) w
         WHERE j.vanished_at IS NULL AND (NOT j.ended OR j.told_upto > COALESCE(t.acked_upto, 0))
           AND (w.again OR w.seen_at < clock_timestamp() - $1 * interval '1 second' AND EXISTS (SELECT 1 FROM sessions o
               WHERE o.cluster_id = j.cluster_id AND o.replica_id <> j.replica_id AND o.detached_at IS NULL
                 AND o.seen_at > clock_timestamp() - $2 * interval '1 second'
                 AND o.attached_at < clock_timestamp() - $1 * interval '1 second'))
         ORDER BY j.cluster_id, j.stream_id LIMIT $3",
    )
    .bind(after.as_secs_f64())
    .bind(SESSION_STALE.as_secs_f64())
    .bind(most)
    .fetch_all(conn)
    .await
    .label("journals.gone")?;
    rows.into_iter().map(GoneRow::read).collect()
}

impl GoneRow {
    fn read(self) -> Result<Gone, Error> {
        Ok(Gone {
            cluster: read("journals.gone", &self.cluster_id, |text| ClusterId::parse(text).ok())?,
            stream: read("journals.gone", &self.stream_id, |text| StreamId::parse(text).ok())?,
            replica: self.replica_id,
            seen_at: self.seen_at.map(from_db),
            acked_upto: natural(self.acked_upto),
            told_upto: natural(self.told_upto),
            ended: self.ended,
            named_at: self.named_at,
        })
    }
}

/// Notes that a journal is gone, once, with the gap that it leaves. False: somebody named it meanwhile, or noted it.
///
/// # Errors
/// When the database fails.
pub async fn journal_vanish(conn: &mut PgConnection, gone: &Gone, reason: &str, now: Timestamp) -> Result<bool, Error> {
    // An attach holds the cluster's row: it comes before this, and is seen, or after it, and sees this.
    sqlx::query("SELECT FROM clusters WHERE cluster_id = $1 FOR UPDATE")
        .bind(gone.cluster.as_str())
        .execute(&mut *conn)
        .await
        .label("journal.vanish_lock")?;
    let done = sqlx::query(
        "UPDATE journals SET vanished_at = clock_timestamp()
         WHERE cluster_id = $1 AND stream_id = $2 AND vanished_at IS NULL AND named_at = $3",
    )
    .bind(gone.cluster.as_str())
    .bind(gone.stream.as_str())
    .bind(gone.named_at)
    .execute(&mut *conn)
    .await
    .label("journal.vanish")?;
    if done.rows_affected() == 0 {
        return Ok(false);
    }
    let (from, to) = (gone.acked_upto + 1, gone.ended.then_some(gone.told_upto));
    gap_insert(conn, &gone.cluster, &gone.stream, from, to, reason, &json!({})).await?;
    let entry = Entry {
        kind: Kind::JournalVanished,
        actor: "hub".to_owned(),
        subject: format!("journal/{}", gone.stream),
        incident: None,
        body: json!({
            "replica": gone.replica, "committed_upto": gone.acked_upto, "told_upto": gone.told_upto, "ended": gone.ended, "reason": reason,
        }),
    };
    audit::append(conn, chain_of(&gone.cluster), &[entry], now).await?;
    Ok(true)
}
