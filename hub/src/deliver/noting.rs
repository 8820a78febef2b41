//! What was put on streams and is to be noted in the database: gathered for a moment, so that a storm of commands costs a
//! few commits and none of them waits for the note of the one before. Until it is noted, an envelope is not sent again
//! here; it is noted by the moment at which it was found to be due, so that a session that began later is sent it anew.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use chrono::{DateTime, Utc};
use gpuheal_proto::ids::IncidentId;
use serde_json::json;
use sqlx::PgPool;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Key;
use crate::{
    audit::{self, Entry, Kind},
    chain::chain,
    metrics,
    store::{
        self, Labelled as _, moment,
        outbox::{self, Sent, Waiting},
        pool::answered,
    },
};

/// How long notes gather: shorter than a spoke waits before it reports, so that the audit tells the sending first.
const GATHER: Duration = Duration::from_millis(10);
/// Pause after the database failed.
const PAUSE: Duration = Duration::from_millis(500);
/// Notes that may wait before nothing more is sent: four rounds, at about 100 bytes each.
const WAITING_MAX: usize = 4 * super::ROUND_MAX as usize;

/// What was put on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Command,
    Cancel,
}

/// Envelopes and the moments at which they were found to be due.
type Moments = BTreeMap<(What, Key), DateTime<Utc>>;

/// Envelopes that are on streams and not yet noted.
#[derive(Debug, Default)]
pub(super) struct Noting {
    waiting: Mutex<Moments>,
    some: Notify,
}

/// What was on streams and not noted when the database was about to be asked.
#[derive(Debug)]
pub(super) struct OnStreams(Moments);

impl OnStreams {
    /// Takes out the rows whose envelopes were on a stream already. What is noted by now may not have been when its row was
    /// read: a row counts as noted when it says so itself.
    pub(super) fn leave_out(&self, rows: &mut Vec<Waiting>) {
        rows.retain(|row| {
            let cancel = row.cancel_asked_at.is_some();
            let (what, noted_at) = if cancel { (What::Cancel, row.cancel_sent_at) } else { (What::Command, row.sent_at) };
            let put_at = self.0.get(&(what, (row.cluster_id.clone(), row.command_id)));
            put_at.is_none_or(|put_at| noted_at.is_some_and(|noted_at| noted_at >= *put_at))
        });
    }
}

impl Noting {
    pub(super) fn add(&self, what: What, key: Key, due_at: DateTime<Utc>) {
        self.waiting().insert((what, key), due_at);
        self.some.notify_one();
    }

    /// So much waits to be noted that nothing more may be sent.
    pub(super) fn full(&self) -> bool {
        self.waiting().len() >= WAITING_MAX
    }

    /// What is on streams and not noted: to be taken before rows are read, by the one task that puts.
    pub(super) fn on_streams(&self) -> OnStreams {
        OnStreams(self.waiting().clone())
    }

    /// Notes until told to stop, and then what is left.
    pub(super) async fn run(&self, pool: &PgPool, stop: &CancellationToken) {
        loop {
            let go_on = stop.run_until_cancelled(async {
                self.some.notified().await;
                tokio::time::sleep(GATHER).await;
            });
            let last = go_on.await.is_none();
            if let Err(error) = answered("deliver.note", self.flush(pool)).await {
                metrics::STAGE_FAILURES.inc(["deliver"]);
                tracing::warn!(error = %chain(&error), "what was sent is not noted yet");
                self.some.notify_one();
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
            if last {
                return;
            }
        }
    }

    /// Notes all that waits, with its entries in the audit; on failure it goes on waiting.
    pub(super) async fn flush(&self, pool: &PgPool) -> Result<(), store::Error> {
        let notes = self.waiting().clone();
        if notes.is_empty() {
            return Ok(());
        }
        dies_at!("deliver.before-note");
        let of = |kind: What| -> Vec<Sent<'_>> {
            let these = notes.iter().filter(|((what, _), _)| *what == kind);
            these.map(|((_, (cluster, command)), at)| Sent { cluster, command: *command, at: *at }).collect()
        };
        let mut tx = pool.begin().await.label("deliver.begin")?;
        let sent = outbox::sent(&mut tx, &of(What::Command)).await.label("deliver.sent")?;
        let called_off = outbox::cancel_sent(&mut tx, &of(What::Cancel)).await.label("deliver.cancel_sent")?;
        let mut entries: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
        let sent = sent.into_iter().map(|row| (Kind::CommandSent, row));
        for (kind, (cluster, command, incident)) in sent.chain(called_off.into_iter().map(|row| (Kind::CancelSent, row))) {
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
        tx.commit().await.label("deliver.commit")?;
        // What was put again meanwhile, by a later moment, is noted next.
        self.waiting().retain(|key, at| notes.get(key) != Some(at));
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(What, Key), DateTime<Utc>>> {
        self.waiting.lock().expect("no holder of this lock panics")
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn row(sent_at: Option<DateTime<Utc>>) -> Waiting {
        let at = DateTime::<Utc>::UNIX_EPOCH;
        Waiting {
            cluster_id: "c1".into(),
            command_id: Uuid::from_u128(1),
            state: "SIGNED".into(),
            action: "mark".into(),
            node_uid: "u1".into(),
            plan_rev: 1,
            plan_rev_newest: 1,
            deliver_by: at,
            signed_at: at,
            sent_at,
            resend_at: None,
            heard_at: None,
            cancel_asked_at: None,
            cancel_sent_at: None,
            envelope: vec![],
            cancel_envelope: None,
            attached_at: at,
            now: at,
        }
    }

    #[test]
    fn a_row_that_was_read_before_its_note_is_not_put_again_though_it_is_noted_by_now() {
        let (noting, at) = (Noting::default(), DateTime::<Utc>::UNIX_EPOCH + Duration::from_secs(9));
        noting.add(What::Command, ("c1".into(), Uuid::from_u128(1)), at);
        let on_streams = noting.on_streams();
        // The note is committed while the rows are on their way.
        noting.waiting().clear();
        let left = |sent_at| {
            let mut rows = vec![row(sent_at)];
            on_streams.leave_out(&mut rows);
            rows.len()
        };
        assert_eq!(left(None), 0, "read before the note");
        assert_eq!(left(Some(at)), 1, "read after it: due again for a reason of its own");
        assert_eq!(left(Some(at - Duration::from_secs(1))), 0, "an earlier sending's note");
    }
}
