use std::fmt::Write as _;

use prost::Message;
use v1::{AttachRequest, attach_request::Message as Up, cluster_state::Body};

use super::*;

/// What tonic takes at most.
const WIRE: usize = limits::TRANSPORT_BYTES_MAX;

/// The heads of messages within each other, around `inner`.
fn within(fields: &[u32], inner: Vec<u8>) -> Vec<u8> {
    fields.iter().rev().fold(inner, |inner, field| {
        let mut outer = Vec::new();
        prost::encoding::encode_key(*field, WireType::LengthDelimited, &mut outer);
        prost::encoding::encode_varint(inner.len() as u64, &mut outer);
        outer.extend(inner);
        outer
    })
}

/// A frame as long as it may be, of nothing but empty elements of a list: by its way from the frame down.
fn hollow(way: &[u32]) -> Vec<u8> {
    let (list, outer) = way.split_last().unwrap();
    let element = within(&[*list], vec![]);
    within(outer, element.repeat((WIRE - 32) / element.len()))
}

/// Every list that a frame may hold, by its way down: field numbers, and its name.
fn lists(root: &str) -> Vec<(Vec<u32>, String)> {
    let all = messages();
    let (mut open, mut lists) = (vec![(root.to_owned(), vec![], root.to_owned())], vec![]);
    while let Some((name, way, path)) = open.pop() {
        let message = all.iter().find(|message| message.name() == name).unwrap();
        for field in &message.field {
            let inner = field.type_name().rsplit('.').next().unwrap().to_owned();
            let way = [way.as_slice(), &[field.number() as u32]].concat();
            let path = format!("{path}.{}", field.name());
            if field.label() == Label::Repeated {
                lists.push((way.clone(), path.clone()));
            }
            if field.r#type() == Type::Message && !message.nested_type.iter().any(|entry| entry.name() == inner) {
                open.push((inner, way, path));
            }
        }
    }
    lists
}

/// How many elements a frame has once decoded, and what they take, by the lists that matter.
fn taken(frame: &[u8]) -> usize {
    fn list<T>(list: &Vec<T>) -> usize {
        list.capacity() * size_of::<T>()
    }
    fn node(node: &v1::NodeState) -> usize {
        list(&node.gpus) + list(&node.gpu_pods) + list(&node.foreign_markers)
    }
    fn nodes(nodes: &Vec<v1::NodeState>) -> usize {
        list(nodes) + nodes.iter().map(node).sum::<usize>()
    }
    let config = |config: &Option<v1::ClusterConfig>| config.as_ref().map_or(0, |config| list(&config.errors));
    match AttachRequest::decode(frame).unwrap().message.unwrap() {
        Up::Hello(hello) => list(&hello.caps) + list(&hello.journals) + list(&hello.open_commands),
        Up::FaultBatch(batch) => list(&batch.faults),
        Up::ClusterState(state) => match state.body.unwrap() {
            Body::Snapshot(part) => nodes(&part.nodes) + list(&part.sources) + config(&part.config),
            Body::Delta(delta) => nodes(&delta.changed) + list(&delta.sources) + list(&delta.gone_uids) + config(&delta.config),
        },
        Up::Evidence(batch) => list(&batch.items),
        Up::CommandStatus(status) => {
            let pods: usize = status.steps.iter().map(|step| list(&step.pods)).sum();
            list(&status.steps) + pods + status.undo.map_or(0, |undo| list(&undo.fields))
        }
        Up::SettingsAck(ack) => list(&ack.errors),
        Up::Gap(_) | Up::Process(_) | Up::Heartbeat(_) => 0,
    }
}

#[test]
fn a_frame_of_nothing_but_empty_elements_is_refused_wherever_they_are_or_takes_what_it_may() {
    let (mut said, mut worst) = (String::new(), 0);
    for (way, name) in lists("AttachRequest") {
        let frame = hollow(&way);
        let would = taken(&frame);
        worst = worst.max(would);
        match decoded_bytes("AttachRequest", &frame) {
            Ok(bytes) => assert!(would <= bytes && bytes <= limits::DECODED_BYTES_MAX, "{name}: {would} of {bytes}"),
            Err(Error::TooLarge) => {}
            Err(other) => panic!("{name}: {other}"),
        }
        writeln!(said, "{:>6.1} MiB  {name}", would as f64 / f64::from(1 << 20)).unwrap();
    }
    println!("decoded from {WIRE} bytes of empty elements:\n{said}");
    assert!(worst > 10 * limits::DECODED_BYTES_MAX, "without the check it would be {worst}: then this is about nothing");
}

