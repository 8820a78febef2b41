//! The commands table as sign and deliver see it: what is to be signed, what is to be sent, what was sent.
//! Bytes are written once, with the transition to SIGNED, and never again.

use chrono::{DateTime, Utc};
use gpuheal_proto::{
    command::{Command, Others, Step, Target, Times},
    fault::{GpuRef, NodeRef},
    ids::{ClusterId, CommandId, FaultKey, IncidentId, NodeName, NodeUid, ParseIdError},
    link::v1,
};
use sqlx::{FromRow, PgConnection, types::Json};
use uuid::Uuid;

use super::{
    command::Signed,
    leading::{self, Leading, of_mine},
    moment::from_db,
};

/// A command's row: its cluster as it is stored, and its id.
pub type Key = (String, Uuid);

/// A command that waits for its signature; an error when its row is not a command.
#[derive(Debug)]
pub struct Proposed {
    /// Which.
    pub key: Key,
    /// What is to be signed.
    pub command: Result<Command, RowError>,
}

/// A cancellation that waits for its signature; an error when its row names nothing that can be called off.
#[derive(Debug)]
pub struct CalledOff {
    /// Of which command.
    pub key: Key,
    /// Of which incident.
    pub incident: IncidentId,
    /// What is to be signed.
    pub body: Result<v1::CancelBody, RowError>,
}

#[derive(FromRow)]
struct ProposedRow {
    cluster_id: String,
    command_id: Uuid,
    incident_id: Uuid,
    idempotency_key: String,
    node_uid: String,
    node_name: String,
    boot_id: String,
    gpu: Option<Json<GpuRef>>,
    level: String,
    reason: String,
    policy_revision: i64,
    policy_digest: String,
    fault_keys: Vec<String>,
    ignore_cooldown: bool,
    others: Json<Others>,
    steps_asked: serde_json::Value,
    cmd_seq: i64,
    plan_rev: i64,
    hub_term: i64,
    created_at: DateTime<Utc>,
    deliver_by: DateTime<Utc>,
    start_by: DateTime<Utc>,
    finish_by: DateTime<Utc>,
    expires_at: DateTime<Utc>,
}

/// Takes up to `rows` commands that are to be signed and can still be delivered; another signer skips them. What could not
/// be signed comes again only after its pause, and then after all that is new: no number of such rows keeps others waiting.
///
/// # Errors
/// When the database fails.
pub async fn proposed_claim(conn: &mut PgConnection, rows: i64) -> Result<Vec<Proposed>, sqlx::Error> {
    let rows: Vec<ProposedRow> = sqlx::query_as(
        "SELECT cluster_id, command_id, incident_id, idempotency_key, node_uid, node_name, boot_id, gpu, level, reason,
                policy_revision, policy_digest, fault_keys, ignore_cooldown, others, steps_asked, cmd_seq, plan_rev, hub_term,
                created_at, deliver_by, start_by, finish_by, expires_at
         FROM commands
         WHERE state = 'PROPOSED' AND cancel_asked_at IS NULL AND deliver_by > clock_timestamp()
           AND (sign_again_at IS NULL OR sign_again_at <= clock_timestamp())
         ORDER BY sign_again_at NULLS FIRST, cluster_id, cmd_seq LIMIT $1 FOR UPDATE SKIP LOCKED",
    )
    .bind(rows)
    .fetch_all(conn)
    .await?;
    let proposed = |row: ProposedRow| Proposed { key: (row.cluster_id.clone(), row.command_id), command: command(row) };
    Ok(rows.into_iter().map(proposed).collect())
}

fn command(row: ProposedRow) -> Result<Command, RowError> {
    let number = |n: i64| u64::try_from(n).map_err(|_| RowError::Negative);
    Ok(Command {
        id: CommandId::from_uuid(row.command_id),
        idempotency_key: row.idempotency_key,
        audience: ClusterId::parse(&row.cluster_id)?,
        // The signer's own takes its place.
        key_epoch: 0,
        hub_term: number(row.hub_term)?,
        cmd_seq: number(row.cmd_seq)?,
        plan_rev: number(row.plan_rev)?,
        times: Times {
            created: from_db(row.created_at),
            deliver_by: from_db(row.deliver_by),
            start_by: from_db(row.start_by),
            finish_by: from_db(row.finish_by),
            expires: from_db(row.expires_at),
        },
        incident: IncidentId::from_uuid(row.incident_id),
        level: row.level,
        reason: row.reason,
        policy_revision: number(row.policy_revision)?,
        policy_digest: row.policy_digest,
        target: Target {
            node: NodeRef { name: NodeName::parse(&row.node_name)?, uid: NodeUid::parse(&row.node_uid)?, boot_id: row.boot_id },
            gpu: row.gpu.map(|gpu| gpu.0),
        },
        fault_keys: row.fault_keys.iter().map(|key| FaultKey::parse(key)).collect::<Result<_, _>>()?,
        ignore_cooldown: row.ignore_cooldown,
        others: row.others.0,
        steps: serde_json::from_value::<Vec<Step>>(row.steps_asked)?,
    })
}

