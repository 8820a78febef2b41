//! Certificates that count no longer. What is revoked ends every session that was attached with it in the same transaction,
//! by its generation: a batch or a dispatch of a hub that has not heard of it finds that its session is over.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use gpuheal_proto::{ids::ClusterId, time::Timestamp};
use serde_json::json;
use sqlx::{PgConnection, PgPool};

use super::{
    Error, Labelled as _,
    moment::{self, from_db, to_db},
};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    identity::denied::{Certificate, Denial, Denials, Serial},
};

type Row = (String, Option<DateTime<Utc>>, Vec<String>);

/// Whether a cluster's certificate was revoked.
///
/// # Errors
/// When the database fails.
pub async fn revoked(conn: &mut PgConnection, cluster: &ClusterId, certificate: &Certificate) -> Result<bool, Error> {
    let row: Option<Row> =
        sqlx::query_as("SELECT cluster_id, not_before_min, serials_denied FROM revocations WHERE cluster_id = $1")
            .bind(cluster.as_str())
            .fetch_optional(conn)
            .await
            .label("revocation.load")?;
    Ok(row.is_some_and(|row| denial(&row).covers(certificate)))
}

/// All that was revoked.
///
/// # Errors
/// When the database fails.
pub async fn denials(conn: &mut PgConnection) -> Result<Denials, Error> {
    let rows: Vec<Row> = sqlx::query_as("SELECT cluster_id, not_before_min, serials_denied FROM revocations")
        .fetch_all(conn)
        .await
        .label("revocations.load")?;
    // A cluster that cannot be named has no certificate either.
    Ok(rows.iter().filter_map(|row| Some((ClusterId::parse(&row.0).ok()?, denial(row)))).collect())
}

fn denial((_, not_before_min, serials): &Row) -> Denial {
    Denial {
        not_before_min: not_before_min.map(from_db),
        serials: serials.iter().filter_map(|serial| Serial::parse(serial)).collect(),
    }
}

/// What is to be refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Revoke {
    /// Every certificate that began before now.
    AllUntilNow,
    /// These alone.
    Serials(BTreeSet<Serial>),
}

/// Refuses certificates of a cluster from now on and ends the sessions that they attached. Returns how many those are.
///
/// # Errors
/// When the database fails.
pub async fn revoke(pool: &PgPool, cluster: &ClusterId, what: &Revoke, by: &str, why: &str) -> Result<u64, Error> {
    let mut tx = pool.begin().await.label("revocation.begin")?;
    // The order of an attach: the cluster's row first. A cluster that never attached has none, and no session.
    sqlx::query("SELECT 1 FROM clusters WHERE cluster_id = $1 FOR UPDATE")
        .bind(cluster.as_str())
        .execute(&mut *tx)
        .await
        .label("revocation.lock")?;
    let now = moment::now(&mut tx).await?;
    let (min, serials) = match what {
        Revoke::AllUntilNow => (Some(now), Vec::new()),
        Revoke::Serials(serials) => (None, serials.iter().map(|serial| serial.as_str().to_owned()).collect()),
    };
    add(&mut tx, cluster, min, &serials, by, why).await?;
    let ended = fence(&mut tx, cluster, min, &serials).await?;
    let entry = Entry {
        kind: Kind::CertificatesRevoked,
        actor: by.to_owned(),
        subject: format!("cluster/{cluster}"),
        incident: None,
        body: json!({"not_before_min_unix_ms": min.map(Timestamp::unix_ms), "serials": serials, "reason": why, "sessions_ended": ended}),
    };
    audit::append(&mut tx, chain_of(cluster), &[entry], now).await?;
    tx.commit().await.label("revocation.commit")?;
    Ok(ended)
}

async fn add(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    min: Option<Timestamp>,
    serials: &[String],
    by: &str,
    why: &str,
) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO revocations AS r (cluster_id, not_before_min, serials_denied, reason, changed_by) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (cluster_id) DO UPDATE SET not_before_min = GREATEST(r.not_before_min, EXCLUDED.not_before_min),
             serials_denied = ARRAY(SELECT DISTINCT unnest(r.serials_denied || EXCLUDED.serials_denied) ORDER BY 1),
             reason = EXCLUDED.reason, changed_by = EXCLUDED.changed_by, changed_at = clock_timestamp()",
    )
    .bind(cluster.as_str())
    .bind(min.map(to_db))
    .bind(serials)
    .bind(why)
    .bind(by)
    .execute(conn)
    .await
    .label("revocation.add")?;
    Ok(())
}

async fn fence(conn: &mut PgConnection, cluster: &ClusterId, min: Option<Timestamp>, serials: &[String]) -> Result<u64, Error> {
    let ended = sqlx::query(
        "UPDATE sessions SET session_generation = session_generation + 1, detached_at = clock_timestamp(), lease_transitions = NULL
         WHERE cluster_id = $1 AND detached_at IS NULL AND (certificate_not_before < $2 OR certificate_serial = ANY($3))",
    )
    .bind(cluster.as_str())
    .bind(min.map(to_db))
    .bind(serials)
    .execute(conn)
    .await
    .label("revocation.fence")?;
    Ok(ended.rows_affected())
}
