//! Frames that are small on the wire and large in memory, over a real stream.

use gpuheal_proto::{
    limits,
    link::v1::{self, attach_request::Message as Up, attach_response::Message},
};
use prost::Message as _;

use crate::{
    hub::Hub,
    replica::{Replica, hello, xid79},
};

#[tokio::test]
async fn a_frame_that_would_take_too_much_memory_ends_its_own_stream_and_no_other() {
    let hub = Hub::start_with_database().await;
    let (mut hostile, _) = Replica::attach(&hub, hello("beta", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let (mut honest, _) = Replica::attach(&hub, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    // Two bytes each on the wire, 56 in memory.
    let batch = v1::EvidenceBatch { items: vec![v1::Evidence::default(); limits::MESSAGE_BYTES_MAX / 4] };
    assert!(batch.encoded_len() < limits::MESSAGE_BYTES_MAX);
    hostile.send(Up::Evidence(batch)).await;
    // Had it been decoded, the hub would have said that it is over the limit of its kind.
    let said = hostile.next_of(|message| if let Message::Goaway(goaway) = message { Some(goaway.reason) } else { None }).await;
    assert_eq!(said, None);
    honest.send(Up::FaultBatch(v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![xid79(None)] })).await;
    let ack = honest.next_of(|message| if let Message::FaultAck(ack) = message { Some(ack) } else { None }).await;
    assert!(ack.is_some(), "others are served on");
}
