//! Incidents, each with the decisions that moved it and the faults that it holds.

use gpuheal_hub_core::{
    decide::{Decision, IncidentChange},
    snapshot::KnownFault,
};
use gpuheal_proto::{
    fault::NodeRef,
    ids::{ClusterId, FaultKey, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::{PgConnection, types::Json};

use super::{Error, Labelled as _, judgement::NodeKey, moment::to_db, natural, read, signed, touched};

/// A decision that changed an incident, with all that is stored of it.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// The incident as it is then.
    pub change: &'a IncidentChange,
    /// What was decided.
    pub decision: &'a Decision,
    /// Revision and digest of the policy that it comes from.
    pub policy: (u64, &'a str),
    /// The episodes that the incident holds; `decision` says what was made of each.
    pub held: &'a [&'a KnownFault],
    /// When.
    pub now: Timestamp,
}

/// The decision under its number, and what the incident holds, after the statement `i` that moves the incident. Faults of
/// which the same is stored already are left alone: a conflict would lock each of their rows.
macro_rules! decided {
    ($incident:literal) => {
        concat!(
            "WITH i AS (",
            $incident,
            " RETURNING 1), \
             d AS (INSERT INTO decisions (cluster_id, incident_id, decision_no, outcome, reason, reasons, level, state_after, policy_revision, \
                 policy_digest, decided_at) VALUES ($1, $2, $10, $14, $15, $16, $5, $7, $11, $17, $8)), \
             f AS (INSERT INTO incident_faults AS f (cluster_id, incident_id, fault_key, episode, level, verdict, asked, added_at, node_uid) \
                 SELECT $1, $2, e.*, $8, $3 FROM unnest($18::bytea[], $19::int[], $20::text[], $21::text[], $22::bool[]) \
                     AS e (fault_key, episode, level, verdict, asked) \
                 WHERE NOT EXISTS (SELECT FROM incident_faults k WHERE k.cluster_id = $1 AND k.incident_id = $2 \
                     AND k.fault_key = e.fault_key AND k.episode = e.episode AND k.level = e.level AND k.verdict = e.verdict AND k.asked >= e.asked) \
                 ON CONFLICT (cluster_id, incident_id, fault_key, episode) DO UPDATE SET level = excluded.level, verdict = excluded.verdict, \
                     asked = f.asked OR excluded.asked) \
             SELECT count(*) FROM i"
        )
    };
}

/// Opens an incident by its first decision, in one statement.
///
/// # Errors
/// When the node has an open one already, or the decision's number is taken.
pub async fn incident_open(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeRef,
    decided: Decided<'_>,
) -> Result<(), Error> {
    let statement = decided!(
        "INSERT INTO incidents (cluster_id, incident_id, node_uid, node_name, level, manual, state, state_at, reason, decision_no, policy_revision, \
         opened_at, changed_at, recheck_at, closed_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $8, $8, $12, CASE WHEN $13 THEN $8 END)"
    );
    write(conn, statement, cluster, node, decided).await.label("incident.open").and_then(one("incident.open"))
}

/// Moves an open incident on by one decision, in one statement.
///
/// # Errors
/// When another decision came first, or it is closed.
pub async fn incident_move(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeRef,
    decided: Decided<'_>,
) -> Result<(), Error> {
    let statement = decided!(
        "UPDATE incidents SET level = $5, manual = $6, state = $7, state_at = CASE WHEN state = $7 THEN state_at ELSE $8 END, reason = $9, \
         decision_no = $10, policy_revision = $11, changed_at = $8, recheck_at = $12, closed_at = CASE WHEN $13 THEN $8 END \
         WHERE cluster_id = $1 AND incident_id = $2 AND decision_no = $10 - 1 AND closed_at IS NULL"
    );
    write(conn, statement, cluster, node, decided).await.label("incident.move").and_then(one("incident.move"))
}

fn one(what: &'static str) -> impl Fn(i64) -> Result<(), Error> {
    move |rows| if rows == 1 { Ok(()) } else { Err(Error::Rows { what, want: 1, got: natural(rows) }) }
}

/// Both statements above take the same values.
async fn write(
    conn: &mut PgConnection,
    statement: &'static str,
    cluster: &ClusterId,
    node: &NodeRef,
    Decided { change, decision, policy: (revision, digest), held, now }: Decided<'_>,
) -> Result<i64, sqlx::Error> {
    let closed = change.state.closed();
    // Of this decision; the incident's own may be a person's words from an earlier one.
    let reason = decision.reasons.first().filter(|reason| !reason.is_empty()).map_or(change.state.as_str(), String::as_str);
    let outcome =
        decision.commands.iter().map(|command| command.action).max().map_or(change.state.as_str(), |action| action.as_str());
    let verdict = |fault: &&KnownFault| decision.verdicts.iter().find(|verdict| verdict.key == fault.key);
    sqlx::query_scalar(statement)
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
        .bind(signed(revision))
        .bind(decision.recheck_at.filter(|_| !closed).map(to_db))
        .bind(closed)
        .bind(outcome)
        .bind(reason)
        .bind(Json(&decision.reasons))
        .bind(digest)
        .bind(held.iter().map(|fault| fault.key.as_bytes().as_slice()).collect::<Vec<_>>())
        .bind(held.iter().map(|fault| i32::try_from(fault.episode).unwrap_or(i32::MAX)).collect::<Vec<_>>())
        .bind(held.iter().map(|fault| verdict(fault).map_or("P2", |verdict| verdict.level.as_str())).collect::<Vec<_>>())
        .bind(held.iter().map(|fault| verdict(fault).map_or("", |verdict| verdict.reason.as_str())).collect::<Vec<_>>())
        .bind(held.iter().map(|fault| change.asked_keys.contains(&fault.key)).collect::<Vec<_>>())
        .fetch_one(conn)
        .await
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
