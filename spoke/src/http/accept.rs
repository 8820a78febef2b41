//! The listener's connections: a bounded number, and a bound on how long a request's head may take. Whoever opens sockets and
//! says nothing costs a place for a while, and never the descriptors that scrapes, the journal and the Lease need.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, extract::ConnectInfo};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Connections at once: probes, Prometheus, two Alertmanagers and a few people are some twenty; 512 of 64 KiB are 32 MiB.
const CONNECTIONS_MAX: usize = 512;
/// How long the head of a request may take, the first as any later one on the same connection: ten times what a slow link needs.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// After an accept that failed: the cause is the machine's, and asking at once would only turn a core.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves until cancelled, then lets what is under way end.
pub(super) async fn serve(listener: TcpListener, app: Router, cancel: CancellationToken) {
    serve_within(HEAD_WITHIN, listener, app, cancel).await;
}

async fn serve_within(head_within: Duration, listener: TcpListener, app: Router, cancel: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let tasks = TaskTracker::new();
    loop {
        let permit = tokio::select! {
            () = cancel.cancelled() => break,
            permit = Arc::clone(&permits).acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let one = one(head_within, stream, peer, app.clone(), cancel.clone());
                tasks.spawn(async move {
                    one.await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
    tasks.close();
    tasks.wait().await;
}

async fn one(head_within: Duration, stream: TcpStream, peer: SocketAddr, app: Router, cancel: CancellationToken) {
    let service = TowerToHyperService::new(app.layer(Extension(ConnectInfo(peer))));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_within);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %peer, %error, "a connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn half_a_head_is_cut_off_and_others_are_served_meanwhile() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let served = tokio::spawn(serve_within(
            // Long enough for the one who asks, on whatever machine.
            Duration::from_secs(3),
            listener,
            Router::new().route("/", get(async || "here")),
            cancel.clone(),
        ));
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"POST /api/v1/alert HT").await.unwrap();
        let mut asking = TcpStream::connect(address).await.unwrap();
        asking.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        asking.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("here"), "{answer}");
        let mut rest = Vec::new();
        tokio::time::timeout(Duration::from_secs(120), silent.read_to_end(&mut rest)).await.expect("it is cut off").ok();
        cancel.cancel();
        served.await.unwrap();
    }
}
