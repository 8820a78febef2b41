//! The detection settings in force: the hub's, signed, newest version wins, last good kept. Whatever does not verify or
//! is out of bounds is answered by a Nack with the reasons and changes nothing.

mod signed;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use gpuheal_proto::link::v1;
use gpuheal_spoke_core::derive::Settings as Detect;
use tokio::sync::watch;

pub use signed::{Keys, KeysError};

/// Errors named in a Nack.
const ERRORS_MAX: usize = 32;
/// How long an exporter may take, where the hub says nothing.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest that it may be told to wait: an answer later than that belongs to the next look.
const SCRAPE_TIMEOUT_MAX: Duration = Duration::from_secs(60);

/// Settings as they are in force.
#[derive(Clone, Debug, Default, PartialEq)]
struct Current {
    wire: Arc<v1::DetectionSettings>,
    detect: Arc<Detect>,
}

/// The settings in force. Shared; written by the link.
#[derive(Debug)]
pub struct Settings {
    now: ArcSwap<Current>,
    taken: watch::Sender<u64>,
}

impl Settings {
    /// The defaults.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { now: ArcSwap::from_pointee(Current::default()), taken: watch::Sender::new(0) })
    }

    /// As the detectors use them.
    #[must_use]
    pub fn detect(&self) -> Arc<Detect> {
        Arc::clone(&self.now.load().detect)
    }

    /// Changes when other settings are in force: whoever sleeps by an interval wakes by it.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.taken.subscribe()
    }

    /// Version in force; 0 are the defaults.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.now.load().wire.version
    }

    /// How long an exporter may take.
    #[must_use]
    pub fn scrape_timeout(&self) -> Duration {
        match self.now.load().wire.scrape_timeout_ms {
            0 => SCRAPE_TIMEOUT,
            ms => Duration::from_millis(ms.into()).min(SCRAPE_TIMEOUT_MAX),
        }
    }

    /// Label keys that policy uses beside the usual ones.
    #[must_use]
    pub fn node_labels(&self) -> Vec<String> {
        self.now.load().wire.node_labels.clone()
    }

    /// Takes what the hub sent if it is signed, sane and not older. The answer for the hub.
    pub fn take(&self, message: &v1::Settings, keys: &Keys) -> v1::SettingsAck {
        let version = message.version;
        match self.admit(message, keys) {
            Ok(current) => {
                tracing::info!(settings.version = version, "detection settings in force");
                self.now.store(Arc::new(current));
                self.taken.send_replace(version);
                v1::SettingsAck { version, errors: Vec::new() }
            }
            Err(mut errors) => {
                errors.truncate(ERRORS_MAX);
                tracing::warn!(settings.version = version, ?errors, "detection settings refused, the last good ones stay");
                v1::SettingsAck { version, errors }
            }
        }
    }

    fn admit(&self, message: &v1::Settings, keys: &Keys) -> Result<Current, Vec<String>> {
        let wire = keys.open(&message.envelope).map_err(|error| vec![error.to_string()])?;
        if wire.version != message.version {
            return Err(vec![format!("version {} is signed, {} was sent", wire.version, message.version)]);
        }
        let have = self.version();
        if wire.version < have {
            return Err(vec![format!("version {} is older than {have}, which is in force", wire.version)]);
        }
        let detect = Detect::parse(&wire).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        Ok(Current { wire: Arc::new(wire), detect: Arc::new(detect) })
    }
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
        assert_eq!(settings.detect().scrape_interval, Duration::from_secs(5));
        assert_eq!((settings.detect().xid_errors, settings.scrape_timeout()), (5, SCRAPE_TIMEOUT));
    }

    #[test]
    fn settings_that_nobody_trusted_signed_change_nothing() {
        let settings = Settings::new();
        let keys = Keys::of(vec![SigningKey::from_bytes(&[1; 32]).verifying_key()]);
        let ack = settings.take(&signed(&version(3), &SigningKey::from_bytes(&[7; 32])), &keys);
        assert_eq!(ack.errors.len(), 1, "{ack:?}");
        assert_eq!(settings.version(), 0);
    }

    /// Failure table, row 27.
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
        assert_eq!(settings.version(), 3);
    }
}
