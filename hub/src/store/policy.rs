//! Revisions of the fleet's policy: only ever added, the highest is in force.

use gpuheal_proto::time::Timestamp;
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use crate::audit::{self, Entry, FLEET_CHAIN, Kind};

use super::{Error, Labelled as _, judgement::judgements_ask_open, moment, natural, signed};

/// A policy document under its revision.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Stored {
    /// Its number.
    revision: i64,
    /// Hex SHA-256 of what it says.
    pub digest: String,
    /// The document.
    pub yaml: String,
    /// Who or what gave it.
    pub applied_by: String,
    /// When.
    applied_at: chrono::DateTime<chrono::Utc>,
}

impl Stored {
    /// Its number.
    #[must_use]
    pub fn revision(&self) -> u64 {
        natural(self.revision)
    }

    /// When it was applied.
    #[must_use]
    pub fn applied_at(&self) -> Timestamp {
        moment::from_db(self.applied_at)
    }
}

/// Number and digest of the policy in force.
///
/// # Errors
/// When the database fails.
pub async fn policy_head(conn: &mut PgConnection) -> Result<Option<(u64, String)>, Error> {
    let head: Option<(i64, String)> = sqlx::query_as("SELECT revision, digest FROM policies ORDER BY revision DESC LIMIT 1")
        .fetch_optional(conn)
        .await
        .label("policy.head")?;
    Ok(head.map(|(revision, digest)| (natural(revision), digest)))
}

/// A revision, or with `None` the one in force.
///
/// # Errors
/// When the database fails.
pub async fn policy_load(conn: &mut PgConnection, revision: Option<u64>) -> Result<Option<Stored>, Error> {
    sqlx::query_as(
        "SELECT revision, digest, yaml, applied_by, applied_at FROM policies WHERE $1::bigint IS NULL OR revision = $1 ORDER BY revision DESC LIMIT 1",
    )
    .bind(revision.map(signed))
    .fetch_optional(conn)
    .await
    .label("policy.load")
}

/// What became of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The revision in force now.
    pub revision: u64,
    /// It said what the policy in force says already.
    pub unchanged: bool,
}

/// Puts a checked document in force as a new revision, unless it says what is in force already. What is open is judged
/// again.
///
/// # Errors
/// When the database fails.
pub async fn policy_apply(pool: &PgPool, yaml: &str, digest: &str, by: &str) -> Result<Applied, Error> {
    let mut tx = pool.begin().await.label("policy.begin")?;
    // One applies at a time: the lock goes with the transaction, whatever pooler is in between.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('gpuheal policy'))").execute(&mut *tx).await.label("policy.lock")?;
    let current = policy_load(&mut tx, None).await?;
    if let Some(current) = &current
        && current.digest == digest
    {
        return Ok(Applied { revision: current.revision(), unchanged: true });
    }
    let revision = current.as_ref().map_or(0, Stored::revision) + 1;
    sqlx::query("INSERT INTO policies (revision, digest, yaml, applied_by) VALUES ($1, $2, $3, $4)")
        .bind(signed(revision))
        .bind(digest)
        .bind(yaml)
        .bind(by)
        .execute(&mut *tx)
        .await
        .label("policy.insert")?;
    judgements_ask_open(&mut tx, "a new policy").await?;
    let now = moment::now(&mut tx).await?;
    let entry = Entry {
        kind: Kind::PolicyApplied,
        actor: by.to_owned(),
        subject: format!("policy/{revision}"),
        incident: None,
        body: json!({"revision": revision, "digest": digest, "before": current.map(|current| current.digest)}),
    };
    audit::append(&mut tx, FLEET_CHAIN, &[entry], now).await?;
    tx.commit().await.label("policy.commit")?;
    Ok(Applied { revision, unchanged: false })
}
