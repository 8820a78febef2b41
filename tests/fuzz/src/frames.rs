//! Any bytes as a frame of the link, up and down. Proves: a frame that decodes is the same after it was encoded and decoded again, and
//! what it takes in memory could be reckoned before;
//! a Hello that is understood speaks for its certificate's cluster and keeps every limit; a fault that is believed keeps every
//! limit, has only finite numbers and is the same on its way back; what the hub's stages are given holds no zero byte, which Postgres could not hold; and what comes down signed is believed only if it was.

use gpuheal_proto::{
    bytes_text::clip,
    fault::Fault,
    frame::{self, Frame},
    limits,
    link::v1::{self, attach_request::Message as Up, attach_response::Message as Down},
};
use prost::Message as _;

use crate::{
    believable::{START, cluster},
    envelopes,
    hub::{fit, link::hello::Hello},
    signed::SIGNED,
};

pub(crate) fn run(frame: &[u8]) {
    if let Some(request) = same_again::<v1::AttachRequest>(frame)
        && let Some(message) = request.message
    {
        up(message);
    }
    if let Some(response) = same_again::<v1::AttachResponse>(frame)
        && let Some(message) = response.message
    {
        down(&message);
    }
}

/// Encoded again it decodes to the same; compared as bytes, since a NaN is not equal to itself.
fn same_again<M: prost::Message + Default + Frame>(bytes: &[u8]) -> Option<M> {
    let read = M::decode(bytes).ok()?;
    match frame::check::<M>(bytes) {
        Ok(()) | Err(frame::Error::TooLarge | frame::Error::Group) => {}
        Err(other) => panic!("it decodes, and yet: {other}"),
    }
    let written = read.encode_to_vec();
    let again = M::decode(written.as_slice()).expect("what was encoded decodes");
    assert!(again.encode_to_vec() == written, "what was decoded is encoded as it was");
    Some(read)
}

fn up(message: Up) {
    let (kind, left) = match &message {
        Up::Hello(hello) => {
            greeted(hello.clone());
            ("hello", false)
        }
        Up::FaultBatch(batch) => {
            batch.faults.iter().cloned().for_each(believed);
            ("fault_batch", true)
        }
        Up::Process(_) => ("process", true),
        Up::CommandStatus(_) | Up::Gap(_) | Up::ClusterState(_) | Up::Evidence(_) | Up::SettingsAck(_) | Up::Heartbeat(_) => {
            ("other", false)
        }
    };
    let fitted = fit::fitted(&cluster(), kind, message);
    assert!(left || !holds_zero_byte(&format!("{fitted:?}")), "a zero byte is left: {fitted:?}");
}

fn greeted(hello: v1::Hello) {
    let Ok(read) = Hello::read(hello.clone(), &cluster(), std::time::Instant::now()) else { return };
    assert_eq!((read.cluster.as_str(), hello.cluster_id.as_str()), ("c1", "c1"), "for its own cluster");
    assert!((1..=64).contains(&read.kube_system_uid.len()) && (1..=64).contains(&read.boot_id.len()));
    assert!(read.version.len() <= 64 && read.caps.len() <= 64 && read.caps.iter().all(|cap| cap.len() <= 64));
    assert!(read.journals.len() <= 8 && read.journals.iter().all(|journal| (1..=253).contains(&journal.stream.as_str().len())));
}

fn believed(sent: v1::Fault) {
    let Ok(fault) = Fault::try_from(sent.clone()) else { return };
    assert!(fault.value.is_finite() && fault.threshold.is_finite());
    let texts = [
        (&fault.code, limits::CODE_BYTES_MAX),
        (&fault.source, limits::SOURCE_BYTES_MAX),
        (&fault.detail, limits::DETAIL_BYTES_MAX),
        (&fault.workload, limits::DETAIL_BYTES_MAX),
    ];
    assert!(texts.iter().all(|(text, bytes_max)| text.len() <= *bytes_max && !text.contains('\0')), "{fault:?}");
    let back = v1::Fault::from(&fault);
    assert_eq!(Fault::try_from(back.clone()).as_ref(), Ok(&fault), "the way back");
    assert_eq!((&back.code, &back.source, &back.detail), (&sent.code, &sent.source, &sent.detail), "no text is changed");
    let stored = serde_json::to_string(&fault).expect("a fault is plain data");
    assert_eq!(serde_json::from_str::<Fault>(&stored).ok().as_ref(), Some(&fault), "as stored");
}

fn down(message: &Down) {
    match message {
        Down::Command(command) => envelopes::run(&command.envelope),
        Down::Cancel(cancel) => envelopes::run(&cancel.envelope),
        Down::Settings(settings) => envelopes::run(&settings.envelope),
        Down::Welcome(_)
        | Down::Reject(_)
        | Down::FaultAck(_)
        | Down::StatusAck(_)
        | Down::Resync(_)
        | Down::ProcessResult(_)
        | Down::Verdict(_)
        | Down::Heartbeat(_)
        | Down::Throttle(_)
        | Down::Goaway(_) => {}
    }
}

/// Whether what `Debug` wrote shows a zero byte, and not a backslash before a nought.
fn holds_zero_byte(shown: &str) -> bool {
    let mut rest = shown;
    while let Some(at) = rest.find('\\') {
        match rest.as_bytes().get(at + 1) {
            Some(b'0') => return true,
            Some(_) => rest = rest.get(at + 2..).unwrap_or_default(),
            None => return false,
        }
    }
    false
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let up = ups().into_iter().map(|message| v1::AttachRequest { message: Some(message) }.encode_to_vec());
    up.chain(downs().into_iter().map(|message| v1::AttachResponse { message: Some(message) }.encode_to_vec())).collect()
}

