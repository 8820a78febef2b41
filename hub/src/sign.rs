//! Stage `sign`: a proposed command becomes an envelope, once, and those bytes are the command from then on.
//! The only holder of a private key. Refuses below the highest database epoch it has seen, so that a hub that still talks
//! to a deposed database signs nothing. Idempotent on the command: a second signer finds nothing to claim.

mod key;
mod stage;

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

use gpuheal_proto::{
    command::Command,
    envelope::{self, CANCEL_TYPE, COMMAND_TYPE, SETTINGS_TYPE},
    limits,
    link::v1,
};
use prost::Message as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::audit::{Entry, Kind};
pub use crate::store::command::Signed;
pub use key::Key;
pub use stage::{Complained, Stage};

/// Signs. Its key is behind it and nowhere else.
#[derive(Debug)]
pub struct Signer {
    key: Key,
    key_epoch: u64,
    /// Highest database epoch that something was signed under.
    term_seen: AtomicU64,
}

impl Signer {
    /// A signer for the keys of `key_epoch`.
    #[must_use]
    pub const fn new(key: Key, key_epoch: u64) -> Self {
        Self { key, key_epoch, term_seen: AtomicU64::new(0) }
    }

    /// Hint by which spokes find the public key.
    #[must_use]
    pub fn keyid(&self) -> &str {
        self.key.id()
    }

    /// Epoch of the keys.
    #[must_use]
    pub const fn key_epoch(&self) -> u64 {
        self.key_epoch
    }

    /// Signs a command. The epoch of the keys is the signer's own, whatever the command says.
    ///
    /// # Errors
    /// When it is of an older database than seen, breaks the rules of a command, or is too large to be sent.
    pub fn command(&self, command: &Command) -> Result<Signed, Error> {
        self.admit(command.hub_term)?;
        let body = v1::CommandBody { key_epoch: self.key_epoch, ..v1::CommandBody::from(command) };
        // What a spoke would not accept is not signed: the same truth is checked here and after verifying.
        Command::try_from(body.clone()).map_err(Error::Invalid)?;
        self.seal(COMMAND_TYPE, &body.encode_to_vec())
    }

    /// Signs a cancellation.
    ///
    /// # Errors
    /// When it is of an older database than seen, or too large.
    pub fn cancel(&self, body: &v1::CancelBody) -> Result<Signed, Error> {
        self.admit(body.hub_term)?;
        self.seal(CANCEL_TYPE, &body.encode_to_vec())
    }

    /// Signs detection settings.
    ///
    /// # Errors
    /// When they are too large.
    pub fn settings(&self, settings: &v1::DetectionSettings) -> Result<Signed, Error> {
        self.seal(SETTINGS_TYPE, &settings.encode_to_vec())
    }

    /// Reads a command that this very key has signed, as a spoke shows it to a database that has lost it.
    ///
    /// # Errors
    /// When it is no such thing: what this hub did not sign it never takes for its own.
    pub fn own(&self, bytes: &[u8]) -> Result<Command, NotOwn> {
        let envelope = envelope::parse(bytes).map_err(|_| NotOwn::Envelope)?;
        let message = envelope::pae(&envelope.payload_type, &envelope.payload);
        if envelope.payload_type != COMMAND_TYPE || !envelope.signatures.iter().any(|one| self.key.signed(&message, &one.sig)) {
            return Err(NotOwn::Signature);
        }
        let body = v1::CommandBody::decode(envelope.payload).map_err(|_| NotOwn::Envelope)?;
        Command::try_from(body).map_err(NotOwn::Command)
    }

    /// What the audit says of a command that was signed.
    pub(crate) fn entry(&self, command: &Command, made: &Signed) -> Entry {
        Entry {
            kind: Kind::CommandSigned,
            actor: "hub/sign".to_owned(),
            subject: format!("command/{}", command.id),
            incident: Some(command.incident),
            body: json!({"sha256": made.sha256, "key_id": self.keyid(), "key_epoch": self.key_epoch, "hub_term": command.hub_term}),
        }
    }

    fn admit(&self, hub_term: u64) -> Result<(), Error> {
        let seen = self.term_seen.fetch_max(hub_term, SeqCst);
        if hub_term < seen { Err(Error::StaleTerm { seen, got: hub_term }) } else { Ok(()) }
    }

    fn seal(&self, payload_type: &str, payload: &[u8]) -> Result<Signed, Error> {
        let sig = self.key.sign(&envelope::pae(payload_type, payload));
        let signature = v1::EnvelopeSignature { keyid: self.key.id().to_owned(), sig: sig.to_vec().into() };
        let envelope =
            v1::Envelope { payload: payload.to_vec().into(), payload_type: payload_type.to_owned(), signatures: vec![signature] };
        let envelope = envelope.encode_to_vec();
        if envelope.len() > limits::ENVELOPE_BYTES_MAX {
            return Err(Error::TooLarge { bytes: envelope.len() });
        }
        let sha256 = hex::encode(Sha256::digest(&envelope));
        Ok(Signed { envelope, sha256 })
    }
}

/// Why bytes are no command of ours.
#[derive(Debug, thiserror::Error)]
pub enum NotOwn {
    /// They do not parse.
    #[error("it is no envelope")]
    Envelope,
    /// Somebody else's, or of a key that this hub has no more.
    #[error("it is not signed by this hub's key")]
    Signature,
    /// It breaks the rules of a command.
    #[error("it is no command: {0}")]
    Command(gpuheal_proto::command::Error),
}

/// Why something was not signed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A deposed database, or a restored one whose term was not raised.
    #[error("term {got} is below {seen}, which was signed under before")]
    StaleTerm {
        /// The highest seen.
        seen: u64,
        /// What was asked for.
        got: u64,
    },
    /// It would be refused.
    #[error("not a command that a spoke accepts: {0}")]
    Invalid(gpuheal_proto::command::Error),
    /// It cannot be sent.
    #[error("envelope of {bytes} bytes is over the limit of {}", limits::ENVELOPE_BYTES_MAX)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The key's file.
    #[error("cannot read the signing key {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its content.
    #[error("{} holds no Ed25519 private key in PKCS#8 PEM", path.display())]
    Key {
        /// Which.
        path: PathBuf,
    },
}

impl Error {
    const fn cause(&self) -> &'static str {
        match self {
            Self::StaleTerm { .. } => "term",
            Self::TooLarge { .. } => "too_large",
            Self::Invalid(_) | Self::Read { .. } | Self::Key { .. } => "invalid",
        }
    }
}

#[cfg(test)]
mod tests;
