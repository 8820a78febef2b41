//! The trust bundle a spoke starts from: which CA, which command keys, under which epoch.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::VerifyingKey;
use serde::{Deserialize, Serialize};

/// `trust.json`. Versions only rise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustBundle {
    /// Of this bundle.
    pub version: u64,
    /// Of the SPIFFE ids.
    pub trust_domain: String,
    /// Commands of a lower epoch are refused.
    pub key_epoch: u64,
    /// Who may sign commands.
    pub command_keys: Vec<CommandKey>,
    /// CA certificates as PEM.
    pub ca: Vec<String>,
}

/// One key that may sign commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandKey {
    /// Hint by which the key is found.
    pub keyid: String,
    /// The public key, base64 of its 32 bytes.
    pub ed25519: String,
}

impl TrustBundle {
    pub(super) fn first(trust_domain: &str, key: &VerifyingKey, ca_pem: &str) -> Self {
        let command_key = CommandKey { keyid: keyid(key.as_bytes()), ed25519: STANDARD.encode(key.as_bytes()) };
        Self {
            version: 1,
            trust_domain: trust_domain.to_owned(),
            key_epoch: 1,
            command_keys: vec![command_key],
            ca: vec![ca_pem.to_owned()],
        }
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("text and numbers alone always serialise") + "\n"
    }
}

/// The first 16 hex digits of the public key's SHA-256.
#[must_use]
pub fn keyid(public_key: &[u8; 32]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(public_key))[..16].to_owned()
}
