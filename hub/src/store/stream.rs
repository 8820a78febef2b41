//! How far each journal is committed. A stream's row is locked by whoever moves it.

use chrono::{DateTime, Utc};
use gpuheal_proto::{
    ids::{ClusterId, StreamId},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{Error, Labelled as _, moment::from_db, natural, signed, touched};

/// Locks the rows of streams in the order of their ids, making those that are new; returns how far each is committed, in
/// the order asked, and the database's clock under the locks. The caller passes them sorted and without repeats.
///
/// # Errors
/// When the database fails.
pub async fn streams_lock(conn: &mut PgConnection, streams: &[(ClusterId, StreamId)]) -> Result<(Vec<u64>, Timestamp), Error> {
    let clusters: Vec<&str> = streams.iter().map(|(cluster, _)| cluster.as_str()).collect();
    let ids: Vec<&str> = streams.iter().map(|(_, stream)| stream.as_str()).collect();
    let mut rows = streams_try(conn, &clusters, &ids).await?;
    if rows.len() < streams.len() {
        sqlx::query(
            "INSERT INTO streams (cluster_id, stream_id) SELECT * FROM unnest($1::text[], $2::text[]) AS s (cluster_id, stream_id) \
             ORDER BY 1, 2 ON CONFLICT DO NOTHING",
        )
        .bind(&clusters)
        .bind(&ids)
        .execute(&mut *conn)
        .await
        .label("streams.insert")?;
        rows = streams_try(conn, &clusters, &ids).await?;
    }
    let acked = |(cluster, stream): &(ClusterId, StreamId)| {
        rows.iter().find(|row| row.0 == cluster.as_str() && row.1 == stream.as_str()).map_or(0, |row| natural(row.2))
    };
    let now = rows.iter().map(|row| from_db(row.3)).max().unwrap_or_default();
    Ok((streams.iter().map(acked).collect(), now))
}

type StreamRow = (String, String, i64, DateTime<Utc>);

async fn streams_try(conn: &mut PgConnection, clusters: &[&str], ids: &[&str]) -> Result<Vec<StreamRow>, Error> {
    sqlx::query_as(
        "SELECT t.cluster_id, t.stream_id, t.acked_upto, clock_timestamp() FROM streams t \
         JOIN unnest($1::text[], $2::text[]) AS s (cluster_id, stream_id) USING (cluster_id, stream_id) \
         ORDER BY t.cluster_id, t.stream_id FOR UPDATE OF t",
    )
    .bind(clusters)
    .bind(ids)
    .fetch_all(conn)
    .await
    .label("streams.lock")
}

/// A locked stream, where it was seen, and where it is moved to.
#[derive(Clone, Copy, Debug)]
pub struct Advance<'a> {
    /// Whose.
    pub cluster: &'a ClusterId,
    /// Which.
    pub stream: &'a StreamId,
    /// Where it was seen.
    pub from: u64,
    /// Where it is then.
    pub to: u64,
}

/// Moves locked streams forward.
///
/// # Errors
/// When one is not where the caller saw it.
pub async fn streams_advance(conn: &mut PgConnection, advances: &[Advance<'_>]) -> Result<(), Error> {
    if advances.is_empty() {
        return Ok(());
    }
    let result = sqlx::query(
        "UPDATE streams s SET acked_upto = a.upto, updated_at = clock_timestamp() \
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS a (cluster_id, stream_id, seen, upto) \
         WHERE s.cluster_id = a.cluster_id AND s.stream_id = a.stream_id AND s.acked_upto = a.seen",
    )
    .bind(advances.iter().map(|advance| advance.cluster.as_str()).collect::<Vec<_>>())
    .bind(advances.iter().map(|advance| advance.stream.as_str()).collect::<Vec<_>>())
    .bind(advances.iter().map(|advance| signed(advance.from)).collect::<Vec<_>>())
    .bind(advances.iter().map(|advance| signed(advance.to)).collect::<Vec<_>>())
    .execute(conn)
    .await
    .label("streams.advance")?;
    touched("streams.advance", advances.len() as u64, &result)
}

/// Keeps a record that could not be believed.
///
/// # Errors
/// When the database fails.
pub async fn poison_insert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    stream: &StreamId,
    seq: u64,
    raw: &[u8],
    error: &str,
) -> Result<(), Error> {
    sqlx::query("INSERT INTO poison (cluster_id, stream_id, seq, raw, error) VALUES ($1, $2, $3, $4, $5)")
        .bind(cluster.as_str())
        .bind(stream.as_str())
        .bind(signed(seq))
        .bind(raw)
        .bind(error)
        .execute(conn)
        .await
        .label("poison.insert")?;
    Ok(())
}

/// Keeps that records never came: from the first one to the last, which is none where nobody knows it.
///
/// # Errors
/// When the database fails.
pub async fn gap_insert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    stream: &StreamId,
    from: u64,
    to: Option<u64>,
    reason: &str,
    counts: &serde_json::Value,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO gaps (cluster_id, stream_id, from_seq, to_seq, reason, counts_by_class) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
    )
    .bind(cluster.as_str())
    .bind(stream.as_str())
    .bind(signed(from))
    .bind(to.map(signed))
    .bind(reason)
    .bind(counts)
    .execute(conn)
    .await
    .label("gap.insert")?;
    Ok(())
}

/// Which of these sessions, each of a cluster and a replica, are the owners of their replicas' streams no longer; locks
/// the others' rows against a takeover until commit, in order.
///
/// # Errors
/// When the database fails.
pub async fn sessions_lost(conn: &mut PgConnection, sessions: &[(&ClusterId, &str, u64)]) -> Result<Vec<usize>, Error> {
    if sessions.is_empty() {
        return Ok(Vec::new());
    }
    let owned: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT s.cluster_id, s.replica_id, s.session_generation FROM sessions s \
         JOIN unnest($1::text[], $2::text[]) AS o (cluster_id, replica_id) USING (cluster_id, replica_id) \
         ORDER BY s.cluster_id, s.replica_id FOR SHARE OF s",
    )
    .bind(sessions.iter().map(|(cluster, _, _)| cluster.as_str()).collect::<Vec<_>>())
    .bind(sessions.iter().map(|(_, replica, _)| *replica).collect::<Vec<_>>())
    .fetch_all(conn)
    .await
    .label("sessions.lost")?;
    let owns = |(cluster, replica, generation): &(&ClusterId, &str, u64)| {
        owned.iter().any(|row| row.0 == cluster.as_str() && row.1 == *replica && row.2 == signed(*generation))
    };
    Ok((0..sessions.len()).filter(|at| !owns(&sessions[*at])).collect())
}
