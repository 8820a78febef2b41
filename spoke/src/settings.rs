//! The detection settings in force: the hub's, signed, newest version wins, last good kept. Whatever does not verify or
//! is out of bounds is answered by a Nack with the reasons and changes nothing.

mod signed;

use std::sync::Arc;

use arc_swap::ArcSwap;
use gpuheal_proto::link::v1;

pub use signed::{Keys, KeysError};

/// Errors named in a Nack.
const ERRORS_MAX: usize = 32;
/// No exporter is asked more often than this.
const SCRAPE_INTERVAL_MIN_MS: u32 = 1_000;
/// Nor less often: an hour without a look is no looking.
const SCRAPE_INTERVAL_MAX_MS: u32 = 3_600_000;

/// What is in force while no hub has said anything: the seed's numbers.
#[must_use]
pub fn defaults() -> v1::DetectionSettings {
    v1::DetectionSettings {
        version: 0,
        scrape_interval_ms: 60_000,
        scrape_timeout_ms: 10_000,
        thermal: Some(v1::ThermalSettings { warn_celsius: 80.0, high_celsius: 85.0, dwell_ms: 60_000 }),
        xid_errors: 5,
        xid_window_ms: 300_000,
        gpu_lost_scrapes: 3,
        stale_after_intervals: 3,
        broken_after_ms: 300_000,
        allocatable_debounce_ms: 180_000,
        ..v1::DetectionSettings::default()
    }
}

/// The settings in force. Shared; written by the link.
#[derive(Debug)]
pub struct Settings {
    now: ArcSwap<v1::DetectionSettings>,
}

impl Settings {
    /// The defaults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { now: ArcSwap::from_pointee(defaults()) })
    }

    /// As they stand.
    #[must_use]
    pub fn current(&self) -> Arc<v1::DetectionSettings> {
        self.now.load_full()
    }

    /// Takes what the hub sent if it is signed, sane and not older. The answer for the hub.
    pub fn take(&self, message: &v1::Settings, keys: &Keys) -> v1::SettingsAck {
        let version = message.version;
        match self.admit(message, keys) {
            Ok(settings) => {
                tracing::info!(settings.version = version, "detection settings in force");
                self.now.store(Arc::new(settings));
                v1::SettingsAck { version, errors: Vec::new() }
            }
            Err(mut errors) => {
                errors.truncate(ERRORS_MAX);
                tracing::warn!(settings.version = version, ?errors, "detection settings refused, the last good ones stay");
                v1::SettingsAck { version, errors }
            }
        }
    }

    fn admit(&self, message: &v1::Settings, keys: &Keys) -> Result<v1::DetectionSettings, Vec<String>> {
        let settings = keys.open(&message.envelope).map_err(|error| vec![error.to_string()])?;
        if settings.version != message.version {
            return Err(vec![format!("version {} is signed, {} was sent", settings.version, message.version)]);
        }
        let have = self.current().version;
        if settings.version < have {
            return Err(vec![format!("version {} is older than {have}, which is in force", settings.version)]);
        }
        let settings = filled(settings);
        let errors = problems(&settings);
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }
}

/// What the hub left at 0 is the default, never "at once" or "for ever".
fn filled(mut settings: v1::DetectionSettings) -> v1::DetectionSettings {
    let defaults = defaults();
    for (value, default) in [
        (&mut settings.scrape_interval_ms, defaults.scrape_interval_ms),
        (&mut settings.scrape_timeout_ms, defaults.scrape_timeout_ms),
        (&mut settings.xid_errors, defaults.xid_errors),
        (&mut settings.xid_window_ms, defaults.xid_window_ms),
        (&mut settings.gpu_lost_scrapes, defaults.gpu_lost_scrapes),
        (&mut settings.stale_after_intervals, defaults.stale_after_intervals),
        (&mut settings.broken_after_ms, defaults.broken_after_ms),
        (&mut settings.allocatable_debounce_ms, defaults.allocatable_debounce_ms),
    ] {
        if *value == 0 {
            *value = default;
        }
    }
    settings.thermal = settings.thermal.or(defaults.thermal);
    settings
}

