//! The link: one bidirectional stream per spoke replica. Checks who attaches, then hands what comes up to the stages and
//! what the stages have to the stream. An ack means "committed", never "processed". Decides nothing about faults.

mod admission;
pub mod clone;
pub mod gone;
mod guard;
pub mod hello;
mod lanes;
pub mod plausible;
pub mod prune;
mod pulse;
mod registry;
mod seen;
mod serve;
mod settings;
pub mod skew;
mod throttle;
mod unheard;
mod up;
mod verdicts;

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::Stream;
use gpuheal_proto::{
    ids::ClusterId,
    limits,
    link::v1::{
        self, AttachRequest, AttachResponse, Goaway, Reject, RejectCode, ResumePoint, Resync, Welcome, attach_request,
        attach_response::Message, link_service_server::LinkService,
    },
};
use sqlx::PgPool;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    clock, fit,
    identity::{self, Peer},
    ingest, metrics,
    store::{
        self, Labelled as _, journal,
        pool::answered,
        session::{self, Attached, Refused as NotAttached},
    },
    wake::Wake,
};
pub use admission::Admission;
use hello::{Hello, Journal};
pub use lanes::{Lane, Refused};
pub use registry::{Registry, Session};
pub use seen::Seen;
pub use serve::serve;
pub use settings::Board;
pub use throttle::Throttle;
pub use unheard::Unheard;
pub use verdicts::Verdicts;

/// The first message must be here by then.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Attaches of one hub at a time: each is one transaction of 5 ms, so that 64 give more than 5,000 a second.
const ATTACHES_MAX: usize = 64;
/// Longest wait for a turn; whoever would wait longer is told when to come again.
const ATTACH_WAIT: Duration = Duration::from_secs(1);
/// When a rejected spoke may come again, unless the reason will not go away by itself.
const RETRY_SOON: Duration = Duration::from_secs(5);
/// The earliest of a crowd comes again then.
const RETRY_CROWD: Duration = Duration::from_secs(1);
/// A foreign identity will be foreign tomorrow: often enough to notice that somebody has mended it.
const RETRY_LATE: Duration = Duration::from_secs(60);
/// How far those are spread who are sent away when a hub stops, for each thousand of them: other hubs let 400 a second in.
const SHUTDOWN_SPREAD: Duration = Duration::from_millis(2_500);

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    pool: PgPool,
    ingest: ingest::Ingest,
    wake: Arc<Wake>,
    registry: Arc<Registry>,
    board: Arc<Board>,
    hub_id: String,
    admission: Admission,
    attaches: tokio::sync::Semaphore,
    tasks: TaskTracker,
}

impl Link {
    /// The service over a database, its ingest stage, and those who are to know of sessions and settings.
    #[must_use]
    pub fn new(
        pool: PgPool,
        ingest: ingest::Ingest,
        wake: Arc<Wake>,
        registry: Arc<Registry>,
        board: Arc<Board>,
        hub_id: String,
    ) -> Self {
        let attaches = tokio::sync::Semaphore::new(ATTACHES_MAX);
        let (admission, tasks) = (Admission::default(), TaskTracker::new());
        Self { inner: Arc::new(Inner { pool, ingest, wake, registry, board, hub_id, admission, attaches, tasks }) }
    }

    /// The same with another rate of new sessions. Called before it serves.
    #[must_use]
    pub fn admitting(mut self, admission: Admission) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner.admission = admission;
        }
        self
    }

    /// Sends everyone away and waits until the sessions are closed and noted as such.
    pub async fn shut_down(&self) {
        let sessions = self.inner.registry.all();
        let spread = SHUTDOWN_SPREAD.saturating_mul(u32::try_from(sessions.len() / 1000 + 1).unwrap_or(u32::MAX));
        for session in sessions {
            let reconnect_after_ms = u32::try_from(pulse::anywhere(spread).as_millis()).unwrap_or(u32::MAX);
            session.finish("shutdown", Some(Goaway { reconnect_after_ms, reason: "the hub is stopping".into() }));
        }
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

#[tonic::async_trait]
impl LinkService for Link {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        let (cluster, peer) = identity::spoke(&request)?;
        let end = CancellationToken::new();
        let (lanes, down) = lanes::lanes(&end);
        let (inner, up) = (self.inner.clone(), request.into_inner());
        // Headers go out before the Hello is read, so that neither side waits for the other.
        self.inner.tasks.spawn(async move { inner.serve(cluster, peer, up, lanes, end).await });
        Ok(Response::new(Box::pin(down)))
    }
}

