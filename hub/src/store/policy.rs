//! Revisions of the fleet's policy: only ever added, the highest is in force.

use gpuheal_proto::time::Timestamp;
use serde_json::{Value, json};
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
pub async fn policy_apply(pool: &PgPool, yaml: &str, digest: &str, by: &str, request_id: &str) -> Result<Applied, Error> {
    let mut tx = pool.begin().await.label("policy.begin")?;
    policy_lock(&mut tx).await?;
    let applied = apply(&mut tx, yaml, digest, by, json!({"request_id": request_id})).await?;
    tx.commit().await.label("policy.commit")?;
    Ok(applied)
}

/// Who applies what the policy file says.
pub const FILE: &str = "policy file";

/// What became of the policy file's document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The file says something new, and that is in force now.
    Applied {
        /// What became of it.
        applied: Applied,
        /// Digest of what the file said when one was last followed, if that was something else.
        file_before: Option<String>,
    },
    /// The file says what it said before: what somebody applied since stays in force.
    Kept {
        /// The revision in force.
        revision: u64,
        /// Who applied it.
        by: String,
    },
}

/// Puts the policy file's document in force if it does not say what the file said when it was last taken over: a hub that
/// starts again must not undo what a person has applied meanwhile.
///
/// # Errors
/// When the database fails.
pub async fn policy_follow(pool: &PgPool, yaml: &str, digest: &str) -> Result<Followed, Error> {
    let mut tx = pool.begin().await.label("policy.begin")?;
    policy_lock(&mut tx).await?;
    let before: Option<String> =
        sqlx::query_scalar("SELECT policy_file_digest FROM hub_state").fetch_one(&mut *tx).await.label("policy.file")?;
    let followed_before = before.is_some();
    if before.as_deref() == Some(digest)
        && let Some(current) = policy_load(&mut tx, None).await?
        && current.digest != digest
    {
        return Ok(Followed::Kept { revision: current.revision(), by: current.applied_by });
    }
    let file_before = before.filter(|before| before != digest);
    let applied = apply(&mut tx, yaml, digest, FILE, json!({"file_before": file_before})).await?;
    if !followed_before || file_before.is_some() {
        sqlx::query("UPDATE hub_state SET policy_file_digest = $1")
            .bind(digest)
            .execute(&mut *tx)
            .await
            .label("policy.file_set")?;
    }
    tx.commit().await.label("policy.commit")?;
    Ok(Followed::Applied { applied, file_before })
}

/// One applies at a time: the lock goes with the transaction, whatever pooler is in between.
async fn policy_lock(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('gpuheal policy'))").execute(conn).await.label("policy.lock")?;
    Ok(())
}

async fn apply(tx: &mut PgConnection, yaml: &str, digest: &str, by: &str, mut told: Value) -> Result<Applied, Error> {
    let current = policy_load(tx, None).await?;
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
    judgements_ask_open(tx, "a new policy").await?;
    let now = moment::now(tx).await?;
    told["revision"] = revision.into();
    told["digest"] = digest.into();
    told["before"] = current.map(|current| current.digest).into();
    let entry = Entry {
        kind: Kind::PolicyApplied,
        actor: by.to_owned(),
        subject: format!("policy/{revision}"),
        incident: None,
        body: told,
    };
    audit::append(tx, FLEET_CHAIN, &[entry], now).await?;
    Ok(Applied { revision, unchanged: false })
}
