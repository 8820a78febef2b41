//! Size, signature, type: over the raw bytes, before anything in them is parsed. A key id is a hint that is not needed:
//! there are at most 8 keys and 8 signatures, so each is tried.

use ed25519_dalek::Signature;
use gpuheal_proto::{
    command::Refusal,
    envelope::{self, Error, pae},
};

use super::{Refused, Trust};

/// The payload, once a trusted key has signed exactly these bytes under exactly this type.
pub(super) fn check(bytes: &[u8], trust: &Trust, payload_type: &str) -> Result<bytes::Bytes, Refused> {
    let envelope = envelope::parse(bytes).map_err(|error| {
        let refusal = match error {
            Error::TooLarge { .. } => Refusal::TooLarge,
            Error::Malformed(_) | Error::Signatures { .. } => Refusal::BadSignature,
        };
        Refused::new(refusal, error.to_string())
    })?;
    let signed = pae(&envelope.payload_type, &envelope.payload);
    let valid = envelope
        .signatures
        .iter()
        .filter_map(|signature| Signature::from_slice(&signature.sig).ok())
        .any(|signature| trust.keys().iter().any(|key| key.verify_strict(&signed, &signature).is_ok()));
    if !valid {
        let reason = format!("none of {} signatures is by one of {} trusted keys", envelope.signatures.len(), trust.keys().len());
        return Err(Refused::new(Refusal::BadSignature, reason));
    }
    if envelope.payload_type != payload_type {
        return Err(Refused::new(Refusal::WrongType, format!("type {:?}, expected {payload_type:?}", envelope.payload_type)));
    }
    Ok(envelope.payload)
}