impl Inner {
    /// One session from Hello to its end.
    async fn serve(
        self: Arc<Self>,
        cluster: ClusterId,
        peer: Peer,
        mut up: Streaming<AttachRequest>,
        lanes: lanes::Lanes,
        end: CancellationToken,
    ) {
        // Attaching and detaching are boxed: their room is not a session's for hours.
        let (hello, attached) = match Box::pin(self.greet(&cluster, &peer, &mut up, &end)).await {
            Ok(greeted) => greeted,
            Err(refusal) => return refusal.say(&cluster, &lanes, &end),
        };
        metrics::ATTACHES.inc(["ok"]);
        let left = peer.not_after().since(clock::now());
        let owner = registry::Owner { cluster: cluster.clone(), replica: hello.replica.clone(), generation: attached.generation };
        let session = Session::new(owner, peer.certificate().clone(), lanes, attached.hub_term, end);
        session.prove(hello.lease_transitions, attached.hub_term);
        session.set_clock_apart(clock_apart(&hello, attached.clock_skew_ms));
        let session = Arc::new(session);
        tracing::info!(
            cluster.id = %cluster, replica.id = %hello.replica, session.generation = attached.generation, spoke.version = hello.version,
            lease.transitions = hello.lease_transitions, "replica attached"
        );
        // Welcome is the first message down whatever happens next. Lanes that are new have room; they are closed when the
        // replica has gone while the database was asked, and then its end is what comes up first.
        let mut begun = session.offer(Lane::Control, Message::Welcome(welcome(&hello, &attached, self.ingest.credit())));
        if let Some(old) = self.registry.insert(&session) {
            old.finish("taken_over", Some(Goaway { reconnect_after_ms: 0, reason: "attached again".into() }));
        }
        if let Some(settings) = self.board.current() {
            begun = begun.and(session.offer(Lane::Bulk, Message::Settings(settings)));
        }
        if !attached.taken_over {
            begun = begun.and(session.offer(Lane::Control, Message::Resync(all_under(attached.hub_term))));
        }
        if let Err(error) = begun {
            // None of it is said again in a session: the next one begins with it.
            tracing::warn!(cluster.id = %cluster, replica.id = %hello.replica, %error, "a session could not begin");
            session.finish("closed", Some(goaway("what a session begins with could not be sent")));
        }
        let pulse = tokio::spawn(pulse::pulse(session.clone(), left));
        up::serve(&self, &session, up).await;
        session.finish("closed", None);
        pulse.abort();
        self.registry.remove(&session);
        self.ingest.forget(&up::origin(&session));
        Box::pin(self.note_detached(&session)).await;
    }

    async fn greet(
        &self,
        cluster: &ClusterId,
        peer: &Peer,
        up: &mut Streaming<AttachRequest>,
        end: &CancellationToken,
    ) -> Result<(Hello, Attached), Refusal> {
        let first = tokio::time::timeout(HELLO_TIMEOUT, up.message());
        let Some(Ok(Ok(Some(first)))) = end.run_until_cancelled(first).await else { return Err(Refusal::NoHello) };
        let heard = Instant::now();
        let first = first.message.map(|message| fit::fitted(cluster, kind(&message), message));
        let Some(attach_request::Message::Hello(hello)) = first else { return Err(Refusal::NoHello) };
        let hello = Hello::read(hello, cluster, heard).map_err(Refusal::Hello)?;
        if !self.admission.admit(tokio::time::Instant::now()) {
            return Err(Refusal::Busy);
        }
        let slot = tokio::time::timeout(ATTACH_WAIT, self.attaches.acquire());
        let Ok(Ok(_slot)) = slot.await else { return Err(Refusal::Busy) };
        let attached = answered("link.attach", async {
            let mut tx = self.pool.begin().await.label("attach.begin")?;
            let attached = session::session_attach(&mut tx, &hello, peer.certificate(), &self.hub_id).await?;
            // A refusal is kept too: it may have left the identity in quarantine.
            tx.commit().await.label("attach.commit")?;
            Ok::<_, store::Error>(attached)
        });
        match attached.await.map_err(|error| Refusal::Database(crate::chain::chain(&error).to_string()))? {
            Ok(attached) => {
                if attached.term_raised {
                    tracing::error!(cluster.id = %cluster, hub.term = attached.hub_term, "this database lost commits that a cluster has seen: term raised");
                }
                Ok((hello, attached))
            }
            Err(why) => Err(refused(why, &hello, peer)),
        }
    }