/// Stores the bytes of commands that were claimed in this transaction.
///
/// # Errors
/// When the database fails, or a command is no longer as it was claimed.
pub async fn signed_store(
    conn: &mut PgConnection,
    signed: &[(ClusterId, CommandId, Signed)],
    keyid: &str,
    key_epoch: u64,
) -> Result<(), sqlx::Error> {
    if signed.is_empty() {
        return Ok(());
    }
    let columns = Columns::of(signed);
    let done = sqlx::query(
        "UPDATE commands c SET state = 'SIGNED', state_at = clock_timestamp(), envelope = s.envelope, envelope_sha256 = s.sha256, key_id = $5, key_epoch = $6,
                signed_at = clock_timestamp()
         FROM UNNEST($1::text[], $2::uuid[], $3::bytea[], $4::text[]) AS s(cluster_id, command_id, envelope, sha256)
         WHERE c.cluster_id = s.cluster_id AND c.command_id = s.command_id AND c.state = 'PROPOSED' AND c.envelope IS NULL",
    )
    .bind(&columns.clusters)
    .bind(&columns.ids)
    .bind(&columns.envelopes)
    .bind(&columns.digests)
    .bind(keyid)
    .bind(i64::try_from(key_epoch).unwrap_or(i64::MAX))
    .execute(conn)
    .await?;
    all_or_nothing(done.rows_affected(), signed.len())
}

/// Takes up to `rows` cancellations that are to be signed: of commands whose bytes may be out there. They are of the epoch
/// of the database as it is now, whatever that of the command was: a spoke that has seen this one takes nothing of an older.
/// One that was signed before the epoch rose is signed anew while its command may be under way.
///
/// # Errors
/// When the database fails.
pub async fn cancel_claim(conn: &mut PgConnection, rows: i64) -> Result<Vec<CalledOff>, sqlx::Error> {
    type Row = (String, Uuid, Uuid, i64, Option<String>, DateTime<Utc>);
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT cluster_id, command_id, incident_id, (SELECT hub_term FROM hub_state), cancel_reason, cancel_asked_at FROM commands
         WHERE cancel_asked_at IS NOT NULL AND envelope IS NOT NULL AND expires_at > clock_timestamp()
           AND (sign_again_at IS NULL OR sign_again_at <= clock_timestamp())
           AND ((cancel_envelope IS NULL AND cancel_sent_at IS NULL)
             OR (cancel_envelope IS NOT NULL AND state IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED')
                 AND COALESCE(cancel_hub_term, hub_term) < (SELECT hub_term FROM hub_state)))
         ORDER BY sign_again_at NULLS FIRST, cancel_asked_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    )
    .bind(rows)
    .fetch_all(conn)
    .await?;
    let called_off = |(cluster, id, incident, term, reason, asked): Row| CalledOff {
        incident: IncidentId::from_uuid(incident),
        body: cancel(&cluster, id, term, reason, asked),
        key: (cluster, id),
    };
    Ok(rows.into_iter().map(called_off).collect())
}

fn cancel(cluster: &str, id: Uuid, term: i64, reason: Option<String>, asked: DateTime<Utc>) -> Result<v1::CancelBody, RowError> {
    Ok(v1::CancelBody {
        command_id: id.to_string(),
        audience: ClusterId::parse(cluster)?.to_string(),
        hub_term: u64::try_from(term).map_err(|_| RowError::Negative)?,
        reason: reason.unwrap_or_default(),
        created_unix_ms: asked.timestamp_millis(),
    })
}

/// A cancellation that was claimed in this transaction, signed under an epoch of the database.
#[derive(Clone, Debug)]
pub struct SignedCancel {
    /// Of which command.
    pub key: Key,
    /// The epoch.
    pub hub_term: u64,
    /// Its bytes.
    pub envelope: Vec<u8>,
}

