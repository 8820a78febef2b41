//! Stage `derive`, the part with state: hands what the sources say to the pure detectors, keeps what they hold, journals
//! what they find before anybody hears of it. Both replicas take alerts; only the leader gets pages.

use std::sync::Arc;

use gpuheal_proto::{ids::FaultKey, time::Timestamp};
use gpuheal_spoke_core::scrape::webhook;

use crate::{
    journal::{self, Journal},
    metrics::Metrics,
    ports::{FaultView, Standing},
    scrape::{Failure, Sources, Target},
    settings::Settings,
};

/// What became of a webhook's body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Faults journaled.
    pub faults: usize,
    /// Alerts that are resolved: they start nothing.
    pub resolved: usize,
    /// Alerts that could not be used, each with its place and why.
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

/// The detectors' state.
pub struct Derive {
    journal: Journal,
    settings: Arc<Settings>,
    sources: Arc<Sources>,
    metrics: Arc<Metrics>,
}

impl Derive {
    /// Takes what a scrape brought.
    pub async fn page(&self, _target: &Target, _page: Result<&[u8], &Failure>, _now: Timestamp) {}

    /// Takes a webhook's body; returns once what it leads to is on the disk.
    ///
    /// # Errors
    /// When the body is none, or could not be kept.
    pub async fn alerts(&self, _body: &[u8], _now: Timestamp) -> Result<Taken, AlertError> {
        Ok(Taken::default())
    }
}

impl FaultView for Derive {
    fn standing(&self, _key: &FaultKey) -> Standing {
        Standing::Unknown
    }
}
