//! What comes up one stream: faults, states and commands each in their order, none waiting for the others. Whatever could
//! not be committed ends the session: the spoke then resumes from what is, since nothing inside a live stream is sent again.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use gpuheal_proto::{
    limits,
    link::v1::{self, AttachRequest, attach_request::Message as Up, attach_response::Message},
};
use prost::Message as _;
use tokio::{sync::mpsc, time::Instant};
use tonic::{Code, Status, Streaming};

use super::{
    Inner, goaway,
    hello::{Journal, Seen},
    kind,
    lanes::Lane,
    registry::Session,
};
use crate::{
    decide, fit,
    ingest::{self, Origin, Taken},
    metrics, settle,
    store::{
        self, journal,
        pool::answered,
        session::{Lead, session_lead, settings_ack},
        term::hub_term,
    },
};

/// Errors in an answer to settings.
const SETTINGS_ERRORS_MAX: usize = 32;

/// Messages of one track that may wait: past it the stream is not read, and the spoke's own bounds hold. Three tracks of
/// four messages of 1 MiB at most are 12 MiB for a spoke that sends all it may. One that sends what is small on the wire and large
/// in memory, 8 MiB at most, makes them 96.
const WAITING_MAX: usize = 4;

/// Where messages wait. Each track keeps its order and waits for nothing but itself: a fault is not held up by the
/// statuses and node states that earlier faults led to.
struct Tracks {
    faults: mpsc::Sender<Box<Up>>,
    state: mpsc::Sender<Box<Up>>,
    commands: mpsc::Sender<Box<Up>>,
}

impl Tracks {
    fn of(&self, message: &Up) -> Option<&mpsc::Sender<Box<Up>>> {
        match message {
            Up::FaultBatch(_) | Up::Gap(_) => Some(&self.faults),
            Up::ClusterState(_) | Up::Evidence(_) | Up::SettingsAck(_) => Some(&self.state),
            Up::CommandStatus(_) | Up::Process(_) => Some(&self.commands),
            Up::Hello(_) | Up::Heartbeat(_) => None,
        }
    }
}

/// What the tracks of one stream share.
#[derive(Default)]
struct Flow {
    /// Messages at work.
    messages: AtomicUsize,
    /// All of the cluster's state was asked for and has not come yet.
    snapshot_asked: AtomicBool,
    /// Its state did not add up, and was asked for because of that.
    differed: AtomicBool,
}

/// Reads until the stream ends, the session is ended, or something goes wrong.
pub(super) async fn serve(inner: &Arc<Inner>, session: &Arc<Session>, up: Streaming<AttachRequest>) {
    let (faults, mut faults_in) = mpsc::channel(WAITING_MAX);
    let (state, mut state_in) = mpsc::channel(WAITING_MAX);
    let (commands, mut commands_in) = mpsc::channel(WAITING_MAX);
    let flow = Flow::default();
    tokio::join!(
        read(inner, session, &flow, up, Tracks { faults, state, commands }),
        work(inner, session, &flow, &mut faults_in),
        work(inner, session, &flow, &mut state_in),
        work(inner, session, &flow, &mut commands_in),
    );
}

async fn read(inner: &Inner, session: &Session, flow: &Flow, mut up: Streaming<AttachRequest>, tracks: Tracks) {
    loop {
        let message = match session.end().run_until_cancelled(up.message()).await {
            Some(Ok(Some(message))) => message,
            Some(Ok(None)) | None => return,
            Some(Err(status)) => {
                broke(session, &status);
                return;
            }
        };
        session.hear();
        // A kind of message from a later version: nothing that we asked for.
        let Some(message) = message.message else { continue };
        metrics::MESSAGES_UP.inc([kind(&message)]);
        let message = fit::fitted(session.cluster(), kind(&message), message);
        match tracks.of(&message) {
            Some(track) => {
                // Ends early only with the session.
                let _ = session.end().run_until_cancelled(track.send(Box::new(message))).await;
            }
            None => one(inner, session, flow, message).await,
        }
    }
}

/// A network that breaks is nothing to tell; a message that no spoke of ours sends is.
fn broke(session: &Session, status: &Status) {
    if matches!(status.code(), Code::ResourceExhausted | Code::OutOfRange) {
        tracing::warn!(cluster.id = %session.cluster(), replica.id = %session.replica(), status = %status, "a message over the limits ended its stream");
    } else {
        tracing::debug!(cluster.id = %session.cluster(), replica.id = %session.replica(), status = %status, "stream broke");
    }
}

async fn work(inner: &Inner, session: &Session, flow: &Flow, waiting: &mut mpsc::Receiver<Box<Up>>) {
    while let Some(message) = session.end().run_until_cancelled(waiting.recv()).await.flatten() {
        one(inner, session, flow, *message).await;
    }
}

