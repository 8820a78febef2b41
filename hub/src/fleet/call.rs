//! What all calls share: counting, reading ids, and saying what went wrong without showing how we work inside.

use chrono::{DateTime, Utc};
use gpuheal_proto::ids::ClusterId;
use sqlx::{PgConnection, PgPool, Postgres, pool::PoolConnection};
use tonic::{Code, Response, Status};

use crate::{
    identity::UserName,
    metrics,
    store::{self, Class, fleet::cluster_known},
};

/// Counts a call by how it ended.
pub(super) fn counted<T>(method: &'static str, outcome: Result<T, Status>) -> Result<Response<T>, Status> {
    let word = match &outcome {
        Ok(_) => "ok",
        Err(status) => match status.code() {
            Code::Internal | Code::Unavailable | Code::Unknown | Code::DeadlineExceeded => "failed",
            _ => "refused",
        },
    };
    metrics::FLEET_CALLS.inc([method, word]);
    outcome.map(Response::new)
}

/// A connection of the fleet's own pool.
pub(super) async fn connection(pool: &PgPool) -> Result<PoolConnection<Postgres>, Status> {
    pool.acquire().await.map_err(|error| {
        tracing::warn!(error = %crate::chain::chain(&error), "no database connection for a fleet call");
        away()
    })
}

/// What the caller may know of an error of ours.
pub(super) fn failed(error: &store::Error) -> Status {
    if error.class() == Class::Transient {
        tracing::warn!(error = %crate::chain::chain(&error), "fleet call failed");
        return away();
    }
    tracing::error!(error = %crate::chain::chain(&error), "fleet call failed");
    Status::internal("the hub failed to do this; its log says why")
}

fn away() -> Status {
    Status::unavailable("the hub cannot reach its database")
}

/// An optional cluster; empty means any.
pub(super) fn cluster(text: &str) -> Result<Option<ClusterId>, Status> {
    if text.is_empty() { Ok(None) } else { required_cluster(text).map(Some) }
}

/// Refuses a cluster that never attached: an empty list would say that all is well there.
pub(super) async fn known(conn: &mut PgConnection, cluster: Option<&ClusterId>) -> Result<(), Status> {
    let Some(cluster) = cluster else { return Ok(()) };
    let known = cluster_known(conn, cluster).await.map_err(|error| failed(&error))?;
    if known { Ok(()) } else { Err(Status::not_found(format!("cluster {cluster} is not known: it never attached"))) }
}

/// A cluster that must be named.
pub(super) fn required_cluster(text: &str) -> Result<ClusterId, Status> {
    ClusterId::parse(text).map_err(|error| Status::invalid_argument(format!("cluster_id: {error}")))
}

/// Text of a caller's that is stored as it is: what `process` allows for a reason.
const TEXT_BYTES_MAX: usize = 512;

/// A text that may be stored.
pub(super) fn short(field: &str, text: &str) -> Result<(), Status> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Status::invalid_argument(format!("{field}: {} bytes, at most {TEXT_BYTES_MAX} are allowed", text.len())));
    }
    if text.contains('\0') { Err(Status::invalid_argument(format!("{field}: it holds a zero byte"))) } else { Ok(()) }
}

/// Why somebody asks for something: kept in the audit, so that it must say something.
pub(super) fn reason(text: &str) -> Result<(), Status> {
    short("reason", text)?;
    if text.trim().is_empty() { Err(Status::invalid_argument("reason: it is empty")) } else { Ok(()) }
}

/// A person as the audit names them.
pub(super) fn actor(user: &UserName) -> String {
    format!("user/{user}")
}

/// A moment as it travels; 0 for never.
pub(super) fn unix_ms(at: Option<DateTime<Utc>>) -> i64 {
    at.map_or(0, |at| at.timestamp_millis())
}

/// A count as it travels.
pub(super) fn count(n: i64) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}
