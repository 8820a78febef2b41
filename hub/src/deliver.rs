//! Stage `deliver`: puts signed bytes on the stream of the cluster's leader, again on every new session and after a
//! "not now", the same bytes each time, until `deliver_by`. Never makes, changes or judges a command.
//! A command is sent first and noted as sent after: a crash between the two sends it twice, and the spoke knows its id.

pub mod due;
mod noting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::link::v1::{self, attach_response::Message};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    chain::chain,
    link::{Lane, Registry, Session},
    metrics,
    store::{
        self, Labelled as _,
        moment::from_db,
        outbox::{self, Waiting},
        pool::answered,
    },
    wake::{POLL, Wake},
};
use due::{Due, Why};
use noting::{Noting, What};

/// Rows looked at in one round: at about 2 KiB each half a megabyte.
const ROUND_MAX: i64 = 256;
/// When to look again after a lane was full: a spoke that reads at all has emptied it by then.
const SOON: Duration = Duration::from_millis(20);

type Key = (String, Uuid);

/// What the stage works with.
#[derive(Clone, Debug)]
pub struct Stage {
    pool: PgPool,
    registry: Arc<Registry>,
    wake: Arc<Wake>,
    noting: Arc<Noting>,
}

impl Stage {
    /// The stage over a database and the sessions attached here; `wake` tells that bytes are there to be sent.
    #[must_use]
    pub fn new(pool: PgPool, registry: Arc<Registry>, wake: Arc<Wake>) -> Self {
        Self { pool, registry, wake, noting: Arc::default() }
    }

    /// Delivers until told to stop, and notes what it delivered. A failed round is tried again at the next poll.
    pub async fn run(self, stop: CancellationToken) {
        tokio::join!(self.send(&stop), self.noting.run(&self.pool, &stop));
    }

    async fn send(&self, stop: &CancellationToken) {
        loop {
            let left = match answered("deliver.pass", self.pass()).await {
                Ok(pass) => pass.left,
                Err(error) => {
                    metrics::STAGE_FAILURES.inc(["deliver"]);
                    tracing::warn!(error = %chain(&error), "delivery round failed");
                    false
                }
            };
            let woken = async {
                tokio::select! {
                    () = self.wake.signed.notified() => {}
                    () = self.registry.leadership_changed() => {}
                    () = tokio::time::sleep(if left { SOON } else { POLL }) => {}
                }
            };
            if stop.run_until_cancelled(woken).await.is_none() {
                return;
            }
        }
    }

    /// Sends what is due now. Returns how many envelopes went onto lanes.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn round(&self) -> Result<usize, store::Error> {
        self.pass().await.map(|pass| pass.sent)
    }

    /// Notes what was sent and is not noted yet.
    ///
    /// # Errors
    /// When the database fails; it is noted the next time.
    pub async fn note(&self) -> Result<(), store::Error> {
        self.noting.flush(&self.pool).await
    }

    #[tracing::instrument(name = "hub.deliver", skip_all)]
    async fn pass(&self) -> Result<Pass, store::Error> {
        let mut sessions = self.registry.leading();
        let mut pass = Pass::default();
        while !sessions.is_empty() && !self.noting.full() {
            let leading: Vec<_> = sessions.iter().map(|session| session.leading()).collect();
            let on_streams = self.noting.on_streams();
            let mut conn = self.pool.acquire().await.label("deliver.connect")?;
            let mut waiting = outbox::waiting(&mut conn, &leading, ROUND_MAX).await.label("deliver.waiting")?;
            drop(conn);
            let more = waiting.len() as i64 == ROUND_MAX;
            on_streams.leave_out(&mut waiting);
            let picked = pick(&waiting);
            let by_cluster: BTreeMap<&str, &Arc<Session>> = sessions.iter().map(|s| (s.cluster().as_str(), s)).collect();
            let (sent, full) = put(&by_cluster, &picked, waiting, &self.noting);
            pass.sent += sent;
            pass.left |= more || sent < picked.len();
            if !more || full.is_empty() {
                break;
            }
            // What waits for a spoke that does not read may have filled this round: the others are looked at without it.
            sessions.retain(|session| !full.contains(session.cluster().as_str()));
        }
        Ok(pass)
    }
}

