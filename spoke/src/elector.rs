//! Who of the replicas leads: a Lease, taken and renewed as client-go does it. Others' renewals are judged by when *we*
//! saw them change, on our own clock, never by the times written in the Lease; each write is a compare-and-swap by
//! resourceVersion; an API call takes less than half of what lies between renew deadline and duration. A Lease is no
//! fence: effects are guarded by the objects that they change, and [`ElectorHandle::margin`] is asked before each.
//!
//! Loss of the Lease, or the elector's own death, ends [`ElectorHandle::ended`]; the process must then end. The Lease is
//! released only when told, after all work has been joined.

mod lease;
mod observed;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use gpuheal_proto::chain::chain;
use kube::Client;
use tokio::{sync::watch, task::JoinHandle};

pub use self::lease::Error;
use self::{lease::LeaseApi, observed::Observed};
use crate::{clock::boottime, ports::Leadership};

/// No Lease has come so far by itself: with a takeover each second it takes 34 years. What claims to is somebody's mistake, and would use up
/// the 31 bits that a Lease has for it.
const REIGN_BELIEVED: u64 = 1 << 30;

/// How to elect.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub lease: String,
    /// Who we are in it.
    pub identity: String,
    /// After so long without a renewal others may take it. 15 s.
    pub duration: Duration,
    /// After so long without success the holder gives up. 10 s.
    pub renew_deadline: Duration,
    /// Between two attempts. 2 s.
    pub retry: Duration,
}

impl Config {
    /// Longest API call: below half of (duration − renew deadline), so that a renewal that hangs is over before others
    /// may take the Lease.
    #[must_use]
    pub fn call_timeout(&self) -> Duration {
        self.duration.saturating_sub(self.renew_deadline).mul_f64(0.45).max(Duration::from_millis(50))
    }

    /// Whether the three spans fit together.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn check(&self) -> Result<(), Error> {
        if self.duration <= self.renew_deadline {
            return Err(Error::Config { rule: "the lease duration must be longer than the renew deadline" });
        }
        if self.duration < gpuheal_spoke_core::verify::STEP_MARGIN + self.retry {
            return Err(Error::Config { rule: "the lease duration must leave the 4 s that a step needs, and one retry period" });
        }
        // client-go's jitter factor.
        if self.renew_deadline <= self.retry.mul_f64(1.2) {
            return Err(Error::Config { rule: "the renew deadline must be longer than 1.2 retry periods" });
        }
        Ok(())
    }
}

/// Runs the election.
#[derive(Debug)]
pub struct Elector;

/// What the process keeps of its elector.
#[derive(Clone, Debug)]
pub struct ElectorHandle {
    shared: Arc<Shared>,
    ended: watch::Receiver<Option<String>>,
    release: tokio_util::sync::CancellationToken,
    killed: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Shared {
    duration: Duration,
    /// Highest reign that is known from elsewhere than the Lease.
    known: AtomicU64,
    /// Boot time before which the last successful renewal was begun.
    renewed: Mutex<Option<Duration>>,
}

impl Elector {
    /// Starts electing. The client should not retry by itself.
    ///
    /// # Errors
    /// When the configuration cannot elect safely.
    pub fn spawn(client: Client, config: Config) -> Result<(watch::Receiver<Leadership>, ElectorHandle), Error> {
        config.check()?;
        let shared = Arc::new(Shared { duration: config.duration, known: AtomicU64::new(0), renewed: Mutex::new(None) });
        let (leadership, seen) = watch::channel(Leadership::Standby);
        let (ended_tx, ended) = watch::channel(None);
        let release = tokio_util::sync::CancellationToken::new();
        let run = Run {
            api: LeaseApi::new(client, &config),
            observed: Observed::default(),
            shared: Arc::clone(&shared),
            leadership,
            release: release.clone(),
            config,
            told: None,
        };
        let task: JoinHandle<Result<(), Error>> = tokio::spawn(run.run());
        let killed = task.abort_handle();
        tokio::spawn(async move {
            let why = match task.await {
                Ok(Ok(())) => "released".to_owned(),
                Ok(Err(error)) => chain(&error).to_string(),
                Err(error) => format!("the elector died: {error}"),
            };
            ended_tx.send_replace(Some(why));
        });
        Ok((seen, ElectorHandle { shared, ended, release, killed }))
    }
}

impl ElectorHandle {
    /// What is left of the Lease, counted from before the last renewal was sent; nothing when it is not held. By boot
    /// time, so that a suspended machine finds it gone.
    #[must_use]
    pub fn margin(&self) -> Option<Duration> {
        let renewed = (*self.shared.renewed.lock().expect("no holder of this lock panics"))?;
        Some((renewed + self.shared.duration).saturating_sub(boottime()))
    }

