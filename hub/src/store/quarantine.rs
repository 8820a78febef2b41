//! Clusters whose identity was seen in two places. Raising it ends every session of the cluster in the same transaction, by
//! its generation: whatever a hub has not heard of yet is refused by the database.

use gpuheal_proto::{ids::ClusterId, time::Timestamp};
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use super::{Error, Labelled as _, moment, session::sessions_fence};
use crate::audit::{self, Entry, Kind, chain_of};

/// How an identity was seen in two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Two processes take turns as one replica.
    BootIds,
    /// Another cluster shows this one's certificate.
    KubeSystemUid,
}

impl Cause {
    /// The word as stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BootIds => "boot_ids",
            Self::KubeSystemUid => "kube_system_uid",
        }
    }
}

/// Keeps everybody out who shows this cluster's identity. False: it was so before, and nothing changes.
///
/// # Errors
/// When the database fails.
pub async fn quarantine_raise(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    cause: Cause,
    detail: &str,
    now: Timestamp,
) -> Result<bool, Error> {
    let raised = sqlx::query("INSERT INTO quarantines (cluster_id, cause, detail) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
        .bind(cluster.as_str())
        .bind(cause.as_str())
        .bind(detail)
        .execute(&mut *conn)
        .await
        .label("quarantine.raise")?;
    if raised.rows_affected() == 0 {
        return Ok(false);
    }
    let ended = sessions_fence(conn, cluster).await?;
    let entry = Entry {
        kind: Kind::CloneQuarantined,
        actor: "hub/link".to_owned(),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"cause": cause.as_str(), "detail": detail, "sessions_ended": ended}),
    };
    audit::append(conn, chain_of(cluster), &[entry], now).await?;
    Ok(true)
}

/// Why nobody may attach under this identity, when so.
///
/// # Errors
/// When the database fails.
pub async fn quarantine(conn: &mut PgConnection, cluster: &ClusterId) -> Result<Option<String>, Error> {
    sqlx::query_scalar("SELECT detail FROM quarantines WHERE cluster_id = $1")
        .bind(cluster.as_str())
        .fetch_optional(conn)
        .await
        .label("quarantine.load")
}

/// All clusters that are quarantined.
///
/// # Errors
/// When the database fails.
pub async fn quarantines(conn: &mut PgConnection) -> Result<Vec<String>, Error> {
    sqlx::query_scalar("SELECT cluster_id FROM quarantines").fetch_all(conn).await.label("quarantines.load")
}

/// Lets a cluster in again, and forgets whose turns were counted. False: it was not quarantined,
/// or is decommissioned, which nothing ends.
///
/// # Errors
/// When the database fails.
pub async fn quarantine_clear(pool: &PgPool, cluster: &ClusterId, by: &str, why: &str) -> Result<bool, Error> {
    let mut tx = pool.begin().await.label("quarantine.begin")?;
    // The order of an attach: the cluster's row first.
    sqlx::query("SELECT 1 FROM clusters WHERE cluster_id = $1 FOR UPDATE")
        .bind(cluster.as_str())
        .execute(&mut *tx)
        .await
        .label("quarantine.lock")?;
    let cause: Option<String> =
        sqlx::query_scalar("DELETE FROM quarantines WHERE cluster_id = $1 AND cause <> 'decommissioned' RETURNING cause")
            .bind(cluster.as_str())
            .fetch_optional(&mut *tx)
            .await
            .label("quarantine.clear")?;
    let Some(cause) = cause else { return Ok(false) };
    sqlx::query("UPDATE sessions SET boots = '{}', boots_at = '{}' WHERE cluster_id = $1")
        .bind(cluster.as_str())
        .execute(&mut *tx)
        .await
        .label("quarantine.forget")?;
    let now = moment::now(&mut tx).await?;
    let entry = Entry {
        kind: Kind::QuarantineCleared,
        actor: by.to_owned(),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"cause": cause, "reason": why}),
    };
    audit::append(&mut tx, chain_of(cluster), &[entry], now).await?;
    tx.commit().await.label("quarantine.commit")?;
    Ok(true)
}