/// What one round came to.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// Envelopes put on lanes.
    sent: usize,
    /// More is due: a lane was full, or there was more than a round takes.
    left: bool,
}

/// What is to be done with each row; rows with nothing to do are left out.
fn pick(waiting: &[Waiting]) -> BTreeMap<Key, (Due, Option<Duration>)> {
    let mut picked = BTreeMap::new();
    for row in waiting {
        let due = due::due(&row.into(), from_db(row.now));
        match due {
            Due::Send(_) | Due::Cancel => {
                let first = row.sent_at.is_none().then(|| from_db(row.now).since(from_db(row.signed_at)));
                picked.insert((row.cluster_id.clone(), row.command_id), (due, first));
            }
            Due::Expired => metrics::COMMANDS_HELD.inc(["expired"]),
            Due::Superseded => metrics::COMMANDS_HELD.inc(["superseded"]),
            Due::Wait => {}
        }
    }
    picked
}

/// Puts bytes on lanes, in the order of the commands' numbers, each to be noted by the moment at which it was found to be
/// due. A full lane ends it for that cluster until the next round. Returns how many were put, and whose lanes are full.
fn put(
    sessions: &BTreeMap<&str, &Arc<Session>>,
    picked: &BTreeMap<Key, (Due, Option<Duration>)>,
    rows: Vec<Waiting>,
    noting: &Noting,
) -> (usize, BTreeSet<String>) {
    let (mut sent, mut full) = (0, BTreeSet::new());
    for Waiting { cluster_id, command_id, envelope, cancel_envelope: cancel, now, .. } in rows {
        let key = (cluster_id, command_id);
        let Some((due, first)) = picked.get(&key) else { continue };
        let Some(session) = sessions.get(key.0.as_str()).filter(|_| !full.contains(&key.0)) else { continue };
        let (lane, message) = match (due, cancel) {
            (Due::Cancel, Some(cancel)) => (Lane::Cancel, Message::Cancel(v1::Cancel { envelope: Bytes::from(cancel) })),
            (Due::Send(_), _) => (Lane::Command, Message::Command(v1::Command { envelope: Bytes::from(envelope) })),
            (Due::Cancel | Due::Expired | Due::Superseded | Due::Wait, _) => continue,
        };
        if session.offer(lane, message).is_err() {
            metrics::COMMANDS_HELD.inc(["lane_full"]);
            full.insert(key.0);
            continue;
        }
        dies_at!("deliver.put");
        tracing::info!(cluster.id = key.0, command.id = %key.1, lane = lane.name(), "envelope put on the stream");
        match due {
            Due::Send(why) => {
                metrics::COMMANDS_SENT.inc([why.name()]);
                if let Some(age) = first {
                    metrics::DELIVER_SECONDS.observe(*age);
                }
                noting.add(What::Command, key, now);
            }
            Due::Cancel | Due::Expired | Due::Superseded | Due::Wait => noting.add(What::Cancel, key, now),
        }
        sent += 1;
    }
    (sent, full)
}

impl From<&Waiting> for due::Command {
    fn from(row: &Waiting) -> Self {
        Self {
            dispatched: row.state == "DISPATCHED",
            awaited: matches!(row.state.as_str(), "SIGNED" | "DISPATCHED"),
            harmless: row.action == "notify",
            superseded: row.plan_rev < row.plan_rev_newest,
            cancel: row.cancel_asked_at.is_some(),
            cancel_sent_at: row.cancel_sent_at.map(from_db),
            deliver_by: from_db(row.deliver_by),
            sent_at: row.sent_at.map(from_db),
            resend_at: row.resend_at.map(from_db),
            attached_at: from_db(row.attached_at),
        }
    }
}

impl Why {
    const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::NewSession => "new_session",
            Self::NotNow => "not_now",
        }
    }
}
