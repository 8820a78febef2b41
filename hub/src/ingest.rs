//! Stage 4: faults and cluster state into Postgres; the ack follows the commit. Faults of many spokes share one commit:
//! at once when idle, else whatever came while the last commit was under way, so that no timer holds anybody back.

mod commit;
mod group;
mod inventory;
mod load;

use std::sync::Arc;

use gpuheal_hub_core::snapshot::EvidenceState;
use gpuheal_proto::{
    ids::{ClusterId, FaultKey, ReplicaId, StreamId},
    limits,
    link::v1,
};
use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    decide, metrics,
    sign::Signer,
    store::{
        self, Labelled as _,
        fault::{Standing, evidence_nodes, evidence_update},
        judgement::judgements_ask,
        moment,
        session::session_hold,
    },
    wake::Wake,
};
use group::Submission;
pub use inventory::Taken;

/// Batches that wait for a commit: of at most 256 KiB each, 64 MiB. Credit keeps a spoke to four.
const QUEUE: usize = 256;

/// Where a batch comes from: a cluster, and the session whose ownership is checked in the same transaction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// Whose faults; the only cluster that they may be of.
    pub cluster: ClusterId,
    /// The replica's session and its generation.
    pub session: Option<(ReplicaId, u64)>,
}

impl From<ClusterId> for Origin {
    fn from(cluster: ClusterId) -> Self {
        Self { cluster, session: None }
    }
}

impl From<&ClusterId> for Origin {
    fn from(cluster: &ClusterId) -> Self {
        cluster.clone().into()
    }
}

/// The stage. Cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    pool: PgPool,
    wake: Arc<Wake>,
    queue: mpsc::Sender<Submission>,
    load: Arc<load::Load>,
    inventory: Arc<inventory::Assembly>,
}

impl Ingest {
    /// Starts the stage's committer, which ends when `stop` is cancelled and what it holds is committed.
    #[must_use]
    pub fn start(pool: PgPool, wake: Arc<Wake>, stop: CancellationToken) -> (Self, tokio::task::JoinHandle<()>) {
        Self::start_judging(pool, wake, None, stop)
    }

