//! A spoke that has nothing behind it: attaches over mutual TLS as the shipping one does, and keeps its rules for time. No
//! journal, no cluster and no executor, so that thousands of them fit beside the hub that they measure.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use gpuheal_proto::{
    limits,
    link::v1::{
        self, AttachRequest, AttachResponse, Heartbeat, Hello, Welcome, attach_request::Message as Up,
        attach_response::Message as Down, link_service_client::LinkServiceClient,
    },
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{
    Streaming,
    transport::{Certificate, ClientTlsConfig, Endpoint, Identity},
};

/// TCP, TLS and HTTP/2 together, as the shipping spoke has it.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// From Hello to Welcome, as the shipping spoke has it.
const WELCOME_WITHIN: Duration = Duration::from_secs(20);
/// HTTP/2 pings, as the shipping spoke has them.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// GPUs of each node that is spoken of.
const GPUS: u32 = 8;
/// Their model.
const MODEL: &str = "NVIDIA H100 80GB HBM3";

/// A replica of a cluster.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    /// Its cluster.
    pub(super) cluster: String,
    /// Its own name.
    pub(super) name: String,
    /// It leads its cluster.
    pub(super) leads: bool,
    /// GPU nodes of the cluster.
    pub(super) nodes: usize,
    tls: ClientTlsConfig,
}

impl Replica {
    /// Reads the cluster's certificate from `identity`.
    pub(super) fn load(identity: &Path, cluster: &str, name: &str, leads: bool, nodes: usize) -> Result<Self> {
        anyhow::ensure!(nodes <= limits::SNAPSHOT_NODES_MAX, "{nodes} nodes do not fit one part of a snapshot");
        let read = |name: &str| std::fs::read(identity.join(name)).with_context(|| format!("{name} of cluster {cluster}"));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read("ca.crt")?))
            .identity(Identity::from_pem(read("tls.crt")?, read("tls.key")?));
        Ok(Self { cluster: cluster.to_owned(), name: name.to_owned(), leads, nodes, tls })
    }

    /// What it says first.
    pub(super) fn hello(&self, streams: &[String]) -> Hello {
        Hello {
            cluster_id: self.cluster.clone(),
            kube_system_uid: format!("kube-system-of-{}", self.cluster),
            replica_id: self.name.clone(),
            boot_id: format!("boot-of-{}", self.name),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            journals: streams.iter().map(|id| v1::JournalHead { stream_id: id.clone(), next_seq: 1 }).collect(),
            wall_unix_ms: now_ms(),
            lease_transitions: self.lease(),
            ..Hello::default()
        }
    }

    /// Its proof of leadership, when it leads.
    pub(super) fn lease(&self) -> Option<u64> {
        self.leads.then_some(1)
    }

    /// The cluster's nodes, all of them well, for a hub that asked for all under this epoch: there is nothing else.
    pub(super) fn snapshot(&self, asked_term: u64) -> AttachRequest {
        let nodes = (0..self.nodes).map(|n| {
            let node = node(&self.cluster, n);
            v1::NodeState {
                name: node.name,
                uid: node.uid,
                boot_id: node.boot_id,
                created_unix_ms: 1_700_000_000_000,
                gpus: (0..GPUS).map(|gpu| gpu_of(&self.cluster, n, gpu)).collect(),
                capacity_gpus: GPUS,
                allocatable_gpus: GPUS,
                ready: v1::Readiness::Ready.into(),
                ..v1::NodeState::default()
            }
        });
        let part = v1::SnapshotPart { part: 1, parts: 1, nodes: nodes.collect(), ..v1::SnapshotPart::default() };
        request(Up::ClusterState(v1::ClusterState {
            lease_transitions: self.lease().unwrap_or_default(),
            seq: 1,
            as_of_unix_ms: now_ms(),
            told_upto_unix_ms: 0,
            all_told_term: asked_term,
            body: Some(v1::cluster_state::Body::Snapshot(part)),
        }))
    }

    /// Attaches to the hub at `address`. The configuration is made anew each time, so that no TLS session is resumed: the
    /// shipping spoke resumes none either.
    pub(super) async fn attach(&self, address: &str, streams: &[String]) -> Result<Link, End> {
        let failed = |error: &dyn std::fmt::Display| End::Failed(anyhow!("{error}"));
        let endpoint = Endpoint::from_shared(format!("https://{address}"))
            .and_then(|endpoint| endpoint.tls_config(self.tls.clone()))
            .map_err(|error| failed(&error))?
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let channel = timeout(CONNECT_WITHIN, endpoint.connect()).await.map_err(|late| failed(&late))?;
        let mut client = LinkServiceClient::new(channel.map_err(|error| failed(&error))?)
            .max_decoding_message_size(limits::TRANSPORT_BYTES_MAX)
            .max_encoding_message_size(limits::TRANSPORT_BYTES_MAX);
        // Not bounded: what may be on its way is bounded by the credit that the hub gives.
        let (up, mut outgoing) = mpsc::unbounded_channel();
        let outgoing = futures::stream::poll_fn(move |context| outgoing.poll_recv(context));
        let _open = up.send(request(Up::Hello(self.hello(streams))));
        let first = async {
            let mut down = client.attach(outgoing).await?.into_inner();
            let first = down.message().await?;
            Ok::<_, tonic::Status>((down, first))
        };
        let (down, first) =
            timeout(WELCOME_WITHIN, first).await.map_err(|late| failed(&late))?.map_err(|status| failed(&status))?;
        match first.and_then(|first| first.message) {
            Some(Down::Welcome(welcome)) => Ok(Link { up, down, welcome }),
            Some(Down::Reject(reject)) => Err(End::Rejected(Duration::from_millis(reject.retry_after_ms.into()))),
            other => Err(End::Failed(anyhow!("the first message down was {other:?}"))),
        }
    }
}

