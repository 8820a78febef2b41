//! Detection settings for every spoke: built from the policy in force, signed once per revision, pushed on attach and on change.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use gpuheal_hub_core::policy::Policy;
use gpuheal_proto::link::v1::{self, attach_response::Message};

use super::{lanes::Lane, registry::Registry};
use crate::{
    metrics,
    sign::{self, Signer},
};

/// What spokes are told now.
#[derive(Debug)]
pub struct Board {
    signer: Arc<Signer>,
    registry: Arc<Registry>,
    current: ArcSwapOption<v1::Settings>,
}

impl Board {
    /// Nothing yet.
    #[must_use]
    pub fn new(signer: Arc<Signer>, registry: Arc<Registry>) -> Self {
        Self { signer, registry, current: ArcSwapOption::empty() }
    }

    /// Who signs here.
    pub(super) fn signer(&self) -> &Signer {
        &self.signer
    }

    /// What a replica that attaches now is told.
    #[must_use]
    pub fn current(&self) -> Option<v1::Settings> {
        self.current.load().as_deref().cloned()
    }

    /// Puts a policy's detection settings in force and tells everyone who is attached.
    ///
    /// # Errors
    /// When they are too large to be signed; the ones before stay.
    pub fn publish(&self, policy: &Policy) -> Result<(), sign::Error> {
        let settings = policy.settings.detection_settings(policy.revision);
        let signed = self.signer.settings(&settings)?;
        metrics::SIGNED.inc(["settings"]);
        let message = v1::Settings { version: policy.revision, digest: policy.digest.clone(), envelope: signed.envelope.into() };
        self.current.store(Some(Arc::new(message.clone())));
        for session in self.registry.all() {
            if let Err(error) = session.offer(Lane::Bulk, Message::Settings(message.clone())) {
                // It asks nothing again by itself, but a new session starts with the settings.
                session.finish("closed", Some(super::goaway("settings could not be sent")));
                tracing::warn!(cluster.id = %session.cluster(), error = %crate::chain::chain(&error), "settings not sent, session ended");
            }
        }
        Ok(())
    }
}
