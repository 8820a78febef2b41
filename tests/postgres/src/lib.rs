//! A private PostgreSQL for tests, the demo and measurements: own data directory, free port on 127.0.0.1, privileges
//! dropped when run as root, gone with the process that started it, however that one ends. Never touches a server of
//! the machine's own. Tests take [`database`]: one server per test process, one migrated database per test.

mod binaries;
mod keeper;
mod pooler;
mod server;

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

pub use pooler::Pooler;
pub use server::{Error, Postgres};

/// The name of the database that tests' own are copied from.
const TEMPLATE: &str = "migrated";

/// The hub's migrations, as the hub itself embeds them.
static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../hub/migrations");

/// The server of this test process, started at first use.
///
/// # Panics
/// When it cannot be started; the message says what is missing.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(|| Postgres::start_throwaway().unwrap_or_else(|error| panic!("no PostgreSQL for this test: {error}")))
}

/// The URL of a new migrated database of its own for the calling test.
///
/// # Panics
/// When the server cannot be started or the database cannot be made.
pub async fn database() -> String {
    copy(shared()).await.unwrap_or_else(|error| panic!("no database for this test: {error}"))
}

/// The URL of a new empty database.
///
/// # Panics
/// As [`database`].
pub async fn empty_database() -> String {
    let postgres = shared();
    let name = next_name();
    create(postgres, &format!("CREATE DATABASE {name}")).await.unwrap_or_else(|error| panic!("no database for this test: {error}"));
    postgres.database_url(&name)
}

/// Connections to a database by way of a pooler: fewer than the clients of any test.
const POOLED_CONNECTIONS: u32 = 5;

/// Two URLs of a new migrated database: through a PgBouncer in transaction mode, which this test process shares, and past it.
///
/// # Panics
/// As [`database`], and when PgBouncer cannot be started; the message says what is missing.
pub async fn pooled_database() -> (String, String) {
    static POOLER: OnceLock<Pooler> = OnceLock::new();
    let pooler = POOLER.get_or_init(|| {
        Pooler::start(shared().port(), POOLED_CONNECTIONS).unwrap_or_else(|error| panic!("no PgBouncer for this test: {error}"))
    });
    let direct = database().await;
    let name = direct.rsplit('/').next().expect("a database's URL ends with its name");
    (pooler.database_url(name), direct)
}

fn next_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn copy(postgres: &Postgres) -> Result<String, sqlx::Error> {
    // A template must have nobody connected while it is copied, so making it and copying it take turns.
    static TEMPLATE_MADE: tokio::sync::Mutex<bool> = tokio::sync::Mutex::const_new(false);
    let mut made = TEMPLATE_MADE.lock().await;
    if !*made {
        create(postgres, &format!("CREATE DATABASE {TEMPLATE}")).await?;
        let mut conn = PgConnection::connect(&postgres.database_url(TEMPLATE)).await?;
        MIGRATIONS.run(&mut conn).await?;
        conn.close().await?;
        *made = true;
    }
    let name = next_name();
    create(postgres, &format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}")).await?;
    Ok(postgres.database_url(&name))
}

async fn create(postgres: &Postgres, statement: &str) -> Result<(), sqlx::Error> {
    let mut conn = PgConnection::connect(&postgres.url()).await?;
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut conn).await?;
    conn.close().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_test_gets_a_migrated_database_of_its_own() {
        let (one, other) = (database().await, database().await);
        assert_ne!(one, other);
        let mut conn = PgConnection::connect(&one).await.unwrap();
        let term: i64 = sqlx::query_scalar("SELECT hub_term FROM hub_state").fetch_one(&mut conn).await.unwrap();
        assert_eq!(term, 1);
    }

    #[tokio::test]
    async fn every_table_and_column_has_a_comment_and_every_constraint_bears_its_tables_name() {
        let mut conn = PgConnection::connect(&database().await).await.unwrap();
        let bare: Vec<String> = sqlx::query_scalar(
            "SELECT c.relname || coalesce('.' || a.attname, '') FROM pg_class c \
             LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped \
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname <> '_sqlx_migrations' \
             AND (obj_description(c.oid) IS NULL OR col_description(c.oid, a.attnum) IS NULL)",
        )
        .fetch_all(&mut conn)
        .await
        .unwrap();
        assert_eq!(bare, Vec::<String>::new());
        let misnamed: Vec<String> = sqlx::query_scalar(
            "SELECT conname::text FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid \
             WHERE c.relnamespace = 'public'::regnamespace AND c.relname <> '_sqlx_migrations' AND NOT starts_with(conname, c.relname || '_')",
        )
        .fetch_all(&mut conn)
        .await
        .unwrap();
        assert_eq!(misnamed, Vec::<String>::new());
    }
}
