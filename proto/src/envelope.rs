//! DSSE v1.0.2 envelopes without the cryptography: what bytes are signed, and reading an envelope's frame.
//! Signing is in the hub's `sign`, checking in the spoke's `verify`; both sign and check these very bytes.

use prost::Message as _;

use crate::{limits, link::v1};

/// Payload type of a command.
pub const COMMAND_TYPE: &str = "application/vnd.gpuheal.command.v1+protobuf";
/// Payload type of a cancellation.
pub const CANCEL_TYPE: &str = "application/vnd.gpuheal.cancel.v1+protobuf";
/// Payload type of detection settings.
pub const SETTINGS_TYPE: &str = "application/vnd.gpuheal.settings.v1+protobuf";

/// Pre-authentication encoding: `DSSEv1 LEN(type) type LEN(payload) payload`, lengths in ASCII decimal.
#[must_use]
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let head = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len());
    [head.as_bytes(), payload].concat()
}

/// Reads an envelope's frame. Nothing in it is to be believed before its signature is checked.
///
/// # Errors
/// When the bytes are too many, are no envelope, or carry no or too many signatures.
pub fn parse(bytes: &[u8]) -> Result<v1::Envelope, Error> {
    if bytes.len() > limits::ENVELOPE_BYTES_MAX {
        return Err(Error::TooLarge { bytes: bytes.len() });
    }
    let envelope = v1::Envelope::decode(bytes).map_err(Error::Malformed)?;
    match envelope.signatures.len() {
        1..=limits::SIGNATURES_MAX => Ok(envelope),
        count => Err(Error::Signatures { count }),
    }
}

/// Why bytes are not an envelope.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// Checked before anything is parsed.
    #[error("envelope of {bytes} bytes is over the limit of {}", limits::ENVELOPE_BYTES_MAX)]
    TooLarge {
        /// Size of what came.
        bytes: usize,
    },
    /// Not the protobuf of an envelope.
    #[error("envelope does not parse")]
    Malformed(#[source] prost::DecodeError),
    /// None at all, or a pile meant to cost time.
    #[error("envelope has {count} signatures, 1 to {} are allowed", limits::SIGNATURES_MAX)]
    Signatures {
        /// How many there are.
        count: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pae_is_the_published_example() {
        let want = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world";
        assert_eq!(pae("http://example.com/HelloWorld", b"hello world"), want);
    }

    #[test]
    fn an_envelope_over_the_limit_is_refused_before_it_is_parsed() {
        let bytes = vec![0xff; limits::ENVELOPE_BYTES_MAX + 1];
        assert_eq!(parse(&bytes), Err(Error::TooLarge { bytes: bytes.len() }));
    }

    #[test]
    fn an_unsigned_envelope_is_no_envelope() {
        let bytes = v1::Envelope { payload: vec![1].into(), payload_type: COMMAND_TYPE.into(), signatures: vec![] }.encode_to_vec();
        assert_eq!(parse(&bytes), Err(Error::Signatures { count: 0 }));
    }
}
