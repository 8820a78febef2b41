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

/// Locks the fleet's and the cluster's budget and rate rows until commit, making those that are not there. Both statements
/// lock in the order of their sort: the fleet's empty cluster id comes first.
///
/// # Errors
/// When the database fails.
pub async fn guards_lock(conn: &mut PgConnection, cluster: &ClusterId, rates: &Rates, now: Timestamp) -> Result<(), Error> {
    if guards_try(conn, cluster).await? {
        return Ok(());
    }
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
    sqlx::query(
        "INSERT INTO budgets (cluster_id, scope, kind) SELECT c, k, k FROM unnest($1::text[], $2::text[]) AS s (c, k) \
         ORDER BY 1 ON CONFLICT DO NOTHING",
    )
    .bind(&ids)
    .bind(&kinds)
    .execute(&mut *conn)
    .await
    .label("budgets.insert")?;
    sqlx::query(
        "INSERT INTO rate_buckets (cluster_id, scope, milli_tokens, filled_at) SELECT c, k, m, $4 \
         FROM unnest($1::text[], $2::text[], $3::bigint[]) AS s (c, k, m) ORDER BY 1 ON CONFLICT DO NOTHING",
    )
    .bind(&ids)
    .bind(&kinds)
    .bind([signed(rates.fleet.burst()), signed(rates.cluster.burst())])
    .bind(to_db(now))
    .execute(&mut *conn)
    .await
    .label("rates.insert")?;
    if guards_try(conn, cluster).await? { Ok(()) } else { Err(Error::Rows { what: "guards.lock", want: 4, got: 0 }) }
}

/// Whether all four rows were there to be locked.
async fn guards_try(conn: &mut PgConnection, cluster: &ClusterId) -> Result<bool, Error> {
    let budgets = sqlx::query(
        "SELECT FROM budgets WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster')) ORDER BY cluster_id FOR UPDATE",
    )
    .bind(cluster.as_str())
    .execute(&mut *conn)
    .await
    .label("budgets.lock")?;
    if budgets.rows_affected() < 2 {
        return Ok(false);
    }
    let rates = sqlx::query(
        "SELECT FROM rate_buckets WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster')) ORDER BY cluster_id FOR UPDATE",
    )
    .bind(cluster.as_str())
    .execute(conn)
    .await
    .label("rates.lock")?;
    Ok(rates.rows_affected() == 2)
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
    let new: bool = sqlx::query_scalar(
        "INSERT INTO holds (cluster_id, node_uid, incident_id, scopes, held_at) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (cluster_id, node_uid) DO UPDATE SET incident_id = excluded.incident_id RETURNING xmax = 0",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(incident.uuid())
    .bind(["fleet", "cluster"])
    .bind(to_db(now))
    .fetch_one(&mut *conn)
    .await
    .label("hold.insert")?;
    if !new {
        return Ok(());
    }
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
    let limit = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    let limits = allowed.map_or([None, None], |allowed| [Some(limit(allowed.fleet)), Some(limit(allowed.cluster))]);
    let result = sqlx::query(
        "UPDATE budgets b SET out = b.out + 1, allowed = COALESCE(s.allowed, b.allowed), changed_at = $4 \
         FROM unnest($1::text[], $2::text[], $3::int[]) AS s (cluster_id, scope, allowed) \
         WHERE b.cluster_id = s.cluster_id AND b.scope = s.scope AND (s.allowed IS NULL OR b.out < s.allowed)",
    )
    .bind(ids)
    .bind(kinds)
    .bind(limits)
    .bind(to_db(now))
    .execute(conn)
    .await
    .label("budgets.spend")?;
    touched("budgets.spend", 2, &result)
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
    let result = sqlx::query(
        "UPDATE budgets SET out = out - 1, changed_at = $2 WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster')) AND out > 0",
    )
    .bind(cluster.as_str())
    .bind(to_db(now))
    .execute(conn)
    .await
    .label("budgets.return")?;
    touched("budgets.return", 2, &result)
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
    let none_left = |_| Error::Rows { what: "rates.take", want: 2, got: 0 };
    let left = [rates.fleet.take(of_fleet, now).map_err(none_left)?, rates.cluster.take(of_cluster, now).map_err(none_left)?];
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
    let result = sqlx::query(
        "UPDATE rate_buckets r SET milli_tokens = s.milli_tokens, filled_at = s.filled_at \
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[]) AS s (cluster_id, scope, milli_tokens, filled_at) \
         WHERE r.cluster_id = s.cluster_id AND r.scope = s.scope",
    )
    .bind(ids)
    .bind(kinds)
    .bind(left.map(|state| signed(state.milli_tokens)))
    .bind(left.map(|state| to_db(state.at)))
    .execute(conn)
    .await
    .label("rates.take")?;
    touched("rates.take", 2, &result)
}