fn problems(settings: &v1::DetectionSettings) -> Vec<String> {
    let mut out = Vec::new();
    let interval = settings.scrape_interval_ms;
    if !(SCRAPE_INTERVAL_MIN_MS..=SCRAPE_INTERVAL_MAX_MS).contains(&interval) {
        out.push(format!("scrape_interval_ms is {interval}, {SCRAPE_INTERVAL_MIN_MS} to {SCRAPE_INTERVAL_MAX_MS} are allowed"));
    }
    let named = settings.thermal_by_model.iter().map(|(model, thermal)| (model.as_str(), thermal));
    for (model, thermal) in settings.thermal.iter().map(|thermal| ("every model", thermal)).chain(named) {
        let sane = |celsius: f64| (20.0..=150.0).contains(&celsius);
        if !sane(thermal.warn_celsius) || !sane(thermal.high_celsius) || thermal.warn_celsius > thermal.high_celsius {
            let (warn, high) = (thermal.warn_celsius, thermal.high_celsius);
            out.push(format!("thermal for {model}: warn {warn} and high {high} are not 20 <= warn <= high <= 150"));
        }
    }
    if settings.metric_aliases.len() > 256 || settings.conditions.len() > 128 || settings.node_labels.len() > 32 {
        out.push("more than 256 metric_aliases, 128 conditions or 32 node_labels".to_owned());
    }
    for (at, rule) in settings.conditions.iter().enumerate() {
        if !matches!(rule.bad_status.as_str(), "True" | "False") {
            out.push(format!("conditions[{at}].bad_status is {:?}, True or False is allowed", rule.bad_status));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};
    use gpuheal_proto::envelope;
    use prost::Message as _;

    use super::*;

    fn signed(settings: &v1::DetectionSettings, key: &SigningKey) -> v1::Settings {
        let payload = settings.encode_to_vec();
        let sig = key.sign(&envelope::pae(envelope::SETTINGS_TYPE, &payload)).to_bytes().to_vec();
        let envelope = v1::Envelope {
            payload: payload.into(),
            payload_type: envelope::SETTINGS_TYPE.into(),
            signatures: vec![v1::EnvelopeSignature { keyid: String::new(), sig: sig.into() }],
        };
        v1::Settings { version: settings.version, digest: String::new(), envelope: envelope.encode_to_vec().into() }
    }

    fn version(version: u64) -> v1::DetectionSettings {
        v1::DetectionSettings { version, scrape_interval_ms: 5_000, ..Default::default() }
    }

    #[test]
    fn signed_settings_take_effect_and_zeros_are_defaults() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let settings = Settings::new();
        let ack = settings.take(&signed(&version(3), &key), &Keys::of(vec![key.verifying_key()]));
        assert_eq!(ack, v1::SettingsAck { version: 3, errors: vec![] });
        assert_eq!(settings.current().scrape_interval_ms, 5_000);
        assert_eq!(settings.current().xid_errors, 5);
    }

    #[test]
    fn settings_that_nobody_trusted_signed_change_nothing() {
        let settings = Settings::new();
        let keys = Keys::of(vec![SigningKey::from_bytes(&[1; 32]).verifying_key()]);
        let ack = settings.take(&signed(&version(3), &SigningKey::from_bytes(&[7; 32])), &keys);
        assert_eq!(ack.errors.len(), 1, "{ack:?}");
        assert_eq!(settings.current().version, 0);
    }

    #[test]
    fn bad_or_older_settings_leave_the_last_good_ones() {
        let key = SigningKey::from_bytes(&[7; 32]);
        let keys = Keys::of(vec![key.verifying_key()]);
        let settings = Settings::new();
        settings.take(&signed(&version(3), &key), &keys);
        let hot = v1::ThermalSettings { warn_celsius: 90.0, high_celsius: 85.0, dwell_ms: 0 };
        let bad = v1::DetectionSettings { scrape_interval_ms: 1, thermal: Some(hot), ..version(4) };
        assert_eq!(settings.take(&signed(&bad, &key), &keys).errors.len(), 2);
        assert_eq!(settings.take(&signed(&version(2), &key), &keys).errors.len(), 1);
        assert_eq!(settings.current().version, 3);
    }
}
