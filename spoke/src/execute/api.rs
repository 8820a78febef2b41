//! Calls to the API server as the executor makes them: each with a timeout, none repeated behind its back, all of them
//! slowed when the server says that it is overloaded. What changes a node or a pod never waits here: whoever sends it has asked
//! the guard just before, and what that said is old after a wait. It is given back unsent, and the guard waits.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, client::Body, core::Status};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};

use super::patience::Patience;
use crate::chance::chance;

/// Longest API call of the executor: half of the margin that a step asks of the Lease.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// Evictions and deletes of pods in flight at once, over all drains of a leader: those of four nodes, and a third of the 200 writes that an API
/// server takes at once if it is not told otherwise. At 50 ms each they are 1,280 a second.
pub const IN_FLIGHT_MAX: usize = 64;
/// Largest answer to an eviction that is read: a Status is about 1 KiB.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A client and the server's plea for patience.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    patience: Arc<Mutex<Option<Patience>>>,
    slots: Arc<Semaphore>,
}

impl std::fmt::Debug for Kube {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kube")
    }
}

/// What came of a raw request.
#[derive(Debug)]
pub struct Raw {
    /// HTTP status.
    pub status: u16,
    /// The Retry-After header, in seconds.
    pub retry_after: Option<Duration>,
    /// The body when it is a Status.
    pub answer: Option<Status>,
}

impl Kube {
    /// Wraps a client that does not retry by itself.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, patience: Arc::default(), slots: Arc::new(Semaphore::new(IN_FLIGHT_MAX)) }
    }

    /// The client, for typed calls inside [`Kube::call`].
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Whether the node of this name is this very machine, by the API server's word.
    ///
    /// # Errors
    /// As [`Kube::call`]: then nobody knows.
    pub async fn has_machine(&self, name: &str, uid: &str) -> Result<bool, Error> {
        let node = self.call("get node", Api::<Node>::all(self.client()).get_opt(name)).await?;
        Ok(node.is_some_and(|node| node.metadata.uid.as_deref() == Some(uid)))
    }

    /// One call that reads, or writes what is our own, bounded; sent once the server wants it.
    ///
    /// # Errors
    /// What the server said, or that it said nothing.
    pub async fn call<T>(&self, verb: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        if let Some(until) = self.patience_of(chance(0.0).to_bits()) {
            tokio::time::sleep_until(until).await;
        }
        self.send(verb, call).await
    }

    /// One call that changes what is not our own, or hangs on one that does, bounded; sent at once or not at all.
    ///
    /// # Errors
    /// The same, or that the server has asked for patience: then nothing was sent.
    pub async fn effect<T>(&self, verb: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        self.wanted(verb)?;
        self.send(verb, call).await
    }

    async fn send<T>(&self, verb: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => {
                if let kube::Error::Api(status) = &source
                    && status.code == 429
                    && causes(status).is_empty()
                {
                    self.slow(retry_after(status).unwrap_or(Duration::from_secs(1)));
                }
                Err(Error::Api { verb, source: Box::new(source) })
            }
            Err(_) => Err(Error::Timeout { verb }),
        }
    }

    /// One raw request with an effect, bounded; its status, header and body.
    ///
    /// # Errors
    /// When no answer came, or it was not sent, as by [`Kube::effect`].
    pub async fn raw(&self, verb: &'static str, request: http::Request<Vec<u8>>) -> Result<Raw, Error> {
        self.wanted(verb)?;
        let (parts, body) = request.into_parts();
        let ask = async {
            let response = self.client.send(http::Request::from_parts(parts, Body::from(body))).await?;
            let status = response.status().as_u16();
            let seconds = response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let answer = body.ok().and_then(|body| serde_json::from_slice::<Status>(&body.to_bytes()).ok());
            Ok(Raw { status, retry_after: seconds.map(Duration::from_secs), answer })
        };
        match tokio::time::timeout(CALL_TIMEOUT, ask).await {
            Ok(result) => result.map_err(|source| Error::Api { verb, source: Box::new(source) }),
            Err(_) => Err(Error::Timeout { verb }),
        }
    }

    /// Every call waits for so long, but not beyond a bound: the server is overloaded.
    pub fn slow(&self, wait: Duration) {
        let mut patience = self.patience.lock().expect("no holder of this lock panics");
        *patience = Some(Patience::asked(*patience, wait, chance(0.0).to_bits(), Instant::now()));
    }

    /// Until when this caller leaves the server alone, which wants to be; nothing when it does not. Not all come back at once.
    #[must_use]
    pub fn patience_of(&self, who: impl std::hash::Hash) -> Option<Instant> {
        let asked = *self.patience.lock().expect("no holder of this lock panics");
        asked.map(|asked| asked.of(who)).filter(|until| *until > Instant::now())
    }

    /// Room for one eviction more; nothing while all is taken.
    #[must_use]
    pub fn slot(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// The same, waited for in turn.
    pub async fn slot_in_turn(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.slots).acquire_owned().await {
            Ok(slot) => slot,
            // Nobody closes it.
            Err(_) => std::future::pending().await,
        }
    }

    fn wanted(&self, verb: &'static str) -> Result<(), Error> {
        let asked = *self.patience.lock().expect("no holder of this lock panics");
        if asked.is_some_and(|asked| asked.until() > Instant::now()) { Err(Error::Throttled { verb }) } else { Ok(()) }
    }
}

