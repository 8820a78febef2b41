//! The link to the hub: attaches, keeps attached, carries faults, state and statuses up and commands down. Each replica
//! attaches on its own, leading or not. Decides nothing about commands: their bytes go to the hand as they came.

mod dial;
mod inbound;
mod outbound;
mod progress;
mod session;
mod size;
mod waiting;

use std::{sync::Arc, time::Duration};

use gpuheal_proto::{chain::chain, ids::ReplicaId, limits, link::v1};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::Backoff,
    chance::chance,
    clock::{self, HubClock},
    identity::{self, Identity, Keeper},
    journal::{self, Journal},
    metrics::{self, Metrics},
    ports::{Attachment, Down, Leadership, Seen},
    settings::{self, Settings},
};

pub use dial::{Error as DialError, Hub};
pub use size::{TooLarge, fits};
use waiting::Waiting;

/// Between attaches, full jitter: a fleet does not come back in step.
const ATTACH_AGAIN: Backoff = Backoff { base: limits::RECONNECT_BASE, max: limits::RECONNECT_MAX };
/// A session that lived this long was healthy: the next wait starts small again.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);

/// What this replica says of itself.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the hub is.
    pub hub: Hub,
    /// Certificate, key, CA and trust bundle.
    pub identity: Arc<Keeper>,
    /// This replica's name.
    pub replica: ReplicaId,
    /// UID of the namespace kube-system: which cluster this really is.
    pub kube_system_uid: String,
    /// A hub of which nothing is heard, or that takes nothing, for so long is dead: [`limits::DEAD_AFTER`] but in tests.
    pub dead_after: Duration,
}

/// A person's request on its way to the hub, and where its answer goes. A dropped answer means that the hub is away. One
/// that was sent and not answered is asked again after the next attach, while somebody waits for it.
#[derive(Debug)]
pub struct Ask {
    /// The request.
    pub process: v1::Process,
    /// For the answer.
    pub reply: oneshot::Sender<v1::ProcessResult>,
}

/// What others put on the link. Held by it across sessions; while no hub answers, all but faults are dropped, since
/// their senders send anew after attaching.
pub struct Lanes {
    /// The hand's reports.
    pub statuses: mpsc::Receiver<v1::CommandStatus>,
    /// Cluster state, each with the session's generation that it was made for.
    pub states: mpsc::Receiver<(u64, v1::ClusterState)>,
    /// How known faults stand.
    pub evidence: mpsc::Receiver<v1::EvidenceBatch>,
    /// People's requests.
    pub asks: mpsc::Receiver<Ask>,
}

/// Everything that the link touches.
pub struct Deps {
    /// Who and where.
    pub config: Config,
    /// Faults come from it, acks go to it.
    pub journal: Journal,
    /// Detection settings go to it.
    pub settings: Arc<Settings>,
    /// The hub's clock, set at each Welcome.
    pub clock: Arc<HubClock>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// From the elector.
    pub leadership: watch::Receiver<Leadership>,
    /// From the hand.
    pub seen: watch::Receiver<Seen>,
    /// To the hand.
    pub down: mpsc::Sender<Down>,
    /// To the detectors: faults of which the hub asks how they stand.
    pub asked: mpsc::Sender<Vec<v1::FaultAsked>>,
    /// To everybody.
    pub attachment: watch::Sender<Attachment>,
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// We are to stop.
    Cancelled,
    /// The hub asked for it.
    Goaway { reconnect_after: Duration },
    /// The hub said no.
    Rejected { code: v1::RejectCode, reason: String, retry_after: Duration },
    /// It broke.
    Failed(Error),
}

