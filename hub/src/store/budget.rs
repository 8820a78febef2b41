//! Budgets and rates. How many nodes are out moves only with the insert and delete of a hold, by guarded updates; the
//! rows are locked in one order: budgets fleet then cluster, rates fleet then cluster.

use chrono::{DateTime, Utc};
use gpuheal_hub_core::{
    budget::{Rate, RateState},
    policy::Rates,
};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::PgConnection;

use super::{
    Error, Labelled as _,
    moment::{from_db, to_db},
    natural, signed, touched,
};

/// A budget's or a rate's place: the fleet has no cluster.
type Scope<'a> = (&'a str, &'static str);

const FLEET: Scope<'static> = ("", "fleet");

fn cluster_scope(cluster: &ClusterId) -> Scope<'_> {
    (cluster.as_str(), "cluster")
}

/// What a decision takes from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Out in the cluster must be below it.
    pub cluster: u32,
    /// Out in the fleet must be below it.
    pub fleet: u32,
}

/// Locks the fleet's and the cluster's budget and rate rows until commit, making those that are not there.
///
/// # Errors
/// When the database fails.
pub async fn guards_lock(conn: &mut PgConnection, cluster: &ClusterId, rates: &Rates, now: Timestamp) -> Result<(), Error> {
    for ((id, kind), rate) in [(FLEET, rates.fleet), (cluster_scope(cluster), rates.cluster)] {
        sqlx::query("INSERT INTO budgets (cluster_id, scope, kind) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING")
            .bind(id)
            .bind(kind)
            .execute(&mut *conn)
            .await
            .label("budget.insert")?;
        sqlx::query(
            "INSERT INTO rate_buckets (cluster_id, scope, milli_tokens, filled_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        )
        .bind(id)
        .bind(kind)
        .bind(signed(rate.burst()))
        .bind(to_db(now))
        .execute(&mut *conn)
        .await
        .label("rate.insert")?;
    }
    for (id, kind) in [FLEET, cluster_scope(cluster)] {
        sqlx::query("SELECT FROM budgets WHERE cluster_id = $1 AND scope = $2 FOR UPDATE")
            .bind(id)
            .bind(kind)
            .execute(&mut *conn)
            .await
            .label("budget.lock")?;
    }
    for (id, kind) in [FLEET, cluster_scope(cluster)] {
        sqlx::query("SELECT FROM rate_buckets WHERE cluster_id = $1 AND scope = $2 FOR UPDATE")
            .bind(id)
            .bind(kind)
            .execute(&mut *conn)
            .await
            .label("rate.lock")?;
    }
    Ok(())
}

/// How many nodes are out in the cluster and in the fleet.
///
/// # Errors
/// When the database fails.
pub async fn budgets_out(conn: &mut PgConnection, cluster: &ClusterId) -> Result<(u32, u32), Error> {
    let rows: Vec<(String, i32)> =
        sqlx::query_as("SELECT cluster_id, out FROM budgets WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster'))")
            .bind(cluster.as_str())
            .fetch_all(conn)
            .await
            .label("budgets.out")?;
    let of = |id: &str| rows.iter().find(|row| row.0 == id).map_or(0, |row| u32::try_from(row.1).unwrap_or(0));
    Ok((of(cluster.as_str()), of("")))
}

/// Counts a node as out, unless by now too many are; `None` counts it whatever the numbers, for it is out already. One
/// that counts already passes to the incident named.
///
/// # Errors
/// [`Error::Rows`] when a budget has no room.
pub async fn hold_insert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    node: &NodeUid,
    incident: IncidentId,
    allowed: Option<Allowed>,
    now: Timestamp,
) -> Result<(), Error> {
    let known = sqlx::query("UPDATE holds SET incident_id = $3 WHERE cluster_id = $1 AND node_uid = $2")
        .bind(cluster.as_str())
        .bind(node.as_str())
        .bind(incident.uuid())
        .execute(&mut *conn)
        .await
        .label("hold.adopt")?;
    if known.rows_affected() == 1 {
        return Ok(());
    }
    let limits = [(FLEET, allowed.map(|allowed| allowed.fleet)), (cluster_scope(cluster), allowed.map(|allowed| allowed.cluster))];
    for ((id, kind), limit) in limits {
        let limit = limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
        let result = sqlx::query(
            "UPDATE budgets SET out = out + 1, allowed = COALESCE($3, allowed), changed_at = $4 \
             WHERE cluster_id = $1 AND scope = $2 AND ($3::int IS NULL OR out < $3)",
        )
        .bind(id)
        .bind(kind)
        .bind(limit)
        .bind(to_db(now))
        .execute(&mut *conn)
        .await
        .label("budget.spend")?;
        touched("budget.spend", 1, &result)?;
    }
    sqlx::query("INSERT INTO holds (cluster_id, node_uid, incident_id, scopes, held_at) VALUES ($1, $2, $3, $4, $5)")
        .bind(cluster.as_str())
        .bind(node.as_str())
        .bind(incident.uuid())
        .bind(["fleet", "cluster"])
        .bind(to_db(now))
        .execute(conn)
        .await
        .label("hold.insert")?;
    Ok(())
}

