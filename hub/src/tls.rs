//! The mTLS listeners' acceptor: TLS 1.3 only, client certificate required, no resumption, identity files read again when
//! they change. Hands connections to tonic together with who is on the other end. Says nothing about what a peer may do.

mod accept;
mod files;
mod verify;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use gpuheal_proto::time::Timestamp;
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier, version::TLS13};
use tokio_util::sync::CancellationToken;

pub use accept::{Connection, Listener, incoming};

use crate::{
    clock,
    identity::{self, denied::DenyList},
    metrics,
};

/// How often the identity's files are looked at. Renewed certificates are good for hours: a minute would do as well.
const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// The hub's identity as TLS needs it, replaced as a whole when its files change.
#[derive(Debug)]
pub struct Identity {
    dir: PathBuf,
    current: ArcSwap<Loaded>,
    denied: Arc<DenyList>,
    /// The files as they are now cannot be used, and that was said.
    broken: AtomicBool,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    not_after: Timestamp,
    digest: [u8; 32],
}

impl Loaded {
    fn new(files: files::Files, denied: &Arc<DenyList>) -> Result<Self, Error> {
        if let Some(whose) = files.chain.first().and_then(identity::of_somebody_else) {
            return Err(Error::NotAHubs { whose });
        }
        Ok(Self { digest: files.digest, not_after: files.not_after, config: Arc::new(config(files, denied)?) })
    }
}

impl Identity {
    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `dir`.
    ///
    /// # Errors
    /// When one of them cannot be read or used.
    pub fn open(dir: PathBuf) -> Result<Arc<Self>, Error> {
        let files = files::read(&dir)?;
        let denied = Arc::default();
        let loaded = Loaded::new(files, &denied)?;
        Ok(Arc::new(Self { dir, current: ArcSwap::from_pointee(loaded), denied, broken: AtomicBool::new(false) }))
    }

    /// Clients' certificates that are refused although their chain is good.
    #[must_use]
    pub const fn denied(&self) -> &Arc<DenyList> {
        &self.denied
    }

    /// What the next handshake is made with.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load().config.clone()
    }

    /// Until when our own certificate is good: no peer believes us afterwards.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.current.load().not_after
    }

    /// Takes the files as they are now. On an error the last good ones stay in force.
    ///
    /// # Errors
    /// When one of them cannot be read or used, or the certificate is over already.
    pub fn reload(&self) -> Result<bool, Error> {
        let files = files::read(&self.dir)?;
        if files.digest == self.current.load().digest {
            return Ok(false);
        }
        if files.not_after <= clock::now() {
            return Err(Error::Expired { not_after: files.not_after });
        }
        let loaded = Loaded::new(files, &self.denied)?;
        self.current.store(Arc::new(loaded));
        Ok(true)
    }

    /// Looks at the files until told to stop.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(RELOAD_EVERY)).await.is_some() {
            self.look();
        }
    }

    fn look(&self) {
        match self.reload() {
            Ok(false) => self.broken.store(false, Relaxed),
            Ok(true) => {
                self.broken.store(false, Relaxed);
                metrics::TLS_RELOADS.inc(["ok"]);
                tracing::info!(not_after = %self.not_after(), "identity files changed, new connections use them");
            }
            Err(error) => {
                metrics::TLS_RELOADS.inc(["failed"]);
                // Said once for each time that they break: the counter goes on.
                if !self.broken.swap(true, Relaxed) {
                    let good_until = self.not_after();
                    tracing::error!(error = %crate::chain::chain(&error), %good_until, "identity files are not usable, the last good ones stay in force");
                }
            }
        }
    }
}

fn config(files: files::Files, denied: &Arc<DenyList>) -> Result<ServerConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for ca in files.ca {
        roots.add(ca).map_err(Error::Ca)?;
    }
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().map_err(Error::Verifier)?;
    let verifier = Arc::new(verify::Verifier { chain, denied: denied.clone() });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(Error::Config)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(files.chain, files.key)
        .map_err(Error::Config)?;
    // A resumed session would carry the identity of the first handshake without looking at the certificate again.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Why the identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file without what it should hold.
    #[error("{} holds no usable {what}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// A certificate that nobody would believe.
    #[error("the certificate expired at {not_after}")]
    Expired {
        /// When.
        not_after: Timestamp,
    },
    /// Somebody's, and no hub's: no spoke would believe it.
    #[error("the certificate is of {whose}, a hub needs its own: the directory hub of gpuhealctl pki init")]
    NotAHubs {
        /// Whose.
        whose: identity::Identity,
    },
    /// A CA certificate.
    #[error("a CA certificate is not usable")]
    Ca(#[source] rustls::Error),
    /// The client verifier.
    #[error("clients cannot be verified")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    /// Certificate and key.
    #[error("certificate and key are not usable")]
    Config(#[source] rustls::Error),
}
