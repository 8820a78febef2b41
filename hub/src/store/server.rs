//! Which run of which server this database is on. What a server forgot while it was down (a backup that was put back, a standby that
//! was promoted, a copy of a disk) no row can tell, since the rows went with it; but every such server was started anew, and every
//! start is seen: the run that was recognised last is in the database, and is another than this one. Until a hub has
//! recognised a run, no cluster's state counts as whole, and nothing that harms is issued or sent.

use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::{
    Error, Labelled as _,
    judgement::judgements_ask_open,
    moment, natural,
    term::{hub_term, term_raise},
};
use crate::audit::{self, FLEET_CHAIN};

/// Marks whose commit was tried and never answered, that are remembered: a hub that sees one of more takes it for a loss.
const UNSURE_MAX: usize = 16;

/// What a hub has seen of the database at its last look: a mark of its own that it left there. Where it is found again, nothing that
/// came before it is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    /// The server's own identifier and its timeline, which a restore to a moment and a promotion change; none where it does not say.
    lineage: Option<String>,
    /// The mark that was committed, and those after it of which that is not known.
    marks: Vec<Uuid>,
    /// The epoch.
    term: u64,
}

impl Witness {
    /// The epoch at the last look.
    #[must_use]
    pub const fn term(&self) -> u64 {
        self.term
    }
}

/// What came of looking at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recognised {
    /// It is the run that was recognised before.
    Known,
    /// It is a new run, which goes on from where this hub saw the last one.
    GoesOn,
    /// Commits may be lost: the epoch was raised.
    MayHaveLost {
        /// The new epoch.
        term: u64,
        /// What is known of it, in words.
        reason: &'static str,
    },
}

/// How things stand, by one look inside a transaction.
struct Look {
    term: u64,
    /// No run was ever recognised: a new database.
    first: bool,
    /// This one was.
    known: bool,
    /// The mark that this hub left, if it is there.
    mark: Option<Uuid>,
}

impl Look {
    /// This hub has left a mark, and it is not there.
    fn went_back(&self, seen: Option<&Witness>) -> bool {
        seen.is_some_and(|seen| self.mark.is_none_or(|mark| !seen.marks.contains(&mark)))
    }
}

/// Looks whether this is the run that was recognised last, recognises it, and leaves this hub's mark for the next look. `seen` is what
/// came of the last one.
///
/// # Errors
/// When the database fails: then it stays as unknown as it was.
pub async fn server_recognise(conn: &mut PgConnection, hub_id: &str, seen: &mut Option<Witness>) -> Result<Recognised, Error> {
    let mut tx = conn.begin().await.label("server.begin")?;
    let mut look = look(&mut tx, hub_id).await?;
    let quiet = look.known && !look.went_back(seen.as_ref());
    // Asked of the server that answered the look, and not of the one before it.
    let lineage = match seen.as_ref().filter(|_| quiet).and_then(|seen| seen.lineage.clone()) {
        Some(lineage) => Some(lineage),
        None => lineage_of(&mut tx).await?,
    };
    let mut recognised = Recognised::Known;
    if !quiet {
        recognised = recognise(&mut tx, hub_id, seen.as_ref(), lineage.as_deref(), &mut look).await?;
    }
    let mark = Uuid::new_v4();
    mark_leave(&mut tx, hub_id, mark).await?;
    // From here on nobody knows which mark stands until the commit is answered.
    if let Some(seen) = seen {
        seen.marks.truncate(UNSURE_MAX);
        seen.marks.push(mark);
    }
    tx.commit().await.label("server.commit")?;
    *seen = Some(Witness { lineage, marks: vec![mark], term: look.term });
    Ok(recognised)
}

