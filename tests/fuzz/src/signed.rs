//! Everything that was ever signed, in the world of the targets: two clusters' commands, a cancellation and settings, by the one
//! key that is trusted; and the same by one that is not.

use std::{sync::LazyLock, time::Duration};

use base64::Engine as _;
use ed25519_dalek::{Signer as _, SigningKey};
use gpuheal_proto::{
    command::{Command, DeadlineOutcome, Drain, Step, Target, Times, Undo, UndoField, UndoKind},
    envelope::{CANCEL_TYPE, COMMAND_TYPE, SETTINGS_TYPE, pae},
    fault::GpuRef,
    ids::{ClusterId, CommandId, FaultKey, GpuSlot, IncidentId, uuid_v7},
    link::v1,
};
use gpuheal_spoke_core::verify::Trust;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{
    believable::{START, node},
    spoke::settings::Keys,
};

/// One envelope that was signed.
pub(crate) struct Signed {
    pub(crate) payload_type: &'static str,
    pub(crate) payload: Vec<u8>,
    /// By the trusted key.
    pub(crate) trusted: Vec<u8>,
    /// The same by a stranger's.
    pub(crate) strange: Vec<u8>,
}

/// What was signed, each with its type.
static PAYLOADS: LazyLock<Vec<(&'static str, Vec<u8>)>> = LazyLock::new(|| {
    let commands = commands().into_iter().map(|command| (COMMAND_TYPE, v1::CommandBody::from(&command).encode_to_vec()));
    let cancel = v1::CancelBody {
        command_id: command(Vec::new()).id.to_string(),
        audience: "c1".into(),
        hub_term: 3,
        reason: "a person said so".into(),
        created_unix_ms: START.unix_ms(),
    };
    let settings = v1::DetectionSettings { version: 3, scrape_interval_ms: 5_000, ..Default::default() };
    commands.chain([(CANCEL_TYPE, cancel.encode_to_vec()), (SETTINGS_TYPE, settings.encode_to_vec())]).collect()
});

/// All that was signed.
pub(crate) static SIGNED: LazyLock<Vec<Signed>> = LazyLock::new(|| {
    let signed = |(payload_type, payload): &(&'static str, Vec<u8>)| Signed {
        trusted: seal(&TRUSTED, payload_type, payload),
        strange: seal(&STRANGE, payload_type, payload),
        payload_type,
        payload: payload.clone(),
    };
    PAYLOADS.iter().map(signed).collect()
});

/// The key that is trusted: one of these payloads alone. What an earlier version had signed stays in the corpus that the fuzzer
/// learned then, and would else be believed and be none of them.
static TRUSTED: LazyLock<SigningKey> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (payload_type, payload) in PAYLOADS.iter() {
        hash.update(pae(payload_type, payload));
    }
    SigningKey::from_bytes(&hash.finalize().into())
});

static STRANGE: LazyLock<SigningKey> = LazyLock::new(|| SigningKey::from_bytes(&[9; 32]));

/// The bundle that trusts one key.
pub(crate) static TRUST: LazyLock<Trust> = LazyLock::new(|| {
    let key = base64::engine::general_purpose::STANDARD.encode(TRUSTED.verifying_key().to_bytes());
    let json =
        serde_json::json!({"version": 1, "trust_domain": "t", "key_epoch": 1, "command_keys": [{"keyid": "k", "ed25519": key}]});
    Trust::parse(json.to_string().as_bytes()).expect("it is a bundle")
});

/// The same for settings.
pub(crate) static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::of(vec![TRUSTED.verifying_key()]));

/// Signs a payload with the trusted key.
pub(crate) fn trusted(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    seal(&TRUSTED, payload_type, payload)
}

fn seal(key: &SigningKey, payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let sig = key.sign(&pae(payload_type, payload)).to_bytes().to_vec();
    v1::Envelope {
        payload: payload.to_vec().into(),
        payload_type: payload_type.into(),
        signatures: vec![v1::EnvelopeSignature { keyid: "k".into(), sig: sig.into() }],
    }
    .encode_to_vec()
}

/// A command of each kind, the last for another cluster.
pub(crate) fn commands() -> Vec<Command> {
    let mark = || Step::Mark { label: true, taint: true, cordon: true };
    let drain = Drain {
        grace_max: Duration::from_secs(60),
        deadline: Duration::from_secs(1800),
        on_deadline: DeadlineOutcome::Stop,
        allow_pdb_bypass: false,
        include_stateful: true,
    };
    let undo = UndoField {
        kind: UndoKind::Label,
        key: "gpu-selfhealing.io/status".into(),
        before: String::new(),
        after: "\"faulty\"".into(),
        resource_version: "7".into(),
    };
    vec![
        command(vec![Step::Notify { message: "look at it".into() }]),
        command(vec![mark(), Step::Drain(drain), Step::RestartWorkload { owners: vec!["deployment/a/b".into()] }]),
        command(vec![Step::Release { undo: Undo { fields: vec![undo] }, overridden: true }]),
        Command { audience: ClusterId::parse("c2").expect("it is a DNS label"), ..command(vec![mark()]) },
    ]
}

fn command(steps: Vec<Step>) -> Command {
    let after = |secs| START.after(Duration::from_secs(secs));
    Command {
        id: CommandId::from_uuid(uuid_v7(START, &[1; 32])),
        idempotency_key: "k".into(),
        audience: crate::believable::cluster(),
        key_epoch: 2,
        hub_term: 3,
        cmd_seq: 1,
        plan_rev: 5,
        times: Times { created: START, deliver_by: after(60), start_by: after(300), finish_by: after(2700), expires: after(3000) },
        incident: IncidentId::from_uuid(uuid_v7(START, &[2; 32])),
        level: "P0".into(),
        reason: "xid 79 on 0000:5d:00".into(),
        policy_revision: 1,
        policy_digest: "d".into(),
        target: Target {
            node: node(),
            gpu: Some(GpuRef { slot: GpuSlot::parse("0000:5d:00").ok(), uuid: None, model: "H100".into() }),
        },
        fault_keys: vec![FaultKey::parse(&"ab".repeat(32)).expect("64 hex digits")],
        ignore_cooldown: false,
        others: Default::default(),
        steps,
    }
}
