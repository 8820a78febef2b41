//! Detection settings for every spoke: built from the policy in force, signed once per revision, pushed on attach and on change.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use gpuheal_hub_core::policy::{Detection, Policy, Thermal};
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
        let settings = wire(&policy.settings.detection, policy.revision);
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

/// Settings as they travel.
fn wire(detection: &Detection, version: u64) -> v1::DetectionSettings {
    let conditions = detection.conditions.iter().map(|(name, condition)| v1::ConditionRule {
        r#type: name.clone(),
        bad_status: condition.bad_status.clone(),
        hold_ms: ms(condition.hold),
    });
    v1::DetectionSettings {
        version,
        scrape_interval_ms: ms(detection.scrape_interval),
        scrape_timeout_ms: ms(detection.scrape_timeout),
        thermal: Some(thermal(&detection.thermal)),
        thermal_by_model: detection.thermal_by_model.iter().map(|(model, t)| (model.clone(), thermal(t))).collect(),
        xid_errors: detection.xid_errors,
        xid_window_ms: ms(detection.xid_window),
        gpu_lost_scrapes: detection.gpu_lost_scrapes,
        stale_after_intervals: detection.stale_after_intervals,
        broken_after_ms: ms(detection.broken_after),
        allocatable_debounce_ms: ms(detection.allocatable_debounce),
        metric_aliases: detection.metric_aliases.clone(),
        node_labels: detection.node_labels.clone(),
        conditions: conditions.collect(),
        scrape_off: !detection.sources.scrape,
        webhook_off: !detection.sources.webhook,
        conditions_off: !detection.sources.conditions,
        allocatable_off: !detection.sources.allocatable,
    }
}

fn thermal(thermal: &Thermal) -> v1::ThermalSettings {
    v1::ThermalSettings { warn_celsius: thermal.warn_celsius, high_celsius: thermal.high_celsius, dwell_ms: ms(thermal.dwell) }
}

fn ms(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}