/// One at a time. The lock is advisory, since every judgement reads the row, and a stop and a state that raises the epoch take it last.
async fn recognise(
    conn: &mut PgConnection,
    hub_id: &str,
    seen: Option<&Witness>,
    lineage: Option<&str>,
    look: &mut Look,
) -> Result<Recognised, Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtext('gpuheal server'))").execute(&mut *conn).await.label("server.lock")?;
    *look = self::look(conn, hub_id).await?;
    let went_back = look.went_back(seen);
    let raised_since = seen.is_some_and(|seen| seen.term < look.term);
    if look.known && (!went_back || raised_since) {
        return Ok(Recognised::Known);
    }
    let same = seen.is_some_and(|seen| seen.lineage.is_some() && seen.lineage.as_deref() == lineage);
    if look.first || (same && !went_back) {
        judgements_ask_open(conn, "the server's run was recognised").await?;
        run_note(conn).await?;
        return Ok(Recognised::GoesOn);
    }
    let reason = if went_back {
        "the database has lost what a hub had committed"
    } else {
        "the database's server was started anew, and no hub that runs can tell that it has lost nothing"
    };
    run_note(conn).await?;
    // Above what this hub has seen: what a lost database was in must not come again, as where one backup is put back twice.
    let seen = seen.map_or(0, |seen| seen.term);
    loop {
        if let Some((term, entry)) = term_raise(conn, look.term, seen, reason, ("hub", "fleet".to_owned())).await? {
            look.term = term;
            let now = moment::now(conn).await?;
            audit::append(conn, FLEET_CHAIN, &[entry], now).await?;
            break;
        }
        // A cluster that has seen the loss raised it meanwhile: that is enough where it is above what this hub has seen.
        look.term = hub_term(conn).await?;
        if look.term > seen {
            break;
        }
    }
    Ok(Recognised::MayHaveLost { term: look.term, reason })
}

async fn look(conn: &mut PgConnection, hub_id: &str) -> Result<Look, Error> {
    let (term, recognised, run, mark): (i64, Option<String>, String, Option<Uuid>) = sqlx::query_as(
        "SELECT hub_term, recognised_run, server_run(), (SELECT mark FROM hub_marks WHERE hub_id = $1) FROM hub_state",
    )
    .bind(hub_id)
    .fetch_one(conn)
    .await
    .label("server.look")?;
    let known = recognised.as_ref().is_some_and(|recognised| *recognised == run);
    Ok(Look { term: natural(term), first: recognised.is_none(), known, mark })
}

async fn run_note(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("UPDATE hub_state SET recognised_run = server_run()").execute(conn).await.label("server.recognise")?;
    Ok(())
}

/// Leaves this hub's mark, and takes away those of hubs that are gone for a day.
async fn mark_leave(conn: &mut PgConnection, hub_id: &str, mark: Uuid) -> Result<(), Error> {
    sqlx::query(
        "WITH gone AS (DELETE FROM hub_marks WHERE hub_id <> $1 AND left_at < clock_timestamp() - interval '1 day')
         INSERT INTO hub_marks (hub_id, mark) VALUES ($1, $2)
         ON CONFLICT (hub_id) DO UPDATE SET mark = EXCLUDED.mark, left_at = EXCLUDED.left_at",
    )
    .bind(hub_id)
    .bind(mark)
    .execute(conn)
    .await
    .label("server.mark")?;
    Ok(())
}

/// The server's identifier and timeline; none where it lets nobody ask: every start of such a one is taken for a loss.
async fn lineage_of(conn: &mut PgConnection) -> Result<Option<String>, Error> {
    // In a savepoint, or a refusal would end the caller's transaction.
    let mut attempt = conn.begin().await.label("server.savepoint")?;
    let asked: Result<String, sqlx::Error> = sqlx::query_scalar(
        "SELECT s.system_identifier || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system() s",
    )
    .fetch_one(&mut *attempt)
    .await;
    match asked {
        Ok(lineage) => {
            attempt.commit().await.label("server.release")?;
            Ok(Some(lineage))
        }
        Err(sqlx::Error::Database(error)) => {
            attempt.rollback().await.label("server.rollback")?;
            tracing::debug!(error = %error, "the server does not say which one it is");
            Ok(None)
        }
        Err(error) => Err(error).label("server.lineage"),
    }
}

/// What a store without a server says of itself, for the simulation.
#[must_use]
pub fn witness(lineage: &str, mark: Uuid, term: u64) -> Witness {
    Witness { lineage: Some(lineage.to_owned()), marks: vec![mark], term }
}