/// Counts a node as out no longer. A node that was not is left alone.
///
/// # Errors
/// When the counters do not agree with the hold.
pub async fn hold_delete(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid, now: Timestamp) -> Result<(), Error> {
    let gone = sqlx::query("DELETE FROM holds WHERE cluster_id = $1 AND node_uid = $2")
        .bind(cluster.as_str())
        .bind(node.as_str())
        .execute(&mut *conn)
        .await
        .label("hold.delete")?;
    if gone.rows_affected() == 0 {
        return Ok(());
    }
    for (id, kind) in [FLEET, cluster_scope(cluster)] {
        let result =
            sqlx::query("UPDATE budgets SET out = out - 1, changed_at = $3 WHERE cluster_id = $1 AND scope = $2 AND out > 0")
                .bind(id)
                .bind(kind)
                .bind(to_db(now))
                .execute(&mut *conn)
                .await
                .label("budget.return")?;
        touched("budget.return", 1, &result)?;
    }
    Ok(())
}

/// The cluster's and the fleet's rate as stored; a full one where nothing is.
///
/// # Errors
/// When the database fails.
pub async fn rates_load(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    rates: &Rates,
    now: Timestamp,
) -> Result<(RateState, RateState), Error> {
    let rows: Vec<(String, i64, DateTime<Utc>)> = sqlx::query_as(
        "SELECT cluster_id, milli_tokens, filled_at FROM rate_buckets WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster'))",
    )
    .bind(cluster.as_str())
    .fetch_all(conn)
    .await
    .label("rates.load")?;
    let of = |id: &str, rate: Rate| {
        rows.iter()
            .find(|row| row.0 == id)
            .map_or_else(|| rate.full(now), |row| RateState { milli_tokens: natural(row.1), at: from_db(row.2) })
    };
    Ok((of(cluster.as_str(), rates.cluster), of("", rates.fleet)))
}

/// Takes one node's token of both rates, which the caller has locked.
///
/// # Errors
/// [`Error::Rows`] when one has none left.
pub async fn rate_take(conn: &mut PgConnection, cluster: &ClusterId, rates: &Rates, now: Timestamp) -> Result<(), Error> {
    let (of_cluster, of_fleet) = rates_load(conn, cluster, rates, now).await?;
    for ((id, kind), rate, state) in [(FLEET, rates.fleet, of_fleet), (cluster_scope(cluster), rates.cluster, of_cluster)] {
        let left = rate.take(state, now).map_err(|_| Error::Rows { what: "rate.take", want: 1, got: 0 })?;
        let result = sqlx::query("UPDATE rate_buckets SET milli_tokens = $3, filled_at = $4 WHERE cluster_id = $1 AND scope = $2")
            .bind(id)
            .bind(kind)
            .bind(signed(left.milli_tokens))
            .bind(to_db(left.at))
            .execute(&mut *conn)
            .await
            .label("rate.take")?;
        touched("rate.take", 1, &result)?;
    }
    Ok(())
}
