//! Any bytes as the payload of a command that the hub did sign: what a newer or a broken hub may say. Proves: a command that is
//! read is the same after it was written and read again, with its moments in order and its steps within the limit; signed, it
//! verifies as that very command and starts neither without the hub's time, nor too late, nor without the Lease, nor on another
//! node; and under a ceiling that says stop nothing but a release is admitted.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    command::{Command, Refusal},
    envelope::COMMAND_TYPE,
    limits,
    link::v1,
    time::Timestamp,
    words::Action,
};
use gpuheal_spoke_core::{
    ceiling::{Ceiling, Config, Out},
    mark::NodeFacts,
    verify::{Envelope, Fence, Held, HubNow, Known, Live, STEP_MARGIN, Standing},
};
use prost::Message as _;

use crate::{
    believable::cluster,
    signed::{SIGNED, TRUST, trusted},
};

/// Below the limit of an envelope by what frames the payload.
const PAYLOAD_BYTES_MAX: usize = limits::ENVELOPE_BYTES_MAX - 512;

pub(crate) fn run(payload: &[u8]) {
    let Ok(body) = v1::CommandBody::decode(payload) else { return };
    let Ok(command) = Command::try_from(body) else { return };
    assert!((1..=limits::STEPS_MAX).contains(&command.steps.len()), "steps within the limit");
    let times = command.times;
    let order = [times.created, times.deliver_by, times.start_by, times.finish_by, times.expires];
    assert!(order.is_sorted(), "moments in order: {order:?}");
    let written = v1::CommandBody::from(&command).encode_to_vec();
    let read = v1::CommandBody::decode(written.as_slice()).expect("what was encoded decodes");
    assert_eq!(Command::try_from(read).as_ref(), Ok(&command), "what was read is written as it was");
    if command.audience == cluster() && payload.len() <= PAYLOAD_BYTES_MAX {
        verified(payload, &command);
    }
}

/// The way of a signed command to where it may be executed.
fn verified(payload: &[u8], command: &Command) {
    let envelope = Envelope::received(trusted(COMMAND_TYPE, payload));
    let authentic = envelope.authenticate(&TRUST, &cluster()).expect("it was signed and read before");
    assert_eq!(authentic.command(), command, "the command that was signed");
    let (times, fence) = (command.times, Fence::default());
    let held = |at: Timestamp| Held { known: Known::No, fence, now: Some(HubNow { at, uncertainty: Duration::ZERO }) };
    assert!(authentic.clone().timely(&Held { now: None, ..held(times.created) }).is_err(), "the hub's time is not known");
    if let Ok(late) = authentic.clone().timely(&held(times.start_by.after(Duration::from_millis(1)))) {
        assert_eq!(times.start_by.unix_ms(), i64::MAX, "too late: {:?}", late.command());
    }
    let Ok(timely) = authentic.timely(&held(times.start_by)) else { panic!("in time, and under no fence") };
    let node = NodeFacts {
        name: command.target.node.name.to_string(),
        uid: command.target.node.uid.to_string(),
        resource_version: "1".into(),
        ready: true,
        ..NodeFacts::default()
    };
    let other = NodeFacts { uid: format!("{}x", node.uid), ..node.clone() };
    let standing: BTreeMap<_, _> = command.fault_keys.iter().map(|key| (*key, Standing::Present)).collect();
    let (open, stop) = (Config::default(), Config { ceiling: Ceiling { stop: true, ..Ceiling::default() }, ..Config::default() });
    let out = Out { others: 0, gpu_nodes: 8, target: false };
    let live = Live {
        node: Some(&node),
        standing: &standing,
        margin: Some(STEP_MARGIN),
        config: &open,
        out,
        at_work: None,
        now: times.start_by,
    };
    assert!(timely.clone().admit(&Live { margin: None, ..live.clone() }).is_err(), "without the Lease");
    assert!(timely.clone().admit(&Live { node: None, ..live.clone() }).is_err(), "on no node");
    let elsewhere = timely.clone().admit(&Live { node: Some(&other), ..live.clone() });
    assert_eq!(elsewhere.err().map(|refused| refused.refusal), Some(Refusal::NodeGone), "on another machine");
    if let Ok(stopped) = timely.clone().admit(&Live { config: &stop, ..live.clone() }) {
        assert_eq!(stopped.command().action(), Action::Release, "the cluster said stop");
    }
    match timely.admit(&live) {
        Ok(verified) => assert_eq!(verified.command(), command, "what is executed is what was signed"),
        Err(refused) => assert!(refused.reason.len() <= limits::REASON_BYTES_MAX && !refused.reason.is_empty()),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    SIGNED.iter().filter(|signed| signed.payload_type == COMMAND_TYPE).map(|signed| signed.payload.clone()).collect()
}
