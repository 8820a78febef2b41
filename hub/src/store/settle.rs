//! What became of a command: its state by guarded updates, every report that came, and those that ran out of time.

use gpuheal_proto::{
    command::CommandState,
    ids::{ClusterId, CommandId, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    Error, Labelled as _,
    moment::to_db,
    natural, read,
    report::{Report, StepReport, past_budgets},
    signed, touched,
};

/// A command that is held for a report.
#[derive(Clone, Debug)]
pub struct Held {
    /// Where it stands.
    pub state: CommandState,
    /// Number of the last report that was taken.
    pub status_seq: u64,
    /// Its incident.
    pub incident: IncidentId,
    /// What it changed is known here.
    pub undo_known: bool,
    /// Its node, for people.
    pub node_name: String,
    /// The faults that it is about.
    pub fault_keys: Vec<String>,
}

/// The node of a command.
///
/// # Errors
/// When the database fails.
pub async fn command_node(conn: &mut PgConnection, cluster: &ClusterId, id: CommandId) -> Result<Option<NodeUid>, Error> {
    let uid: Option<String> = sqlx::query_scalar("SELECT node_uid FROM commands WHERE cluster_id = $1 AND command_id = $2")
        .bind(cluster.as_str())
        .bind(id.uuid())
        .fetch_optional(conn)
        .await
        .label("command.node")?;
    uid.map(|uid| read("commands.node_uid", &uid, |text| NodeUid::parse(text).ok())).transpose()
}

/// How much a database knows of a cluster under its epoch.
#[derive(Clone, Copy, Debug)]
pub struct Knows {
    /// The epoch.
    pub term: u64,
    /// Its nodes as they are: before that nobody can tell whether the mark of a command that was lost still stands.
    pub nodes: bool,
    /// All that it has.
    pub all: bool,
}

/// What is known of a cluster, and under which epoch.
///
/// # Errors
/// When the database fails.
pub async fn cluster_knows(conn: &mut PgConnection, cluster: &ClusterId) -> Result<Knows, Error> {
    let (term, nodes, all): (i64, bool, bool) = sqlx::query_as(
        "SELECT h.hub_term, COALESCE(c.snapshot_term = h.hub_term, false), COALESCE(c.taken_over_term = h.hub_term, false) \
         FROM hub_state h LEFT JOIN clusters c ON c.cluster_id = $1",
    )
    .bind(cluster.as_str())
    .fetch_one(conn)
    .await
    .label("settle.knows")?;
    Ok(Knows { term: natural(term), nodes, all })
}

/// The command whose signed bytes have this hash.
///
/// # Errors
/// When the database fails.
pub async fn command_by_envelope(conn: &mut PgConnection, cluster: &ClusterId, sha256: &str) -> Result<Option<CommandId>, Error> {
    let id: Option<Uuid> = sqlx::query_scalar(
        "SELECT command_id FROM commands WHERE cluster_id = $1 AND envelope_sha256 = $2 AND envelope_sha256 IS NOT NULL",
    )
    .bind(cluster.as_str())
    .bind(sha256)
    .fetch_optional(conn)
    .await
    .label("command.by_envelope")?;
    Ok(id.map(CommandId::from_uuid))
}

/// Locks a command and reads where it stands.
///
/// # Errors
/// When it is not there.
pub async fn command_hold(conn: &mut PgConnection, cluster: &ClusterId, id: CommandId) -> Result<Held, Error> {
    let (state, seq, incident, undo_known, node_name, fault_keys): (String, i64, Uuid, bool, String, Vec<String>) = sqlx::query_as(
        "SELECT state, status_seq, incident_id, undo IS NOT NULL, node_name, fault_keys FROM commands WHERE cluster_id = $1 AND command_id = $2 FOR UPDATE",
    )
    .bind(cluster.as_str())
    .bind(id.uuid())
    .fetch_one(conn)
    .await
    .label("command.hold")?;
    Ok(Held {
        state: read("commands.state", &state, CommandState::parse)?,
        status_seq: natural(seq),
        incident: IncidentId::from_uuid(incident),
        undo_known,
        node_name,
        fault_keys,
    })
}

/// UIDs of the pods of which the last report of a command says that they were deleted past their budgets.
///
/// # Errors
/// When it is not there.
pub async fn command_past_budgets(conn: &mut PgConnection, cluster: &ClusterId, id: CommandId) -> Result<Vec<String>, Error> {
    let steps: Json<Vec<StepReport>> = sqlx::query_scalar("SELECT steps FROM commands WHERE cluster_id = $1 AND command_id = $2")
        .bind(cluster.as_str())
        .bind(id.uuid())
        .fetch_one(conn)
        .await
        .label("command.past_budgets")?;
    Ok(past_budgets(&steps).map(|pod| pod.uid.clone()).collect())
}

/// Moves a held command to what was reported. Bytes that were reported on have been sent, whoever noted it.
///
/// # Errors
/// When it is not as it was held.
#[expect(clippy::too_many_arguments, reason = "one row, told from and to")]
pub async fn command_settle(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: CommandId,
    held: &Held,
    report: &Report,
    state: CommandState,
    correction: bool,
    now: Timestamp,
) -> Result<(), Error> {
    let begun = matches!(state, CommandState::Started | CommandState::Succeeded) || report.did_something();
    let received = begun || state == CommandState::Received;
    let result = sqlx::query(
        "UPDATE commands SET state = $4, state_at = CASE WHEN state = $4 THEN state_at ELSE $5 END, status_seq = $6, \
         sent_at = COALESCE(sent_at, $5), heard_at = $5, received_at = CASE WHEN $7 THEN COALESCE(received_at, $5) ELSE received_at END, \
         started_at = CASE WHEN $8 THEN COALESCE(started_at, $5) ELSE started_at END, finished_at = CASE WHEN $9 THEN $5 END, \
         steps = CASE WHEN jsonb_array_length($10) > 0 THEN $10 ELSE steps END, undo = COALESCE($11, undo), refusal = NULLIF($12, ''), \
         result_reason = $13, lease_transitions = $14, corrections = corrections + CASE WHEN $15 THEN 1 ELSE 0 END, resend_at = NULL \
         WHERE cluster_id = $1 AND command_id = $2 AND state = $3",
    )
    .bind(cluster.as_str())
    .bind(id.uuid())
    .bind(held.state.as_str())
    .bind(state.as_str())
    .bind(to_db(now))
    .bind(signed(report.status_seq))
    .bind(received)
    .bind(begun)
    .bind(state.terminal())
    .bind(Json(&report.steps))
    .bind(report.undo.as_ref().map(Json))
    .bind(report.refusal)
    .bind(&report.reason)
    .bind(signed(report.lease_transitions))
    .bind(correction)
    .execute(conn)
    .await
    .label("command.settle")?;
    touched("command.settle", 1, &result)
}

/// Pause before bytes that a spoke could not take go again: leases change hands within seconds, clocks are set within one
/// handshake.
const NOT_NOW_MS: f64 = 1000.0;

/// Notes that a spoke cannot take a held command now.
///
/// # Errors
/// When it is not there.
pub async fn command_not_now(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    id: CommandId,
    report: &Report,
    now: Timestamp,
) -> Result<(), Error> {
    let result = sqlx::query(
        "UPDATE commands SET heard_at = $3, resend_at = $3 + $4 * interval '1 millisecond', refusal = NULLIF($5, ''), result_reason = $6 \
         WHERE cluster_id = $1 AND command_id = $2",
    )
    .bind(cluster.as_str())
    .bind(id.uuid())
    .bind(to_db(now))
    .bind(NOT_NOW_MS)
    .bind(report.refusal)
    .bind(&report.reason)
    .execute(conn)
    .await
    .label("command.not_now")?;
    touched("command.not_now", 1, &result)
}

/// Keeps a report, and counts it when it came before. Returns whether it is the first of its kind.
///
/// # Errors
/// When the database fails.
pub async fn report_put(conn: &mut PgConnection, cluster: &ClusterId, report: &Report, effect: &str) -> Result<bool, Error> {
    let times: i64 = sqlx::query_scalar(
        "INSERT INTO reports AS r (cluster_id, subject, status_seq, state, refusal, command_id, reason, lease_transitions, spoke_at, effect) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
         ON CONFLICT (cluster_id, subject, status_seq, state, refusal) DO UPDATE SET times = r.times + 1, last_at = clock_timestamp() RETURNING times",
    )
    .bind(cluster.as_str())
    .bind(&report.subject)
    .bind(signed(report.status_seq))
    .bind(report.reported.word())
    .bind(report.refusal)
    .bind(report.command.map(CommandId::uuid))
    .bind(&report.reason)
    .bind(signed(report.lease_transitions))
    .bind(to_db(report.spoke_at))
    .bind(effect)
    .fetch_one(conn)
    .await
    .label("report.put")?;
    Ok(times == 1)
}

/// A command that ran out of time.
#[derive(Clone, Debug)]
pub struct Lapsed {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Which.
    pub id: CommandId,
    /// Its incident.
    pub incident: IncidentId,
    /// Its node.
    pub node: NodeUid,
    /// The same for people.
    pub node_name: String,
    /// The faults that it is about.
    pub fault_keys: Vec<String>,
    /// Where it stood.
    pub state: CommandState,
}

type LapsedRow = (String, Uuid, Uuid, String, String, Vec<String>, String);

impl Lapsed {
    /// What it becomes: of what was received nobody can tell how it ended.
    #[must_use]
    pub const fn becomes(&self) -> CommandState {
        match self.state {
            CommandState::Received | CommandState::Started => CommandState::Unknown,
            _ => CommandState::Expired,
        }
    }

    /// Why, in words.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self.becomes() {
            CommandState::Unknown => "received, and not heard of by 60 s after finish_by",
            _ => "not received by 60 s after start_by",
        }
    }
}

