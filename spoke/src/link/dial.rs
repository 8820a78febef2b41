//! From a URL to a channel: TCP, TLS 1.3 with our certificate, the chain checked against the one CA, then the hub's
//! SPIFFE URI. Nothing is sent before that.

use std::{io, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};

use crate::identity::{Identity, SpiffeError, uri_of};

/// TCP, TLS and HTTP/2 together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// HTTP/2 ping; balancers that do not pass it on are why the heartbeat is a message of its own.
const PING_EVERY: Duration = Duration::from_secs(20);
/// An answer that takes longer comes from nobody who could still take a fault in time.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the hub is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    host: String,
    port: u16,
}

impl Hub {
    /// From `https://HOST:PORT`.
    ///
    /// # Errors
    /// When the text is no such URL; plain http is none, since the certificate is the identity.
    pub fn parse(url: &str) -> Result<Self, Error> {
        let malformed = || Error::Url { url: url.to_owned() };
        let uri: http::Uri = url.parse().map_err(|_| malformed())?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(malformed)?;
        if uri.scheme_str() != Some("https") || !matches!(uri.path(), "" | "/") {
            return Err(malformed());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(443) })
    }

    fn authority(&self) -> String {
        if self.host.contains(':') { format!("[{}]:{}", self.host, self.port) } else { format!("{}:{}", self.host, self.port) }
    }
}

/// Opens a channel to the hub. Since TLS 1.3 tells a client late that it was refused, the first call tells.
pub(super) async fn dial(hub: &Hub, identity: &Identity) -> Result<Channel, Error> {
    // The scheme is http for tonic, because the TLS below it is ours.
    let endpoint = Endpoint::from_shared(format!("http://{}", hub.authority()))?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    let (hub, identity) = (hub.clone(), identity.clone());
    let connector = tower::service_fn(move |_: http::Uri| {
        let (hub, identity) = (hub.clone(), identity.clone());
        async move { Ok::<_, Error>(TokioIo::new(connect(&hub, &identity).await?)) }
    });
    Ok(endpoint.connect_with_connector(connector).await?)
}

async fn connect(hub: &Hub, identity: &Identity) -> Result<TlsStream<TcpStream>, Error> {
    let name = ServerName::try_from(hub.host.clone()).map_err(|_| Error::Url { url: hub.host.clone() })?;
    let tcp = TcpStream::connect((hub.host.as_str(), hub.port)).await.map_err(Error::Connect)?;
    tcp.set_nodelay(true).map_err(Error::Connect)?;
    let tls = TlsConnector::from(identity.tls.clone()).connect(name, tcp).await.map_err(Error::Handshake)?;
    let leaf = tls.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or(Error::NoCertificate)?;
    let (got, want) = (uri_of(leaf)?, identity.hub_uri());
    if got == want { Ok(tls) } else { Err(Error::NotTheHub { got, want }) }
}

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL is none.
    #[error("{url:?} is not a URL like https://HOST:PORT")]
    Url {
        /// As given.
        url: String,
    },
    /// Nobody listens, or no route.
    #[error("hub cannot be reached")]
    Connect(#[source] io::Error),
    /// The two do not trust each other.
    #[error("TLS handshake with the hub failed")]
    Handshake(#[source] io::Error),
    /// Cannot happen with TLS 1.3.
    #[error("hub showed no certificate")]
    NoCertificate,
    /// Its certificate carries no SPIFFE id.
    #[error(transparent)]
    Spiffe(#[from] SpiffeError),
    /// A certificate of our CA, for something else.
    #[error("certificate is for {got:?}, the hub's is for {want:?}")]
    NotTheHub {
        /// What it is for.
        got: String,
        /// What it must be for.
        want: String,
    },
    /// HTTP/2.
    #[error("no channel to the hub")]
    Transport(#[from] tonic::transport::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_urls_name_a_hub() {
        assert_eq!(Hub::parse("https://hub:8443").unwrap().authority(), "hub:8443");
        assert_eq!(Hub::parse("https://[::1]:8443/").unwrap().authority(), "[::1]:8443");
        assert_eq!(Hub::parse("https://hub").unwrap().authority(), "hub:443");
        for url in ["", "hub:8443", "http://hub:8443", "https://", "https://hub/x"] {
            assert!(Hub::parse(url).is_err(), "{url}");
        }
    }
}