    /// As [`Self::start`]. With a signer, what few nodes' new faults lead to is decided and signed in the transaction that
    /// takes them: one commit instead of three between a fault and its command.
    #[must_use]
    pub fn start_judging(
        pool: PgPool,
        wake: Arc<Wake>,
        signer: Option<Arc<Signer>>,
        stop: CancellationToken,
    ) -> (Self, tokio::task::JoinHandle<()>) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let committer = tokio::spawn(group::run(pool.clone(), wake.clone(), signer, waiting, stop));
        (Self { pool, wake, queue, load: Arc::default(), inventory: Arc::default() }, committer)
    }

    /// Commits a batch, together with others; the answer says up to where its stream is committed.
    ///
    /// # Errors
    /// When it could not be committed: nothing of it is kept, and the spoke sends it again.
    pub async fn submit(&self, from: impl Into<Origin>, batch: v1::FaultBatch) -> Result<v1::FaultAck, Error> {
        if batch.faults.len() > limits::BATCH_FAULTS_MAX {
            return Err(Error::TooMany { what: "faults", count: batch.faults.len(), max: limits::BATCH_FAULTS_MAX });
        }
        if batch.first_seq > limits::SEQ_MAX {
            return Err(Error::Invalid { what: "batch of faults", why: format!("no journal has a number {}", batch.first_seq) });
        }
        self.committed(from.into(), batch, None).await
    }

    /// How many faults a session may have in flight, as it is now.
    #[must_use]
    pub fn credit(&self) -> u32 {
        self.load.credit()
    }

    /// As if so many faults waited for their commit.
    #[cfg(test)]
    pub(crate) fn pile(&self, faults: usize) -> load::Waiting {
        self.load.wait(faults)
    }

    /// Commits that records of a stream were dropped before they could be sent.
    ///
    /// # Errors
    /// As [`Ingest::submit`].
    pub async fn gap(&self, from: impl Into<Origin>, gap: v1::Gap) -> Result<v1::FaultAck, Error> {
        if gap.from_seq == 0 || gap.to_seq < gap.from_seq || gap.to_seq > limits::SEQ_MAX {
            return Err(Error::Invalid { what: "gap", why: format!("{} to {} is no range", gap.from_seq, gap.to_seq) });
        }
        let batch = v1::FaultBatch { stream_id: gap.stream_id.clone(), first_seq: gap.from_seq, faults: Vec::new() };
        self.committed(from.into(), batch, Some(gap)).await
    }

    /// Waits with others for the commit of a batch, or of a gap in its place.
    async fn committed(&self, from: Origin, batch: v1::FaultBatch, gap: Option<v1::Gap>) -> Result<v1::FaultAck, Error> {
        let v1::FaultBatch { stream_id, first_seq, faults } = batch;
        let stream = StreamId::parse(&stream_id)?;
        let waiting = self.load.wait(faults.len());
        let (answer, answered) = oneshot::channel();
        let submission = Submission { from, stream, first_seq, faults, gap, answer };
        self.queue.send(submission).await.map_err(|_| Error::Stopping)?;
        let persisted_upto = answered.await.map_err(|_| Error::Stopping)??;
        drop(waiting);
        let resume = first_seq > persisted_upto.saturating_add(1);
        Ok(v1::FaultAck { stream_id, persisted_upto, credit: self.credit(), resume })
    }

    /// Takes what the cluster's leader says of its nodes. Parts of a snapshot wait here for the last one, those of each
    /// session by themselves.
    ///
    /// # Errors
    /// When it could not be committed, is no state, or its session was taken over.
    pub async fn state(&self, from: impl Into<Origin>, state: v1::ClusterState) -> Result<Taken, Error> {
        let taken = self.inventory.take(&self.pool, &from.into(), state).await?;
        if matches!(taken, Taken::Counts { due: true, .. }) {
            self.wake.ingested.notify_one();
        }
        Ok(taken)
    }

    /// Forgets what a session that is over has begun: the rest of its snapshot will not come.
    pub fn forget(&self, from: &Origin) {
        self.inventory.forget(from);
    }

    /// Takes how known faults stand now.
    ///
    /// # Errors
    /// When it could not be committed, or its session was taken over. Items that cannot be read are passed over.
    pub async fn evidence(&self, from: impl Into<Origin>, batch: v1::EvidenceBatch) -> Result<(), Error> {
        let Origin { cluster, session } = from.into();
        if batch.items.len() > limits::EVIDENCE_MAX {
            return Err(Error::TooMany { what: "items of evidence", count: batch.items.len(), max: limits::EVIDENCE_MAX });
        }
        let mut items: Vec<Standing> = batch.items.iter().filter_map(standing).collect();
        metrics::SET_ASIDE.add(["evidence"], (batch.items.len() - items.len()) as u64);
        items.sort_by_key(|item| item.key);
        items.dedup_by_key(|item| item.key);
        if items.is_empty() {
            return Ok(());
        }
        let mut tx = self.pool.begin().await.label("evidence.begin")?;
        session_hold(&mut tx, &cluster, session.as_ref()).await?;
        let nodes = evidence_nodes(&mut tx, &cluster, &items).await?;
        judgements_ask(&mut tx, &nodes, "evidence").await?;
        let now = moment::now(&mut tx).await?;
        evidence_update(&mut tx, &cluster, &items, now).await?;
        tx.commit().await.label("evidence.commit")?;
        if !nodes.is_empty() {
            self.wake.ingested.notify_one();
        }
        Ok(())
    }
}

/// An unknown state is a later version's: it says nothing here.
fn standing(item: &v1::Evidence) -> Option<Standing> {
    let state = match v1::EvidenceState::try_from(item.state) {
        Ok(v1::EvidenceState::Seen) => EvidenceState::Seen,
        Ok(v1::EvidenceState::Clear) => EvidenceState::Clear,
        Ok(v1::EvidenceState::Stale) => EvidenceState::Stale,
        Ok(v1::EvidenceState::Unspecified) | Err(_) => return None,
    };
    Some(Standing { key: FaultKey::parse(&item.fault_key).ok()?, state, count: item.count })
}

/// Why nothing was taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Deciding in the same transaction: nothing was committed.
    #[error(transparent)]
    Decide(#[from] Box<decide::Error>),
    /// An id.
    #[error(transparent)]
    Id(#[from] gpuheal_proto::ids::ParseIdError),
    /// More than the protocol allows.
    #[error("{count} {what} in one message, {max} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// Something that makes no sense.
    #[error("{what} is not valid: {why}")]
    Invalid {
        /// What.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// The database gave no answer, however often it was asked: whether the batch was committed is not known.
    #[error("the database gives no answer; the batch is sent again over the next session")]
    Away,
    /// The hub is going down.
    #[error("the hub is stopping")]
    Stopping,
}

impl Error {
    /// Whether the database gives no answer, whoever asks it.
    pub(crate) fn unanswered(&self) -> bool {
        matches!(self, Self::Store(error) if error.unanswered())
    }

    /// Whether the same batch may be committed in a moment.
    #[must_use]
    pub fn transient(&self) -> bool {
        match self {
            Self::Store(error) => error.class() != store::Class::Bug,
            Self::Decide(_) | Self::Away | Self::Stopping => true,
            Self::Id(_) | Self::TooMany { .. } | Self::Invalid { .. } => false,
        }
    }
}
