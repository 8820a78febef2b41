//! The pool, its session settings, and whether the schema is one we know.

use std::{str::FromStr as _, time::Duration};

use sqlx::{
    Connection as _, PgConnection, PgPool,
    migrate::{Migrate as _, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{Error, Labelled as _};

/// The schema that this version reads and writes.
static MIGRATIONS: Migrator = sqlx::migrate!();

/// No statement of ours is near it; one that is has met a sick database.
const STATEMENT_TIMEOUT_MS: &str = "10000";
/// A lock is held for one commit, some milliseconds; five seconds of waiting means that its holder is stuck.
const LOCK_TIMEOUT_MS: &str = "5000";
/// A transaction left open pins what vacuum may clean: queues rot within a minute.
const IDLE_IN_TRANSACTION_MS: &str = "10000";
/// How long a caller waits for a connection before it is told to come again.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that rested longer is asked whether it lives before it is used.
const RESTED: Duration = Duration::from_secs(5);

/// Options of a connection that serves.
///
/// # Errors
/// When the URL is none.
pub fn options(url: &str) -> Result<PgConnectOptions, Error> {
    let options = PgConnectOptions::from_str(url).label("pool.options")?;
    Ok(options.application_name("gpuheal-hub").options([
        ("statement_timeout", STATEMENT_TIMEOUT_MS),
        ("lock_timeout", LOCK_TIMEOUT_MS),
        ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS),
        ("timezone", "UTC"),
    ]))
}

/// Opens the pool. Nothing is asked of the database but to let us in.
///
/// # Errors
/// When it does not.
pub async fn connect(url: &str, connections_max: u32) -> Result<PgPool, Error> {
    PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // Asked first only whether it still lives when it has rested: in a busy hub that question would double the way of
        // every short statement. One that broke meanwhile fails its first statement, which every stage repeats.
        .test_before_acquire(false)
        .before_acquire(|conn, meta| {
            Box::pin(async move { if meta.idle_for < RESTED { Ok(true) } else { conn.ping().await.map(|()| true) } })
        })
        .connect_with(options(url)?)
        .await
        .label("pool.connect")
}

/// Brings the schema to this version's. Runs on one direct connection without a statement timeout.
///
/// # Errors
/// When a migration fails, or one that was applied is not what we know by its number.
pub async fn migrate(url: &str) -> Result<usize, Error> {
    let options = PgConnectOptions::from_str(url).label("pool.options")?.application_name("gpuheal-hub migrate");
    let mut conn = PgConnection::connect_with(&options).await.label("pool.connect")?;
    MIGRATIONS.run(&mut conn).await.map_err(Error::Migrate)?;
    conn.close().await.label("pool.close")?;
    Ok(MIGRATIONS.iter().count())
}

/// Refuses a schema that is older, newer or other than this version's.
///
/// # Errors
/// When it is, or cannot be read.
pub async fn schema_check(pool: &PgPool) -> Result<(), Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let known: Option<bool> = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *conn)
        .await
        .label("schema.exists")?;
    if known != Some(true) {
        return Err(Error::Schema { why: "it is empty".to_owned() });
    }
    let applied = conn.list_applied_migrations("_sqlx_migrations").await.map_err(Error::Migrate)?;
    for ours in MIGRATIONS.iter() {
        match applied.iter().find(|theirs| theirs.version == ours.version) {
            None => return Err(Error::Schema { why: format!("migration {} is missing", ours.version) }),
            Some(theirs) if theirs.checksum != ours.checksum => {
                return Err(Error::Schema { why: format!("migration {} differs", ours.version) });
            }
            Some(_) => {}
        }
    }
    match applied.iter().find(|theirs| !MIGRATIONS.version_exists(theirs.version)) {
        Some(newer) => Err(Error::Schema { why: format!("migration {} is not known here", newer.version) }),
        None => Ok(()),
    }
}

/// Raises the epoch of the database: what was issued under the one before can no longer be mistaken for ours.
///
/// # Errors
/// When the database fails.
pub async fn hub_term_raise(conn: &mut PgConnection, reason: &str) -> Result<u64, Error> {
    let term: i64 = sqlx::query_scalar(
        "UPDATE hub_state SET hub_term = hub_term + 1, raised_at = clock_timestamp(), reason = $1 RETURNING hub_term",
    )
    .bind(reason)
    .fetch_one(conn)
    .await
    .label("hub_state.raise")?;
    Ok(super::natural(term))
}
