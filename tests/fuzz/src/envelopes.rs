//! Any bytes as a signed envelope. Proves: whatever is believed (a command, also one that is only refused by name, a cancellation,
//! settings) has exactly a payload and a type that the trusted key has signed, so that no byte of an envelope can be turned into
//! another order; what is too large is refused before anything else; and what is parsed out of an envelope is no larger than it.

use gpuheal_proto::{
    command::Refusal,
    envelope::{self, CANCEL_TYPE, COMMAND_TYPE, SETTINGS_TYPE},
    limits,
    link::v1,
};
use gpuheal_spoke_core::verify::{Envelope, Fence, cancel};
use prost::Message as _;

use crate::{
    believable::cluster,
    signed::{KEYS, SIGNED, TRUST},
    spoke::settings::Settings,
};

pub(crate) fn run(bytes: &[u8]) {
    let believed = believed(bytes);
    match envelope::parse(bytes) {
        Ok(envelope) => {
            let signatures: usize = envelope.signatures.iter().map(|one| one.sig.len() + one.keyid.len()).sum();
            assert!(envelope.payload.len() + envelope.payload_type.len() + signatures <= bytes.len(), "an envelope grew");
            for payload_type in believed {
                let signed = |one: &crate::signed::Signed| one.payload_type == payload_type && one.payload == envelope.payload;
                assert!(
                    envelope.payload_type == payload_type && SIGNED.iter().any(signed),
                    "{payload_type} believed, never signed"
                );
            }
        }
        Err(error) => {
            assert!(believed.is_empty(), "{believed:?} of what is no envelope: {error}");
            let large = matches!(error, envelope::Error::TooLarge { .. });
            assert_eq!(large, bytes.len() > limits::ENVELOPE_BYTES_MAX);
        }
    }
}

/// As which types the bytes are believed by whoever reads them.
fn believed(bytes: &[u8]) -> Vec<&'static str> {
    let mut out = Vec::new();
    match Envelope::received(bytes).authenticate(&TRUST, &cluster()) {
        Ok(authentic) => {
            assert_eq!(authentic.bytes(), bytes, "the very bytes are kept");
            assert_eq!(authentic.command().audience, cluster(), "for this cluster");
            out.push(COMMAND_TYPE);
        }
        Err(refused) => {
            assert!(refused.reason.len() <= limits::REASON_BYTES_MAX, "a refusal is short");
            assert_eq!(refused.command.is_some(), refused.refusal == Refusal::WrongAudience, "only who is known can be named");
            out.extend(refused.command.map(|_| COMMAND_TYPE));
        }
    }
    if let Ok(cancel) = cancel(bytes, &TRUST, &cluster(), Fence::default()) {
        assert!(cancel.reason.len() <= limits::REASON_BYTES_MAX);
        out.push(CANCEL_TYPE);
    }
    let settings = Settings::new();
    let sent = v1::Settings { version: 3, digest: String::new(), envelope: bytes.to_vec().into() };
    let ack = settings.take(&sent, &KEYS);
    assert_eq!(ack.errors.is_empty(), settings.version() == 3, "what is refused is not in force");
    if ack.errors.is_empty() {
        out.push(SETTINGS_TYPE);
    }
    out
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let both = SIGNED.iter().flat_map(|signed| [signed.trusted.clone(), signed.strange.clone()]);
    // Two signatures, of which the second is trusted.
    let pair = SIGNED.iter().filter_map(|signed| {
        let mut envelope = v1::Envelope::decode(signed.strange.as_slice()).ok()?;
        envelope.signatures.extend(v1::Envelope::decode(signed.trusted.as_slice()).ok()?.signatures);
        Some(envelope.encode_to_vec())
    });
    both.chain(pair).collect()
}