/// Reasons of the causes in a Status.
#[must_use]
pub fn causes(status: &Status) -> Vec<&str> {
    status.details.iter().flat_map(|details| &details.causes).map(|cause| cause.reason.as_str()).collect()
}

/// What the Status asks us to wait.
#[must_use]
pub fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server said no, or could not be reached.
    #[error("{verb}: {source}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The API server said nothing: it may have happened all the same.
    #[error("{verb}: no answer within {CALL_TIMEOUT:?}")]
    Timeout {
        /// What was tried.
        verb: &'static str,
    },
    /// There is more than is read: what is not known of the rest counts as not read.
    #[error("{verb}: more than {pages} pages of them")]
    TooMany {
        /// What was tried.
        verb: &'static str,
        /// How many were read.
        pages: usize,
    },
    /// The API server has asked for patience, so it was not sent.
    #[error("{verb}: not sent, the API server asks for patience")]
    Throttled {
        /// What was to be tried.
        verb: &'static str,
    },
}

impl Error {
    /// The HTTP status, when there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout { .. } | Self::TooMany { .. } | Self::Throttled { .. } => None,
        }
    }

    /// Somebody else was faster, or the object is not as we thought.
    #[must_use]
    pub fn conflict(&self) -> bool {
        matches!(self.code(), Some(409 | 422))
    }

    /// The API server was not asked.
    #[must_use]
    pub fn unsent(&self) -> bool {
        matches!(self, Self::Throttled { .. })
    }

    /// The object is not there. An unreachable server is never this.
    #[must_use]
    pub fn not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Asking again may help: no answer, overload, or a server's own trouble.
    #[must_use]
    pub fn transient(&self) -> bool {
        !matches!(self, Self::TooMany { .. }) && self.code().is_none_or(|code| code == 429 || code >= 500)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{
        super::patience::{PATIENCE_MAX, SPREAD_MAX},
        *,
    };

    #[tokio::test]
    async fn all_drains_together_have_so_many_evictions_in_flight_and_who_waits_has_its_turn() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let kube = Kube::new(Client::try_from(config).unwrap());
        let drains: Vec<_> = (0..8).map(|_| kube.clone()).collect();
        let mut taken: Vec<_> = drains.iter().flat_map(|drain| (0..16).map_while(|_| drain.slot())).collect();
        assert_eq!(taken.len(), IN_FLIGHT_MAX);
        let waiting = tokio::spawn(async move { drains[7].slot_in_turn().await });
        tokio::task::yield_now().await;
        drop(taken.pop());
        assert!(waiting.await.is_ok() && kube.slot().is_some(), "it was given back");
    }

    #[tokio::test]
    async fn many_drains_that_an_overload_held_up_come_back_one_after_the_other() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = kubesim::KubeSim::start(kubesim::Config::default()).await.unwrap();
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let kube = Kube::new(Client::try_from(config).unwrap());
        kube.call("warm up", Api::<Node>::all(kube.client()).get_opt("n")).await.unwrap();
        let began = sim.recorder().mark();
        let asked = Duration::from_secs(2);
        kube.slow(asked);
        let drain = |n: u32| {
            let kube = kube.clone();
            async move {
                while let Some(until) = kube.patience_of(n) {
                    tokio::time::sleep_until(until).await;
                }
                kube.effect("evict", Api::<Node>::all(kube.client()).get_opt("n")).await.unwrap();
                Instant::now()
            }
        };
        let back = futures::future::join_all((0..128).map(|n| tokio::spawn(drain(n)))).await;
        assert_eq!(sim.recorder().requests_since(began).len(), back.len());
        let first = back.iter().map(|at| *at.as_ref().unwrap()).min().unwrap();
        let at_once = back.iter().filter(|at| *at.as_ref().unwrap() < first + asked / 10).count();
        // A tenth of the time that they come back in, in which a tenth of them is to be expected.
        assert!(at_once < 45, "{at_once} of {} in the first moment", back.len());
    }

    #[tokio::test]
    async fn what_has_an_effect_is_not_sent_late_and_what_reads_waits_no_longer_than_a_minute() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let kube = Kube::new(Client::try_from(config).unwrap());
        let sent = AtomicU32::new(0);
        let call = || async { Ok::<_, kube::Error>(sent.fetch_add(1, Ordering::SeqCst)) };
        kube.effect("patch node", call()).await.unwrap();
        let asked = Duration::from_millis(300);
        let began = Instant::now();
        kube.slow(asked);
        assert!(matches!(kube.effect("patch node", call()).await, Err(Error::Throttled { .. })));
        let request = http::Request::post("/evict").body(Vec::new()).unwrap();
        assert!(matches!(kube.raw("evict", request).await, Err(Error::Throttled { .. })));
        assert_eq!(sent.load(Ordering::SeqCst), 1);
        kube.call("get node", call()).await.unwrap();
        assert!(began.elapsed() >= asked);
        kube.effect("patch node", call()).await.unwrap();
        assert_eq!(sent.load(Ordering::SeqCst), 3);
        kube.slow(Duration::from_secs(3600));
        assert!(kube.patience_of(1).is_some_and(|until| until <= Instant::now() + PATIENCE_MAX + SPREAD_MAX));
    }
}
