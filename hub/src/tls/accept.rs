//! From a TCP listener to a stream of verified connections. A slow or hostile peer costs one handshake slot for a few
//! seconds, never the listener.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use super::Identity;
use crate::{identity::Peer, metrics};

/// Handshakes at once. One costs about 1 ms of a core, so that 64 are served before the next second begins.
const HANDSHAKES_MAX: usize = 64;
/// A peer across the world needs three round trips of 300 ms.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after a failed accept: out of file descriptors does not go away by asking again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which listener this is, for logs and metrics.
#[derive(Clone, Copy, Debug)]
pub enum Listener {
    /// For spokes.
    Link,
    /// For people and tools.
    Fleet,
}

impl Listener {
    const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Fleet => "fleet",
        }
    }
}

/// A connection whose client certificate was verified and carries one identity.
#[derive(Debug)]
pub struct Connection {
    tls: Box<TlsStream<TcpStream>>,
    peer: Peer,
}

/// Accepts connections until `stop`, and hands on those whose peer is known.
#[must_use]
pub fn incoming(
    tcp: TcpListener,
    kind: Listener,
    identity: Arc<Identity>,
    trust_domain: String,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Connection>> {
    let (out, connections) = mpsc::channel(HANDSHAKES_MAX);
    tokio::spawn(async move {
        let trust_domain: Arc<str> = trust_domain.into();
        let slots = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        while let Some(Ok(slot)) = stop.run_until_cancelled(slots.clone().acquire_owned()).await {
            let Some(accepted) = stop.run_until_cancelled(tcp.accept()).await else { break };
            let (stream, addr) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(error = %crate::chain::chain(&error), listener = kind.name(), "cannot accept");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (out, config, trust_domain) = (out.clone(), identity.config(), trust_domain.clone());
            tokio::spawn(async move {
                let handshake = handshake(stream, addr, config, &trust_domain);
                let outcome = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await.unwrap_or(Err(Error::Timeout));
                drop(slot);
                match outcome {
                    Ok(connection) => {
                        metrics::HANDSHAKES.inc([kind.name(), "ok"]);
                        // Nobody takes it any more: the server is shutting down.
                        let _ = out.send(Ok(connection)).await;
                    }
                    Err(error) => {
                        metrics::HANDSHAKES.inc([kind.name(), error.outcome()]);
                        tracing::warn!(error = %crate::chain::chain(&error), peer.addr = %addr, listener = kind.name(), "connection refused");
                    }
                }
            });
        }
    });
    ReceiverStream::new(connections)
}

async fn handshake(
    stream: TcpStream,
    addr: SocketAddr,
    config: Arc<rustls::ServerConfig>,
    trust_domain: &str,
) -> Result<Connection, Error> {
    stream.set_nodelay(true).map_err(Error::Tls)?;
    let tls = TlsAcceptor::from(config).accept(stream).await.map_err(Error::Tls)?;
    let (_, session) = tls.get_ref();
    let leaf = session.peer_certificates().and_then(<[_]>::first).ok_or(Error::NoCertificate)?;
    let peer = Peer::from_verified(leaf, trust_domain, addr)?;
    Ok(Connection { tls: Box::new(tls), peer })
}

/// Why a connection was not taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("no TLS handshake within 5 s")]
    Timeout,
    #[error("no client certificate")]
    NoCertificate,
    #[error(transparent)]
    Identity(#[from] crate::identity::Error),
}

impl Error {
    fn outcome(&self) -> &'static str {
        match self {
            Self::Tls(error) if revoked(error) => "revoked",
            Self::Tls(_) => "tls",
            Self::Timeout => "timeout",
            Self::NoCertificate | Self::Identity(_) => "identity",
        }
    }
}

fn revoked(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Revoked)))
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tls.is_write_vectored()
    }
}
