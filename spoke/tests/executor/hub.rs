//! What a hub would send: commands and cancellations, signed by its key.

use std::time::Duration;

use base64::Engine as _;
use ed25519_dalek::{Signer as _, SigningKey};
use gpuheal_proto::{
    command::{Command, DeadlineOutcome, Drain, Step, Target, Times, Undo},
    envelope::{CANCEL_TYPE, COMMAND_TYPE, pae},
    fault::NodeRef,
    ids::{ClusterId, CommandId, FaultKey, IncidentId, NodeName, NodeUid, uuid_v7},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke::clock;
use gpuheal_spoke_core::verify::Trust;
use prost::Message as _;
use serde_json::{Value, json};

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

pub(crate) fn trust() -> Trust {
    Trust::parse(trust_json().as_bytes()).unwrap()
}

pub(crate) fn trust_json() -> String {
    let public = base64::engine::general_purpose::STANDARD.encode(key().verifying_key().to_bytes());
    let keys = json!([{"keyid": "k", "ed25519": public}]);
    json!({"version": 1, "trust_domain": "t", "key_epoch": 1, "command_keys": keys, "ca": []}).to_string()
}

fn seal(key: &SigningKey, payload_type: &str, payload: Vec<u8>) -> Vec<u8> {
    let sig = key.sign(&pae(payload_type, &payload)).to_bytes().to_vec();
    v1::Envelope {
        payload: payload.into(),
        payload_type: payload_type.into(),
        signatures: vec![v1::EnvelopeSignature { keyid: String::new(), sig: sig.into() }],
    }
    .encode_to_vec()
}

pub(crate) fn signed(command: &Command) -> Vec<u8> {
    seal(&key(), COMMAND_TYPE, v1::CommandBody::from(command).encode_to_vec())
}

pub(crate) fn forged(command: &Command) -> Vec<u8> {
    seal(&SigningKey::from_bytes(&[8; 32]), COMMAND_TYPE, v1::CommandBody::from(command).encode_to_vec())
}

pub(crate) fn cancel(id: CommandId) -> Vec<u8> {
    let body = v1::CancelBody {
        command_id: id.to_string(),
        audience: "c1".into(),
        hub_term: 1,
        reason: "approval withdrawn".into(),
        created_unix_ms: clock::wall().unix_ms(),
    };
    seal(&key(), CANCEL_TYPE, body.encode_to_vec())
}

pub(crate) fn mark() -> Step {
    Step::Mark { label: true, taint: true, cordon: true }
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

pub(crate) fn release(undo: Option<v1::UndoRecord>) -> Step {
    Step::Release { undo: undo.map(|undo| Undo::try_from(undo).unwrap()).unwrap_or_default(), overridden: false }
}

/// A command for `node` as the hub would make it now.
pub(crate) fn command(node: &Value, plan_rev: u64, steps: Vec<Step>) -> Command {
    let now = clock::wall();
    let after = |secs| now.after(Duration::from_secs(secs));
    let text = |field: &str| node["metadata"][field].as_str().unwrap();
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).unwrap();
    Command {
        id: CommandId::from_uuid(uuid_v7(now, &seed)),
        idempotency_key: "k".into(),
        audience: ClusterId::parse("c1").unwrap(),
        key_epoch: 1,
        hub_term: 1,
        cmd_seq: plan_rev,
        plan_rev,
        times: Times { created: now, deliver_by: after(60), start_by: after(300), finish_by: after(2700), expires: after(3000) },
        incident: IncidentId::from_uuid(uuid_v7(Timestamp::from_unix_ms(1), &[2; 32])),
        level: "P0".into(),
        reason: "xid 79 on GPU 0000:5d:00: the GPU has fallen off the bus".into(),
        policy_revision: 1,
        policy_digest: "d".into(),
        target: Target {
            node: NodeRef {
                name: NodeName::parse(text("name")).unwrap(),
                uid: NodeUid::parse(text("uid")).unwrap(),
                boot_id: String::new(),
            },
            gpu: None,
        },
        fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).unwrap()],
        ignore_cooldown: false,
        others: Default::default(),
        steps,
    }
}
