//! The simulation's key pairs: ours, and somebody else's. Real Ed25519, never used anywhere else.

use base64::Engine as _;
use ed25519_dalek::{
    SigningKey,
    pkcs8::{EncodePrivateKey as _, spki::der::pem::LineEnding},
};
use gpuheal_spoke_core::verify::Trust;

fn ours() -> SigningKey {
    SigningKey::from_bytes(&[42; 32])
}

fn his() -> SigningKey {
    SigningKey::from_bytes(&[43; 32])
}

/// Our private half as the hub reads it.
#[must_use]
pub fn pem() -> String {
    written(&ours())
}

/// Of somebody whom nobody trusts.
#[must_use]
pub fn his_pem() -> String {
    written(&his())
}

fn written(key: &SigningKey) -> String {
    key.to_pkcs8_pem(LineEnding::LF).expect("a key can be written").to_string()
}

/// The bundle that spokes trust.
#[must_use]
pub fn trust() -> Trust {
    bundle(&[ours()])
}

/// Without the check of signatures his are as good as ours.
#[must_use]
pub fn trust_in_anybody() -> Trust {
    bundle(&[ours(), his()])
}

fn bundle(keys: &[SigningKey]) -> Trust {
    let public = |key: &SigningKey| base64::engine::general_purpose::STANDARD.encode(key.verifying_key().to_bytes());
    let keys: Vec<_> =
        keys.iter().enumerate().map(|(at, key)| serde_json::json!({"keyid": at.to_string(), "ed25519": public(key)})).collect();
    let bundle = serde_json::json!({"version": 1, "trust_domain": "sim", "key_epoch": 1, "command_keys": keys});
    Trust::parse(bundle.to_string().as_bytes()).expect("the simulation's bundle is one")
}
