//! Signs of life, written in bulk: one statement per hub and round instead of one per heartbeat. The same statement tells
//! which sessions another hub has taken over; those end here.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{goaway, registry::Registry};
use crate::{
    metrics,
    store::{pool::answered, session},
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
        if sessions.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = sessions.iter().map(|s| (s.cluster().clone(), s.replica().clone(), s.generation())).collect();
        let Ok(mut conn) = self.pool.acquire().await else { return Ok(()) };
        let owned: BTreeSet<_> = session::sessions_seen(&mut conn, &keys).await?.into_iter().collect();
        for session in sessions {
            let key = (session.cluster().to_string(), session.replica().to_string(), session.generation());
            if !owned.contains(&key) {
                session.finish("stale", Some(goaway("another hub has this session")));
            }
        }
        Ok(())
    }
}
