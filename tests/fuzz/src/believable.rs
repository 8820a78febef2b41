//! What must hold of faults and of what is remembered, whatever text they came from: the promise that parsers, detectors and the
//! wire keep together.

use gpuheal_proto::{
    fault::{Fault, NodeRef},
    ids::{ClusterId, NodeName, NodeUid},
    link::v1,
    time::Timestamp,
};
use gpuheal_spoke_core::derive::{Held, Outcome};
use prost::Message as _;

/// A moment to begin at.
pub(crate) const START: Timestamp = Timestamp::from_unix_ms(1_764_442_800_000);

/// The cluster of every target.
pub(crate) fn cluster() -> ClusterId {
    ClusterId::parse("c1").expect("it is a DNS label")
}

/// The node of every target.
pub(crate) fn node() -> NodeRef {
    let name = NodeName::parse("gpu-node-1").expect("it is visible ASCII");
    NodeRef { name, uid: NodeUid::parse("uid-1").expect("it is visible ASCII"), boot_id: "boot-1".to_owned() }
}

/// Each fault is one that the hub takes as it was meant: under the key that it derives itself, within every limit. One that the
/// hub had to set aside would be a fault that nobody heals.
///
/// # Panics
/// When one is not.
pub(crate) fn assert_believed(out: &Outcome) {
    for fault in &out.faults {
        assert_eq!(fault.key, fault.derived_key(&cluster()), "the hub derives another key: {fault:?}");
        let sent = v1::Fault::from(fault);
        let came = v1::Fault::decode(sent.encode_to_vec().as_slice()).expect("what was encoded decodes");
        match Fault::try_from(came) {
            Ok(read) => assert_eq!(v1::Fault::from(&read), sent, "the hub reads something else than was meant"),
            Err(error) => panic!("the hub sets it aside: {error}: {fault:?}"),
        }
    }
}

/// What is remembered of the node comes back as it was, from the bytes that the journal holds.
///
/// # Panics
/// When it does not.
pub(crate) fn assert_remembered(held: &Held) {
    let uid = node().uid;
    let bytes = held.node_bytes(&uid);
    if bytes.is_empty() {
        return;
    }
    let mut restored = Held::new(cluster());
    restored.restore(&bytes).expect("what was held can be taken up again");
    assert!(restored.node_bytes(&uid) == bytes, "what was taken up is what was held");
    assert_eq!(restored.evidence(), held.evidence());
}