    async fn note_detached(&self, session: &Session) {
        metrics::DETACHES.inc([session.cause()]);
        tracing::info!(
            cluster.id = %session.cluster(), replica.id = %session.replica(), session.generation = session.generation(),
            cause = session.cause(), "replica detached"
        );
        let noted = answered("link.detach", async {
            let mut conn = self.pool.acquire().await.label("pool.acquire")?;
            session::session_detach(&mut conn, session.cluster(), session.replica(), session.generation()).await?;
            journal::journals_told(&mut conn, &[session.head_unnoted()].into_iter().flatten().collect::<Vec<_>>()).await
        });
        if let Err(error) = noted.await {
            // Its row goes stale instead, which says the same a little later.
            tracing::warn!(error = %crate::chain::chain(&error), cluster.id = %session.cluster(), "end of a session was not noted");
        }
    }
}

/// Tells people of a clone when it is news; the spoke is told each time.
fn refused(why: NotAttached, hello: &Hello, peer: &Peer) -> Refusal {
    let alarm = |cause: &'static str| {
        metrics::CLONE_ALARMS.inc([cause]);
        tracing::error!(
            cluster.id = %hello.cluster, replica.id = %hello.replica, spoke.boot = hello.boot_id, peer.addr = %peer.addr(), cause,
            "this cluster's identity was seen in two places: nobody attaches under it until a person clears it"
        );
    };
    match why {
        NotAttached::Revoked => Refusal::Revoked,
        NotAttached::Foreign { alarm: news } => {
            if news {
                alarm("kube_system_uid");
            }
            Refusal::ForeignUid { claimed: hello.kube_system_uid.clone() }
        }
        NotAttached::Implausible { detail } => {
            tracing::error!(
                cluster.id = %hello.cluster, replica.id = %hello.replica, spoke.boot = hello.boot_id, peer.addr = %peer.addr(), detail,
                "this replica says that it has seen what no hub can have given out: it is not attached, and nothing of it is believed"
            );
            Refusal::Implausible { detail }
        }
        NotAttached::Quarantined { alarm: news, detail } => {
            if news {
                alarm("boot_ids");
            }
            Refusal::Quarantined { detail }
        }
    }
}

/// Whether the replica's clock is far off, which is told once for a session.
fn clock_apart(hello: &Hello, skew_ms: Option<i64>) -> bool {
    let apart = skew_ms.filter(|skew_ms| skew::apart(*skew_ms));
    if let Some(clock_skew_ms) = apart {
        let what = skew::words(hello.replica.as_str(), clock_skew_ms);
        tracing::warn!(
            cluster.id = %hello.cluster, replica.id = %hello.replica, clock_skew_ms, what,
            "a replica's wall clock is far off: no command hangs on it, what it writes into logs and records does"
        );
    }
    apart.is_some()
}

fn welcome(hello: &Hello, attached: &Attached, credit: u32) -> Welcome {
    let acked = |stream: &str| attached.acked.iter().find(|(known, _)| known == stream).map_or(0, |(_, upto)| *upto);
    let resume = hello
        .journals
        .iter()
        .map(|Journal { stream, .. }| ResumePoint { stream_id: stream.to_string(), from_seq: acked(stream.as_str()) + 1 });
    Welcome {
        session_generation: attached.generation,
        hub_term: attached.hub_term,
        resume: resume.collect(),
        credit,
        heartbeat_ms: u32::try_from(limits::HEARTBEAT.as_millis()).unwrap_or(u32::MAX),
        server_time_unix_ms: attached.now.unix_ms(),
        lease_transitions_known: attached.reign_known,
    }
}

