//! The simulation's one key pair: real Ed25519, never used anywhere else.

use base64::Engine as _;
use ed25519_dalek::{
    SigningKey,
    pkcs8::{EncodePrivateKey as _, spki::der::pem::LineEnding},
};
use gpuheal_spoke_core::verify::Trust;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[42; 32])
}

/// The private half as the hub reads it.
#[must_use]
pub fn pem() -> String {
    key().to_pkcs8_pem(LineEnding::LF).expect("a key can be written").to_string()
}

/// The bundle that spokes trust.
#[must_use]
pub fn trust() -> Trust {
    let public = base64::engine::general_purpose::STANDARD.encode(key().verifying_key().to_bytes());
    let bundle = serde_json::json!({
        "version": 1, "trust_domain": "sim", "key_epoch": 1,
        "command_keys": [{"keyid": "sim", "ed25519": public}],
    });
    Trust::parse(bundle.to_string().as_bytes()).expect("the simulation's bundle is one")
}
