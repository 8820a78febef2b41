//! What decisions say to spokes, and the cooldown rows that they move; `incident` stores them.

use gpuheal_hub_core::cooldown::CooldownOp;
use gpuheal_proto::{
    ids::{ClusterId, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{Error, Labelled as _, moment::to_db};

/// Moves a node's cooldown row.
///
/// # Errors
/// When the database fails.
pub async fn cooldown_apply(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeUid,
    incident: Option<IncidentId>,
    op: CooldownOp,
    now: Timestamp,
) -> Result<(), Error> {
    let (state, until) = match op {
        CooldownOp::Keep => return Ok(()),
        CooldownOp::Reserve => ("reserved", None),
        CooldownOp::Run { until } => ("running", Some(until)),
        CooldownOp::Void => ("void", None),
    };
    let what = "cooldown.apply";
    if let Some(incident) = incident {
        sqlx::query(
            "INSERT INTO cooldowns (cluster_id, node_uid, incident_id, state, until_at, changed_at) VALUES ($1, $2, $3, $4, $5, $6) \
             ON CONFLICT (cluster_id, node_uid) DO UPDATE SET incident_id = excluded.incident_id, state = excluded.state, \
             until_at = excluded.until_at, changed_at = excluded.changed_at",
        )
        .bind(cluster.as_str())
        .bind(node.as_str())
        .bind(incident.uuid())
        .bind(state)
        .bind(until.map(to_db))
        .bind(to_db(now))
        .execute(conn)
        .await
        .label(what)?;
    }
    Ok(())
}

/// What was decided about one fault, as its spoke is told.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Told {
    /// Cluster of the fault.
    pub cluster_id: String,
    /// Its node's name.
    pub node_name: String,
    /// The fault.
    pub fault_key: Vec<u8>,
    /// Strongest action that was commanded, or the state.
    pub outcome: String,
    /// State of the incident after it.
    pub state_after: String,
    /// Why.
    pub reason: String,
}

/// Decisions about incidents of these clusters after their moments and until `upto`, once for each fault
/// that the incident holds; at most `most`, oldest first.
///
/// # Errors
/// When the database fails.
pub async fn decisions_told(
    conn: &mut PgConnection,
    since: &[(&ClusterId, Timestamp)],
    upto: Timestamp,
    most: i64,
) -> Result<Vec<Told>, Error> {
    sqlx::query_as(
        "SELECT d.cluster_id, i.node_name, f.fault_key, d.outcome, d.state_after, d.reason \
         FROM unnest($1::text[], $2::timestamptz[]) AS s (cluster_id, since) \
         JOIN decisions d ON d.cluster_id = s.cluster_id AND d.decided_at > s.since AND d.decided_at <= $3 \
         JOIN incidents i ON i.cluster_id = d.cluster_id AND i.incident_id = d.incident_id \
         JOIN incident_faults f ON f.cluster_id = d.cluster_id AND f.incident_id = d.incident_id AND f.added_at <= d.decided_at \
         ORDER BY d.decided_at, d.cluster_id, d.incident_id, f.fault_key LIMIT $4",
    )
    .bind(since.iter().map(|(cluster, _)| cluster.as_str()).collect::<Vec<_>>())
    .bind(since.iter().map(|(_, at)| to_db(*at)).collect::<Vec<_>>())
    .bind(to_db(upto))
    .bind(most)
    .fetch_all(conn)
    .await
    .label("decision.told")
}
