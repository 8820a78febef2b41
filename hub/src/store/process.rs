//! Requests that people made by hand: the same id gives the first answer again.

use gpuheal_proto::ids::{ClusterId, CommandId};
use sqlx::PgConnection;

use super::{Error, Labelled as _};

/// A request and its answer as stored.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Answered {
    /// Node that was named.
    pub node_name: String,
    /// What was asked.
    pub action: String,
    /// accepted, already_done, no_such_node, blocked or invalid.
    pub outcome: String,
    /// What a restart was to be of.
    pub workloads: Vec<String>,
    /// It was to pass budgets.
    pub past_budgets: bool,
    command_id: Option<uuid::Uuid>,
    /// What was answered.
    pub answer: String,
}

impl Answered {
    /// The command that came of it.
    #[must_use]
    pub fn command(&self) -> Option<CommandId> {
        self.command_id.map(CommandId::from_uuid)
    }
}

/// A request to store with its answer.
#[derive(Clone, Copy, Debug)]
pub struct NewAnswer<'a> {
    /// The caller's id.
    pub request_id: &'a str,
    /// Node that was named.
    pub node_name: &'a str,
    /// What was asked.
    pub action: &'a str,
    /// Who asked.
    pub caller: &'a str,
    /// Why.
    pub reason: &'a str,
    /// They waived the cooldown.
    pub override_cooldown: bool,
    /// What a restart is of.
    pub workloads: &'a [String],
    /// They let the eviction pass budgets.
    pub past_budgets: bool,
    /// In a word.
    pub outcome: &'a str,
    /// The command that came of it.
    pub command: Option<CommandId>,
    /// In words.
    pub answer: &'a str,
}

/// What was answered before to a request of this id.
///
/// # Errors
/// When the database fails.
pub async fn process_load(conn: &mut PgConnection, cluster: &ClusterId, request_id: &str) -> Result<Option<Answered>, Error> {
    sqlx::query_as(
        "SELECT node_name, action, workloads, past_budgets, outcome, command_id, answer FROM process_requests WHERE cluster_id = $1 AND request_id = $2",
    )
    .bind(cluster.as_str())
    .bind(request_id)
    .fetch_optional(conn)
    .await
    .label("process.load")
}

/// Stores a request with its answer.
///
/// # Errors
/// When a request of that id is there already.
pub async fn process_insert(conn: &mut PgConnection, cluster: &ClusterId, new: NewAnswer<'_>) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO process_requests (cluster_id, request_id, node_name, action, caller, reason, override_cooldown, workloads, outcome, command_id, \
         answer, past_budgets) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(cluster.as_str())
    .bind(new.request_id)
    .bind(new.node_name)
    .bind(new.action)
    .bind(new.caller)
    .bind(new.reason)
    .bind(new.override_cooldown)
    .bind(new.workloads)
    .bind(new.outcome)
    .bind(new.command.map(CommandId::uuid))
    .bind(new.answer)
    .bind(new.past_budgets)
    .execute(conn)
    .await
    .label("process.insert")?;
    Ok(())
}

/// Who asked for a command by hand, and why; nothing of one that nobody asked for, or whose request this database has lost.
///
/// # Errors
/// When the database fails.
pub async fn process_asked(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    command: CommandId,
) -> Result<Option<(String, String)>, Error> {
    sqlx::query_as(
        "SELECT caller, reason FROM process_requests WHERE cluster_id = $1 AND command_id = $2 ORDER BY asked_at, request_id LIMIT 1",
    )
    .bind(cluster.as_str())
    .bind(command.uuid())
    .fetch_optional(conn)
    .await
    .label("process.asked")
}
