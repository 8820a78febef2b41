//! The Lease in the API: read, taken, renewed, released; each write a compare-and-swap by resourceVersion.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff,
};
use kube::{Api, Client, api::PostParams};

use super::{Config, Observed};

pub(super) struct LeaseApi {
    api: Api<Lease>,
    config: Config,
}

impl LeaseApi {
    pub(super) fn new(client: Client, config: &Config) -> Self {
        Self { api: Api::namespaced(client, &config.namespace), config: config.clone() }
    }

    /// Takes or renews it; true when we hold it afterwards, false when somebody else does.
    pub(super) async fn acquire_or_renew(&self, observed: &mut Observed, leading: bool, now: Duration) -> Result<bool, Error> {
        // While leading, what we wrote last is what is there, unless the swap says otherwise: one call per renewal.
        if !leading || observed.must_look() {
            self.look(observed, now).await?;
        }
        if observed.taken(&self.config.identity, self.config.duration, now) {
            return Ok(false);
        }
        let wanted = self.wanted(observed, leading);
        let written = match observed.lease() {
            None => self.call("create", self.api.create(&PostParams::default(), &wanted)).await,
            Some(_) => self.call("renew", self.api.replace(&self.config.lease, &PostParams::default(), &wanted)).await,
        };
        match written {
            Ok(lease) => {
                observed.see(lease, now);
                Ok(true)
            }
            Err(Error::Api { source, .. }) if conflict(&source) => {
                self.look(observed, now).await?;
                // Our own write may have been answered late: then it is ours all the same, and renewed at the next turn.
                Ok(false)
            }
            Err(error) => {
                observed.doubt();
                Err(error)
            }
        }
    }

    /// Empties the holder, so that nobody need wait.
    pub(super) async fn release(&self, observed: &Observed) -> Result<(), Error> {
        let Some(lease) = observed.lease() else { return Ok(()) };
        let mut lease = lease.clone();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(now());
        self.call("release", self.api.replace(&self.config.lease, &PostParams::default(), &lease)).await.map(drop)
    }

    async fn look(&self, observed: &mut Observed, now: Duration) -> Result<(), Error> {
        match self.call("get", self.api.get_opt(&self.config.lease)).await? {
            Some(lease) => observed.see(lease, now),
            None => observed.gone(),
        }
        Ok(())
    }

    /// The Lease as we want it. Whoever comes to lead raises the transitions, also a process that finds its own name in
    /// it from an earlier life: each reign has its own number.
    fn wanted(&self, observed: &Observed, leading: bool) -> Lease {
        let mut lease = observed.lease().cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.config.lease.clone()),
                namespace: Some(self.config.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let spec: &mut LeaseSpec = lease.spec.get_or_insert_default();
        let mut transitions = observed.transitions();
        if !leading {
            spec.acquire_time = Some(now());
            transitions += 1;
        }
        spec.lease_transitions = Some(i32::try_from(transitions).unwrap_or(i32::MAX));
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.config.duration.as_secs().max(1)).unwrap_or(i32::MAX));
        spec.renew_time = Some(now());
        lease
    }

    async fn call<T>(&self, verb: &'static str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        match tokio::time::timeout(self.config.call_timeout(), call).await {
            Ok(result) => result.map_err(|source| Error::Api { verb, source: Box::new(source) }),
            Err(_) => Err(Error::Timeout { verb, after: self.config.call_timeout() }),
        }
    }
}

fn conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Written for people; nobody here judges by it.
fn now() -> MicroTime {
    let at = jiff::Timestamp::from_millisecond(crate::clock::wall().unix_ms()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    MicroTime(at)
}

/// Why the election ended, or an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Spans that cannot elect safely.
    #[error("leader election: {rule}")]
    Config {
        /// The broken rule.
        rule: &'static str,
    },
    /// The API server said no.
    #[error("{verb} of the Lease failed")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// What it said.
        source: Box<kube::Error>,
    },
    /// The API server said nothing.
    #[error("{verb} of the Lease was not answered within {after:?}")]
    Timeout {
        /// What was tried.
        verb: &'static str,
        /// How long we waited.
        after: Duration,
    },
    /// The Lease was held and is not any more.
    #[error("the Lease was not renewed within {deadline:?}, its holder is {holder:?}")]
    Lost {
        /// Who holds it, as far as seen.
        holder: String,
        /// Our deadline.
        deadline: Duration,
    },
}