/// The predicate of both statements below: 60 s for a report that is on its way.
const WAITING: [&str; 4] = ["PROPOSED", "AWAITING_APPROVAL", "SIGNED", "DISPATCHED"];
const UNDER_WAY: [&str; 2] = ["RECEIVED", "STARTED"];

/// Commands that ran out of time.
///
/// # Errors
/// When the database fails.
pub async fn commands_lapsed(conn: &mut PgConnection, most: i64) -> Result<Vec<Lapsed>, Error> {
    let rows: Vec<LapsedRow> = sqlx::query_as(
        "SELECT cluster_id, command_id, incident_id, node_uid, node_name, fault_keys, state FROM commands \
         WHERE state IN ('PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED') \
         AND start_by < clock_timestamp() - interval '60 seconds' \
         AND (state = ANY ($1) OR finish_by < clock_timestamp() - interval '60 seconds') ORDER BY start_by LIMIT $2",
    )
    .bind(WAITING.as_slice())
    .bind(most)
    .fetch_all(conn)
    .await
    .label("commands.lapsed")?;
    let lapsed = |(cluster, id, incident, node, node_name, fault_keys, state): LapsedRow| {
        Ok(Lapsed {
            cluster: read("commands.cluster_id", &cluster, |text| ClusterId::parse(text).ok())?,
            id: CommandId::from_uuid(id),
            incident: IncidentId::from_uuid(incident),
            node: read("commands.node_uid", &node, |text| NodeUid::parse(text).ok())?,
            node_name,
            fault_keys,
            state: read("commands.state", &state, CommandState::parse)?,
        })
    };
    rows.into_iter().map(lapsed).collect()
}

/// Ends a command that ran out of time, if it still stands where it stood and nothing was heard meanwhile.
///
/// # Errors
/// When the database fails.
pub async fn command_lapse(conn: &mut PgConnection, command: &Lapsed, now: Timestamp) -> Result<bool, Error> {
    let result = sqlx::query(
        "UPDATE commands SET state = $4, state_at = $5, finished_at = $5, result_reason = $6 \
         WHERE cluster_id = $1 AND command_id = $2 AND state = $3 AND \
         ((state = ANY ($7) AND start_by < $5 - interval '60 seconds') OR (state = ANY ($8) AND finish_by < $5 - interval '60 seconds'))",
    )
    .bind(command.cluster.as_str())
    .bind(command.id.uuid())
    .bind(command.state.as_str())
    .bind(command.becomes().as_str())
    .bind(to_db(now))
    .bind(command.reason())
    .bind(WAITING.as_slice())
    .bind(UNDER_WAY.as_slice())
    .execute(conn)
    .await
    .label("command.lapse")?;
    Ok(result.rows_affected() == 1)
}