/// What can break a session.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Our own files.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// The keys in the trust bundle.
    #[error(transparent)]
    Keys(#[from] settings::KeysError),
    /// No channel.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The stream.
    #[error("stream to the hub failed")]
    Stream(#[from] tonic::Status),
    /// The hub ended the stream.
    #[error("hub ended the stream")]
    Ended,
    /// Nothing heard.
    #[error("nothing heard from the hub, or nothing taken by it, for {}s", .0.as_secs())]
    Silent(Duration),
    /// This machine stood still: only a new Welcome tells the time.
    #[error("the hub's time is lost, since this machine's clock stood still")]
    ClockLost,
    /// Sent and not acked.
    #[error("{in_flight} faults sent and no ack for {}s", progress::PROGRESS_WITHIN.as_secs())]
    NoProgress {
        /// How many.
        in_flight: u64,
    },
    /// The first message was something else.
    #[error("hub's first message was neither Welcome nor Reject")]
    NoWelcome,
    /// Answers pile up.
    #[error("hub reads nothing: {lane} lane is full")]
    LaneFull {
        /// Which.
        lane: &'static str,
    },
    /// Faults cannot be read.
    #[error(transparent)]
    Journal(#[from] journal::Error),
}

/// Attaches, and attaches again, until `cancel`.
pub async fn run(deps: Deps, mut lanes: Lanes, cancel: CancellationToken) {
    let boot_id = uuid::Uuid::new_v4().to_string();
    let waiting = Waiting::default();
    let mut failures = 0;
    while !cancel.is_cancelled() {
        let started = Instant::now();
        let end = session::run(&deps, &mut lanes, &waiting, &boot_id, &cancel).await;
        detach(&deps);
        if started.elapsed() >= HEALTHY_AFTER {
            failures = 0;
        }
        let wait = told(&deps, &end, failures);
        if matches!(end, End::Cancelled) {
            return;
        }
        failures += 1;
        tokio::select! {
            () = cancel.cancelled() => return,
            () = drain(&deps, &mut lanes) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

fn detach(deps: &Deps) {
    deps.attachment.send_if_modified(|attachment| attachment.generation.take().is_some());
    deps.metrics.set(metrics::ATTACHED, &[], 0.0);
}

/// Says how the session ended, and how long to wait for the next.
fn told(deps: &Deps, end: &End, failures: u32) -> Duration {
    // Without randomness everybody waits the whole span, which is safe and slow.
    let jitter = ATTACH_AGAIN.wait(failures, chance(1.0));
    let (outcome, wait) = match end {
        End::Cancelled => ("stopped", Duration::ZERO),
        End::Goaway { reconnect_after } => {
            tracing::info!(reconnect_after_ms = reconnect_after.as_millis(), "hub asked to attach elsewhere");
            ("goaway", *reconnect_after + ATTACH_AGAIN.wait(0, chance(1.0)))
        }
        End::Rejected { code, reason, retry_after } => {
            let wait = (*retry_after).max(jitter);
            tracing::warn!(code = code.as_str_name(), %reason, wait_ms = wait.as_millis(), "hub refused to let this spoke attach");
            ("rejected", wait)
        }
        End::Failed(error) => {
            tracing::warn!(error = %chain(error), wait_ms = jitter.as_millis(), "link is down");
            ("failed", jitter)
        }
    };
    deps.metrics.inc(metrics::ATTACHES, &[("outcome", outcome)]);
    wait
}

/// While detached: nobody may wait on us. Never ends by itself.
async fn drain(deps: &Deps, lanes: &mut Lanes) {
    loop {
        let lane = tokio::select! {
            Some(_) = lanes.statuses.recv() => "status",
            Some(_) = lanes.states.recv() => "state",
            Some(_) = lanes.evidence.recv() => "evidence",
            Some(_) = lanes.asks.recv() => "process",
            else => std::future::pending().await,
        };
        deps.metrics.inc(metrics::LINK_DROPPED, &[("reason", "detached"), ("lane", lane)]);
    }
}

pub(crate) fn load_identity(deps: &Deps) -> Result<Identity, Error> {
    Ok(deps.config.identity.identity(clock::wall())?)
}

#[cfg(test)]
mod tests;
