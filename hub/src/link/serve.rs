//! The link listener: the one service, and health, over mTLS, for spokes alone.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::{
    limits,
    link::v1::link_service_server::{LinkServiceServer, SERVICE_NAME},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, service::InterceptorLayer, transport::Server};
use tonic_health::ServingStatus;

use super::{Link, guard::Guard};
use crate::{
    identity,
    tls::{self, Listener},
};

/// Ping a silent connection, and how long its answer may take. Balancers may swallow pings: the heartbeat is the truth.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// A replica needs one stream, and another while it changes over.
const STREAMS_PER_CONNECTION: u32 = 8;
/// How long connections may take to close once their sessions were told to go.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until `stop`, then sends every session away and waits for them.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    link: Link,
    listener: TcpListener,
    identity: Arc<tls::Identity>,
    trust_domain: String,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in ["", SERVICE_NAME] {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    link.inner.tasks.spawn(link.guard(&identity).run(stop.clone()));
    let incoming = tls::incoming(listener, Listener::Link, identity, trust_domain, stop.clone());
    let service = LinkServiceServer::new(link.clone())
        .max_decoding_message_size(limits::TRANSPORT_BYTES_MAX)
        .max_encoding_message_size(limits::TRANSPORT_BYTES_MAX);
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING.0))
        .http2_keepalive_timeout(Some(PING.1))
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .layer(InterceptorLayer::new(spokes_only))
        .add_service(service)
        .add_service(health_service)
        .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
    let farewell = async {
        stop.cancelled().await;
        link.shut_down().await;
        tokio::time::sleep(DRAIN).await;
    };
    // The server ends by itself once its connections are closed; a peer that keeps one open is not waited for.
    tokio::select! {
        served = server => served,
        () = farewell => Ok(()),
    }
}

impl Link {
    fn guard(&self, identity: &tls::Identity) -> Guard {
        let inner = &self.inner;
        Guard {
            pool: inner.pool.clone(),
            registry: inner.registry.clone(),
            denied: identity.denied().clone(),
            wake: inner.wake.clone(),
        }
    }
}

/// Spokes only, whatever is asked.
fn spokes_only(request: Request<()>) -> Result<Request<()>, Status> {
    identity::spoke(&request)?;
    Ok(request)
}
