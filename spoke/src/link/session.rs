//! One session: Hello, Welcome, then two loops that never wait for each other, until one of them ends.

use std::{sync::Mutex, time::Duration};

use gpuheal_proto::{ids::StreamId, limits, link::v1, time::Timestamp};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use v1::{attach_request::Message as Up, attach_response::Message as Answer, link_service_client::LinkServiceClient};

use super::{
    Deps, End, Error, Lanes, dial,
    inbound::Inbound,
    load_identity,
    outbound::{self, Outbound},
    progress::Progress,
    waiting::Waiting,
};
use crate::{clock, identity::Identity, metrics, send::Outbox, settings::Keys};

/// Messages handed to HTTP/2 and not yet written: small, so that an urgent one does not queue behind many.
const WIRE_MESSAGES_MAX: usize = 4;
/// Answers that the reader may have made and the writer not sent: settings acks and busy refusals.
pub(super) const CONTROL_MAX: usize = 256;
/// A Welcome must come in this time after Hello.
const WELCOME_WITHIN: Duration = Duration::from_secs(20);

/// Ending, what waits in the journal may take so long to be acked, and the hub to hear that nothing more comes: within the time
/// that the program leaves to a group of its tasks.
const LEAVE_WITHIN: Duration = Duration::from_secs(4);
/// How much of that is for what waits: a hub that takes faults at all acks them sooner.
const DRAIN_WITHIN: Duration = Duration::from_secs(2);

/// What both loops of a session share.
pub(super) struct Shared {
    pub(super) outbox: Mutex<Outbox>,
    /// Rung when an ack or credit came.
    pub(super) moved: tokio::sync::Notify,
    pub(super) progress: Mutex<Progress>,
}

/// Attaches and serves until something ends it.
pub(super) async fn run(deps: &Deps, lanes: &mut Lanes, waiting: &Waiting, boot_id: &str, cancel: &CancellationToken) -> End {
    let opened = tokio::select! {
        () = cancel.cancelled() => return End::Cancelled,
        opened = open(deps, boot_id) => opened,
    };
    match opened {
        Ok(Opened::Session(session)) => serve(deps, lanes, waiting, *session, cancel).await,
        Ok(Opened::Rejected(reject)) => rejected(reject),
        Err(error) => End::Failed(error),
    }
}

pub(super) fn rejected(reject: v1::Reject) -> End {
    End::Rejected { code: reject.code(), reason: reject.reason, retry_after: Duration::from_millis(reject.retry_after_ms.into()) }
}

struct Session {
    wire: mpsc::Sender<v1::AttachRequest>,
    stream: tonic::Streaming<v1::AttachResponse>,
    heartbeat: Duration,
    shared: Shared,
    keys: Keys,
}

enum Opened {
    Session(Box<Session>),
    Rejected(v1::Reject),
}

async fn open(deps: &Deps, boot_id: &str) -> Result<Opened, Error> {
    let identity = load_identity(deps)?;
    let keys = Keys::parse(&identity.trust)?;
    let channel = dial::dial(&deps.config.hub, &identity).await?;
    let mut client = LinkServiceClient::new(channel)
        .max_decoding_message_size(limits::TRANSPORT_BYTES_MAX)
        .max_encoding_message_size(limits::TRANSPORT_BYTES_MAX);
    let heads = deps.journal.heads().await?;
    let (wire, outgoing) = mpsc::channel(WIRE_MESSAGES_MAX);
    let hello = v1::AttachRequest { message: Some(Up::Hello(hello(deps, &identity, boot_id, &heads))) };
    wire.try_send(hello).expect("a new channel has room");
    let sent = Instant::now();
    let welcome = async {
        let mut stream = client.attach(ReceiverStream::new(outgoing)).await?.into_inner();
        let first = stream.message().await?.ok_or(Error::Ended)?;
        Ok::<_, Error>((stream, first))
    };
    let (stream, first) = tokio::time::timeout(WELCOME_WITHIN, welcome).await.map_err(|_| Error::Silent(WELCOME_WITHIN))??;
    let welcome = match first.message {
        Some(Answer::Welcome(welcome)) => welcome,
        Some(Answer::Reject(reject)) => return Ok(Opened::Rejected(reject)),
        _ => return Err(Error::NoWelcome),
    };
    welcomed(deps, &welcome, sent.elapsed());
    persisted(deps, &welcome.resume).await;
    let heartbeat = match welcome.heartbeat_ms {
        0 => limits::HEARTBEAT,
        ms => Duration::from_millis(ms.into()).min(limits::HEARTBEAT),
    };
    let shared = Shared {
        outbox: Mutex::new(Outbox::resume(&heads, &welcome.resume, welcome.credit)),
        moved: tokio::sync::Notify::new(),
        progress: Mutex::new(Progress::new(Instant::now())),
    };
    Ok(Opened::Session(Box::new(Session { wire, stream, heartbeat, shared, keys })))
}

