//! Keeps what people and the alarm have said of identities in force here: reads the deny list and the quarantines, and cuts
//! the streams that they cover. Where the epoch of the database has risen, asks every cluster for all that it has, since
//! nothing is issued to one before that is there. The poll is the truth; a ring on the way makes it faster. While the database is away what
//! was read last stays in force.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use gpuheal_proto::link::v1::attach_response::Message;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{goaway, goaway_long, lanes::Lane, registry::Registry};
use crate::{
    identity::denied::DenyList,
    metrics,
    store::{self, Labelled as _, pool::answered, quarantine, revocation, term},
    wake::Wake,
};

/// Between two looks. A stream must end within 1 s of a revocation: half for the wait, half for the statement and the cut.
const EVERY: Duration = Duration::from_millis(500);

/// What the guard works with.
pub(super) struct Guard {
    pub(super) pool: PgPool,
    pub(super) registry: Arc<Registry>,
    pub(super) denied: Arc<DenyList>,
    pub(super) wake: Arc<Wake>,
}

impl Guard {
    /// Looks until told to stop.
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            if let Err(error) = answered("guard.round", self.round()).await {
                metrics::STAGE_FAILURES.inc(["guard"]);
                tracing::warn!(error = %crate::chain::chain(&error), "revocations could not be read, what was read last stays in force");
            }
            let next = tokio::time::timeout(EVERY, self.wake.guarded.notified());
            if stop.run_until_cancelled(next).await.is_none() {
                return;
            }
        }
    }

    async fn round(&self) -> Result<(), store::Error> {
        let mut conn = self.pool.acquire().await.label("guard.connect")?;
        let denials = revocation::denials(&mut conn).await?;
        let quarantined: BTreeSet<String> = quarantine::quarantines(&mut conn).await?.into_iter().collect();
        let (term, to_take_over) = term::to_take_over(&mut conn).await?;
        drop(conn);
        metrics::CLUSTERS_TO_TAKE_OVER.set(to_take_over);
        self.ask_all_under(term);
        metrics::QUARANTINED.set(i64::try_from(quarantined.len()).unwrap_or(i64::MAX));
        self.denied.set(denials);
        for session in self.registry.all() {
            if self.denied.denies(session.cluster(), session.certificate()) {
                session.finish("revoked", Some(goaway_long("this certificate was revoked")));
            } else if quarantined.contains(session.cluster().as_str()) {
                session.finish(
                    "quarantined",
                    Some(goaway_long(
                        "nobody attaches under this identity: it was seen in two places, or its cluster is decommissioned",
                    )),
                );
            }
        }
        Ok(())
    }

    /// Whoever attached or was asked under an older epoch is asked under this one, whenever its session began: one that attached
    /// in the moment before the epoch rose is among them.
    fn ask_all_under(&self, term: u64) {
        let mut behind = self.registry.all();
        behind.retain(|session| session.to_be_asked_under(term));
        if behind.is_empty() {
            return;
        }
        tracing::warn!(
            hub.term = term,
            sessions = behind.len(),
            "the database's epoch has risen: every cluster is asked for all that it has"
        );
        for session in behind {
            // A lane without room belongs to a spoke that does not read. It would never be asked again: the next session asks.
            if session.offer(Lane::Control, Message::Resync(super::all_under(term))).is_err() {
                session.finish("stalled", Some(goaway("it could not be asked for all that it has")));
            }
        }
    }
}