/// Takes one message. What could not be committed ends the session, whichever track it came on.
async fn one(inner: &Inner, session: &Session, flow: &Flow, message: Up) {
    flow.messages.fetch_add(1, Ordering::Relaxed);
    session.set_busy(true);
    let faults = matches!(message, Up::FaultBatch(_) | Up::Gap(_));
    // Boxed, since four of it would lie in each session's memory for the hours in which nothing comes: 200 KiB for a spoke.
    let work = Box::pin(take(inner, session, flow, message));
    // The committer of faults sees to its own connections and tries several times.
    let outcome = if faults { work.await } else { answered("link.take", work).await };
    if flow.messages.fetch_sub(1, Ordering::Relaxed) == 1 {
        session.set_busy(false);
    }
    session.hear();
    if let Err(error) = outcome {
        tracing::warn!(cluster.id = %session.cluster(), replica.id = %session.replica(), error = %crate::chain::chain(&error), "session ended by a message");
        session.finish(error.cause(), Some(goaway(&error.to_string())));
    }
}

async fn take(inner: &Inner, session: &Session, flow: &Flow, message: Up) -> Result<(), Error> {
    match message {
        Up::Hello(_) => Err(Error::Protocol("a second hello")),
        Up::FaultBatch(batch) => faults(inner, session, batch).await,
        Up::Gap(gap) => {
            let ack = inner.ingest.gap(origin(session), gap).await?;
            reply(session, Message::FaultAck(ack)).await
        }
        Up::ClusterState(state) => cluster_state(inner, session, flow, state).await,
        Up::Evidence(batch) if batch.items.len() > limits::EVIDENCE_MAX => Err(Error::Protocol("evidence over its limit")),
        Up::Evidence(batch) => Ok(inner.ingest.evidence(origin(session), batch).await?),
        Up::CommandStatus(status) => command_status(inner, session, status).await,
        Up::Process(request) => process(inner, session, request).await,
        Up::SettingsAck(ack) => settings(inner, session, ack).await,
        Up::Heartbeat(beat) => heartbeat(inner, session, &beat).await,
    }
}

async fn faults(inner: &Inner, session: &Session, batch: v1::FaultBatch) -> Result<(), Error> {
    if batch.faults.len() > limits::BATCH_FAULTS_MAX || batch.encoded_len() > limits::BATCH_BYTES_MAX {
        return Err(Error::Protocol("a batch of faults over its limit"));
    }
    metrics::FAULTS.add(batch.faults.len() as u64);
    let arrived = Instant::now();
    dies_at!("ingest.received");
    let ack = inner.ingest.submit(origin(session), batch).await?;
    metrics::ACK_SECONDS.observe(arrived.elapsed());
    reply(session, Message::FaultAck(ack)).await
}

/// A change of a state that is not known here is answered by asking for all of it, once until it has come: those that are
/// under way meanwhile are as unfounded. One that does not add up is answered so once in a session: what was set aside
/// of the whole state never adds up.
async fn cluster_state(inner: &Inner, session: &Session, flow: &Flow, state: v1::ClusterState) -> Result<(), Error> {
    let whole = matches!(state.body, Some(v1::cluster_state::Body::Snapshot(_)));
    let asks = match inner.ingest.state(origin(session), state).await? {
        Taken::Counts { differs, .. } => {
            if whole {
                flow.snapshot_asked.store(false, Ordering::Relaxed);
            }
            differs && !flow.differed.swap(true, Ordering::Relaxed)
        }
        Taken::Unfounded => true,
        Taken::Part | Taken::PassedOver => false,
    };
    if asks && !flow.snapshot_asked.swap(true, Ordering::Relaxed) {
        tracing::info!(cluster.id = %session.cluster(), replica.id = %session.replica(), "all of the cluster's state is asked for");
        reply(session, Message::Resync(v1::Resync { snapshot: true, ..v1::Resync::default() })).await?;
    }
    Ok(())
}

async fn command_status(inner: &Inner, session: &Session, status: v1::CommandStatus) -> Result<(), Error> {
    match settle::settle(&inner.pool, origin(session), status, Some(inner.board.signer())).await {
        Ok(None) => {
            metrics::STATUSES.inc(["early"]);
            Ok(())
        }
        Ok(Some(ack)) => {
            metrics::STATUSES.inc(["acked"]);
            inner.wake.settled.notify_one();
            reply(session, Message::StatusAck(ack)).await
        }
        Err(error) => {
            metrics::STATUSES.inc(["failed"]);
            Err(error.into())
        }
    }
}

async fn process(inner: &Inner, session: &Session, request: v1::Process) -> Result<(), Error> {
    let request_id = request.request_id.clone();
    let result = decide::process_from_spoke(&inner.pool, origin(session), request).await?;
    inner.wake.decided.notify_one();
    reply(session, Message::ProcessResult(v1::ProcessResult { request_id, ..result })).await
}

