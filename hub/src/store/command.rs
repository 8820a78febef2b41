//! Commands: issued under a number of their cluster, called off. Reading them back for signing is in `outbox`.

use gpuheal_hub_core::decide::{CancelCommand, PlannedCommand};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId},
    time::Timestamp,
};
use sqlx::{PgConnection, types::Json};

use super::{Error, Labelled as _, moment::to_db, natural, signed, touched};

/// Bytes that are never made again: stored, sent and kept as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The envelope.
    pub envelope: Vec<u8>,
    /// Hex SHA-256 of it, by which a spoke names what it could not verify.
    pub sha256: String,
}

/// Gives out the next `count` numbers of a cluster and holds its counter until commit; returns the first of them, and
/// the epoch of the database.
///
/// # Errors
/// When the database fails.
pub async fn counter_take(conn: &mut PgConnection, cluster: &ClusterId, count: u64) -> Result<(u64, u64), Error> {
    let (last, term): (i64, i64) = sqlx::query_as(
        "INSERT INTO command_counters AS c (cluster_id, cmd_seq) VALUES ($1, $2) \
         ON CONFLICT (cluster_id) DO UPDATE SET cmd_seq = c.cmd_seq + $2 RETURNING cmd_seq, (SELECT hub_term FROM hub_state)",
    )
    .bind(cluster.as_str())
    .bind(signed(count))
    .fetch_one(conn)
    .await
    .label("command_counter.take")?;
    Ok((natural(last).saturating_sub(count) + 1, natural(term)))
}

/// What a planned command gets from the store.
#[derive(Clone, Copy, Debug)]
pub struct Issue<'a> {
    /// Its incident.
    pub incident: IncidentId,
    /// Its decision.
    pub decision_no: u32,
    /// Number within the cluster.
    pub cmd_seq: u64,
    /// Epoch of the database.
    pub hub_term: u64,
    /// Revision and digest of the policy that it comes from.
    pub policy: (u64, &'a str),
}

/// A signature that a command gets at once.
#[derive(Debug)]
pub struct Seal<'a> {
    /// The bytes and their hash.
    pub made: Signed,
    /// Hint of the key.
    pub keyid: &'a str,
    /// Epoch of the key.
    pub key_epoch: u64,
}

/// Adds a command: as SIGNED with its bytes, or as PROPOSED, which sign will find.
///
/// # Errors
/// When one of that idempotency key, number or plan revision is there already.
pub async fn command_insert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    planned: &PlannedCommand,
    issue: Issue<'_>,
    seal: Option<&Seal<'_>>,
    now: Timestamp,
) -> Result<(), Error> {
    let times = planned.times;
    sqlx::query(
        "INSERT INTO commands (cluster_id, command_id, incident_id, decision_no, idempotency_key, action, node_uid, node_name, boot_id, gpu, level, \
         reason, policy_revision, policy_digest, fault_keys, ignore_cooldown, steps_asked, cmd_seq, plan_rev, hub_term, created_at, deliver_by, \
         start_by, finish_by, expires_at, state_at, state, envelope, envelope_sha256, key_id, key_epoch, signed_at, others) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, \
         CASE WHEN $27::bytea IS NULL THEN 'PROPOSED' ELSE 'SIGNED' END, $27, $28, $29, $30, CASE WHEN $27 IS NOT NULL THEN clock_timestamp() END, $31)",
    )
    .bind(cluster.as_str())
    .bind(planned.id.uuid())
    .bind(issue.incident.uuid())
    .bind(i32::try_from(issue.decision_no).unwrap_or(i32::MAX))
    .bind(&planned.idempotency_key)
    .bind(planned.action.as_str())
    .bind(planned.node.uid.as_str())
    .bind(planned.node.name.as_str())
    .bind(&planned.node.boot_id)
    .bind(planned.gpu.as_ref().map(Json))
    .bind(&planned.level)
    .bind(&planned.reason)
    .bind(signed(issue.policy.0))
    .bind(issue.policy.1)
    .bind(planned.fault_keys.iter().map(ToString::to_string).collect::<Vec<_>>())
    .bind(planned.ignore_cooldown)
    .bind(Json(&planned.steps))
    .bind(signed(issue.cmd_seq))
    .bind(signed(planned.plan_rev))
    .bind(signed(issue.hub_term))
    .bind(to_db(times.created))
    .bind(to_db(times.deliver_by))
    .bind(to_db(times.start_by))
    .bind(to_db(times.finish_by))
    .bind(to_db(times.expires))
    .bind(to_db(now))
    .bind(seal.map(|seal| seal.made.envelope.as_slice()))
    .bind(seal.map(|seal| seal.made.sha256.as_str()))
    .bind(seal.map(|seal| seal.keyid))
    .bind(seal.map(|seal| signed(seal.key_epoch)))
    .bind(Json(&planned.others))
    .execute(conn)
    .await
    .label("command.insert")?;
    Ok(())
}

/// Calls a command off. One that was never signed is cancelled here and now; of any other the spoke decides whether it
/// comes in time, and a signed cancellation must be sent. What has ended stays as it is.
///
/// # Errors
/// When the database fails.
pub async fn command_cancel(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    cancel: &CancelCommand,
    now: Timestamp,
) -> Result<(), Error> {
    let result = sqlx::query(
        "UPDATE commands SET cancel_reason = $3, cancel_asked_at = $4, \
         state = CASE WHEN envelope IS NULL THEN 'CANCELLED' ELSE state END, state_at = CASE WHEN envelope IS NULL THEN $4 ELSE state_at END, \
         finished_at = CASE WHEN envelope IS NULL THEN $4 ELSE finished_at END, \
         cancel_sent_at = CASE WHEN envelope IS NULL THEN $4 ELSE cancel_sent_at END, \
         result_reason = CASE WHEN envelope IS NULL THEN $3 ELSE result_reason END \
         WHERE cluster_id = $1 AND command_id = $2 AND cancel_asked_at IS NULL \
         AND state IN ('PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED')",
    )
    .bind(cluster.as_str())
    .bind(cancel.id.uuid())
    .bind(&cancel.reason)
    .bind(to_db(now))
    .execute(conn)
    .await
    .label("command.cancel")?;
    match result.rows_affected() {
        0 => Ok(()),
        _ => touched("command.cancel", 1, &result),
    }
}
