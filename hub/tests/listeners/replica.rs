//! A spoke replica as far as the link sees one.

use std::time::Duration;

use gpuheal_proto::{
    ids::{FaultKey, GpuPlace, GpuSlot, NodeUid},
    link::v1::{
        AttachRequest, AttachResponse, Fault, FaultClass, GpuRef, Heartbeat, Hello, JournalHead, NodeRef, Onset, Reject, Welcome,
        Witness, attach_request, attach_response::Message, link_service_client::LinkServiceClient,
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use crate::hub::{Hub, cluster};

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Replica {
    up: mpsc::Sender<AttachRequest>,
    down: Streaming<AttachResponse>,
}

pub(crate) fn hello(cluster: &str, replica: &str, lease: Option<u64>) -> Hello {
    Hello {
        cluster_id: cluster.into(),
        kube_system_uid: format!("uid-of-{cluster}"),
        replica_id: replica.into(),
        boot_id: "boot".into(),
        version: "0.1.0".into(),
        journals: vec![JournalHead { stream_id: format!("stream-of-{replica}"), next_seq: 1 }],
        lease_transitions: lease,
        ..Hello::default()
    }
}

/// Xid 79 of node n1 by a decoded kernel line, which stands alone.
pub(crate) fn xid79(gpu: Option<GpuRef>) -> Fault {
    let slot = gpu.as_ref().and_then(|gpu| GpuSlot::normalise(&gpu.slot)).map(GpuPlace::Slot);
    Fault {
        fault_key: FaultKey::derive(&cluster("alpha"), &NodeUid::parse("uid-1").unwrap(), slot.as_ref(), "xid", "79").to_string(),
        node: Some(NodeRef { name: "n1".into(), uid: "uid-1".into(), boot_id: "boot".into() }),
        gpu,
        class: FaultClass::Xid.into(),
        code: "79".into(),
        onset: Onset::Edge.into(),
        witness: Witness::KernelLine.into(),
        count: 1,
        source: "test".into(),
        ..Default::default()
    }
}

/// Faults and states come up on tracks of their own: an ack of the one says nothing of the other.
pub(crate) async fn inventory_kept(hub: &Hub) {
    let kept = async {
        while sqlx::query_scalar::<_, i64>("SELECT count(*) FROM nodes").fetch_one(&hub.pool).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, kept).await.expect("the inventory is kept");
}

impl Replica {
    /// Sends the Hello and takes the answer.
    pub(crate) async fn attach(hub: &Hub, hello: Hello) -> Result<(Self, Welcome), Reject> {
        let channel = hub.channel(hub.link, Some(&hub.spoke(&hello.cluster_id)));
        Self::attach_over(channel, hello).await.expect("a hub that answers")
    }

    /// The same over a channel of one's own, which the hub may refuse.
    pub(crate) async fn attach_over(channel: Channel, hello: Hello) -> Result<Result<(Self, Welcome), Reject>, Status> {
        let (up, messages) = mpsc::channel(16);
        up.send(AttachRequest { message: Some(attach_request::Message::Hello(hello)) }).await.unwrap();
        let down = LinkServiceClient::new(channel).attach(ReceiverStream::new(messages)).await?.into_inner();
        let mut replica = Self { up, down };
        match replica.next().await.expect("the first answer") {
            Message::Welcome(welcome) => Ok(Ok((replica, welcome))),
            Message::Reject(reject) => Ok(Err(reject)),
            other => panic!("neither welcome nor reject: {other:?}"),
        }
    }

    pub(crate) async fn send(&self, message: attach_request::Message) {
        self.up.send(AttachRequest { message: Some(message) }).await.unwrap();
    }

    /// Says every few seconds that it leads and lives, for as long as its stream is open.
    pub(crate) fn beat(&self, lease: u64) {
        let up = self.up.clone();
        tokio::spawn(async move {
            let beat = Heartbeat { lease_transitions: Some(lease), ..Heartbeat::default() };
            let beat = AttachRequest { message: Some(attach_request::Message::Heartbeat(beat)) };
            while up.send(beat.clone()).await.is_ok() {
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
        });
    }

    /// Sends although the stream may be over already.
    pub(crate) async fn try_send(&self, message: attach_request::Message) {
        let _ = self.up.send(AttachRequest { message: Some(message) }).await;
    }

    /// The next message down; nothing when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(PATIENCE, self.down.message()).await.expect("a message or the end within two minutes");
        next.ok().flatten().map(|response| response.message.expect("a message of a kind that we know"))
    }

    /// The next message down that `pick` wants; others are passed over.
    pub(crate) async fn next_of<T>(&mut self, pick: impl Fn(Message) -> Option<T>) -> Option<T> {
        while let Some(message) = self.next().await {
            if let Some(picked) = pick(message) {
                return Some(picked);
            }
        }
        None
    }

    /// The bytes of the next command.
    pub(crate) async fn command(&mut self) -> Vec<u8> {
        let command =
            self.next_of(|message| if let Message::Command(command) = message { Some(command.envelope.to_vec()) } else { None });
        command.await.expect("a command before the stream ends")
    }
}
