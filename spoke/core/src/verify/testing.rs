//! Builders for tests: a command as the hub would make it, signed by a key that the bundle trusts.

use std::time::Duration;

use base64::Engine as _;
use ed25519_dalek::{Signer as _, SigningKey};
use gpuheal_proto::{
    command::{Command, DeadlineOutcome, Drain, Step, Target, Times, Undo},
    envelope::{COMMAND_TYPE, pae},
    fault::NodeRef,
    ids::{ClusterId, CommandId, FaultKey, IncidentId, NodeName, NodeUid, uuid_v7},
    link::v1,
    time::Timestamp,
};
use prost::Message as _;

use super::Trust;

/// Moment of the tests' start.
pub(crate) const T0: Timestamp = Timestamp::from_unix_ms(1_764_442_800_000);

pub(crate) fn mark() -> Step {
    Step::Mark { label: true, taint: true, cordon: false }
}

pub(crate) fn notify() -> Step {
    Step::Notify { message: "look".into() }
}

pub(crate) fn release_step() -> Step {
    Step::Release { undo: Undo::default(), overridden: false }
}

pub(crate) fn drain() -> Step {
    Step::Drain(Drain {
        grace_max: Duration::from_secs(60),
        deadline: Duration::from_secs(1800),
        on_deadline: DeadlineOutcome::Stop,
        allow_pdb_bypass: false,
        include_stateful: true,
    })
}

pub(crate) fn command(steps: Vec<Step>) -> Command {
    let after = |secs| T0.after(Duration::from_secs(secs));
    Command {
        id: CommandId::from_uuid(uuid_v7(T0, &[1; 32])),
        idempotency_key: "k".into(),
        audience: ClusterId::parse("c1").unwrap(),
        key_epoch: 2,
        hub_term: 3,
        cmd_seq: 1,
        plan_rev: 5,
        times: Times { created: T0, deliver_by: after(60), start_by: after(300), finish_by: after(2700), expires: after(3000) },
        incident: IncidentId::from_uuid(uuid_v7(T0, &[2; 32])),
        level: "P0".into(),
        reason: "xid 79 on 0000:5d:00".into(),
        policy_revision: 1,
        policy_digest: "d".into(),
        target: Target {
            node: NodeRef { name: NodeName::parse("n1").unwrap(), uid: NodeUid::parse("u1").unwrap(), boot_id: "b".into() },
            gpu: None,
        },
        fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).unwrap()],
        ignore_cooldown: false,
        others: Default::default(),
        steps,
    }
}

pub(crate) fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

pub(crate) fn trust_json(keys: &[[u8; 32]]) -> Vec<u8> {
    let keys: Vec<_> = keys
        .iter()
        .map(|key| serde_json::json!({"keyid": "k", "ed25519": base64::engine::general_purpose::STANDARD.encode(key)}))
        .collect();
    serde_json::json!({"version": 1, "trust_domain": "t", "key_epoch": 1, "command_keys": keys, "ca": []}).to_string().into_bytes()
}

pub(crate) fn trust() -> Trust {
    Trust::parse(&trust_json(&[key(1).verifying_key().to_bytes()])).unwrap()
}

pub(crate) fn seal(key: &SigningKey, payload_type: &str, payload: Vec<u8>) -> Vec<u8> {
    let sig = key.sign(&pae(payload_type, &payload)).to_bytes().to_vec();
    v1::Envelope {
        payload: payload.into(),
        payload_type: payload_type.into(),
        signatures: vec![v1::EnvelopeSignature { keyid: "whatever".into(), sig: sig.into() }],
    }
    .encode_to_vec()
}

pub(crate) fn signed(command: &Command) -> Vec<u8> {
    seal(&key(1), COMMAND_TYPE, v1::CommandBody::from(command).encode_to_vec())
}