/// Stores the bytes of cancellations that were claimed in this transaction. They go onto a stream whatever went before.
///
/// # Errors
/// When the database fails, or a command is no longer as it was claimed.
pub async fn cancel_store(conn: &mut PgConnection, signed: &[SignedCancel]) -> Result<(), sqlx::Error> {
    if signed.is_empty() {
        return Ok(());
    }
    let (clusters, ids) = keys(signed.iter().map(|one| &one.key));
    let terms: Vec<i64> = signed.iter().map(|one| super::signed(one.hub_term)).collect();
    let envelopes: Vec<&[u8]> = signed.iter().map(|one| one.envelope.as_slice()).collect();
    let done = sqlx::query(
        "UPDATE commands c SET cancel_envelope = s.envelope, cancel_hub_term = s.hub_term, cancel_sent_at = NULL
         FROM UNNEST($1::text[], $2::uuid[], $3::bytea[], $4::bigint[]) AS s(cluster_id, command_id, envelope, hub_term)
         WHERE c.cluster_id = s.cluster_id AND c.command_id = s.command_id
           AND (c.cancel_envelope IS NULL OR COALESCE(c.cancel_hub_term, c.hub_term) < s.hub_term)",
    )
    .bind(clusters)
    .bind(ids)
    .bind(envelopes)
    .bind(terms)
    .execute(conn)
    .await?;
    all_or_nothing(done.rows_affected(), signed.len())
}

/// Puts off what was claimed in this transaction and cannot be signed: it is tried again after a minute, in case the reason
/// went away, as a database's epoch that was raised meanwhile.
///
/// # Errors
/// When the database fails.
pub async fn sign_put_off(conn: &mut PgConnection, rows: &[Key]) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let (clusters, ids) = keys(rows.iter());
    sqlx::query(
        "UPDATE commands c SET sign_again_at = clock_timestamp() + interval '1 minute'
         FROM UNNEST($1::text[], $2::uuid[]) AS k(cluster_id, command_id)
         WHERE c.cluster_id = k.cluster_id AND c.command_id = k.command_id",
    )
    .bind(clusters)
    .bind(ids)
    .execute(conn)
    .await
    .map(drop)
}

fn keys<'a>(rows: impl Iterator<Item = &'a Key>) -> (Vec<&'a str>, Vec<Uuid>) {
    rows.map(|(cluster, id)| (cluster.as_str(), *id)).unzip()
}

/// A signed command or cancellation of a cluster whose leader is here.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Waiting {
    /// Its cluster.
    pub cluster_id: String,
    /// Which.
    pub command_id: Uuid,
    /// SIGNED or DISPATCHED; anything for a cancellation.
    pub state: String,
    /// What it is for.
    pub action: String,
    /// The node.
    pub node_uid: String,
    /// Number within the node.
    pub plan_rev: i64,
    /// The highest plan of another command that writes to the same node.
    pub plan_rev_newest: i64,
    /// Undelivered by then: dead.
    pub deliver_by: DateTime<Utc>,
    /// When its bytes were made.
    pub signed_at: DateTime<Utc>,
    /// When they were last put on a stream.
    pub sent_at: Option<DateTime<Utc>>,
    /// Not to be sent again before.
    pub resend_at: Option<DateTime<Utc>>,
    /// When a status of it last came.
    pub heard_at: Option<DateTime<Utc>>,
    /// It was called off.
    pub cancel_asked_at: Option<DateTime<Utc>>,
    /// When the cancellation was put on a stream.
    pub cancel_sent_at: Option<DateTime<Utc>>,
    /// The command as signed.
    pub envelope: Vec<u8>,
    /// Its cancellation as signed, if there is one.
    pub cancel_envelope: Option<Vec<u8>>,
    /// When the session that it would go to began.
    pub attached_at: DateTime<Utc>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// What waits for the sessions given, in the order of the commands' numbers, with its bytes. A session that another hub has
/// taken over, or that another replica's proof outranks, gets nothing: the generation is looked at in the same statement.
/// What harms and was issued before the epoch rose, or in a run of the server that no hub has recognised yet, stays here and expires: it was decided without what its cluster has shown since.
/// The open states are named first, in the words of the index `commands_to_send`: without them every command that ever was is read.
///
/// # Errors
/// When the database fails.
pub async fn waiting(conn: &mut PgConnection, leading: &[Leading], rows: i64) -> Result<Vec<Waiting>, sqlx::Error> {
    let statement = sqlx::query_as(of_mine!(
        "SELECT c.cluster_id, c.command_id, c.state, c.action, c.node_uid, c.plan_rev,
                COALESCE((SELECT max(n.plan_rev) FROM commands n WHERE n.cluster_id = c.cluster_id AND n.node_uid = c.node_uid
                          AND n.action <> 'notify' AND n.state NOT IN ('CANCELLED', 'EXPIRED', 'REFUSED')), 0) AS plan_rev_newest,
                c.deliver_by, c.signed_at, c.sent_at, c.resend_at, c.heard_at, c.cancel_asked_at, c.cancel_sent_at,
                c.envelope, c.cancel_envelope, m.attached_at, clock_timestamp() AS now
         FROM commands c JOIN mine m ON m.cluster_id = c.cluster_id
         WHERE c.state IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED') AND c.envelope IS NOT NULL
           AND ((c.state IN ('SIGNED', 'DISPATCHED') AND c.deliver_by > clock_timestamp() - interval '1 minute'
                AND (c.action IN ('notify', 'release')
                     OR c.hub_term >= (SELECT h.hub_term FROM hub_state h WHERE COALESCE(h.recognised_run = server_run(), true)))
                AND (c.sent_at IS NULL OR c.sent_at < m.attached_at OR c.resend_at <= clock_timestamp()))
            OR (c.cancel_envelope IS NOT NULL AND c.expires_at > clock_timestamp()
                AND (c.cancel_sent_at IS NULL OR c.cancel_sent_at < m.attached_at)))
         ORDER BY c.cluster_id, c.cmd_seq LIMIT $6"
    ));
    leading::bound(statement, leading).bind(rows).fetch_all(conn).await
}

