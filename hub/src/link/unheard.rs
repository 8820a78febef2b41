//! Asks each leader here for what nobody tells by itself: what became of commands whose end was not told, most of which is known a
//! moment later, so that what counts is what a restored database has lost; and how faults stand that another replica found. Decides
//! nothing: the answers are statuses and evidence like any other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpuheal_proto::{
    limits,
    link::v1::{FaultAsked, Resync, attach_response::Message},
};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{
    goaway,
    lanes::Lane,
    registry::{Registry, Session},
};
use crate::{
    metrics,
    store::{
        self, Labelled as _,
        pool::answered,
        unheard::{unheard_ask, untold_ask},
    },
};

/// How often it is looked: well within the minute for which a status that is late is waited for.
const EVERY: Duration = Duration::from_secs(5);
/// Commands asked for in one round: ids of 36 bytes, so that one message of 72 KiB holds them all.
const ROUND_MAX: i64 = 2048;
/// Faults asked for in one round: below a kilobyte each without their texts, so that one message of 256 KiB holds them all.
const FAULTS_MAX: i64 = limits::EVIDENCE_MAX as i64;

/// For how much was asked in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Commands.
    pub commands: usize,
    /// Faults.
    pub faults: usize,
}

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
                tracing::warn!(error = %crate::chain::chain(&error), "spokes were not asked what became of commands and faults");
            }
        }
    }

    /// One round; returns for how many commands and faults was asked.
    ///
    /// # Errors
    /// When the database fails: what was not noted as asked for is asked for in the next.
    pub async fn round(&self) -> Result<Asked, store::Error> {
        let sessions = self.registry.leading();
        if sessions.is_empty() {
            return Ok(Asked::default());
        }
        let leading: Vec<_> = sessions.iter().map(|session| session.leading()).collect();
        let mut conn = self.pool.acquire().await.label("pool.acquire")?;
        let commands = unheard_ask(&mut conn, &leading, ROUND_MAX).await.label("unheard.ask")?;
        let mut count = Asked { commands: commands.len(), faults: 0 };
        let mut of_cluster: BTreeMap<String, Resync> = BTreeMap::new();
        for (cluster, command) in commands {
            of_cluster.entry(cluster).or_default().command_ids.push(command.to_string());
        }
        offer(&sessions, of_cluster);
        let mut of_cluster: BTreeMap<String, Resync> = BTreeMap::new();
        let faults = untold_ask(&mut conn, &leading, FAULTS_MAX).await?;
        drop(conn);
        count.faults = faults.len();
        for (cluster, fault) in faults {
            of_cluster.entry(cluster).or_default().faults.push(FaultAsked::from(&fault));
        }
        offer(&sessions, of_cluster);
        Ok(count)
    }
}

fn offer(sessions: &[Arc<Session>], mut of_cluster: BTreeMap<String, Resync>) {
    for session in sessions {
        if let Some(resync) = of_cluster.remove(session.cluster().as_str()) {
            ask(session, resync);
        }
    }
}

/// It is noted as asked for, and not asked again in a session: one that has no room for it ends, and the next begins with it.
fn ask(session: &Session, resync: Resync) {
    let (commands, faults) = (resync.command_ids.len(), resync.faults.len());
    tracing::debug!(cluster.id = %session.cluster(), commands, faults, "asked what became of commands and how faults stand");
    if let Err(error) = session.offer(Lane::Control, Message::Resync(resync)) {
        tracing::warn!(cluster.id = %session.cluster(), replica.id = %session.replica(), %error, "a session had no room to be asked");
        session.finish("closed", Some(goaway("what it was to be asked could not be sent")));
    }
}
