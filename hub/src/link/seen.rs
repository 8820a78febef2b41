//! Signs of life, written in bulk: one statement per hub and round instead of one per heartbeat. The same statement tells
//! which sessions another hub has taken over, or the database has lost commits of; those end here. Of the latter the spoke
//! attaches again, and what it tells then is what was lost.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{goaway, registry::Registry};
use crate::{
    metrics,
    store::{
        Labelled as _, journal,
        pool::answered,
        session::{self, Alive},
    },
};

/// How often. Others count a session as gone after a minute.
const EVERY: Duration = Duration::from_secs(10);

/// What the writer works with.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The database.
    pub pool: PgPool,
    /// Who is attached here.
    pub registry: Arc<Registry>,
}

impl Seen {
    /// Writes until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            if let Err(error) = answered("seen.round", self.round()).await {
                metrics::STAGE_FAILURES.inc(["flush"]);
                tracing::warn!(error = %crate::chain::chain(&error), "signs of life were not written");
            }
        }
    }

    /// One round.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn round(&self) -> Result<(), crate::store::Error> {
        let sessions = self.registry.all();
        let apart = sessions.iter().filter(|session| session.clock_apart()).count();
        metrics::CLOCKS_APART.set(i64::try_from(apart).unwrap_or(i64::MAX));
        if sessions.is_empty() {
            return Ok(());
        }
        let alive: Vec<Alive> = sessions.iter().map(|session| session.alive()).collect();
        let mut conn = self.pool.acquire().await.label("pool.acquire")?;
        let owned = session::sessions_seen(&mut conn, &alive).await?;
        let heads: Vec<_> = sessions.iter().filter_map(|session| session.head_unnoted().map(|head| (session, head))).collect();
        journal::journals_told(&mut conn, &heads.iter().map(|(_, head)| head.clone()).collect::<Vec<_>>()).await?;
        for (session, (_, journal)) in &heads {
            session.head_noted(journal);
        }
        drop(heads);
        let owned: BTreeMap<_, _> =
            owned.into_iter().map(|one| ((one.cluster, one.replica, one.generation), one.seen_at)).collect();
        for session in sessions {
            let key = (session.cluster().clone(), session.replica().clone(), session.generation());
            match owned.get(&key) {
                Some(seen_at) => session.noted(*seen_at),
                None => session.finish("stale", Some(goaway("another hub has this session, or the database has lost it"))),
            }
        }
        Ok(())
    }
}
