//! Wakes the next stage early, in this process and in other hubs. The 1 s poll of each stage is the truth, this is only
//! haste: what is lost here costs a second. One dedicated connection listens; another sends what was rung meanwhile in one
//! NOTIFY outside any writing transaction, at most 20 times a second, since each holds a lock of the whole server.

use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sqlx::{
    Connection as _, PgConnection,
    postgres::{PgConnectOptions, PgListener},
};
use tokio::{sync::Notify, time::timeout};
use tokio_util::sync::CancellationToken;

/// How long a stage sleeps when nobody wakes it.
pub const POLL: Duration = Duration::from_secs(1);
/// 20 a second: at 128 clients a NOTIFY costs the server a fifth of its commits when each commit carries one, and nothing
/// that can be measured when one connection sends 20.
const SEND_EVERY: Duration = Duration::from_millis(50);
/// Wait before a lost connection is made again.
const RECONNECT: Duration = Duration::from_secs(2);
/// The channel's name in Postgres.
const CHANNEL: &str = "gpuheal_wake";

/// One thing that may have happened.
#[derive(Debug, Default)]
pub struct Bell {
    here: Notify,
    elsewhere: AtomicBool,
}

impl Bell {
    /// It happened: wakes one waiter here, and the other hubs soon.
    pub fn notify_one(&self) {
        self.here.notify_one();
        self.elsewhere.store(true, Ordering::Release);
    }

    /// Waits until it happens, or has happened since the last wait.
    pub async fn notified(&self) {
        self.here.notified().await;
    }

    /// Waits until it happens, at most until the next poll is due.
    pub async fn notified_or_poll(&self) {
        let _woken = timeout(POLL, self.here.notified()).await;
    }

    fn heard(&self) {
        self.here.notify_one();
    }

    fn take(&self) -> bool {
        self.elsewhere.swap(false, Ordering::AcqRel)
    }
}

/// What stages tell each other.
#[derive(Debug, Default)]
pub struct Wake {
    /// Something new is known of a node: wakes decide.
    pub ingested: Bell,
    /// Commands were issued or called off: wakes sign.
    pub decided: Bell,
    /// Envelopes exist: wakes deliver.
    pub signed: Bell,
    /// A report was taken: wakes decide.
    pub settled: Bell,
    /// A person said whose certificates count: wakes whoever cuts streams.
    pub guarded: Bell,
    /// Whether faults wait for their commit.
    pub crowd: Crowd,
}

/// While faults wait for their commit, judges take turns: what they do all at once leaves no room for taking, and a spoke
/// that waits for its ack matters more than how soon the last of a thousand nodes is judged.
#[derive(Debug, Default)]
pub struct Crowd {
    waits: AtomicBool,
    turn: tokio::sync::Mutex<()>,
}

impl Crowd {
    /// Says whether faults wait now.
    pub fn set(&self, waits: bool) {
        self.waits.store(waits, Ordering::Release);
    }

    /// Waits for this judge's turn, which lasts for as long as what is returned is kept; there are none unless faults wait.
    pub async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.waits.load(Ordering::Acquire) { Some(self.turn.lock().await) } else { None }
    }
}

impl Wake {
    /// Nothing has happened yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn bells(&self) -> [(&'static str, &Bell); 5] {
        [
            ("ingested", &self.ingested),
            ("decided", &self.decided),
            ("signed", &self.signed),
            ("settled", &self.settled),
            ("guarded", &self.guarded),
        ]
    }

    /// What other hubs are to hear, and forgets it.
    fn take(&self) -> Option<String> {
        let rung: Vec<&str> = self.bells().into_iter().filter(|(_, bell)| bell.take()).map(|(name, _)| name).collect();
        (!rung.is_empty()).then(|| rung.join(" "))
    }

    fn hear(&self, text: &str) {
        for (name, bell) in self.bells() {
            if text.split(' ').any(|word| word == name) {
                bell.heard();
            }
        }
    }

    /// Carries what is rung here to other hubs and what they ring to here, until told to stop. Only `signed` crosses
    /// with any use in a fleet whose sessions are spread: the others wake whoever is idle.
    pub async fn relay(self: Arc<Self>, options: PgConnectOptions, hub_id: String, stop: CancellationToken) {
        let (wake, ours, listening) = (self.clone(), hub_id.clone(), options.clone());
        let hear = async move {
            loop {
                if let Err(error) = wake.listen(&listening, &ours).await {
                    tracing::warn!(error = %crate::chain::chain(&error), "wake-ups from other hubs are lost, the poll goes on");
                }
                tokio::time::sleep(RECONNECT).await;
            }
        };
        let tell = async {
            loop {
                if let Err(error) = self.send(&options, &hub_id).await {
                    tracing::warn!(error = %crate::chain::chain(&error), "wake-ups to other hubs are lost, their poll goes on");
                }
                tokio::time::sleep(RECONNECT).await;
            }
        };
        let both = async { tokio::join!(hear, tell) };
        stop.run_until_cancelled(both).await;
    }

    async fn listen(&self, options: &PgConnectOptions, hub_id: &str) -> Result<(), sqlx::Error> {
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        loop {
            match listener.try_recv().await? {
                Some(heard) => match heard.payload().split_once('|') {
                    Some((from, _)) if from == hub_id => {}
                    Some((_, text)) => self.hear(text),
                    None => {}
                },
                // The connection was lost and made again: whatever was told meanwhile is not known.
                None => self.bells().into_iter().for_each(|(_, bell)| bell.heard()),
            }
        }
    }

    async fn send(&self, options: &PgConnectOptions, hub_id: &str) -> Result<(), sqlx::Error> {
        let mut conn = PgConnection::connect_with(options).await?;
        loop {
            tokio::time::sleep(SEND_EVERY).await;
            if let Some(text) = self.take() {
                sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(format!("{hub_id}|{text}")).execute(&mut conn).await?;
            }
        }
    }
}

/// Rings the bell `guarded` of every hub, for whoever is no hub and has just committed something of that kind. Lost, it
/// costs half a second.
///
/// # Errors
/// When the database fails.
pub async fn ring_guarded(conn: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_notify($1, 'no hub|guarded')").bind(CHANNEL).execute(conn).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rings_are_one_message_and_none_is_no_message() {
        let wake = Wake::default();
        assert_eq!(wake.take(), None);
        for _ in 0..1000 {
            wake.signed.notify_one();
        }
        wake.ingested.notify_one();
        assert_eq!(wake.take().as_deref(), Some("ingested signed"));
        assert_eq!(wake.take(), None);
    }

    #[tokio::test]
    async fn what_another_hub_rang_wakes_here_and_is_not_told_on() {
        let wake = Wake::default();
        wake.hear("signed nonsense");
        wake.signed.notified().await;
        assert_eq!(wake.take(), None);
    }

    /// Failure table, row 21.
    #[tokio::test]
    async fn whoever_is_never_rung_looks_all_the_same_after_a_second() {
        assert!(POLL <= Duration::from_secs(1));
        timeout(Duration::from_secs(120), Wake::default().decided.notified_or_poll()).await.unwrap();
    }
}
