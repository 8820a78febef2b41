//! What the TLS itself allows.

use std::sync::Arc;

use gpuheal_ctl::pki::{Issued, Leaf};
use rustls::{
    ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    version::{TLS12, TLS13},
};
use tokio::{io::AsyncReadExt as _, net::TcpStream};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::hub::{DOMAIN, Hub, authority, channel, write_identity};

fn client(hub: &Hub, identity: &Issued, version: &'static SupportedProtocolVersion) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(hub.authority.cert_pem().as_bytes()).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(identity.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn connect(hub: &Hub, client: &TlsConnector) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(hub.link).await?;
    client.connect(ServerName::try_from("localhost").unwrap(), tcp).await
}

#[tokio::test]
async fn nothing_below_tls_1_3_is_spoken() {
    let hub = Hub::start().await;
    let spoke = hub.spoke("alpha");
    assert!(connect(&hub, &client(&hub, &spoke, &TLS12)).await.is_err());
    assert!(connect(&hub, &client(&hub, &spoke, &TLS13)).await.is_ok());
}

#[tokio::test]
async fn no_session_is_resumed_so_that_each_connection_shows_its_certificate() {
    let hub = Hub::start().await;
    let client = client(&hub, &hub.spoke("alpha"), &TLS13);
    for _ in 0..2 {
        let mut stream = connect(&hub, &client).await.unwrap();
        // A ticket would come with the hub's first bytes.
        let mut first = [0; 9];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(stream.get_ref().1.tls13_tickets_received(), 0);
    }
}

#[tokio::test]
async fn a_renewed_identity_is_used_without_a_restart_and_a_broken_one_is_not() {
    let hub = Hub::start().await;
    let next = authority();
    assert!(!hub.identity.reload().unwrap(), "nothing changed yet");
    write_identity(hub.dir.path(), &next, &[next.cert_pem()]);
    assert!(hub.identity.reload().unwrap());
    let user = next.issue(&Leaf::user(DOMAIN, "operator")).unwrap();
    let call = || tonic_health::pb::HealthCheckRequest::default();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel(hub.fleet, next.cert_pem(), Some(&user)));
    health.check(call()).await.unwrap();
    let mut old = tonic_health::pb::health_client::HealthClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    assert!(old.check(call()).await.is_err(), "what the CA before has issued is no longer trusted");
    std::fs::write(hub.dir.path().join("tls.key"), "half a key").unwrap();
    assert!(hub.identity.reload().is_err());
    let mut again = tonic_health::pb::health_client::HealthClient::new(channel(hub.fleet, next.cert_pem(), Some(&user)));
    again.check(call()).await.unwrap();
}

#[tokio::test]
async fn files_that_no_peer_would_believe_are_not_taken_and_the_last_good_ones_stay() {
    let hub = Hub::start().await;
    let good_until = hub.identity.not_after();
    let long_ago = crate::hub::now().before(std::time::Duration::from_secs(60 * 24 * 3600));
    let expired = gpuheal_ctl::pki::Authority::new(DOMAIN, 30, long_ago).unwrap();
    write_identity(hub.dir.path(), &expired, &[expired.cert_pem()]);
    assert!(matches!(hub.identity.reload(), Err(gpuheal_hub::tls::Error::Expired { .. })));
    // A certificate and another one's key, as a reader between two writes finds them.
    let next = authority();
    write_identity(hub.dir.path(), &next, &[next.cert_pem()]);
    std::fs::write(hub.dir.path().join("tls.key"), hub.user().key_pem).unwrap();
    assert!(hub.identity.reload().is_err());
    assert_eq!(hub.identity.not_after(), good_until);
    let mut health = tonic_health::pb::health_client::HealthClient::new(hub.channel(hub.fleet, Some(&hub.user())));
    health.check(tonic_health::pb::HealthCheckRequest::default()).await.unwrap();
}
