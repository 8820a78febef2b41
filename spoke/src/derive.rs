//! Stage `derive`, the part with state: hands what the sources say to the pure detectors, keeps what they hold, journals
//! what they find before anybody hears of it.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use gpuheal_proto::{
    ids::{ClusterId, FaultKey, NodeUid},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke_core::scrape::webhook;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::Store;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    journal::{self, Journal},
    link::Wanted,
    metrics::Metrics,
    ports::{Attachment, FaultView, Leadership, Standing},
    scrape::{Failure, Target},
    settings::Settings,
    watch::{Nodes, Touched},
};

/// Everything that the detectors touch.
pub struct Deps {
    /// Whose faults they are.
    pub cluster: ClusterId,
    /// Where they go.
    pub journal: Journal,
    /// When something is one.
    pub settings: Arc<Settings>,
    /// Nodes and GPU pods.
    pub nodes: Nodes,
    /// Exporter pods, by which an alert may name its node.
    pub exporters: Store<Pod>,
    /// Gets nodes whose GPUs changed.
    pub touched: Arc<Touched>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// From the elector.
    pub leadership: watch::Receiver<Leadership>,
    /// From the link.
    pub attachment: watch::Receiver<Attachment>,
    /// To the link.
    pub evidence: mpsc::Sender<v1::EvidenceBatch>,
}

/// What became of a webhook's body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Faults journaled: new ones. What was known already is none.
    pub faults: usize,
    /// Alerts that said nothing new.
    pub repeats: u32,
    /// Alerts that led to nothing, by reason.
    pub skipped: BTreeMap<&'static str, u32>,
    /// Alerts that could not be read, each with its place and what belongs there.
    pub refused: Vec<String>,
    /// Alerts that the sender left out.
    pub truncated: u64,
}

/// Why a webhook's body was not taken.
#[derive(Debug, thiserror::Error)]
pub enum AlertError {
    /// The body.
    #[error(transparent)]
    Body(#[from] webhook::Error),
    /// Nodes are not known yet.
    #[error("nodes are not listed yet")]
    NotListed,
    /// It could not be kept.
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

/// The detectors and what they hold.
pub struct Derive {
    /// What they touch.
    pub deps: Deps,
}

impl Derive {
    /// Detectors that hold what the journal held.
    #[must_use]
    pub fn new(deps: Deps, _restored: BTreeMap<String, Bytes>) -> Arc<Self> {
        Arc::new(Self { deps })
    }

    /// Takes what a scrape brought: a page, or why there is none.
    pub async fn page(&self, _target: &Target, _page: Result<&[u8], &Failure>, _now: Timestamp) {}

    /// Takes a webhook's body; returns once everything that it says is on the disk, told now or before.
    ///
    /// # Errors
    /// When the body is none, or could not be kept.
    pub async fn alerts(&self, _body: &[u8], _now: Timestamp) -> Result<Taken, AlertError> {
        Ok(Taken::default())
    }

    /// GPUs that the node's source shows.
    #[must_use]
    pub fn gpus(&self, _node: &NodeUid) -> Vec<v1::GpuRef> {
        Vec::new()
    }

    /// How each source is.
    #[must_use]
    pub fn sources(&self) -> Vec<v1::SourceState> {
        Vec::new()
    }
}

/// Looks at node objects as they change and at everything as time passes, until cancelled.
pub async fn run(_derive: Arc<Derive>, _touched: Arc<Touched>, _wanted: watch::Receiver<Wanted>, cancel: CancellationToken) {
    cancel.cancelled().await;
}

impl FaultView for Derive {
    fn standing(&self, _key: &FaultKey) -> Standing {
        Standing::Unknown
    }
}