    /// Waits for the end of the election and says why: the process must end then.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "the elector died".to_owned(),
        }
    }

    /// Reigns of these numbers were seen elsewhere than in the Lease: at the hub, or in records. Where the Lease was made anew, with its
    /// namespace or by hand, its numbers begin again, and what the new leader says would count as an older one's for ever:
    /// the next renewal begins a reign above all that is known. A number that no Lease can have hides none of the others.
    pub fn outranks(&self, reigns: impl IntoIterator<Item = u64>) {
        if let Some(highest) = reigns.into_iter().filter(|reign| *reign <= REIGN_BELIEVED).max() {
            self.shared.known.fetch_max(highest, Ordering::Relaxed);
        }
    }

    /// Stops renewing without a word to anybody, as a killed process does: for tests of a takeover.
    pub fn abandon(&self) {
        self.killed.abort();
    }

    /// Gives the Lease up, so that another replica need not wait for it to run out. Only after all work has been joined.
    pub async fn release(&self) {
        self.release.cancel();
        self.ended().await;
    }
}

struct Run {
    api: LeaseApi,
    observed: Observed,
    shared: Arc<Shared>,
    leadership: watch::Sender<Leadership>,
    release: tokio_util::sync::CancellationToken,
    config: Config,
    /// Why the last attempt came to nothing, as it was logged.
    told: Option<String>,
}

impl Run {
    async fn run(mut self) -> Result<(), Error> {
        let result = self.elect().await;
        *self.shared.renewed.lock().expect("no holder of this lock panics") = None;
        self.leadership.send_replace(Leadership::Standby);
        result
    }

    async fn elect(&mut self) -> Result<(), Error> {
        loop {
            if self.attempt().await {
                break;
            }
            if self.pause(1.2).await {
                return Ok(());
            }
        }
        tracing::info!(lead.term = self.observed.transitions(), "leading");
        self.hold().await
    }

    /// Renews until told to release, or until the deadline has passed without success.
    async fn hold(&mut self) -> Result<(), Error> {
        loop {
            if self.pause(1.0).await {
                return self.give_up().await;
            }
            let since = self.renewed().unwrap_or_default();
            while !self.attempt().await {
                let late = boottime().saturating_sub(since) >= self.config.renew_deadline;
                if late || self.observed.held_by_other(&self.config.identity) {
                    return Err(Error::Lost { holder: self.observed.holder().to_owned(), deadline: self.config.renew_deadline });
                }
                tokio::time::sleep(self.config.retry.min(Duration::from_millis(500))).await;
            }
        }
    }

    fn renewed(&self) -> Option<Duration> {
        *self.shared.renewed.lock().expect("no holder of this lock panics")
    }

    /// Waits for the next attempt; true when told to release.
    async fn pause(&self, jitter: f64) -> bool {
        let wait = self.config.retry.mul_f64(1.0 + (jitter - 1.0) * crate::chance::chance(0.0));
        tokio::select! {
            () = tokio::time::sleep(wait) => false,
            () = self.release.cancelled() => true,
        }
    }

    /// One attempt to take or renew the Lease; true when we hold it afterwards.
    async fn attempt(&mut self) -> bool {
        let begun = boottime();
        let known = self.shared.known.load(Ordering::Relaxed);
        let outranked = self.observed.written_transitions() < known;
        self.observed.raise(known);
        let leading = self.renewed().is_some() && !outranked;
        match self.api.acquire_or_renew(&mut self.observed, leading, begun).await {
            Ok(true) => {
                *self.shared.renewed.lock().expect("no holder of this lock panics") = Some(begun);
                let now = Leadership::Leading { lease_transitions: self.observed.transitions() };
                if outranked {
                    tracing::warn!(
                        lead.term = self.observed.transitions(),
                        known,
                        "the Lease had been made anew: a reign above all that are known begins"
                    );
                }
                self.leadership.send_if_modified(|old| std::mem::replace(old, now) != now);
                self.told = None;
                true
            }
            Ok(false) => {
                self.told = None;
                false
            }
            Err(error) => {
                // Tried every other second: a cause is told once, until it is another or is gone.
                let why = chain(&error).to_string();
                if self.told.as_ref() != Some(&why) {
                    tracing::warn!(error = why, "lease not written, it is tried again");
                    self.told = Some(why);
                }
                false
            }
        }
    }

    async fn give_up(&mut self) -> Result<(), Error> {
        self.leadership.send_replace(Leadership::Standby);
        *self.shared.renewed.lock().expect("no holder of this lock panics") = None;
        self.api.release(&self.observed).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(duration: u64, deadline: u64, retry: u64) -> Config {
        let secs = Duration::from_secs;
        Config {
            namespace: "n".into(),
            lease: "l".into(),
            identity: "i".into(),
            duration: secs(duration),
            renew_deadline: secs(deadline),
            retry: secs(retry),
        }
    }

    #[test]
    fn an_api_call_ends_before_others_may_take_the_lease() {
        let config = config(15, 10, 2);
        assert!(config.check().is_ok());
        assert!(config.call_timeout() * 2 < config.duration - config.renew_deadline);
    }

    #[test]
    fn spans_that_cannot_elect_safely_are_refused() {
        assert!(config(10, 10, 2).check().is_err());
        assert!(config(15, 2, 2).check().is_err());
        assert!(config(5, 3, 2).check().is_err(), "no step would ever find its margin");
    }
}
