//! The way to the database, the pool and its session settings, and whether the schema is one we know.

use std::{str::FromStr as _, time::Duration};

use sqlx::{
    Connection as _, PgConnection, PgPool,
    migrate::{Migrate as _, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{Error, Labelled as _, pooler::Relay};

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
/// How long one round of a stage may wait for the database. A statement ends by itself in 10 s and a wait for a lock in 5 s:
/// who waits for three times the longest waits for an answer that was lost on the way, and would wait for ever. TCP itself
/// need not notice, when what forgot the connection stands between us and the database.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a connection that is given back may take to say that it lives; then it is thrown away, so that none that is
/// lost keeps its place in the pool.
const PULSE_WITHIN: Duration = Duration::from_secs(5);
/// A connection that rested longer is asked whether it lives before it is used.
const RESTED: Duration = Duration::from_secs(5);

/// The settings of a session of ours.
const SETTINGS: [(&str, &str); 5] = [
    ("statement_timeout", STATEMENT_TIMEOUT_MS),
    ("lock_timeout", LOCK_TIMEOUT_MS),
    ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS),
    ("timezone", "UTC"),
    // Statements here take milliseconds; compiling one by a wrong guess of its rows took seconds (measured: 4.7).
    ("jit", "off"),
];

/// How the database is reached: by itself, or what serves through a pooler and what needs a session of its own past it.
#[derive(Debug)]
pub struct Way {
    serving: PgConnectOptions,
    direct: PgConnectOptions,
    at: String,
    /// Pools through a pooler work as long as this is held.
    _relay: Option<Relay>,
}

impl Way {
    /// With a direct URL the other one is a pooler's, which gives a connection to one transaction at a time. Nothing is asked of the database.
    ///
    /// # Errors
    /// When a URL is none, or does not say how safe the way to the pooler must be.
    pub async fn open(url: &str, direct_url: Option<&str>) -> Result<Self, Error> {
        let Some(direct_url) = direct_url else {
            let direct = options(url)?;
            return Ok(Self { at: place(&direct), serving: direct.clone(), direct, _relay: None });
        };
        let (pooled, direct) = (read(url)?.application_name(NAME), options(direct_url)?);
        let at = format!("the pooler {}", place(&pooled));
        let (relay, serving) = Relay::open(url, pooled, opening()).await?;
        Ok(Self { serving, direct, at, _relay: Some(relay) })
    }

    /// Opens a pool. Nothing is asked of the database but to let us in.
    ///
    /// # Errors
    /// When it does not.
    pub async fn pool(&self, connections_max: u32) -> Result<PgPool, Error> {
        pool(self.serving.clone(), self.at.clone(), connections_max).await
    }

    /// Options of a connection that keeps its session, to listen with.
    #[must_use]
    pub const fn direct(&self) -> &PgConnectOptions {
        &self.direct
    }
}

/// The name by which the database knows us.
const NAME: &str = "gpuheal-hub";

/// What begins a transaction where no session keeps settings. The time zone is one of those that a pooler keeps for us.
fn opening() -> String {
    let set = SETTINGS.iter().filter(|(name, _)| *name != "timezone").map(|(name, value)| format!("; SET LOCAL {name} = {value}"));
    format!("BEGIN{}", set.collect::<String>())
}

/// Options of a connection that serves, past any pooler.
///
/// # Errors
/// When the URL is none.
pub fn options(url: &str) -> Result<PgConnectOptions, Error> {
    Ok(read(url)?.application_name(NAME).options(SETTINGS))
}

/// Opens a pool past any pooler.
///
/// # Errors
/// When the database does not let us in.
pub async fn connect(url: &str, connections_max: u32) -> Result<PgPool, Error> {
    Way::open(url, None).await?.pool(connections_max).await
}

async fn pool(options: PgConnectOptions, at: String, connections_max: u32) -> Result<PgPool, Error> {
    PgPoolOptions::new()
        .max_connections(connections_max)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // Asked first only whether it still lives when it has rested: in a busy hub that question would double the way of
        // every short statement. One that broke meanwhile fails its first statement, which every stage repeats.
        .test_before_acquire(false)
        .after_release(|conn, _| {
            Box::pin(async move {
                let alive = tokio::time::timeout(PULSE_WITHIN, conn.ping()).await;
                alive.unwrap_or_else(|_| Err(lost())).map(|()| true)
            })
        })
        .before_acquire(|conn, meta| {
            Box::pin(async move { if meta.idle_for < RESTED { Ok(true) } else { conn.ping().await.map(|()| true) } })
        })
        .connect_with(options)
        .await
        .map_err(|source| refused(at, source))
}

/// The library takes what has no scheme for a database on this machine whose name is all of it, password included.
fn read(url: &str) -> Result<PgConnectOptions, Error> {
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(Error::Url(sqlx::Error::Configuration("it has no scheme".into())));
    }
    PgConnectOptions::from_str(url).map_err(Error::Url)
}

/// Where the database is, for people who must find out why it does not let us in.
fn place(options: &PgConnectOptions) -> String {
    let (user, port) = (options.get_username(), options.get_port());
    let host = options.get_socket().map_or_else(|| format!("{}:{port}", options.get_host()), |socket| socket.display().to_string());
    // Postgres itself takes the user's name for a database that is not named.
    format!("{host}, database {:?}, as user {user:?}", options.get_database().unwrap_or(user))
}