async fn settings(inner: &Inner, session: &Session, mut ack: v1::SettingsAck) -> Result<(), Error> {
    ack.errors.truncate(SETTINGS_ERRORS_MAX);
    for error in &mut ack.errors {
        *error = gpuheal_proto::bytes_text::clip(error, limits::REASON_BYTES_MAX).to_owned();
    }
    if !ack.errors.is_empty() {
        tracing::warn!(cluster.id = %session.cluster(), settings.version = ack.version, errors = ?ack.errors, "settings not taken");
    }
    let mut conn = inner.pool.acquire().await.map_err(stage)?;
    let owner = (session.replica(), session.generation());
    if settings_ack(&mut conn, session.cluster(), owner, ack.version, &ack.errors).await? { Ok(()) } else { Err(Error::Stale) }
}

/// Only a changed proof and a last word are written at once; that the session lives, and how far its journal goes, is written in bulk.
async fn heartbeat(inner: &Inner, session: &Session, beat: &v1::Heartbeat) -> Result<(), Error> {
    if let Some(head) = &beat.head {
        let head = Journal::read(head).ok().filter(|head| head.upto <= limits::SEQ_MAX);
        let head = head.ok_or(Error::Protocol("a heartbeat with a journal that cannot be one"))?;
        session.hear_head(head.clone());
        if beat.closing {
            return closing(inner, session, &head).await;
        }
    }
    if beat.lease_transitions == session.lease() {
        return Ok(());
    }
    let mut tx = inner.pool.begin().await.map_err(stage)?;
    let owner = (session.replica(), session.generation());
    // Read before what it says is held against it: what is believed under this one is under any that may have come between.
    let checked_under = hub_term(&mut tx).await?;
    match session_lead(&mut tx, session.cluster(), owner, beat.lease_transitions, Seen::told(beat)).await? {
        Lead::TakenOver => return Err(Error::Stale),
        Lead::Implausible { detail } => {
            tracing::error!(cluster.id = %session.cluster(), replica.id = %session.replica(), detail, "a leader says that it has seen what no hub can have given out");
            return Err(Error::Protocol("a heartbeat with numbers that no hub can have given out"));
        }
        Lead::Noted { term_raised } => {
            tx.commit().await.map_err(stage)?;
            if term_raised {
                tracing::error!(cluster.id = %session.cluster(), "this database lost commits that a cluster has seen: term raised");
                // Whoever could do that at the pace of a stream would not be held back by the admission of attaches.
                if session.raises_again() {
                    return Err(Error::Protocol("a second heartbeat that raises the epoch"));
                }
            }
        }
    }
    if !session.prove(beat.lease_transitions, checked_under) {
        tracing::info!(cluster.id = %session.cluster(), replica.id = %session.replica(), "the epoch has risen meanwhile: a proof of leadership is asked for anew");
        return Ok(());
    }
    inner.registry.leadership_moved();
    tracing::info!(
        cluster.id = %session.cluster(), replica.id = %session.replica(), lease.transitions = beat.lease_transitions, "leadership changed"
    );
    Ok(())
}

/// The replica's last word. It waits until we have it: it is sent away.
async fn closing(inner: &Inner, session: &Session, head: &Journal) -> Result<(), Error> {
    let mut conn = inner.pool.acquire().await.map_err(stage)?;
    let owner = (session.cluster(), session.replica(), session.generation());
    journal::journal_close(&mut conn, owner, head).await?;
    session.head_noted(head);
    session.finish("closed", Some(goaway("its journal is closed")));
    Ok(())
}

/// Whatever comes is taken only while this session owns its replica's stream: that is looked at in the transaction that keeps it.
pub(super) fn origin(session: &Session) -> Origin {
    Origin { cluster: session.cluster().clone(), session: Some((session.replica().clone(), session.generation())) }
}

/// Answers wait for room: a spoke that does not read its acks is not read from either, and its pulse ends it.
async fn reply(session: &Session, message: Message) -> Result<(), Error> {
    let sent = session.end().run_until_cancelled(session.send(Lane::Control, message)).await;
    sent.unwrap_or(Ok(())).map_err(|_| Error::Closed)
}

fn stage(error: impl std::error::Error) -> Error {
    Error::Stage(crate::chain::chain(&error).to_string())
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        if matches!(error, store::Error::TakenOver { .. }) { Self::Stale } else { stage(error) }
    }
}

impl From<ingest::Error> for Error {
    fn from(error: ingest::Error) -> Self {
        match error {
            ingest::Error::Store(error) => error.into(),
            other => stage(other),
        }
    }
}

impl From<settle::Error> for Error {
    fn from(settle::Error::Store(error): settle::Error) -> Self {
        error.into()
    }
}

impl From<decide::Error> for Error {
    fn from(error: decide::Error) -> Self {
        match error {
            decide::Error::Store(error) => error.into(),
            other => stage(other),
        }
    }
}

/// Why a session cannot go on.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("not allowed here: {0}")]
    Protocol(&'static str),
    #[error("not committed: {0}")]
    Stage(String),
    #[error("this session is over: it was taken over, or its identity counts no longer")]
    Stale,
    #[error("stream is closed")]
    Closed,
}

impl Error {
    const fn cause(&self) -> &'static str {
        match self {
            Self::Protocol(_) => "protocol",
            Self::Stage(_) => "database",
            Self::Stale => "stale",
            Self::Closed => "closed",
        }
    }
}
