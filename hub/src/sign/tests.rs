use std::time::Duration;

use ed25519_dalek::{Signature, SigningKey, VerifyingKey};
use gpuheal_proto::{
    command::{Step, Target, Times},
    fault::NodeRef,
    ids::{ClusterId, CommandId, IncidentId, NodeName, NodeUid, uuid_v7},
    time::Timestamp,
};

use super::*;

fn signer() -> (Signer, VerifyingKey) {
    let key = SigningKey::from_bytes(&[7; 32]);
    let public = key.verifying_key();
    (Signer::new(Key::from_key(key), 3), public)
}

fn command() -> Command {
    let at = |s: i64| Timestamp::from_unix_ms(s * 1000);
    Command {
        id: CommandId::from_uuid(uuid_v7(at(1), &[1; 32])),
        idempotency_key: "k".into(),
        audience: ClusterId::parse("c1").unwrap(),
        key_epoch: 0,
        hub_term: 5,
        cmd_seq: 3,
        plan_rev: 2,
        times: Times { created: at(1), deliver_by: at(60), start_by: at(300), finish_by: at(2700), expires: at(3000) },
        incident: IncidentId::from_uuid(uuid_v7(at(1), &[2; 32])),
        level: "P0".into(),
        reason: "xid 79".into(),
        policy_revision: 4,
        policy_digest: "d".into(),
        target: Target {
            node: NodeRef { name: NodeName::parse("n").unwrap(), uid: NodeUid::parse("u").unwrap(), boot_id: "b".into() },
            gpu: None,
        },
        fault_keys: vec![],
        ignore_cooldown: false,
        others: Default::default(),
        steps: vec![Step::Mark { label: true, taint: true, cordon: false }],
    }
}

fn verify(bytes: &[u8], key: &VerifyingKey) -> v1::Envelope {
    let envelope = envelope::parse(bytes).unwrap();
    let signature = Signature::from_slice(&envelope.signatures[0].sig).unwrap();
    key.verify_strict(&envelope::pae(&envelope.payload_type, &envelope.payload), &signature).unwrap();
    envelope
}

#[test]
fn what_is_signed_verifies_strictly_and_is_the_command() {
    let (signer, key) = signer();
    let signed = signer.command(&command()).unwrap();
    let envelope = verify(&signed.envelope, &key);
    assert_eq!(envelope.payload_type, COMMAND_TYPE);
    let body = v1::CommandBody::decode(envelope.payload).unwrap();
    assert_eq!(Command::try_from(body).unwrap(), Command { key_epoch: 3, ..command() });
    assert_eq!(signed.sha256, hex::encode(Sha256::digest(&signed.envelope)));
}

#[test]
fn the_same_command_has_the_same_bytes() {
    let (signer, _) = signer();
    assert_eq!(signer.command(&command()).unwrap(), signer.command(&command()).unwrap());
}

#[test]
fn a_changed_payload_does_not_verify() {
    let (signer, key) = signer();
    let signed = signer.command(&command()).unwrap();
    let mut envelope = v1::Envelope::decode(signed.envelope.as_slice()).unwrap();
    let signature = Signature::from_slice(&envelope.signatures[0].sig).unwrap();
    let mut payload = envelope.payload.to_vec();
    payload[10] ^= 1;
    envelope.payload = payload.into();
    assert!(key.verify_strict(&envelope::pae(&envelope.payload_type, &envelope.payload), &signature).is_err());
    assert!(key.verify_strict(&envelope::pae(CANCEL_TYPE, &signed.envelope), &signature).is_err(), "the type is signed too");
}

/// Failure table, row 19b.
#[test]
fn nothing_is_signed_for_a_database_older_than_one_seen() {
    let (signer, _) = signer();
    signer.command(&Command { hub_term: 6, ..command() }).unwrap();
    let refused = signer.command(&command());
    assert!(matches!(refused, Err(Error::StaleTerm { seen: 6, got: 5 })), "{refused:?}");
    let cancel = v1::CancelBody { hub_term: 5, ..v1::CancelBody::default() };
    assert!(matches!(signer.cancel(&cancel), Err(Error::StaleTerm { .. })));
    assert!(signer.command(&Command { hub_term: 6, ..command() }).is_ok());
}

#[test]
fn what_a_spoke_would_refuse_is_not_signed() {
    let (signer, _) = signer();
    assert!(matches!(signer.command(&Command { steps: vec![], ..command() }), Err(Error::Invalid(_))));
    let mut late = command();
    late.times.start_by = late.times.finish_by.after(Duration::from_secs(1));
    assert!(matches!(signer.command(&late), Err(Error::Invalid(_))));
    let mut huge = command();
    huge.reason = "x".repeat(limits::ENVELOPE_BYTES_MAX);
    assert!(matches!(signer.command(&huge), Err(Error::TooLarge { .. })));
}

#[test]
fn the_key_of_a_development_pki_is_read_and_its_id_is_the_one_in_the_trust_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::from_unix_ms(1_764_442_800_000);
    gpuheal_ctl::pki::init(&gpuheal_ctl::pki::Request::new(dir.path(), vec![ClusterId::parse("a").unwrap()], now)).unwrap();
    let key = Key::read(&dir.path().join("signing/command.key")).unwrap();
    let bundle = std::fs::read_to_string(dir.path().join("clusters/a/trust.json")).unwrap();
    let bundle: gpuheal_ctl::pki::TrustBundle = serde_json::from_str(&bundle).unwrap();
    assert_eq!(bundle.command_keys[0].keyid, key.id());
    assert!(matches!(Key::read(&dir.path().join("ca.key")), Err(Error::Key { .. })), "a P-256 key is no signing key");
    assert!(matches!(Key::read(&dir.path().join("none")), Err(Error::Read { .. })));
}