/// Why a replica was not attached.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the first message must be a hello, within 10 s")]
    NoHello,
    #[error(transparent)]
    Hello(#[from] hello::Error),
    #[error("another cluster with another kube-system UID is attached under this id; this one says {claimed:?}")]
    ForeignUid { claimed: String },
    #[error("nobody attaches under this identity: {detail}")]
    Quarantined { detail: String },
    #[error("it says what no hub can have given out: {detail}")]
    Implausible { detail: String },
    #[error("this certificate was revoked")]
    Revoked,
    #[error("too many attach at once")]
    Busy,
    #[error("the hub cannot reach its database")]
    Database(String),
}

impl Refusal {
    fn say(&self, cluster: &ClusterId, lanes: &lanes::Lanes, end: &CancellationToken) {
        let (code, retry, outcome) = match self {
            Self::NoHello => (RejectCode::Unspecified, RETRY_SOON, "no_hello"),
            Self::Hello(hello::Error::Foreign { .. }) | Self::ForeignUid { .. } => (RejectCode::Foreign, RETRY_LATE, "foreign"),
            Self::Hello(hello::Error::Field { .. } | hello::Error::Id(_)) => (RejectCode::Upgrade, RETRY_LATE, "invalid"),
            Self::Implausible { .. } => (RejectCode::Unspecified, RETRY_LATE, "implausible"),
            Self::Quarantined { .. } => (RejectCode::Quarantined, RETRY_LATE, "quarantined"),
            Self::Revoked => (RejectCode::Revoked, RETRY_LATE, "revoked"),
            Self::Busy => (RejectCode::Busy, RETRY_CROWD, "busy"),
            Self::Database(_) => (RejectCode::Busy, RETRY_SOON, "database"),
        };
        // A crowd must not come back as one.
        let retry = if matches!(self, Self::Busy) { retry + pulse::anywhere(admission::SPREAD) } else { pulse::jitter(retry) };
        metrics::ATTACHES.inc([outcome]);
        let detail = if let Self::Database(error) = self { error.as_str() } else { "" };
        tracing::warn!(cluster.id = %cluster, error = %self, detail, "replica rejected");
        let reject = Reject {
            code: code.into(),
            reason: self.to_string(),
            retry_after_ms: u32::try_from(retry.as_millis()).unwrap_or(u32::MAX),
        };
        // A stream that nobody reads any more needs no reason.
        let _ = lanes.offer(Lane::Control, Message::Reject(reject));
        end.cancel();
    }
}

/// What every kind of message is called in metrics.
const fn kind(message: &attach_request::Message) -> &'static str {
    use attach_request::Message as Up;
    match message {
        Up::Hello(_) => "hello",
        Up::FaultBatch(_) => "fault_batch",
        Up::Gap(_) => "gap",
        Up::ClusterState(_) => "cluster_state",
        Up::Evidence(_) => "evidence",
        Up::Process(_) => "process",
        Up::CommandStatus(_) => "command_status",
        Up::SettingsAck(_) => "settings_ack",
        Up::Heartbeat(_) => "heartbeat",
    }
}

/// Asks for all that a cluster has, under this epoch of the database.
const fn all_under(term: u64) -> Resync {
    Resync { snapshot: false, all_under_term: term, command_ids: Vec::new(), faults: Vec::new() }
}

/// A session's word that it cannot go on and had better not come again soon.
fn goaway_long(reason: &str) -> v1::Goaway {
    let reconnect_after_ms = u32::try_from(pulse::jitter(RETRY_LATE).as_millis()).unwrap_or(u32::MAX);
    Goaway { reconnect_after_ms, reason: reason.to_owned() }
}

/// A session's word that it cannot go on, after which the spoke resumes from what is committed.
fn goaway(reason: &str) -> v1::Goaway {
    let reconnect_after_ms = u32::try_from(pulse::jitter(Duration::from_secs(1)).as_millis()).unwrap_or(u32::MAX);
    Goaway { reconnect_after_ms, reason: reason.to_owned() }
}