fn hello(deps: &Deps, identity: &Identity, boot_id: &str, heads: &[(StreamId, u64)]) -> v1::Hello {
    let seen = deps.seen.borrow().clone();
    let lease_transitions = outbound::proof(deps, &seen);
    v1::Hello {
        cluster_id: identity.cluster.to_string(),
        kube_system_uid: deps.config.kube_system_uid.clone(),
        replica_id: deps.config.replica.to_string(),
        boot_id: boot_id.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        caps: Vec::new(),
        journals: named(heads).iter().map(|(stream, next_seq)| wire_head(stream, *next_seq)).collect(),
        trust_version: seen.trust_version,
        hub_term_seen: seen.hub_term,
        journal_new: deps.journal.began_new(),
        hub_term_heard: deps.attachment.borrow().hub_term,
        cmd_seq_seen: seen.cmd_seq,
        cmd_id_seen: seen.cmd_id,
        settings_version: deps.settings.version(),
        open_commands: seen.open_commands,
        wall_unix_ms: clock::wall().unix_ms(),
        lease_transitions,
    }
}

/// Those that Hello has room for. Of the others the hub says nothing, so they are sent from their first number on.
fn named(heads: &[(StreamId, u64)]) -> &[(StreamId, u64)] {
    &heads[heads.len().saturating_sub(limits::JOURNALS_NAMED_MAX)..]
}

fn welcomed(deps: &Deps, welcome: &v1::Welcome, rtt: Duration) {
    let server = Timestamp::from_unix_ms(welcome.server_time_unix_ms);
    deps.clock.set(server, rtt);
    deps.metrics.set(metrics::CLOCK_AHEAD, &[], clock::ahead_s(clock::wall(), server, rtt));
    deps.attachment.send_modify(|attachment| {
        attachment.generation = Some(welcome.session_generation);
        attachment.hub_term = attachment.hub_term.max(welcome.hub_term);
        attachment.reign_known = welcome.lease_transitions_known;
        (attachment.asked_term, attachment.snapshots_asked) = (0, 0);
    });
    deps.metrics.set(metrics::ATTACHED, &[], 1.0);
    deps.metrics.inc(metrics::ATTACHES, &[("outcome", "attached")]);
    let (generation, term, rtt_ms) = (welcome.session_generation, welcome.hub_term, rtt.as_millis());
    tracing::info!(session.generation = generation, hub.term = term, rtt_ms, "attached to the hub");
}

/// What the hub says it has is acked, whichever session or process the ack was meant for.
async fn persisted(deps: &Deps, resume: &[v1::ResumePoint]) {
    for point in resume {
        if let (Ok(stream), Some(upto @ 1..)) = (StreamId::parse(&point.stream_id), point.from_seq.checked_sub(1)) {
            deps.journal.acked(stream, upto).await;
        }
    }
}

async fn serve(deps: &Deps, lanes: &mut Lanes, waiting: &Waiting, session: Session, cancel: &CancellationToken) -> End {
    let Session { wire, stream, heartbeat, shared, keys } = session;
    let (control_tx, control) = mpsc::channel(CONTROL_MAX);
    let inbound = Inbound { deps, shared: &shared, waiting, keys: &keys, control: control_tx };
    let last_words = wire.clone();
    let outbound = Outbound::new(deps, &shared, waiting, control, wire, heartbeat);
    let leave = async {
        cancel.cancelled().await;
        if tokio::time::timeout(LEAVE_WITHIN, farewell(deps, &last_words)).await.is_err() {
            tracing::debug!("the hub was not told that this journal is closed");
        }
        End::Cancelled
    };
    tokio::select! {
        end = leave => end,
        () = deps.clock.lost() => End::Failed(Error::ClockLost),
        end = inbound.run(stream) => end,
        end = outbound.run(lanes) => end,
    }
}

/// Nothing is journaled any more: what waits is sent while both loops go on, then the hub is told where the journal ends. It
/// answers by sending us away, which ends the session. Without this word it cannot know whether something was lost with our disk.
async fn farewell(deps: &Deps, wire: &mpsc::Sender<v1::AttachRequest>) {
    let Ok(head) = deps.journal.seal().await else { return };
    let mut depth = deps.journal.depth();
    let drained = tokio::time::timeout(DRAIN_WITHIN, depth.wait_for(|depth| depth.unacked == 0)).await.is_ok();
    let beat = v1::Heartbeat { closing: true, head: Some(wire_head(&head.stream, head.next_seq)), ..outbound::heartbeat(deps) };
    tracing::info!(drained, stream.id = %head.stream, "the hub is told that this journal is closed");
    if wire.send(v1::AttachRequest { message: Some(Up::Heartbeat(beat)) }).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// As it travels.
pub(super) fn wire_head(stream: &StreamId, next_seq: u64) -> v1::JournalHead {
    v1::JournalHead { stream_id: stream.to_string(), next_seq }
}