fn refused(at: String, source: sqlx::Error) -> Error {
    let code = source.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    let next = match (&source, code.as_str()) {
        (_, "28000" | "28P01") => "check user and password in the URL, and the server's pg_hba.conf",
        (_, "3D000") => "create that database, or name another in the URL",
        (_, "53300") => "raise the server's max_connections, or lower --database-connections",
        (_, "08P01") => "if this is a pooler, name the database itself as well, by --database-direct-url-file",
        (sqlx::Error::Tls(_), _) => "check sslmode and sslrootcert in the URL against the server's certificate",
        (sqlx::Error::Database(_), _) => "the server says why",
        _ => "check that Postgres listens there and that nothing on the way, such as a NetworkPolicy, keeps this program from it",
    };
    Error::Connect { at, next, source }
}

/// Does something with the database, and gives it up when no answer comes: its connection is lost. Whether it was committed
/// is not known then; who repeats it must be able to.
///
/// # Errors
/// When the work fails, and when no answer comes.
pub async fn answered<T, E: From<Error>>(what: &'static str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    within(ANSWER_WITHIN, what, work).await
}

async fn within<T, E: From<Error>>(limit: Duration, what: &'static str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::Database { what, source: lost() }.into()),
    }
}

fn lost() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer comes: the connection is lost"))
}

/// Brings the schema to this version's. Runs on one direct connection without a statement timeout.
///
/// # Errors
/// When a migration fails, or one that was applied is not what we know by its number.
pub async fn migrate(url: &str) -> Result<usize, Error> {
    let options = read(url)?.application_name("gpuheal-hub migrate");
    let mut conn = PgConnection::connect_with(&options).await.map_err(|source| refused(place(&options), source))?;
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

#[cfg(test)]
mod tests {
    use gpuheal_proto::chain::chain;

    use super::*;

    async fn backend(pool: &PgPool) -> Result<i32, Error> {
        let mut conn = pool.acquire().await.label("pool.acquire")?;
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *conn).await.label("test.backend")
    }

    fn tell(backend: i32, signal: &str) {
        let told = std::process::Command::new("kill").args([signal, &backend.to_string()]).status().unwrap();
        assert!(told.success());
    }

    #[tokio::test]
    async fn a_backend_that_answers_no_more_is_given_up_and_its_place_in_the_pool_is_taken_by_another() {
        let pool = connect(&testpg::database().await, 1).await.unwrap();
        let stopped = backend(&pool).await.unwrap();
        tell(stopped, "-STOP");
        let error = within(Duration::from_millis(500), "test.backend", backend(&pool)).await.unwrap_err();
        let said = chain(&error).to_string();
        assert!(said.contains("test.backend failed") && said.contains("no answer comes: the connection is lost"), "{said}");
        assert_eq!(error.class(), super::super::Class::Transient, "whoever can repeat it does");
        let other = tokio::time::timeout(Duration::from_secs(120), async {
            loop {
                // The pool itself waits 5 s for an answer before it throws the connection away.
                if let Ok(backend) = backend(&pool).await {
                    return backend;
                }
            }
        });
        assert_ne!(other.await.unwrap(), stopped);
        tell(stopped, "-CONT");
    }

    #[tokio::test]
    async fn what_is_answered_in_time_is_handed_on_good_or_bad() {
        let good = answered("test.good", async { Ok::<_, Error>(1) }).await;
        assert!(matches!(good, Ok(1)));
        let bad = answered("test.bad", async { Err::<(), _>(Error::Schema { why: "it is empty".to_owned() }) }).await;
        assert!(matches!(bad, Err(Error::Schema { .. })), "{bad:?}");
        assert!(ANSWER_WITHIN > Duration::from_millis(STATEMENT_TIMEOUT_MS.parse().unwrap()), "a statement ends by itself before");
    }

    #[test]
    fn a_transaction_behind_a_pooler_has_the_settings_of_a_session() {
        let opening = opening();
        assert_eq!(
            opening,
            "BEGIN; SET LOCAL statement_timeout = 10000; SET LOCAL lock_timeout = 5000; \
             SET LOCAL idle_in_transaction_session_timeout = 10000; SET LOCAL jit = off"
        );
    }

    /// A port that was free a moment ago: nobody listens there.
    fn nobody() -> u16 {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn a_database_that_is_away_is_named_with_what_to_look_at_and_without_its_password() {
        let port = nobody();
        let error = migrate(&format!("postgres://ops:s3cret@127.0.0.1:{port}/fleet")).await.unwrap_err();
        let said = chain(&error).to_string();
        assert!(said.contains(&format!("127.0.0.1:{port}, database \"fleet\", as user \"ops\"")), "{said}");
        assert!(said.contains("check that Postgres listens there"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
        assert_eq!(error.class(), super::super::Class::Transient);
    }

    #[test]
    fn a_url_that_is_none_is_told_by_its_form_and_not_by_what_it_holds() {
        for url in ["ops:s3cret@db/fleet", "postgres://ops:s3cret@db:70000/fleet", "postgres://ops:s3cret@db/fleet?sslmode=often"] {
            let error = options(url).unwrap_err();
            let said = chain(&error).to_string();
            assert!(said.contains("postgres://USER:PASSWORD@HOST:PORT/DATABASE") && !said.contains("s3cret"), "{said}");
            assert_eq!(error.class(), super::super::Class::Bug);
        }
    }
}
