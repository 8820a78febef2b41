//! The fleet-wide stop: one row that every judgement reads.

use serde_json::json;
use sqlx::{PgConnection, PgPool};

use super::{Error, Labelled as _, judgement::judgements_ask_open, moment, touched};
use crate::audit::{self, Entry, FLEET_CHAIN, Kind};

/// Stops the fleet for a reason, or with `None` lets it go on. Returns the reason that it was stopped for before, if it was;
/// a fleet that is stopped keeps its first reason. What is open is judged again.
///
/// # Errors
/// When the database fails.
pub async fn fleet_stop(pool: &PgPool, stop: Option<&str>, why: &str, by: &str) -> Result<Option<String>, Error> {
    let mut tx = pool.begin().await.label("stop.begin")?;
    let before = stop_lock(&mut tx).await?;
    if before.is_some() == stop.is_some() {
        return Ok(before);
    }
    judgements_ask_open(&mut tx, "the fleet's stop").await?;
    let result = sqlx::query("UPDATE hub_state SET stop_reason = $1").bind(stop).execute(&mut *tx).await.label("stop.set")?;
    touched("stop.set", 1, &result)?;
    let now = moment::now(&mut tx).await?;
    let entry = Entry {
        kind: if stop.is_some() { Kind::FleetStop } else { Kind::FleetResume },
        actor: by.to_owned(),
        subject: "fleet".to_owned(),
        incident: None,
        body: json!({"stopped": stop.is_some(), "reason": why, "before": before}),
    };
    audit::append(&mut tx, FLEET_CHAIN, &[entry], now).await?;
    tx.commit().await.label("stop.commit")?;
    Ok(before)
}

/// One stops at a time. The lock is advisory, since every judgement reads the row.
async fn stop_lock(conn: &mut PgConnection) -> Result<Option<String>, Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('gpuheal stop'))").execute(&mut *conn).await.label("stop.lock")?;
    sqlx::query_scalar("SELECT stop_reason FROM hub_state").fetch_one(conn).await.label("stop.load")
}