fn wire_fault() -> v1::Fault {
    v1::Fault {
        fault_key: "ab".repeat(32),
        node: Some(v1::NodeRef { name: "gpu-node-1".into(), uid: "uid-1".into(), boot_id: "b".into() }),
        gpu: Some(v1::GpuRef { slot: "0000:5d:00".into(), uuid: "GPU-1".into(), model: "H100".into() }),
        class: 1,
        code: "79".into(),
        onset: 1,
        witness: 1,
        observed_unix_ms: START.unix_ms(),
        value: 79.0,
        threshold: 85.5,
        count: 2,
        source: "exporter 10.0.3.7:9400".into(),
        detail: "seen".into(),
        workload: "ns/pod".into(),
    }
}

fn undo() -> v1::UndoRecord {
    let field = v1::UndoField { kind: 1, key: "k".into(), before: "1".into(), after: "2".into(), resource_version: "7".into() };
    v1::UndoRecord { fields: vec![field] }
}

fn ups() -> Vec<Up> {
    let node = v1::NodeState {
        name: "gpu-node-1".into(),
        uid: "uid-1".into(),
        boot_id: "b".into(),
        labels: [("pool".to_owned(), "a".to_owned())].into(),
        gpus: vec![v1::GpuRef { slot: "0000:5d:00".into(), ..Default::default() }],
        ..Default::default()
    };
    let part = v1::SnapshotPart { nodes: vec![node.clone()], ..Default::default() };
    let delta = v1::StateDelta { changed: vec![node], gone_uids: vec!["u2".into()], ..Default::default() };
    let state = |body| v1::ClusterState {
        lease_transitions: 2,
        seq: 4,
        as_of_unix_ms: START.unix_ms(),
        told_upto_unix_ms: START.unix_ms(),
        all_told_term: 1,
        body: Some(body),
    };
    let pod =
        v1::PodStatus { namespace: "a".into(), name: "p".into(), uid: "u".into(), state: "gone".into(), ..Default::default() };
    let step = v1::StepStatus { name: "drain".into(), state: 3, message: "done".into(), pods: vec![pod], ..Default::default() };
    vec![
        Up::Hello(v1::Hello {
            cluster_id: "c1".into(),
            kube_system_uid: "uid".into(),
            replica_id: "spoke-0".into(),
            boot_id: "b".into(),
            version: clip(env!("CARGO_PKG_VERSION"), 64).into(),
            caps: vec!["verdicts".into()],
            journals: vec![v1::JournalHead { stream_id: "s".into(), next_seq: 4 }],
            lease_transitions: Some(2),
            ..Default::default()
        }),
        Up::FaultBatch(v1::FaultBatch { stream_id: "s".into(), first_seq: 1, faults: vec![wire_fault(), wire_fault()] }),
        Up::Gap(v1::Gap {
            stream_id: "s".into(),
            from_seq: 3,
            to_seq: 9,
            reason: "the journal was full".into(),
            counts_by_class: [("xid".to_owned(), 7)].into(),
        }),
        Up::ClusterState(state(v1::cluster_state::Body::Snapshot(part))),
        Up::ClusterState(state(v1::cluster_state::Body::Delta(delta))),
        Up::Evidence(v1::EvidenceBatch {
            items: vec![v1::Evidence { fault_key: "ab".repeat(32), state: 1, count: 3, ..Default::default() }],
        }),
        Up::Process(v1::Process { request_id: "r".into(), node: "gpu-node-1".into(), action: 1, ..Default::default() }),
        Up::CommandStatus(v1::CommandStatus {
            command_id: "019acf9c-4b00-7101-8101-010101010101".into(),
            status_seq: 3,
            state: 3,
            reason: "done".into(),
            steps: vec![step],
            undo: Some(undo()),
            lease_transitions: 2,
            at_unix_ms: START.unix_ms(),
            ..Default::default()
        }),
        Up::SettingsAck(v1::SettingsAck { version: 3, errors: vec!["scrape_interval: too short".into()] }),
        Up::Heartbeat(v1::Heartbeat { n: 1, ..Default::default() }),
    ]
}

fn downs() -> Vec<Down> {
    let envelope = |at: usize| SIGNED[at].trusted.clone().into();
    vec![
        Down::Welcome(v1::Welcome {
            session_generation: 3,
            hub_term: 2,
            resume: vec![v1::ResumePoint { stream_id: "s".into(), from_seq: 4 }],
            credit: 1024,
            heartbeat_ms: 15_000,
            server_time_unix_ms: START.unix_ms(),
            lease_transitions_known: 2,
        }),
        Down::Command(v1::Command { envelope: envelope(1) }),
        Down::Cancel(v1::Cancel { envelope: envelope(4) }),
        Down::Settings(v1::Settings { version: 3, digest: "d".into(), envelope: envelope(5) }),
        Down::FaultAck(v1::FaultAck { stream_id: "s".into(), persisted_upto: 9, credit: 1024, resume: true }),
        Down::Verdict(v1::Verdict { node: "n".into(), fault_key: "ab".repeat(32), outcome: "acted".into(), reason: "r".into() }),
        Down::Goaway(v1::Goaway { reconnect_after_ms: 300, ..Default::default() }),
    ]
}
