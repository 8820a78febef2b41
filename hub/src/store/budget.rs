//! Budgets and rates. How many nodes are out moves only with the insert and delete of a hold, by guarded updates; the
//! rows are locked in one order: budgets fleet then cluster, rates fleet then cluster.

use chrono::{DateTime, Utc};
use gpuheal_hub_core::{budget::RateState, policy::Rates};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId, NodeUid},
    time::Timestamp,
};
use sqlx::{FromRow, PgConnection};

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

/// What budgets and rates say of a cluster and of its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    /// Nodes that are out in the cluster.
    pub out: u32,
    /// Nodes that are out in the fleet.
    pub fleet_out: u32,
    /// The cluster's rate as stored.
    pub rate: RateState,
    /// The fleet's.
    pub fleet_rate: RateState,
}

#[derive(FromRow)]
struct GuardRow {
    cluster_id: String,
    out: i32,
    milli_tokens: i64,
    filled_at: DateTime<Utc>,
}

/// Locks the fleet's and the cluster's budget and rate rows until commit, making those that are not there, and returns
/// what they say under the lock. All statements lock in the order of their sort: the fleet's empty cluster id comes first.
///
/// # Errors
/// When the database fails.
pub async fn guards_lock(conn: &mut PgConnection, cluster: &ClusterId, rates: &Rates, now: Timestamp) -> Result<Guards, Error> {
    if let Some(guards) = guards_try(conn, cluster).await? {
        return Ok(guards);
    }
    budgets_make(conn, cluster).await?;
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
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
    guards_try(conn, cluster).await?.ok_or(Error::Rows { what: "guards.lock", want: 4, got: 0 })
}

/// Locks the fleet's and the cluster's budget until commit, making those that are not there, in the order in which everybody does: for
/// whoever counts a node as out without asking whether there is room.
///
/// # Errors
/// When the database fails.
pub async fn budgets_lock(conn: &mut PgConnection, cluster: &ClusterId) -> Result<(), Error> {
    budgets_make(conn, cluster).await?;
    sqlx::query("SELECT FROM budgets WHERE (cluster_id, scope) IN (('', 'fleet'), ($1, 'cluster')) ORDER BY cluster_id FOR UPDATE")
        .bind(cluster.as_str())
        .execute(conn)
        .await
        .label("budgets.lock")?;
    Ok(())
}

/// Makes the cluster's budget and the fleet's, if they are not there yet: nothing is out in them.
async fn budgets_make(conn: &mut PgConnection, cluster: &ClusterId) -> Result<(), Error> {
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
    sqlx::query(
        "INSERT INTO budgets (cluster_id, scope, kind) SELECT c, k, k FROM unnest($1::text[], $2::text[]) AS s (c, k) \
         ORDER BY 1 ON CONFLICT DO NOTHING",
    )
    .bind(ids)
    .bind(kinds)
    .execute(conn)
    .await
    .label("budgets.insert")?;
    Ok(())
}

/// `None` unless all four rows were there to be locked. A row that somebody else has just moved is read as he left it.
async fn guards_try(conn: &mut PgConnection, cluster: &ClusterId) -> Result<Option<Guards>, Error> {
    let rows: Vec<GuardRow> = sqlx::query_as(
        "SELECT b.cluster_id, b.out, r.milli_tokens, r.filled_at FROM budgets b JOIN rate_buckets r USING (cluster_id, scope) \
         WHERE (b.cluster_id, b.scope) IN (('', 'fleet'), ($1, 'cluster')) ORDER BY b.cluster_id FOR UPDATE OF b, r",
    )
    .bind(cluster.as_str())
    .fetch_all(conn)
    .await
    .label("guards.lock")?;
    let of = |id: &str| rows.iter().find(|row| row.cluster_id == id);
    let Some((ours, fleet)) = of(cluster.as_str()).zip(of("")) else { return Ok(None) };
    let out = |row: &GuardRow| u32::try_from(row.out).unwrap_or(0);
    let rate = |row: &GuardRow| RateState { milli_tokens: natural(row.milli_tokens), at: from_db(row.filled_at) };
    Ok(Some(Guards { out: out(ours), fleet_out: out(fleet), rate: rate(ours), fleet_rate: rate(fleet) }))
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
    let (ids, kinds): (Vec<&str>, Vec<&str>) = [FLEET, cluster_scope(cluster)].into_iter().unzip();
    let limit = |limit: u32| i32::try_from(limit).unwrap_or(i32::MAX);
    let limits = allowed.map_or([None, None], |allowed| [Some(limit(allowed.fleet)), Some(limit(allowed.cluster))]);
    let (new, spent): (bool, i64) = sqlx::query_as(
        "WITH h AS (INSERT INTO holds (cluster_id, node_uid, incident_id, scopes, held_at) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (cluster_id, node_uid) DO UPDATE SET incident_id = excluded.incident_id RETURNING xmax = 0 AS new), \
         u AS (UPDATE budgets b SET out = b.out + 1, allowed = COALESCE(s.allowed, b.allowed), changed_at = $5 \
             FROM unnest($6::text[], $7::text[], $8::int[]) AS s (cluster_id, scope, allowed), h \
             WHERE h.new AND b.cluster_id = s.cluster_id AND b.scope = s.scope AND (s.allowed IS NULL OR b.out < s.allowed) RETURNING 1) \
         SELECT h.new, (SELECT count(*) FROM u) FROM h",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .bind(incident.uuid())
    .bind(["fleet", "cluster"])
    .bind(to_db(now))
    .bind(ids)
    .bind(kinds)
    .bind(limits)
    .fetch_one(conn)
    .await
    .label("hold.insert")?;
    let spent = u64::try_from(spent).unwrap_or(0);
    if new && spent != 2 { Err(Error::Rows { what: "budgets.spend", want: 2, got: spent }) } else { Ok(()) }
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

/// Takes one node's token of both rates, which the caller has locked and read; returns what is left of the cluster's and
/// of the fleet's.
///
/// # Errors
/// [`Error::Rows`] when one has none left.
pub async fn rate_take(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    rates: &Rates,
    (of_cluster, of_fleet): (RateState, RateState),
    now: Timestamp,
) -> Result<(RateState, RateState), Error> {
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
    touched("rates.take", 2, &result)?;
    let [fleet, cluster] = left;
    Ok((cluster, fleet))
}