/// An attached session.
pub(super) struct Link {
    pub(super) up: mpsc::UnboundedSender<AttachRequest>,
    pub(super) down: Streaming<AttachResponse>,
    pub(super) welcome: Welcome,
}

impl Link {
    /// How often the hub wants to hear of us.
    pub(super) fn heartbeat(&self) -> Duration {
        match self.welcome.heartbeat_ms {
            0 => limits::HEARTBEAT,
            ms => Duration::from_millis(ms.into()).min(limits::HEARTBEAT),
        }
    }
}

/// How a session ended, or why there was none.
#[derive(Debug)]
pub(super) enum End {
    /// The hub asked for it, and named a span.
    Goaway(Duration),
    /// The hub said not now.
    Rejected(Duration),
    /// It broke.
    Failed(anyhow::Error),
}

/// Pure: the wait before the next attach, by the shipping spoke's rule (spoke/src/link.rs): full jitter over a span that
/// doubles with each failure in a row. `chance` is from 0 to 1.
pub(super) fn wait_after(end: &End, failures: u32, chance: f64) -> Duration {
    let jitter = |failures: u32| {
        limits::RECONNECT_BASE.saturating_mul(1 << failures.min(16)).min(limits::RECONNECT_MAX).mul_f64(chance.clamp(0.0, 1.0))
    };
    match end {
        End::Goaway(after) => *after + jitter(0),
        End::Rejected(after) => (*after).max(jitter(failures)),
        End::Failed(_) => jitter(failures),
    }
}

/// A message up.
pub(super) fn request(message: Up) -> AttachRequest {
    AttachRequest { message: Some(message) }
}

/// A heartbeat.
pub(super) fn beat(n: u64, lease_transitions: Option<u64>) -> AttachRequest {
    request(Up::Heartbeat(Heartbeat { n, wall_unix_ms: now_ms(), lease_transitions, ..Heartbeat::default() }))
}

/// A node of a cluster by its number.
pub(super) fn node(cluster: &str, number: usize) -> v1::NodeRef {
    let (name, uid) = (format!("{cluster}-gpu-{number:04}"), format!("{cluster}-9b1d4c0e-7f5a-4c58-{number:012}"));
    v1::NodeRef { name, uid, boot_id: "0d3c1d2a-5b0e-4f8e-9c57-2f4f5f0e6d11".into() }
}

/// A GPU of it by its number: eight of them on PCI addresses as a DGX has them.
pub(super) fn gpu_of(cluster: &str, node: usize, gpu: u32) -> v1::GpuRef {
    let hash = hex::encode(&gpuheal_proto::ids::digest(&[cluster, &node.to_string(), &gpu.to_string()])[..16]);
    let uuid = format!("GPU-{}-{}-{}-{}-{}", &hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..]);
    v1::GpuRef { slot: format!("0000:{:02x}:00", 0x1a + gpu % GPUS * 0x10), uuid, model: MODEL.into() }
}

/// GPUs of each node.
pub(super) const fn gpus() -> u32 {
    GPUS
}

/// This machine's clock.
pub(super) fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_spoke_waits_as_the_shipping_one_does() {
        let failed = || End::Failed(anyhow!("broke"));
        let waits: Vec<u64> = (0..7).map(|failures| wait_after(&failed(), failures, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(wait_after(&failed(), 5, 0.0), Duration::ZERO);
        let five = Duration::from_secs(5);
        assert_eq!(wait_after(&End::Rejected(five), 0, 1.0), five, "no sooner than the hub said");
        assert_eq!(wait_after(&End::Rejected(five), 4, 1.0), Duration::from_secs(16));
        assert_eq!(wait_after(&End::Goaway(five), 9, 1.0), Duration::from_secs(6));
    }
}
