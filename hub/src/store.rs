//! All SQL of the hub. Functions are named noun first and take a connection; affected rows are checked, and violated
//! constraints become errors by their names. Locks are taken in one order by everybody: streams, then the node's row in
//! `judgements`, then what belongs to that node, then budgets and rates (fleet, cluster), the cluster's command counter,
//! and its audit head last. Who only adds what nobody knew asks for a node without its lock: see [`judgement`].

pub mod adopted;
pub mod audit;
pub mod budget;
pub mod command;
pub mod decision;
pub mod decommission;
pub mod fault;
pub mod fleet;
pub mod incident;
pub mod journal;
pub mod judgement;
pub mod leading;
pub mod moment;
pub mod node;
pub mod outbox;
pub mod policy;
pub mod pool;
pub mod pooler;
pub mod process;
pub mod prune;
pub mod quarantine;
pub mod report;
pub mod revocation;
pub mod server;
pub mod session;
pub mod settle;
pub mod snapshot;
pub mod stop;
pub mod stream;
pub mod term;
pub mod unheard;

use sqlx::postgres::PgQueryResult;

/// What a caller may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The same thing may work in a moment.
    Transient,
    /// Somebody else was first: look again.
    Conflict,
    /// It will not work by repeating.
    Bug,
}

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database, or the way to it.
    #[error("{what} failed")]
    Database {
        /// Name of the statement.
        what: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// A database that cannot be reached, or does not let us in.
    #[error("cannot connect to the database at {at}; {next}")]
    Connect {
        /// Host, port, database and user; no password.
        at: String,
        /// What to look at next.
        next: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// A URL of the database that is none. Nothing of it is told, since it may hold a password.
    #[error(
        "the database's URL cannot be read; it must be postgres://USER:PASSWORD@HOST:PORT/DATABASE, with what is special in a password percent-encoded"
    )]
    Url(#[source] sqlx::Error),
    /// A pooler that cannot be used as it is named.
    #[error("cannot go through the pooler")]
    Pooler(#[from] pooler::Error),
    /// A rule that the schema holds.
    #[error("{what} breaks {constraint}")]
    Constraint {
        /// Name of the statement.
        what: &'static str,
        /// Name of the constraint.
        constraint: String,
    },
    /// A guarded statement that met another state than it expected.
    #[error("{what} touched {got} rows, {want} were expected")]
    Rows {
        /// Name of the statement.
        what: &'static str,
        /// As many as it must be.
        want: u64,
        /// As many as it was.
        got: u64,
    },
    /// A judgement that began under an older epoch of the database than the one in force by its end.
    #[error("it was judged under epoch {judged} of the database, which is {now} by now")]
    Epoch {
        /// By which it was judged.
        judged: u64,
        /// In force.
        now: u64,
    },
    /// A stored value that this version cannot read.
    #[error("{what} holds {value:?}, which cannot be")]
    Unreadable {
        /// Where.
        what: &'static str,
        /// What.
        value: String,
    },
    /// A session that another owns now: nothing of what it says counts any more.
    #[error("session {generation} of replica {replica} was taken over")]
    TakenOver {
        /// Whose.
        replica: String,
        /// The generation that is out.
        generation: u64,
    },
    /// A schema that is not the one this version was built for.
    #[error("the database's schema is not this version's: {why}; run `gpuheal-hub migrate` of the version that serves")]
    Schema {
        /// What differs.
        why: String,
    },
    /// A migration that failed.
    #[error("migrating failed")]
    Migrate(#[source] sqlx::migrate::MigrateError),
}

/// Codes of Postgres for what goes away by itself: serialisation, deadlock, lock and statement timeouts, shutdown,
/// too many connections, a database that is starting or still read-only after a failover.
const TRANSIENT_CODES: [&str; 9] = ["40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "53300", "25006"];

impl Error {
    /// What a caller may do about it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Database { source, .. } | Self::Connect { source, .. } => class(source),
            Self::Constraint { .. } | Self::Rows { .. } | Self::Epoch { .. } => Class::Conflict,
            Self::Url(_)
            | Self::Pooler(_)
            | Self::Unreadable { .. }
            | Self::TakenOver { .. }
            | Self::Schema { .. }
            | Self::Migrate(_) => Class::Bug,
        }
    }

    /// Whether no answer came, and whoever else asks would wait as long for none. A connection that breaks is another thing: what
    /// was asked may have broken it.
    #[must_use]
    pub fn unanswered(&self) -> bool {
        use sqlx::Error::{Io, PoolClosed, PoolTimedOut};
        let (Self::Database { source, .. } | Self::Connect { source, .. }) = self else { return false };
        match source {
            Io(error) => error.kind() == std::io::ErrorKind::TimedOut,
            other => matches!(other, PoolTimedOut | PoolClosed),
        }
    }

    /// Whether this constraint was broken.
    #[must_use]
    pub fn broke(&self, name: &str) -> bool {
        matches!(self, Self::Constraint { constraint, .. } if constraint == name)
    }
}

fn class(error: &sqlx::Error) -> Class {
    match error {
        sqlx::Error::Database(error) => match error.code() {
            Some(code) if TRANSIENT_CODES.contains(&code.as_ref()) || code.starts_with("08") => Class::Transient,
            Some(_) | None => Class::Bug,
        },
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Class::Transient,
        _ => Class::Bug,
    }
}

/// Names the statement in its error, and turns a violated constraint into its own kind.
pub trait Labelled<T> {
    /// Gives the error its statement's name.
    ///
    /// # Errors
    /// When the result is one.
    fn label(self, what: &'static str) -> Result<T, Error>;
}

impl<T> Labelled<T> for Result<T, sqlx::Error> {
    fn label(self, what: &'static str) -> Result<T, Error> {
        self.map_err(|source| match source.as_database_error().and_then(|error| error.constraint()) {
            Some(constraint) => Error::Constraint { what, constraint: constraint.to_owned() },
            None => Error::Database { what, source },
        })
    }
}

/// Checks how many rows a statement touched.
///
/// # Errors
/// When it was another number.
pub fn touched(what: &'static str, want: u64, result: &PgQueryResult) -> Result<(), Error> {
    match result.rows_affected() {
        got if got == want => Ok(()),
        got => Err(Error::Rows { what, want, got }),
    }
}

/// Reads a stored word or id, which a constraint should have kept readable.
pub(crate) fn read<T>(what: &'static str, value: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Error> {
    parse(value).ok_or_else(|| Error::Unreadable { what, value: gpuheal_proto::bytes_text::clip(value, 80).to_owned() })
}

/// Whole numbers cross into Postgres as signed ones.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// And come back as what they were: constraints keep them from being negative.
pub(crate) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