/// An envelope that was put on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// The command's cluster.
    pub cluster: &'a str,
    /// The command.
    pub command: Uuid,
    /// When it was found to be due, by the database's clock: before it was put on the stream.
    pub at: DateTime<Utc>,
}

fn columns<'a>(sent: &[Sent<'a>]) -> (Vec<&'a str>, Vec<Uuid>, Vec<DateTime<Utc>>) {
    (
        sent.iter().map(|sent| sent.cluster).collect(),
        sent.iter().map(|sent| sent.command).collect(),
        sent.iter().map(|sent| sent.at).collect(),
    )
}

/// Notes that bytes were put on a stream, and returns cluster, command and incident of each. A report that was faster than
/// this note is left as it is.
///
/// # Errors
/// When the database fails.
pub async fn sent(conn: &mut PgConnection, commands: &[Sent<'_>]) -> Result<Vec<(String, Uuid, Uuid)>, sqlx::Error> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let (clusters, ids, at) = columns(commands);
    sqlx::query_as(
        "UPDATE commands c SET state = CASE WHEN c.state = 'SIGNED' THEN 'DISPATCHED' ELSE c.state END,
                state_at = CASE WHEN c.state = 'SIGNED' THEN clock_timestamp() ELSE c.state_at END,
                sent_at = k.at, resend_at = CASE WHEN c.resend_at > k.at THEN c.resend_at END
         FROM UNNEST($1::text[], $2::uuid[], $3::timestamptz[]) AS k(cluster_id, command_id, at)
         WHERE c.cluster_id = k.cluster_id AND c.command_id = k.command_id AND c.envelope IS NOT NULL
         RETURNING c.cluster_id, c.command_id, c.incident_id",
    )
    .bind(clusters)
    .bind(ids)
    .bind(at)
    .fetch_all(conn)
    .await
}

/// Notes that cancellations were put on a stream.
///
/// # Errors
/// When the database fails.
pub async fn cancel_sent(conn: &mut PgConnection, commands: &[Sent<'_>]) -> Result<Vec<(String, Uuid, Uuid)>, sqlx::Error> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let (clusters, ids, at) = columns(commands);
    sqlx::query_as(
        "UPDATE commands c SET cancel_sent_at = k.at
         FROM UNNEST($1::text[], $2::uuid[], $3::timestamptz[]) AS k(cluster_id, command_id, at)
         WHERE c.cluster_id = k.cluster_id AND c.command_id = k.command_id
         RETURNING c.cluster_id, c.command_id, c.incident_id",
    )
    .bind(clusters)
    .bind(ids)
    .bind(at)
    .fetch_all(conn)
    .await
}

struct Columns {
    clusters: Vec<String>,
    ids: Vec<Uuid>,
    envelopes: Vec<Vec<u8>>,
    digests: Vec<String>,
}

impl Columns {
    fn of(signed: &[(ClusterId, CommandId, Signed)]) -> Self {
        Self {
            clusters: signed.iter().map(|(cluster, ..)| cluster.to_string()).collect(),
            ids: signed.iter().map(|(_, id, _)| id.uuid()).collect(),
            envelopes: signed.iter().map(|(.., made)| made.envelope.clone()).collect(),
            digests: signed.iter().map(|(.., made)| made.sha256.clone()).collect(),
        }
    }
}

/// The rows were locked by this very transaction, so that anything else is a fault of ours.
fn all_or_nothing(done: u64, wanted: usize) -> Result<(), sqlx::Error> {
    if done == wanted as u64 {
        Ok(())
    } else {
        Err(sqlx::Error::Protocol(format!("{done} of {wanted} claimed commands were as claimed")))
    }
}

/// Why a row is not a command.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// An id.
    #[error(transparent)]
    Id(#[from] ParseIdError),
    /// Its steps.
    #[error("its steps do not parse")]
    Steps(#[from] serde_json::Error),
    /// A number below zero.
    #[error("a number in it is negative")]
    Negative,
}
