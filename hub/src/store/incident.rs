//! Incidents and the faults they hold.

use gpuheal_hub_core::{
    decide::{IncidentChange, Verdict},
    snapshot::KnownFault,
};
use gpuheal_proto::{
    fault::NodeRef,
    ids::{ClusterId, FaultKey, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{Error, Labelled as _, judgement::NodeKey, moment::to_db, read, signed, touched};

/// Opens an incident.
///
/// # Errors
/// When the node has an open one already.
pub async fn incident_insert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeRef,
    change: &IncidentChange,
    policy_revision: u64,
    recheck_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO incidents (cluster_id, incident_id, node_uid, node_name, level, manual, state, state_at, reason, decision_no, policy_revision, \
         opened_at, changed_at, recheck_at, closed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $8, $8, $12, CASE WHEN $13 THEN $8 END)",
    )
    .bind(cluster.as_str())
    .bind(change.id.uuid())
    .bind(node.uid.as_str())
    .bind(node.name.as_str())
    .bind(change.level.as_str())
    .bind(change.manual)
    .bind(change.state.as_str())
    .bind(to_db(now))
    .bind(&change.reason)
    .bind(i32::try_from(change.decision_no).unwrap_or(i32::MAX))
    .bind(signed(policy_revision))
    .bind(recheck_at.filter(|_| !change.state.closed()).map(to_db))
    .bind(change.state.closed())
    .execute(conn)
    .await
    .label("incident.insert")?;
    Ok(())
}

/// Moves an open incident on by one decision.
///
/// # Errors
/// When another decision came first, or it is closed.
pub async fn incident_update(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    change: &IncidentChange,
    policy_revision: u64,
    recheck_at: Option<Timestamp>,
    now: Timestamp,
) -> Result<(), Error> {
    let result = sqlx::query(
        "UPDATE incidents SET level = $3, manual = $4, state = $5, state_at = CASE WHEN state = $5 THEN state_at ELSE $6 END, reason = $7, \
         decision_no = $8, policy_revision = $9, changed_at = $6, recheck_at = $10, closed_at = CASE WHEN $11 THEN $6 END \
         WHERE cluster_id = $1 AND incident_id = $2 AND decision_no = $8 - 1 AND closed_at IS NULL",
    )
    .bind(cluster.as_str())
    .bind(change.id.uuid())
    .bind(change.level.as_str())
    .bind(change.manual)
    .bind(change.state.as_str())
    .bind(to_db(now))
    .bind(&change.reason)
    .bind(i32::try_from(change.decision_no).unwrap_or(i32::MAX))
    .bind(signed(policy_revision))
    .bind(recheck_at.filter(|_| !change.state.closed()).map(to_db))
    .bind(change.state.closed())
    .execute(conn)
    .await
    .label("incident.update")?;
    touched("incident.update", 1, &result)
}

/// Moves only the time at which a waiting incident is judged again.
///
/// # Errors
/// When it is closed.
pub async fn incident_recheck(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: IncidentId,
    recheck_at: Option<Timestamp>,
) -> Result<(), Error> {
    let result =
        sqlx::query("UPDATE incidents SET recheck_at = $3 WHERE cluster_id = $1 AND incident_id = $2 AND closed_at IS NULL")
            .bind(cluster.as_str())
            .bind(id.uuid())
            .bind(recheck_at.map(to_db))
            .execute(conn)
            .await
            .label("incident.recheck")?;
    touched("incident.recheck", 1, &result)
}

/// Stores which episodes an incident holds, with what was made of each.
///
/// # Errors
/// When the database fails.
pub async fn incident_faults_put(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    (node, incident): (&NodeUid, IncidentId),
    faults: &[&KnownFault],
    verdicts: &[Verdict],
    now: Timestamp,
) -> Result<(), Error> {
    if faults.is_empty() {
        return Ok(());
    }
    let verdict = |fault: &&KnownFault| verdicts.iter().find(|verdict| verdict.key == fault.key);
    let level = |fault: &&KnownFault| verdict(fault).map_or("P2", |verdict| verdict.level.as_str());
    let words = |fault: &&KnownFault| verdict(fault).map(|verdict| verdict.reason.clone()).unwrap_or_default();
    sqlx::query(
        "INSERT INTO incident_faults AS f (cluster_id, incident_id, fault_key, episode, level, verdict, added_at, node_uid) \
         SELECT $1, $2, e.*, $7, $8 FROM unnest($3::bytea[], $4::int[], $5::text[], $6::text[]) AS e \
         ON CONFLICT (cluster_id, incident_id, fault_key, episode) DO UPDATE SET level = excluded.level, verdict = excluded.verdict \
         WHERE (f.level, f.verdict) IS DISTINCT FROM (excluded.level, excluded.verdict)",
    )
    .bind(cluster.as_str())
    .bind(incident.uuid())
    .bind(faults.iter().map(|fault| fault.key.as_bytes().as_slice()).collect::<Vec<_>>())
    .bind(faults.iter().map(|fault| i32::try_from(fault.episode).unwrap_or(i32::MAX)).collect::<Vec<_>>())
    .bind(faults.iter().map(level).collect::<Vec<_>>())
    .bind(faults.iter().map(words).collect::<Vec<_>>())
    .bind(to_db(now))
    .bind(node.as_str())
    .execute(conn)
    .await
    .label("incident_faults.put")?;
    Ok(())
}

/// Cluster and node of an incident.
///
/// # Errors
/// When the database fails.
pub async fn incident_place(conn: &mut PgConnection, id: IncidentId) -> Result<Option<NodeKey>, Error> {
    let row: Option<(String, String)> = sqlx::query_as(
        "SELECT i.cluster_id, i.node_uid FROM clusters c JOIN incidents i USING (cluster_id) WHERE i.incident_id = $1 LIMIT 1",
    )
    .bind(id.uuid())
    .fetch_optional(conn)
    .await
    .label("incident.place")?;
    row.map(place).transpose()
}

/// Cluster and node of a fault.
///
/// # Errors
/// When the database fails.
pub async fn fault_place(conn: &mut PgConnection, key: &FaultKey) -> Result<Option<NodeKey>, Error> {
    let row: Option<(String, String)> = sqlx::query_as(
        "SELECT f.cluster_id, f.node_uid FROM clusters c JOIN faults f USING (cluster_id) WHERE f.fault_key = $1 ORDER BY f.episode DESC LIMIT 1",
    )
    .bind(key.as_bytes().as_slice())
    .fetch_optional(conn)
    .await
    .label("fault.place")?;
    row.map(place).transpose()
}

fn place((cluster, node): (String, String)) -> Result<NodeKey, Error> {
    Ok((
        read("cluster_id", &cluster, |text| ClusterId::parse(text).ok())?,
        read("node_uid", &node, |text| NodeUid::parse(text).ok())?,
    ))
}
