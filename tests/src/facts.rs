//! What the hub wrote down, read back from Postgres by the views that auditors use.

use anyhow::Result;
use chrono::{DateTime, Utc};
use sqlx::{FromRow, PgPool, types::Uuid};

/// An incident.
#[derive(Clone, Debug, FromRow)]
pub struct Incident {
    /// Identity.
    pub incident_id: Uuid,
    /// Node.
    pub node_name: String,
    /// P0, P1, P2 or manual.
    pub level: String,
    /// Where it stands.
    pub state: String,
    /// Why.
    pub reason: String,
    /// Closed?
    pub closed: bool,
}

/// A command.
#[derive(Clone, Debug, FromRow)]
pub struct Command {
    /// Identity.
    pub command_id: Uuid,
    /// Node.
    pub node_name: String,
    /// notify, mark, evict or release.
    pub action: String,
    /// Where it stands.
    pub state: String,
    /// Why it was given.
    pub reason: String,
    /// Why the spoke said no, if it did.
    pub refusal: Option<String>,
    /// What came of it.
    pub result_reason: String,
}

/// A fault.
#[derive(Clone, Debug, FromRow)]
pub struct Fault {
    /// Node.
    pub node_name: String,
    /// Kind.
    pub class: String,
    /// Code.
    pub code: String,
    /// Which time.
    pub episode: i32,
    /// Witness kinds.
    pub witnesses: Vec<String>,
}

/// A report of a spoke.
#[derive(Clone, Debug, FromRow)]
pub struct Report {
    /// Command id, or the envelope's hash.
    pub subject: String,
    /// Its state.
    pub state: String,
    /// Its refusal, or empty.
    pub refusal: String,
    /// Its words.
    pub reason: String,
}

/// The incidents of a node, oldest first.
pub async fn incidents(pool: &PgPool, cluster: &str, node: &str) -> Result<Vec<Incident>> {
    let sql = "SELECT incident_id, node_name, level, state, reason, closed_at IS NOT NULL AS closed
               FROM audit.incidents WHERE cluster_id = $1 AND node_name = $2 ORDER BY opened_at";
    Ok(sqlx::query_as(sql).bind(cluster).bind(node).fetch_all(pool).await?)
}

/// The commands for a node, oldest first.
pub async fn commands(pool: &PgPool, cluster: &str, node: &str) -> Result<Vec<Command>> {
    let sql = "SELECT command_id, node_name, action, state, reason, refusal, result_reason
               FROM audit.commands WHERE cluster_id = $1 AND node_name = $2 ORDER BY created_at, cmd_seq";
    Ok(sqlx::query_as(sql).bind(cluster).bind(node).fetch_all(pool).await?)
}

/// The faults of a node, oldest first.
pub async fn faults(pool: &PgPool, cluster: &str, node: &str) -> Result<Vec<Fault>> {
    let sql = "SELECT node_name, class, code, episode, ARRAY(SELECT jsonb_object_keys(witnesses) ORDER BY 1) AS witnesses
               FROM faults WHERE cluster_id = $1 AND node_name = $2 ORDER BY first_at";
    Ok(sqlx::query_as(sql).bind(cluster).bind(node).fetch_all(pool).await?)
}

/// What a cluster's spokes reported about one command, or about an envelope that did not verify.
pub async fn reports(pool: &PgPool, cluster: &str, subject: &str) -> Result<Vec<Report>> {
    let sql = "SELECT subject, state, refusal, reason FROM reports WHERE cluster_id = $1 AND subject = $2 ORDER BY first_at";
    Ok(sqlx::query_as(sql).bind(cluster).bind(subject).fetch_all(pool).await?)
}

/// The highest number of nodes that a cluster's budget ever counted as out, and what it allows.
pub async fn budget(pool: &PgPool, cluster: &str) -> Result<(i32, i32)> {
    let sql = "SELECT out, allowed FROM budgets WHERE cluster_id = $1 AND kind = 'cluster'";
    Ok(sqlx::query_as(sql).bind(cluster).fetch_optional(pool).await?.unwrap_or_default())
}

/// One line of the audit.
#[derive(Clone, Debug, FromRow)]
pub struct Entry {
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// Chain: the cluster, or the fleet.
    pub chain: String,
    /// Number in it.
    pub seq: i64,
    /// What happened.
    pub kind: String,
    /// Who did it.
    pub actor: String,
    /// To what.
    pub subject: String,
    /// The facts.
    pub body: String,
}

/// The entries of every chain that come after those seen, oldest first. `seen` is moved on. The chain's own numbers are in
/// the order of commits, so a cursor for each chain misses nothing.
pub async fn entries_after(pool: &PgPool, seen: &mut std::collections::BTreeMap<String, i64>) -> Result<Vec<Entry>> {
    let chains: Vec<String> = sqlx::query_scalar("SELECT chain FROM audit_heads ORDER BY chain").fetch_all(pool).await?;
    let mut found: Vec<Entry> = vec![];
    for chain in chains {
        let after = seen.get(&chain).copied().unwrap_or(0);
        let sql = "SELECT at, chain, seq, kind, actor, subject, body FROM audit_entries WHERE chain = $1 AND seq > $2 ORDER BY seq LIMIT 1000";
        let entries: Vec<Entry> = sqlx::query_as(sql).bind(&chain).bind(after).fetch_all(pool).await?;
        if let Some(last) = entries.last() {
            seen.insert(chain.clone(), last.seq);
        }
        found.extend(entries);
    }
    found.sort_by_key(|entry| entry.at);
    Ok(found)
}
