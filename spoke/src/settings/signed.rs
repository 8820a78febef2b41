//! Opening a signed settings envelope: signature over the raw bytes first, type second, then the payload is parsed once.

use base64::Engine as _;
use ed25519_dalek::{Signature, VerifyingKey};
use gpuheal_proto::{envelope, link::v1};
use prost::Message as _;
use serde::Deserialize;

/// The keys whose word counts.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    keys: Vec<VerifyingKey>,
}

#[derive(Deserialize)]
struct Bundle {
    command_keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    ed25519: String,
}

impl Keys {
    /// Reads the command keys of `trust.json`. Weak keys are refused.
    ///
    /// # Errors
    /// When the file is no trust bundle or a key is none.
    pub fn parse(trust: &[u8]) -> Result<Self, KeysError> {
        let bundle: Bundle = serde_json::from_slice(trust).map_err(|error| KeysError::Bundle { detail: error.to_string() })?;
        let key = |(index, key): (usize, &Key)| {
            let bytes = base64::engine::general_purpose::STANDARD.decode(&key.ed25519).ok();
            let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
            let key = bytes.and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
            key.filter(|key| !key.is_weak()).ok_or(KeysError::Key { index })
        };
        Ok(Self { keys: bundle.command_keys.iter().enumerate().map(key).collect::<Result<_, _>>()? })
    }

    /// These keys.
    #[must_use]
    pub const fn of(keys: Vec<VerifyingKey>) -> Self {
        Self { keys }
    }

    /// The settings in an envelope that one of the keys has signed.
    ///
    /// # Errors
    /// When none has, or what they signed is something else.
    pub fn open(&self, bytes: &[u8]) -> Result<v1::DetectionSettings, OpenError> {
        let envelope = envelope::parse(bytes)?;
        let signed = envelope::pae(&envelope.payload_type, &envelope.payload);
        let by_us = |signature: &v1::EnvelopeSignature| {
            let signature = Signature::from_slice(&signature.sig).ok()?;
            self.keys.iter().find(|key| key.verify_strict(&signed, &signature).is_ok())
        };
        if !envelope.signatures.iter().any(|signature| by_us(signature).is_some()) {
            return Err(OpenError::Unsigned);
        }
        if envelope.payload_type != envelope::SETTINGS_TYPE {
            return Err(OpenError::Type { got: envelope.payload_type });
        }
        Ok(v1::DetectionSettings::decode(envelope.payload)?)
    }
}

/// Why a bundle gives no keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// Not the JSON of a bundle.
    #[error("trust bundle does not parse: {detail}")]
    Bundle {
        /// Where and why.
        detail: String,
    },
    /// Not a key, or a weak one.
    #[error("trust bundle's command_keys[{index}] is no Ed25519 key")]
    Key {
        /// Its place.
        index: usize,
    },
}

/// Why an envelope holds no settings.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpenError {
    /// No envelope.
    #[error(transparent)]
    Envelope(#[from] envelope::Error),
    /// Nobody trusted signed it.
    #[error("settings carry no signature of a trusted key")]
    Unsigned,
    /// Signed, and something else.
    #[error("settings envelope holds {got:?}")]
    Type {
        /// Its payload type.
        got: String,
    },
    /// Signed, yet no settings.
    #[error("settings do not parse")]
    Decode(#[from] prost::DecodeError),
}
