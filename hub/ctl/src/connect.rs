//! A channel to the hub's fleet listener: TLS with the user's certificate, the hub checked against the identity's CA.

use std::{fs, path::Path, time::Duration};

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::args::Reach;

/// Longest wait for TCP and TLS; the call's own deadline comes on top.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the channel.
pub(crate) async fn connect(reach: &Reach) -> Result<Channel, Error> {
    let url = reach.hub.as_deref().ok_or(Error::NoHub)?;
    let dir = reach.identity.as_deref().ok_or(Error::NoIdentity)?;
    if !url.starts_with("https://") {
        return Err(Error::Url { url: url.to_owned() });
    }
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| Error::Url { url: url.to_owned() })?;
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(read(dir, "ca.crt")?))
        .identity(Identity::from_pem(read(dir, "tls.crt")?, read(dir, "tls.key")?));
    let endpoint = endpoint
        .tls_config(tls)
        .map_err(|source| Error::Identity { dir: dir.display().to_string(), source })?
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(Duration::from_secs(reach.timeout_s.into()));
    endpoint.connect().await.map_err(|source| {
        if of_another_pki(&source) {
            Error::Pki { url: url.to_owned(), dir: dir.display().to_string(), source }
        } else {
            Error::Connect { url: url.to_owned(), source }
        }
    })
}

/// Whether TLS came to nothing because the hub's certificate was issued by a CA that is not ours.
fn of_another_pki(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An I/O error shows what is within it in no other way.
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = error.downcast_ref::<rustls::Error>().or_else(|| within.and_then(|within| within.downcast_ref()));
        if let Some(rustls::Error::InvalidCertificate(why)) = tls {
            return matches!(why, rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature);
        }
        cause = error.source();
    }
    false
}

fn read(dir: &Path, name: &str) -> Result<Vec<u8>, Error> {
    let path = dir.join(name);
    fs::read(&path).map_err(|source| Error::Read { path: path.display().to_string(), source })
}

/// Why there is no channel. Each says what to do next.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nobody said where.
    #[error("which hub? give --hub https://HOST:PORT or set GPUHEAL_HUB")]
    NoHub,
    /// Nobody said who.
    #[error("who are you? give --identity DIR (with tls.crt, tls.key, ca.crt) or set GPUHEAL_IDENTITY")]
    NoIdentity,
    /// Not a URL that can be used.
    #[error("{url:?} is not a hub's address; write https://HOST:PORT")]
    Url {
        /// What was given.
        url: String,
    },
    /// A file of the identity.
    #[error("cannot read {path}; --identity takes a directory such as users/admin from gpuhealctl pki init")]
    Read {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The identity's content.
    #[error("the identity in {dir} is not usable")]
    Identity {
        /// Where.
        dir: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// Whoever answers was certified by somebody else.
    #[error(
        "cannot trust {url}: ca.crt in {dir} is of another PKI than the hub's certificate; take the identity of this hub's PKI"
    )]
    Pki {
        /// Where.
        url: String,
        /// The identity.
        dir: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// Nobody there, or not whom we trust.
    #[error("cannot connect to {url}; is the hub running, is this its fleet listener, and is it named in its certificate?")]
    Connect {
        /// Where.
        url: String,
        /// Why.
        source: tonic::transport::Error,
    },
}

impl Error {
    /// Wrong use rather than a failure.
    pub(crate) const fn usage(&self) -> bool {
        matches!(self, Self::NoHub | Self::NoIdentity | Self::Url { .. })
    }
}
