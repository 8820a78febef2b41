//! Stage `deliver`: puts signed bytes on the stream of the cluster's leader, again on every new session and after a
//! "not now", the same bytes each time, until `deliver_by`. Never makes, changes or judges a command.
//! A command is sent first and noted as sent after: a crash between the two sends it twice, and the spoke knows its id.

pub mod due;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use gpuheal_proto::{
    ids::IncidentId,
    link::v1::{self, attach_response::Message},
    time::Timestamp,
};
use serde_json::json;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::{
    audit::{self, Entry, Kind},
    chain::chain,
    link::{Lane, Registry, Session},
    metrics,
    store::{
        self, Labelled as _, moment,
        outbox::{self, Waiting},
    },
    wake::{POLL, Wake},
};
use due::{Due, Why};

/// Rows looked at in one round: at about 2 KiB each half a megabyte.
const ROUND_MAX: i64 = 256;
/// When to look again after a lane was full: a spoke that reads at all has emptied it by then.
const SOON: Duration = Duration::from_millis(20);

type Key = (String, Uuid);

/// What the stage works with.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The database.
    pub pool: PgPool,
    /// Who is attached here.
    pub registry: Arc<Registry>,
    /// Woken when bytes are there to be sent.
    pub wake: Arc<Wake>,
}

impl Stage {
    /// Delivers until told to stop. A failed round is tried again at the next poll.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            let left = match self.pass().await {
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
    /// When the database fails. What was sent and not noted is sent again.
    #[tracing::instrument(name = "hub.deliver", skip_all)]
    pub async fn round(&self) -> Result<usize, store::Error> {
        self.pass().await.map(|pass| pass.sent)
    }

    async fn pass(&self) -> Result<Pass, store::Error> {
        let sessions = self.registry.leading();
        if sessions.is_empty() {
            return Ok(Pass::default());
        }
        let leading: Vec<_> = sessions.iter().map(|session| session.leading()).collect();
        let mut conn = self.pool.acquire().await.label("deliver.connect")?;
        let waiting = outbox::waiting(&mut conn, &leading, ROUND_MAX).await.label("deliver.waiting")?;
        let picked = pick(&waiting);
        if picked.is_empty() {
            return Ok(Pass::default());
        }
        let by_cluster: BTreeMap<&str, &Arc<Session>> = sessions.iter().map(|s| (s.cluster().as_str(), s)).collect();
        let full = waiting.len() as i64 == ROUND_MAX;
        let (sent, cancelled) = put(&by_cluster, &picked, waiting);
        if !sent.is_empty() || !cancelled.is_empty() {
            note(&mut conn, &sent, &cancelled).await?;
        }
        let sent = sent.len() + cancelled.len();
        Ok(Pass { sent, left: sent < picked.len() || full })
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

/// Notes what was put on streams, with its entries in the audit.
async fn note(conn: &mut PgConnection, sent: &[Key], cancelled: &[Key]) -> Result<(), store::Error> {
    let mut tx = conn.begin().await.label("deliver.begin")?;
    let noted = outbox::sent(&mut tx, sent).await.label("deliver.sent")?;
    let called_off = outbox::cancel_sent(&mut tx, cancelled).await.label("deliver.cancel_sent")?;
    let mut entries: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    let noted = noted.into_iter().map(|row| (Kind::CommandSent, row));
    for (kind, (cluster, command, incident)) in noted.chain(called_off.into_iter().map(|row| (Kind::CancelSent, row))) {
        entries.entry(cluster).or_default().push(Entry {
            kind,
            actor: "hub/deliver".to_owned(),
            subject: format!("command/{command}"),
            incident: Some(IncidentId::from_uuid(incident)),
            body: json!({}),
        });
    }
    let now = moment::now(&mut tx).await?;
    // Chains in the order of their names, as everybody who takes several.
    for (cluster, entries) in &entries {
        audit::append(&mut tx, cluster, entries, now).await?;
    }
    tx.commit().await.label("deliver.commit")
}

/// What is to be done with each row; rows with nothing to do are left out.
fn pick(waiting: &[Waiting]) -> BTreeMap<Key, (Due, Option<Duration>)> {
    let mut picked = BTreeMap::new();
    for row in waiting {
        let due = due::due(&view(row), moment(row.now));
        match due {
            Due::Send(_) | Due::Cancel => {
                let first = row.sent_at.is_none().then(|| moment(row.now).since(moment(row.signed_at)));
                picked.insert((row.cluster_id.clone(), row.command_id), (due, first));
            }
            Due::Expired => metrics::COMMANDS_HELD.inc(["expired"]),
            Due::Superseded => metrics::COMMANDS_HELD.inc(["superseded"]),
            Due::Wait => {}
        }
    }
    picked
}

/// Puts bytes on lanes, in the order of the commands' numbers. A full lane ends it for that cluster until the next round.
fn put(
    sessions: &BTreeMap<&str, &Arc<Session>>,
    picked: &BTreeMap<Key, (Due, Option<Duration>)>,
    rows: Vec<Waiting>,
) -> (Vec<Key>, Vec<Key>) {
    let (mut sent, mut cancelled, mut full) = (Vec::new(), Vec::new(), BTreeSet::new());
    for Waiting { cluster_id, command_id, envelope, cancel_envelope: cancel, .. } in rows {
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
        tracing::info!(cluster.id = key.0, command.id = %key.1, lane = lane.name(), "envelope put on the stream");
        match due {
            Due::Send(why) => {
                metrics::COMMANDS_SENT.inc([why.name()]);
                if let Some(age) = first {
                    metrics::DELIVER_SECONDS.observe(*age);
                }
                sent.push(key);
            }
            Due::Cancel | Due::Expired | Due::Superseded | Due::Wait => cancelled.push(key),
        }
    }
    (sent, cancelled)
}

fn view(row: &Waiting) -> due::Command {
    due::Command {
        dispatched: row.state == "DISPATCHED",
        awaited: matches!(row.state.as_str(), "SIGNED" | "DISPATCHED"),
        harmless: row.action == "notify",
        superseded: row.plan_rev < row.plan_rev_newest,
        cancel: row.cancel_asked_at.is_some(),
        cancel_sent_at: row.cancel_sent_at.map(moment),
        deliver_by: moment(row.deliver_by),
        sent_at: row.sent_at.map(moment),
        resend_at: row.resend_at.map(moment),
        attached_at: moment(row.attached_at),
    }
}

fn moment(at: chrono::DateTime<chrono::Utc>) -> Timestamp {
    Timestamp::from_unix_ms(at.timestamp_millis())
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
