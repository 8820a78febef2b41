//! The trust bundle `trust.json`: which keys sign commands. Parsed once, weak keys refused, keys unique; without a valid
//! one a spoke executes nothing.

use std::collections::BTreeSet;

use base64::Engine as _;
use ed25519_dalek::VerifyingKey;
use serde::Deserialize;

/// Most command keys in one bundle: two during a rotation, and room.
pub const KEYS_MAX: usize = 8;

/// The keys in force.
#[derive(Clone, Debug)]
pub struct Trust {
    /// Of the bundle; only rises.
    pub version: u64,
    /// Trust domain of every SPIFFE id.
    pub trust_domain: String,
    /// Of the command keys.
    pub key_epoch: u64,
    keys: Vec<VerifyingKey>,
}

impl Trust {
    /// Reads `trust.json`.
    ///
    /// # Errors
    /// When it is no bundle, or holds no, too many, weak or repeated keys.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let raw: Raw = serde_json::from_slice(json).map_err(|error| Error::Json { detail: error.to_string() })?;
        if raw.command_keys.is_empty() || raw.command_keys.len() > KEYS_MAX {
            return Err(Error::Count { count: raw.command_keys.len() });
        }
        let keys: Vec<_> = raw.command_keys.iter().map(key).collect::<Result<_, _>>()?;
        let unique: BTreeSet<_> = keys.iter().map(VerifyingKey::to_bytes).collect();
        if unique.len() != keys.len() {
            return Err(Error::Repeated);
        }
        Ok(Self { version: raw.version, trust_domain: raw.trust_domain, key_epoch: raw.key_epoch, keys })
    }

    /// The keys.
    pub(super) fn keys(&self) -> &[VerifyingKey] {
        &self.keys
    }
}

fn key(raw: &RawKey) -> Result<VerifyingKey, Error> {
    let broken = |detail: String| Error::Key { keyid: raw.keyid.clone(), detail };
    let bytes = base64::engine::general_purpose::STANDARD.decode(&raw.ed25519).map_err(|error| broken(error.to_string()))?;
    let bytes: [u8; 32] = bytes.try_into().map_err(|bytes: Vec<u8>| broken(format!("{} bytes, a key has 32", bytes.len())))?;
    let key = VerifyingKey::from_bytes(&bytes).map_err(|error| broken(error.to_string()))?;
    if key.is_weak() { Err(broken("weak key".to_owned())) } else { Ok(key) }
}

#[derive(Deserialize)]
struct Raw {
    version: u64,
    trust_domain: String,
    key_epoch: u64,
    command_keys: Vec<RawKey>,
}

#[derive(Deserialize)]
struct RawKey {
    keyid: String,
    ed25519: String,
}

/// Why a bundle is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not JSON of a bundle.
    #[error("trust bundle does not parse: {detail}")]
    Json {
        /// What the parser says, with line and column.
        detail: String,
    },
    /// None, or a pile.
    #[error("trust bundle has {count} command keys, 1 to {KEYS_MAX} are allowed")]
    Count {
        /// How many.
        count: usize,
    },
    /// A key that cannot be used.
    #[error("command key {keyid:?} in the trust bundle: {detail}")]
    Key {
        /// Its id.
        keyid: String,
        /// What is wrong.
        detail: String,
    },
    /// One key under two ids would count twice.
    #[error("trust bundle has one command key twice")]
    Repeated,
}
