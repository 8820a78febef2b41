//! Which nodes are due to be judged. A node's row is its lock: whoever changes what is known of a node takes it first,
//! so that a change made while the node is being judged waits, and then makes it due again. Who only adds what nobody
//! knew changes nothing that a judge can have read, and need not wait: [`judgements_note`] leaves an ask beside the row
//! that another holds, which commits together with what was added, and [`asks_take`] makes the node due when it is free.

use std::{collections::BTreeSet, time::Duration};

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

/// Makes nodes due now without waiting for any of their rows: those that are free are locked and due, beside those that
/// another holds an ask is left. Returns the nodes that another holds. The caller passes them sorted and without repeats.
///
/// A free row that is due already is locked and left as it is: whoever claims it does so after this commit, and reads it.
///
/// # Errors
/// When the database fails.
pub async fn judgements_note(conn: &mut PgConnection, nodes: &[NodeKey], why: &str) -> Result<Vec<NodeKey>, Error> {
    if nodes.is_empty() {
        return Ok(Vec::new());
    }
    let (clusters, uids) = columns(nodes);
    let free: Vec<(String, String)> = sqlx::query_as(
        "WITH free AS MATERIALIZED (SELECT j.cluster_id, j.node_uid, j.due_at FROM judgements j \
             JOIN unnest($1::text[], $2::text[]) AS n (cluster_id, node_uid) USING (cluster_id, node_uid) ORDER BY 1, 2 FOR UPDATE OF j SKIP LOCKED), \
         due AS (UPDATE judgements j SET due_at = clock_timestamp(), asked_at = clock_timestamp(), why = $3 FROM free f \
             WHERE j.cluster_id = f.cluster_id AND j.node_uid = f.node_uid AND (f.due_at IS NULL OR f.due_at > clock_timestamp())) \
         SELECT cluster_id, node_uid FROM free",
    )
    .bind(clusters)
    .bind(uids)
    .bind(why)
    .fetch_all(&mut *conn)
    .await
    .label("judgements.note")?;
    let rest = without(nodes, &free);
    if rest.is_empty() {
        return Ok(rest);
    }
    let (clusters, uids) = columns(&rest);
    let held: Vec<(String, String)> = sqlx::query_as(
        "INSERT INTO asks (cluster_id, node_uid, why) SELECT cluster_id, node_uid, $3 FROM judgements \
         JOIN unnest($1::text[], $2::text[]) AS n (cluster_id, node_uid) USING (cluster_id, node_uid) RETURNING cluster_id, node_uid",
    )
    .bind(clusters)
    .bind(uids)
    .bind(why)
    .fetch_all(&mut *conn)
    .await
    .label("asks.insert")?;
    let new = without(&rest, &held);
    judgements_ask(conn, &new, why).await?;
    Ok(rest.into_iter().filter(|node| !new.contains(node)).collect())
}

fn columns(nodes: &[NodeKey]) -> (Vec<&str>, Vec<&str>) {
    nodes.iter().map(|(cluster, uid)| (cluster.as_str(), uid.as_str())).unzip()
}

fn without(nodes: &[NodeKey], rows: &[(String, String)]) -> Vec<NodeKey> {
    let rows: BTreeSet<(&str, &str)> = rows.iter().map(|(cluster, uid)| (cluster.as_str(), uid.as_str())).collect();
    nodes.iter().filter(|(cluster, uid)| !rows.contains(&(cluster.as_str(), uid.as_str()))).cloned().collect()
}

/// Makes nodes due for which asks were left, as far as nobody holds them, and takes those asks away, in a transaction of
/// its own. An ask that this takes was committed before: whoever claims the node from now on reads what came with it. Returns whether
/// others are left, whose nodes are held.
///
/// # Errors
/// When the database fails.
pub async fn asks_take(conn: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar(
        "WITH free AS MATERIALIZED (SELECT j.cluster_id, j.node_uid FROM judgements j \
             JOIN (SELECT DISTINCT cluster_id, node_uid FROM asks) a USING (cluster_id, node_uid) ORDER BY 1, 2 FOR UPDATE OF j SKIP LOCKED), \
         taken AS (DELETE FROM asks a USING free f WHERE a.cluster_id = f.cluster_id AND a.node_uid = f.node_uid \
             RETURNING a.cluster_id, a.node_uid, a.asked_at, a.why), \
         due AS (UPDATE judgements j SET due_at = LEAST(j.due_at, clock_timestamp()), asked_at = t.asked_at, why = t.why \
             FROM (SELECT DISTINCT ON (cluster_id, node_uid) * FROM taken ORDER BY cluster_id, node_uid, asked_at DESC) t \
             WHERE j.cluster_id = t.cluster_id AND j.node_uid = t.node_uid) \
         SELECT EXISTS (SELECT FROM asks a WHERE NOT EXISTS \
             (SELECT FROM free f WHERE f.cluster_id = a.cluster_id AND f.node_uid = a.node_uid))",
    )
    .fetch_one(conn)
    .await
    .label("asks.take")
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

/// Says when judged nodes of a cluster are judged next, if ever.
///
/// # Errors
/// When a row is not there.
pub async fn judgements_done(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    judged: &[(NodeUid, Option<Timestamp>)],
) -> Result<(), Error> {
    let result = sqlx::query(
        "UPDATE judgements j SET due_at = d.due_at, attempts = 0 FROM unnest($2::text[], $3::timestamptz[]) AS d (node_uid, due_at) \
         WHERE j.cluster_id = $1 AND j.node_uid = d.node_uid",
    )
    .bind(cluster.as_str())
    .bind(judged.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>())
    .bind(judged.iter().map(|(_, next)| next.map(to_db)).collect::<Vec<_>>())
    .execute(conn)
    .await
    .label("judgements.done")?;
    touched("judgements.done", judged.len() as u64, &result)
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
