//! The way to a database behind a pooler that gives a connection to one transaction at a time (PgBouncer in transaction mode).
//! What our library keeps on a connection, named statements and session settings, is gone or somebody else's there by the next
//! transaction. So each connection of a pool goes through this process's own relay, which changes what is said and adds nothing
//! of its own: see `rewrite`. The answers come back as they are. Whoever can open a socket of this machine can talk to the
//! pooler through it, as they could without it: the pooler asks for the password, the relay knows none.
//! docs/adr/0005 tells why the statements are not simply unnamed at their source.

mod reach;
mod rewrite;

use std::{io, sync::Arc};

use bytes::BytesMut;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::task::AbortOnDropHandle;

pub use reach::Error;
use reach::Place;
use rewrite::Rewriter;

/// What is read at a time from a connection of ours: most statements with their values.
const READ_BYTES: usize = 16 << 10;
/// What Postgres calls a connection that cannot be made; its class is one that goes away by itself.
const CANNOT_CONNECT: &str = "08006";

/// The running relay. Dropping it ends all that goes through it.
#[derive(Debug)]
pub(super) struct Relay {
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    /// Listens on the loopback for connections to the pooler that `url` and `options` name; `opening` is said where a transaction
    /// begins. Returns the options by which a pool of ours goes through it.
    pub(super) async fn open(url: &str, options: PgConnectOptions, opening: String) -> Result<(Self, PgConnectOptions), Error> {
        let place = Arc::new(Place::of(url, &options)?);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::Listen)?;
        let port = listener.local_addr().map_err(Error::Listen)?.port();
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, place, opening.into())));
        let through = options
            .host("127.0.0.1")
            .port(port)
            // It ends at the relay, which speaks TLS to the pooler.
            .ssl_mode(PgSslMode::Disable)
            // A pooler knows a handful of settings by name and refuses every other at the door.
            .extra_float_digits(None);
        Ok((Self { _accepting: accepting }, through))
    }
}

async fn accept(listener: TcpListener, place: Arc<Place>, opening: Arc<str>) {
    let mut sessions = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let (place, opening) = (place.clone(), opening.clone());
                sessions.spawn(async move {
                    if let Err(error) = carry(client, &place, &opening).await {
                        tracing::debug!(%error, "a connection to the pooler ended");
                    }
                });
            }
            // Too many open files: those that end make room.
            Err(error) => {
                tracing::warn!(%error, "the relay to the pooler takes no connection");
                tokio::time::sleep(crate::wake::POLL).await;
            }
        }
        while sessions.try_join_next().is_some() {}
    }
}

/// One connection, until either end closes it.
async fn carry(mut client: TcpStream, place: &Place, opening: &str) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = match place.connect().await {
        Ok(server) => server,
        Err(error) => return refuse(&mut client, &error.to_string()).await,
    };
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (mut from_client, mut to_client) = client.split();
    let up = async {
        let (mut said, mut changed) = (BytesMut::with_capacity(READ_BYTES), BytesMut::new());
        let mut rewriter = Rewriter::new(opening);
        while from_client.read_buf(&mut said).await? != 0 {
            rewriter.take(&mut said, &mut changed).map_err(io::Error::other)?;
            to_server.write_all(&changed).await?;
            to_server.flush().await?;
            changed.clear();
            said.reserve(READ_BYTES);
        }
        to_server.shutdown().await
    };
    let down = async { tokio::io::copy(&mut from_server, &mut to_client).await.map(drop) };
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// Tells the pool why, in the protocol's own form: it would call a closed socket only that.
async fn refuse(client: &mut TcpStream, why: &str) -> io::Result<()> {
    // Its first message is read before: what is unread when a socket closes takes the answer with it.
    client.read_buf(&mut BytesMut::with_capacity(READ_BYTES)).await?;
    let fields = format!("SFATAL\0VFATAL\0C{CANNOT_CONNECT}\0M{why}\0\0");
    let length = u32::try_from(fields.len() + 4).map_err(io::Error::other)?;
    client.write_all(&[b"E", length.to_be_bytes().as_slice(), fields.as_bytes()].concat()).await?;
    client.shutdown().await
}