#[test]
fn the_answers_of_a_hub_are_held_to_the_same() {
    for (way, name) in lists("AttachResponse") {
        let outcome = decoded_bytes("AttachResponse", &hollow(&way));
        assert!(matches!(outcome, Err(Error::TooLarge)), "{name}: {outcome:?}");
    }
}

#[test]
fn what_is_said_is_never_less_than_what_is_taken() {
    for (way, name) in lists("AttachRequest") {
        for count in [1, 2, 3, 17, 1000] {
            let (list, outer) = way.split_last().unwrap();
            let frame = within(outer, within(&[*list], vec![]).repeat(count));
            let said = decoded_bytes("AttachRequest", &frame).unwrap();
            // A vector's first room is for four.
            let least_room = 4 * size_of::<v1::NodeState>();
            assert!(taken(&frame) <= said + least_room, "{name} {count}: {said}");
        }
    }
}

/// The fullest that a spoke may send: 500 nodes of 8 GPUs, 32 labels and 10 GPU pods each, cut to half a message.
#[test]
fn the_fullest_messages_of_a_real_cluster_pass() {
    let gpu = |at: u32| v1::GpuRef { slot: format!("0000:{at:02x}:00"), uuid: "GPU-".repeat(10), model: "NVIDIA H100".into() };
    let pod = |at: u32| v1::PodSummary {
        namespace: "team".into(),
        name: format!("worker-{at}"),
        uid: "u".repeat(36),
        owner: "Job/train".into(),
        gpus: 1,
    };
    let node = v1::NodeState {
        name: "gpu-node-0001".into(),
        uid: "u".repeat(36),
        labels: (0..32).map(|at| (format!("example.com/l{at}"), "a".to_owned())).collect(),
        gpus: (0..8).map(gpu).collect(),
        gpu_pods: (0..10).map(pod).collect(),
        ..Default::default()
    };
    let nodes = vec![node.clone(); (limits::MESSAGE_BYTES_MAX / 2 / node.encoded_len()).min(500)];
    let part = v1::SnapshotPart { part: 1, parts: 1, nodes, ..Default::default() };
    let state = v1::ClusterState { body: Some(Body::Snapshot(part)), ..Default::default() };
    let fault = v1::Fault { fault_key: "ab".repeat(32), detail: "d".repeat(512), ..Default::default() };
    let batch = v1::FaultBatch { faults: vec![fault; 256], ..Default::default() };
    let hello = v1::Hello { open_commands: vec!["u".repeat(36); 4096], ..Default::default() };
    for message in [Up::ClusterState(state), Up::FaultBatch(batch), Up::Hello(hello)] {
        let frame = AttachRequest { message: Some(message) }.encode_to_vec();
        let bytes = decoded_bytes("AttachRequest", &frame).unwrap();
        println!("{} bytes of wire, at most {bytes} decoded", frame.len());
        assert!(bytes < limits::DECODED_BYTES_MAX / 2, "{bytes}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused_and_what_is_of_a_later_version_is_passed_over() {
    let refused = |frame: &[u8]| check::<AttachRequest>(frame).is_err();
    assert!(refused(&[0x0a]) && refused(&[0x0a, 5, 0]), "torn");
    assert!(refused(&[0x0b, 0x0c]), "a group");
    assert!(refused(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), "a length beyond everything");
    let later = within(&[900], vec![0; WIRE - 32]);
    assert_eq!(decoded_bytes("AttachRequest", &later).unwrap(), 0);
    assert!(check::<AttachRequest>(&[]).is_ok());
}

#[test]
fn every_message_that_a_list_holds_is_listed_with_its_size() {
    for message in messages() {
        let entry = |name: &str| message.nested_type.iter().any(|entry| entry.name() == name);
        for field in message.field.iter().filter(|field| field.label() == Label::Repeated && field.r#type() == Type::Message) {
            let name = field.type_name().rsplit('.').next().unwrap();
            assert!(entry(name) || size_of_message(name).is_some(), "{}.{} of {name}", message.name(), field.name());
        }
    }
}
