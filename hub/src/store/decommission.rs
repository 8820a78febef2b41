//! A cluster that is gone for good. Nobody attaches under its id any more, and nothing waits for it: its sessions and its
//! open commands end, and its nodes are gone, so that the next judgement closes their incidents and gives back what they
//! held of the fleet's budget. One transaction; what hubs have not heard of yet is refused by the database.

use gpuheal_proto::{
    ids::{ClusterId, NodeUid},
    time::Timestamp,
};
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use super::{
    Error, Labelled as _,
    judgement::judgements_ask,
    moment::{self, to_db},
    read,
    session::{SESSION_STALE, sessions_fence},
};
use crate::audit::{self, Entry, Kind, chain_of};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is gone, and this ended with it.
    Done {
        /// Sessions that were open.
        sessions: u64,
        /// Commands that were open.
        commands: u64,
        /// Nodes that were there.
        nodes: u64,
    },
    /// No such cluster ever attached.
    Unknown,
    /// It was gone before.
    Before,
    /// It is attached, and nobody said that this does not matter.
    Attached,
}

/// Takes a cluster out of the fleet for ever. One that is attached, and was seen within the last minute, only by `force`.
///
/// # Errors
/// When the database fails: then nothing was done.
pub async fn decommission(pool: &PgPool, cluster: &ClusterId, by: &str, why: &str, force: bool) -> Result<Outcome, Error> {
    let mut tx = pool.begin().await.label("decommission.begin")?;
    // The order of an attach and of a state: the cluster's row first, then its nodes'.
    let attached: Option<bool> = sqlx::query_scalar(
        "SELECT EXISTS (SELECT 1 FROM sessions s WHERE s.cluster_id = c.cluster_id AND s.detached_at IS NULL \
         AND s.seen_at > clock_timestamp() - $2 * interval '1 second') \
         FROM clusters c WHERE cluster_id = $1 FOR UPDATE OF c",
    )
    .bind(cluster.as_str())
    .bind(SESSION_STALE.as_secs_f64())
    .fetch_optional(&mut *tx)
    .await
    .label("decommission.lock")?;
    match attached {
        None => return Ok(Outcome::Unknown),
        Some(true) if !force => return Ok(Outcome::Attached),
        Some(_) => {}
    }
    if !keep_out(&mut tx, cluster, &format!("decommissioned by {by}: {why}")).await? {
        return Ok(Outcome::Before);
    }
    let sessions = sessions_fence(&mut tx, cluster).await?;
    let now = moment::now(&mut tx).await?;
    let nodes = nodes_end(&mut tx, cluster, now).await?;
    let commands = commands_end(&mut tx, cluster, now).await?;
    let ended = commands.len() as u64;
    let entry = Entry {
        kind: Kind::ClusterDecommissioned,
        actor: by.to_owned(),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"reason": why, "sessions_ended": sessions, "nodes_gone": nodes, "commands_ended": commands}),
    };
    audit::append(&mut tx, chain_of(cluster), &[entry], now).await?;
    tx.commit().await.label("decommission.commit")?;
    Ok(Outcome::Done { sessions, commands: ended, nodes })
}

/// As a quarantine that nobody can clear. False: it was so before.
async fn keep_out(conn: &mut PgConnection, cluster: &ClusterId, detail: &str) -> Result<bool, Error> {
    let kept_out = sqlx::query(
        "INSERT INTO quarantines AS q (cluster_id, cause, detail) VALUES ($1, 'decommissioned', $2) \
         ON CONFLICT (cluster_id) DO UPDATE SET cause = EXCLUDED.cause, detail = EXCLUDED.detail, raised_at = clock_timestamp() \
         WHERE q.cause <> 'decommissioned'",
    )
    .bind(cluster.as_str())
    .bind(detail)
    .execute(conn)
    .await
    .label("decommission.keep_out")?;
    Ok(kept_out.rows_affected() > 0)
}

/// Every node is gone and is judged once more. The cluster has no size any more, nobody waits for its inventory, and no state
/// that a hub has still in hand is newer than this end.
async fn nodes_end(conn: &mut PgConnection, cluster: &ClusterId, now: Timestamp) -> Result<u64, Error> {
    let uids: Vec<String> = sqlx::query_scalar("SELECT node_uid FROM nodes WHERE cluster_id = $1 AND gone_at IS NULL ORDER BY 1")
        .bind(cluster.as_str())
        .fetch_all(&mut *conn)
        .await
        .label("decommission.nodes")?;
    let node = |uid: &String| read("nodes.node_uid", uid, |text| NodeUid::parse(text).ok()).map(|uid| (cluster.clone(), uid));
    judgements_ask(conn, &uids.iter().map(node).collect::<Result<Vec<_>, _>>()?, "its cluster is decommissioned").await?;
    let gone = sqlx::query("UPDATE nodes SET gone_at = $2, changed_at = $2 WHERE cluster_id = $1 AND gone_at IS NULL")
        .bind(cluster.as_str())
        .bind(to_db(now))
        .execute(&mut *conn)
        .await
        .label("decommission.nodes_gone")?;
    for statement in [
        "UPDATE cluster_sizes SET gpu_nodes = 0 WHERE cluster_id = $1",
        "UPDATE clusters SET snapshot_term = NULL, taken_over_term = NULL, state_lease_transitions = 9223372036854775807, state_seq = 9223372036854775807 \
         WHERE cluster_id = $1",
    ] {
        sqlx::query(statement).bind(cluster.as_str()).execute(&mut *conn).await.label("decommission.size")?;
    }
    Ok(gone.rows_affected())
}

/// What no spoke has taken is called off; how the rest ended nobody will ever tell.
async fn commands_end(conn: &mut PgConnection, cluster: &ClusterId, now: Timestamp) -> Result<Vec<String>, Error> {
    sqlx::query_scalar(
        "UPDATE commands SET state = CASE WHEN state IN ('RECEIVED', 'STARTED') THEN 'UNKNOWN' ELSE 'CANCELLED' END, state_at = $2, \
         finished_at = $2, result_reason = 'its cluster is decommissioned' WHERE cluster_id = $1 \
         AND state IN ('PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED') RETURNING command_id::text",
    )
    .bind(cluster.as_str())
    .bind(to_db(now))
    .fetch_all(conn)
    .await
    .label("decommission.commands")
}
