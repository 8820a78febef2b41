//! What a lost command meets where it is taken over: its node as the cluster last showed it, and the incident that is open.

use gpuheal_hub_core::{
    adopt::{Found, OpenIncident},
    incident::IncidentState,
};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId, NodeUid},
    words::Level,
};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Error, Labelled as _, natural, read, signed};

type FoundRow = (bool, i64, i64, Option<Uuid>, Option<String>, Option<String>, Option<bool>, Option<i32>);

/// Reads a node under its lock; `None` when its cluster has never shown it.
///
/// # Errors
/// When the database fails or a row cannot be read.
pub async fn found(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<Option<Found>, Error> {
    let row: Option<FoundRow> = sqlx::query_as(
        "SELECT n.labelled OR n.tainted OR n.cordoned_by_us, n.plan_revision, n.plan_rev_issued, i.incident_id, i.state, i.level, i.manual, i.decision_no \
         FROM nodes n LEFT JOIN incidents i ON i.cluster_id = n.cluster_id AND i.node_uid = n.node_uid AND i.closed_at IS NULL \
         WHERE n.cluster_id = $1 AND n.node_uid = $2",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .fetch_optional(conn)
    .await
    .label("adopted.found")?;
    let Some((marked, plan_revision, plan_rev_issued, id, state, level, manual, decision_no)) = row else { return Ok(None) };
    let incident = match id.zip(state).zip(level) {
        Some(((id, state), level)) => Some(OpenIncident {
            id: IncidentId::from_uuid(id),
            state: read("incidents.state", &state, IncidentState::parse)?,
            level: read("incidents.level", &level, Level::parse)?,
            manual: manual.unwrap_or_default(),
            decision_no: u32::try_from(decision_no.unwrap_or_default()).unwrap_or(0),
        }),
        None => None,
    };
    Ok(Some(Found { marked, plan_revision: natural(plan_revision), plan_rev_issued: natural(plan_rev_issued), incident }))
}

/// Lets nothing be given out again that a lost command bears.
///
/// # Errors
/// When the database fails.
pub async fn plan_rev_keep(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid, plan_rev: u64) -> Result<(), Error> {
    sqlx::query("UPDATE nodes SET plan_rev_issued = GREATEST(plan_rev_issued, $3) WHERE cluster_id = $1 AND node_uid = $2")
        .bind(cluster.as_str())
        .bind(node.as_str())
        .bind(signed(plan_rev))
        .execute(conn)
        .await
        .label("adopted.plan_rev_keep")?;
    Ok(())
}
