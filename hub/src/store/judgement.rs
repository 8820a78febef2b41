//! Which nodes are due to be judged. A node's row is its lock: whoever changes what is known of a node takes it first,
//! so that a change made while the node is being judged waits, and then makes it due again.

use std::time::Duration;

use gpuheal_proto::{
    ids::{ClusterId, NodeUid},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{Error, Labelled as _, moment::to_db, read, touched};

/// A node of a cluster.
pub type NodeKey = (ClusterId, NodeUid);

/// First wait after a judgement failed; doubled each time up to [`RETRY_MAX`].
const RETRY_BASE: Duration = Duration::from_millis(500);
/// Longest wait after failed judgements.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Makes nodes due now and locks their rows, in order. The caller passes them sorted and without repeats.
///
/// # Errors
/// When the database fails.
pub async fn judgements_ask(conn: &mut PgConnection, nodes: &[NodeKey], why: &str) -> Result<(), Error> {
    if nodes.is_empty() {
        return Ok(());
    }
    let clusters: Vec<&str> = nodes.iter().map(|(cluster, _)| cluster.as_str()).collect();
    let uids: Vec<&str> = nodes.iter().map(|(_, uid)| uid.as_str()).collect();
    sqlx::query(
        "INSERT INTO judgements AS j (cluster_id, node_uid, due_at, why) \
         SELECT cluster_id, node_uid, clock_timestamp(), $3 FROM unnest($1::text[], $2::text[]) AS n (cluster_id, node_uid) ORDER BY 1, 2 \
         ON CONFLICT (cluster_id, node_uid) DO UPDATE SET due_at = LEAST(j.due_at, excluded.due_at), asked_at = excluded.asked_at, why = excluded.why",
    )
    .bind(clusters)
    .bind(uids)
    .bind(why)
    .execute(conn)
    .await
    .label("judgements.ask")?;
    Ok(())
}

/// Locks a node's row without making it due, making the row when there is none.
///
/// # Errors
/// When the database fails.
pub async fn judgement_lock(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid, why: &str) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO judgements AS j (cluster_id, node_uid, why) VALUES ($1, $2, $3) \
         ON CONFLICT (cluster_id, node_uid) DO UPDATE SET asked_at = excluded.asked_at",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(why)
    .execute(conn)
    .await
    .label("judgement.lock")?;
    Ok(())
}

/// Takes up to `most` due nodes of one cluster, that of the node which is due longest. Nodes that another holds are
/// passed over; nothing is claimed by order of ids.
///
/// # Errors
/// When the database fails.
pub async fn judgements_claim(conn: &mut PgConnection, most: u32) -> Result<Option<(ClusterId, Vec<NodeUid>)>, Error> {
    let first: Option<(String, String)> = sqlx::query_as(
        "SELECT cluster_id, node_uid FROM judgements WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED",
    )
    .fetch_optional(&mut *conn)
    .await
    .label("judgements.claim_first")?;
    let Some((cluster, first)) = first else { return Ok(None) };
    let more: Vec<String> = sqlx::query_scalar(
        "SELECT node_uid FROM judgements WHERE cluster_id = $1 AND node_uid <> $2 AND due_at <= clock_timestamp() \
         ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED",
    )
    .bind(&cluster)
    .bind(&first)
    .bind(i64::from(most.saturating_sub(1)))
    .fetch_all(conn)
    .await
    .label("judgements.claim_more")?;
    let cluster = read("judgements.cluster_id", &cluster, |text| ClusterId::parse(text).ok())?;
    let nodes = std::iter::once(&first).chain(&more).map(|uid| read("judgements.node_uid", uid, |text| NodeUid::parse(text).ok()));
    Ok(Some((cluster, nodes.collect::<Result<_, _>>()?)))
}

/// Takes one due node, unless another holds it or it is due no longer.
///
/// # Errors
/// When the database fails.
pub async fn judgement_claim_one(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<bool, Error> {
    let claimed: Option<bool> = sqlx::query_scalar(
        "SELECT true FROM judgements WHERE cluster_id = $1 AND node_uid = $2 AND due_at <= clock_timestamp() FOR UPDATE SKIP LOCKED",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .fetch_optional(conn)
    .await
    .label("judgement.claim_one")?;
    Ok(claimed.is_some())
}

/// Says when a judged node is judged next, if ever.
///
/// # Errors
/// When the row is not there.
pub async fn judgement_done(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeUid,
    next: Option<Timestamp>,
) -> Result<(), Error> {
    let result = sqlx::query("UPDATE judgements SET due_at = $3, attempts = 0 WHERE cluster_id = $1 AND node_uid = $2")
        .bind(cluster.as_str())
        .bind(node.as_str())
        .bind(next.map(to_db))
        .execute(conn)
        .await
        .label("judgement.done")?;
    touched("judgement.done", 1, &result)
}

/// Puts off a node whose judgement failed, so that it blocks no other. Returns how often it has failed in a row.
///
/// # Errors
/// When the database fails.
pub async fn judgement_defer(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<i32, Error> {
    let attempts: Option<i32> = sqlx::query_scalar(
        "UPDATE judgements SET attempts = attempts + 1, \
         due_at = clock_timestamp() + LEAST($3::float8 * power(2, LEAST(attempts, 20)), $4::float8) * interval '1 millisecond' \
         WHERE cluster_id = $1 AND node_uid = $2 AND due_at IS NOT NULL RETURNING attempts",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(RETRY_BASE.as_secs_f64() * 1000.0)
    .bind(RETRY_MAX.as_secs_f64() * 1000.0)
    .fetch_optional(conn)
    .await
    .label("judgement.defer")?;
    Ok(attempts.unwrap_or(0))
}

/// Makes every node with an open incident due: a new policy judges again what is open.
///
/// # Errors
/// When the database fails.
pub async fn judgements_ask_open(conn: &mut PgConnection, why: &str) -> Result<u64, Error> {
    let result = sqlx::query(
        "UPDATE judgements j SET due_at = LEAST(j.due_at, clock_timestamp()), asked_at = clock_timestamp(), why = $1 \
         FROM (SELECT cluster_id, node_uid FROM judgements k WHERE EXISTS (SELECT FROM incidents i \
           WHERE i.cluster_id = k.cluster_id AND i.node_uid = k.node_uid AND i.closed_at IS NULL) \
           ORDER BY cluster_id, node_uid FOR UPDATE) open \
         WHERE j.cluster_id = open.cluster_id AND j.node_uid = open.node_uid",
    )
    .bind(why)
    .execute(conn)
    .await
    .label("judgements.ask_open")?;
    Ok(result.rows_affected())
}
