//! What a spoke's detectors are told: the detection settings of one cluster as the message that travels signed.

use std::time::Duration;

use gpuheal_proto::link::v1;

use super::{Settings, Thermal};

fn ms(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

fn thermal(thermal: &Thermal) -> v1::ThermalSettings {
    v1::ThermalSettings { warn_celsius: thermal.warn_celsius, high_celsius: thermal.high_celsius, dwell_ms: ms(thermal.dwell) }
}

impl Settings {
    /// The message under its version.
    #[must_use]
    pub fn detection_settings(&self, version: u64) -> v1::DetectionSettings {
        let detection = &self.detection;
        v1::DetectionSettings {
            version,
            scrape_interval_ms: ms(detection.scrape_interval),
            scrape_timeout_ms: ms(detection.scrape_timeout),
            thermal: Some(thermal(&detection.thermal)),
            thermal_by_model: detection.thermal_by_model.iter().map(|(model, found)| (model.clone(), thermal(found))).collect(),
            xid_errors: detection.xid_errors,
            xid_window_ms: ms(detection.xid_window),
            gpu_lost_scrapes: detection.gpu_lost_scrapes,
            stale_after_intervals: detection.stale_after_intervals,
            broken_after_ms: ms(detection.broken_after),
            allocatable_debounce_ms: ms(detection.allocatable_debounce),
            metric_aliases: detection.metric_aliases.clone(),
            alert_labels: detection.alert_labels.clone(),
            node_labels: detection.node_labels.clone(),
            conditions: detection
                .conditions
                .iter()
                .map(|(name, condition)| v1::ConditionRule {
                    r#type: name.clone(),
                    bad_status: condition.bad_status.clone(),
                    hold_ms: ms(condition.hold),
                })
                .collect(),
            scrape_off: !detection.sources.scrape,
            webhook_off: !detection.sources.webhook,
            conditions_off: !detection.sources.conditions,
            allocatable_off: !detection.sources.allocatable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_reach_the_spoke_as_they_are_in_the_table() {
        let sent = Settings::default().detection_settings(3);
        assert_eq!((sent.version, sent.scrape_interval_ms, sent.xid_errors, sent.gpu_lost_scrapes), (3, 60_000, 5, 3));
        assert_eq!(sent.thermal.unwrap(), v1::ThermalSettings { warn_celsius: 80.0, high_celsius: 85.0, dwell_ms: 60_000 });
        assert!(!sent.scrape_off && !sent.webhook_off && !sent.conditions_off && !sent.allocatable_off);
        assert!(sent.conditions.iter().any(|rule| rule.r#type == "AcceleratedHardwareReady" && rule.bad_status == "False"));
    }
}
