//! Moments on their way into and out of Postgres. The database's clock is the hub's clock: it is read here.

use chrono::{DateTime, Utc};
use gpuheal_proto::time::Timestamp;
use sqlx::PgConnection;

use super::{Error, Labelled as _};

/// As Postgres takes it. Moments beyond its calendar become its last one, those before 1970, which no clock of ours tells,
/// its first second.
#[must_use]
pub fn to_db(at: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(at.unix_ms().max(0)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

/// As ours: whole milliseconds, rounded down.
#[must_use]
pub fn from_db(at: DateTime<Utc>) -> Timestamp {
    Timestamp::from_unix_ms(at.timestamp_millis())
}

/// The database's clock at this moment.
///
/// # Errors
/// When the database does not answer.
pub async fn now(conn: &mut PgConnection) -> Result<Timestamp, Error> {
    let at: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(conn).await.label("moment.now")?;
    Ok(from_db(at))
}
