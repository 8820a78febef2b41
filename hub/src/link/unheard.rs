//! Asks each leader here what became of the commands whose end nobody has told. Most of it is known a moment later by itself;
//! what counts is what a restored database has lost. Decides nothing: the answer is a status like any other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuheal_proto::link::v1::{Resync, attach_response::Message};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{
    goaway,
    lanes::Lane,
    registry::{Registry, Session},
};
use crate::{
    metrics,
    store::{self, Labelled as _, pool::answered, unheard::unheard_ask},
};

/// How often it is looked: well within the minute for which a status that is late is waited for.
const EVERY: Duration = Duration::from_secs(5);
/// Commands asked for in one round: ids of 36 bytes, so that one message of 72 KiB holds them all.
const ROUND_MAX: i64 = 2048;

/// What the asking works with.
#[derive(Debug)]
pub struct Unheard {
    pool: PgPool,
    registry: Arc<Registry>,
}

impl Unheard {
    /// Over a database and the sessions attached here.
    #[must_use]
    pub const fn new(pool: PgPool, registry: Arc<Registry>) -> Self {
        Self { pool, registry }
    }

    /// Asks until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            if let Err(error) = answered("unheard.round", self.round()).await {
                metrics::STAGE_FAILURES.inc(["unheard"]);
                tracing::warn!(error = %crate::chain::chain(&error), "spokes were not asked what became of commands");
            }
        }
    }

    /// One round; returns how many commands were asked for.
    ///
    /// # Errors
    /// When the database fails: nothing was asked.
    pub async fn round(&self) -> Result<usize, store::Error> {
        let sessions = self.registry.leading();
        if sessions.is_empty() {
            return Ok(0);
        }
        let leading: Vec<_> = sessions.iter().map(|session| session.leading()).collect();
        let mut conn = self.pool.acquire().await.label("pool.acquire")?;
        let asked = unheard_ask(&mut conn, &leading, ROUND_MAX).await.label("unheard.ask")?;
        drop(conn);
        let count = asked.len();
        let mut of_cluster: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (cluster, command) in asked {
            of_cluster.entry(cluster).or_default().push(command.to_string());
        }
        for session in &sessions {
            if let Some(command_ids) = of_cluster.remove(session.cluster().as_str()) {
                ask(session, command_ids);
            }
        }
        Ok(count)
    }
}

/// It is noted as asked for, and not asked again in a session: one that has no room for it ends, and the next begins with it.
fn ask(session: &Session, command_ids: Vec<String>) {
    tracing::debug!(cluster.id = %session.cluster(), commands = command_ids.len(), "asked what became of commands");
    if let Err(error) = session.offer(Lane::Control, Message::Resync(Resync { command_ids, ..Resync::default() })) {
        tracing::warn!(cluster.id = %session.cluster(), replica.id = %session.replica(), %error, "a session had no room to be asked for outcomes");
        session.finish("closed", Some(goaway("what it was to be asked could not be sent")));
    }
}
