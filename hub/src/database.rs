//! Keeps an eye on the server under the database: each start of it is recognised, as one that goes on where this hub saw the last
//! one, or as one that may have lost commits, which raises the epoch. Decides nothing else, and is needed by nobody: until a
//! run is recognised the statements themselves issue and send nothing that harms.

use std::{sync::Arc, time::Duration};

use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics,
    store::{
        self, Labelled as _,
        pool::answered,
        server::{Recognised, Witness, server_recognise},
    },
    wake::Wake,
};

/// Between two looks: what is committed in that time and lost with a disk that is put back is not missed here, but by the
/// clusters that have seen more.
const EVERY: Duration = Duration::from_millis(500);

/// What is watched, and what was seen of it.
#[derive(Debug)]
pub struct DatabaseWatch {
    pool: PgPool,
    wake: Arc<Wake>,
    hub_id: String,
    seen: Option<Witness>,
}

impl DatabaseWatch {
    /// Nothing was seen yet.
    #[must_use]
    pub const fn new(pool: PgPool, wake: Arc<Wake>, hub_id: String) -> Self {
        Self { pool, wake, hub_id, seen: None }
    }

    /// Looks until told to stop.
    pub async fn run(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            if let Err(error) = self.look().await {
                metrics::STAGE_FAILURES.inc(["server"]);
                tracing::warn!(error = %crate::chain::chain(&error), "the database's server was not looked at");
            }
        }
    }

    /// One look.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn look(&mut self) -> Result<Recognised, store::Error> {
        let (hub_id, seen) = (&self.hub_id, &mut self.seen);
        let look = async {
            let mut conn = self.pool.acquire().await.label("server.connect")?;
            server_recognise(&mut conn, hub_id, seen).await
        };
        let recognised = answered("server.look", look).await?;
        match &recognised {
            Recognised::Known => {}
            Recognised::GoesOn => {
                tracing::info!("a new run of the database's server is recognised: nothing that was seen of the last one is lost");
                self.wake.ingested.notify_one();
            }
            Recognised::MayHaveLost { term, reason } => {
                tracing::error!(
                    hub.term = term,
                    reason,
                    "the database's epoch is raised: nothing new that harms until each cluster was heard"
                );
            }
        }
        Ok(recognised)
    }
}
