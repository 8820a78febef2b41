//! The private key: read once, zeroised when dropped, never printed.

use std::{fmt, fs, path::Path};

use ed25519_dalek::{Signature, Signer as _, SigningKey, pkcs8::DecodePrivateKey as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::Error;

/// An Ed25519 key that signs what spokes execute.
pub struct Key {
    key: SigningKey,
    id: String,
}

impl Key {
    /// Reads PKCS#8 PEM.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let pem = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_pem(&Zeroizing::new(pem)).ok_or_else(|| Error::Key { path: path.to_owned() })
    }

    /// From PKCS#8 PEM, if it is that.
    #[must_use]
    pub fn from_pem(pem: &str) -> Option<Self> {
        SigningKey::from_pkcs8_pem(pem).ok().map(Self::from_key)
    }

    pub(super) fn from_key(key: SigningKey) -> Self {
        let id = hex::encode(Sha256::digest(key.verifying_key().as_bytes()))[..16].to_owned();
        Self { key, id }
    }

    /// The first 16 hex digits of the public key's SHA-256: a hint, no proof.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }

    /// Whether a signature is this key's.
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature).is_ok_and(|sig| self.key.verifying_key().verify_strict(message, &sig).is_ok())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.id)
    }
}
