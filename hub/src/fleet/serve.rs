//! The fleet listener: services, health and reflection over mTLS, for users alone.

use std::{sync::Arc, time::Duration};

use gpuheal_proto::{
    DESCRIPTORS,
    fleet::v1::{
        audit_service_server::{AuditServiceServer, SERVICE_NAME as AUDIT},
        cluster_service_server::{ClusterServiceServer, SERVICE_NAME as CLUSTER},
        command_service_server::{CommandServiceServer, SERVICE_NAME as COMMAND},
        incident_service_server::{IncidentServiceServer, SERVICE_NAME as INCIDENT},
        policy_service_server::{PolicyServiceServer, SERVICE_NAME as POLICY},
    },
    limits,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, service::InterceptorLayer, transport::Server};
use tonic_health::ServingStatus;
use tonic_reflection::server::Builder;

use super::Fleet;
use crate::{
    identity,
    tls::{self, Listener},
};

/// Longest a call may take; the deadline that a caller gives can only be shorter.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Calls that one connection may have open.
const CALLS_PER_CONNECTION: usize = 32;
/// Ping a silent connection, and how long its answer may take.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// The largest request is a policy.
const REQUEST_BYTES_MAX: usize = limits::POLICY_BYTES_MAX + (64 << 10);

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    fleet: Fleet,
    listener: TcpListener,
    identity: Arc<tls::Identity>,
    trust_domain: String,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    for name in ["", CLUSTER, INCIDENT, COMMAND, POLICY, AUDIT] {
        health.set_service_status(name, ServingStatus::Serving).await;
    }
    let incoming = tls::incoming(listener, Listener::Fleet, identity, trust_domain, stop.clone());
    Server::builder()
        .http2_keepalive_interval(Some(PING.0))
        .http2_keepalive_timeout(Some(PING.1))
        .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
        .timeout(CALL_TIMEOUT)
        .layer(InterceptorLayer::new(users_only))
        .add_service(ClusterServiceServer::new(fleet.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(IncidentServiceServer::new(fleet.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(CommandServiceServer::new(fleet.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(PolicyServiceServer::new(fleet.clone()).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(AuditServiceServer::new(fleet).max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(health_service)
        .add_service(reflection().build_v1().expect("our own descriptors are valid: a test asks for them"))
        .add_service(reflection().build_v1alpha().expect("our own descriptors are valid: a test asks for them"))
        .serve_with_incoming_shutdown(incoming, stop.cancelled_owned())
        .await
}

/// What is served here and nothing else, although the descriptors know the link too.
fn reflection() -> Builder<'static> {
    let names = [CLUSTER, INCIDENT, COMMAND, POLICY, AUDIT, "grpc.health.v1.Health"];
    let builder = Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    names.iter().fold(builder, |builder, name| builder.with_service_name(*name))
}

/// Users only, whatever is asked.
fn users_only(request: Request<()>) -> Result<Request<()>, Status> {
    identity::user(&request)?;
    Ok(request)
}
