//! A hub's two listeners with a PKI of their own, and clients of every kind.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use gpuheal_ctl::pki::{Authority, Issued, Leaf};
use gpuheal_hub::{
    clock, fleet,
    ingest::Ingest,
    link::{self, Admission, Board, Link, Registry},
    sign::{Key, Signer},
    tls,
    wake::Wake,
};
use gpuheal_proto::{ids::ClusterId, time::Timestamp};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub(crate) const DOMAIN: &str = "dev.gpuheal";

pub(crate) struct Hub {
    pub(crate) link: SocketAddr,
    pub(crate) fleet: SocketAddr,
    pub(crate) authority: Authority,
    pub(crate) identity: Arc<tls::Identity>,
    pub(crate) dir: TempDir,
    pub(crate) pool: PgPool,
    pub(crate) registry: Arc<Registry>,
    pub(crate) wake: Arc<Wake>,
    pub(crate) signer: Arc<Signer>,
    stop: CancellationToken,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn now() -> Timestamp {
    clock::now()
}

pub(crate) fn authority() -> Authority {
    Authority::new(DOMAIN, 30, now()).unwrap()
}

pub(crate) fn cluster(id: &str) -> ClusterId {
    ClusterId::parse(id).unwrap()
}

/// The hub's identity files: its certificate from `authority`, its clients' CAs as given.
pub(crate) fn write_identity(dir: &Path, authority: &Authority, client_cas: &[&str]) {
    let leaf = Leaf { dns: vec!["localhost".into()], ..Leaf::hub(DOMAIN) };
    let hub = authority.issue(&leaf).unwrap();
    std::fs::write(dir.join("tls.crt"), hub.cert_pem).unwrap();
    std::fs::write(dir.join("tls.key"), hub.key_pem).unwrap();
    std::fs::write(dir.join("ca.crt"), client_cas.concat()).unwrap();
}

impl Hub {
    pub(crate) async fn start() -> Self {
        let authority = authority();
        let own = authority.cert_pem().to_owned();
        Self::start_trusting(authority, &[&own]).await
    }

    pub(crate) async fn start_trusting(authority: Authority, client_cas: &[&str]) -> Self {
        // Nobody listens there: whoever gets as far as the database is told that it is away.
        let away =
            PgPoolOptions::new().acquire_timeout(Duration::from_millis(200)).connect_lazy("postgres://127.0.0.1:1/none").unwrap();
        Self::start_over(authority, client_cas, away, Admission::default()).await
    }

    /// With a database of its own, to which it and its tests have as many connections as a small hub.
    pub(crate) async fn start_with_database() -> Self {
        Self::start_admitting(Admission::default()).await
    }

    /// One that lets so many in.
    pub(crate) async fn start_admitting(admission: Admission) -> Self {
        let pool = PgPoolOptions::new().max_connections(8).connect(&testpg::database().await).await.unwrap();
        let authority = authority();
        let own = authority.cert_pem().to_owned();
        Self::start_over(authority, &[&own], pool, admission).await
    }

    /// Another hub on the same database, with connections, identity and keys of its own.
    pub(crate) async fn start_beside(&self) -> Self {
        let options = (*self.pool.connect_options()).clone();
        let pool = PgPoolOptions::new().max_connections(8).connect_with(options).await.unwrap();
        let authority = authority();
        let own = authority.cert_pem().to_owned();
        Self::start_over(authority, &[&own], pool, Admission::default()).await
    }

    async fn start_over(authority: Authority, client_cas: &[&str], pool: PgPool, admission: Admission) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_identity(dir.path(), &authority, client_cas);
        let identity = tls::Identity::open(dir.path().to_owned()).unwrap();
        let (stop, wake, registry) = (CancellationToken::new(), Wake::new(), Arc::new(Registry::default()));
        let (ingest, _committer) = Ingest::start(pool.clone(), wake.clone(), stop.clone());
        let signer = Arc::new(Signer::new(signing_key(dir.path()), 1));
        let board = Arc::new(Board::new(signer.clone(), registry.clone()));
        let service = Link::new(pool.clone(), ingest, wake.clone(), registry.clone(), board, uuid::Uuid::new_v4().to_string())
            .admitting(admission);
        let (on_link, on_fleet) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (link, fleet) = (on_link.local_addr().unwrap(), on_fleet.local_addr().unwrap());
        tokio::spawn(link::serve(service, on_link, identity.clone(), DOMAIN.into(), stop.clone()));
        let service = fleet::Fleet::new(pool.clone(), wake.clone());
        tokio::spawn(fleet::serve(service, on_fleet, identity.clone(), DOMAIN.into(), stop.clone()));
        Self { link, fleet, authority, identity, dir, pool, registry, wake, signer, stop }
    }

    pub(crate) fn issue(&self, leaf: &Leaf) -> Issued {
        self.authority.issue(leaf).unwrap()
    }

    pub(crate) fn spoke(&self, id: &str) -> Issued {
        self.issue(&Leaf::spoke(DOMAIN, &cluster(id)))
    }

    pub(crate) fn user(&self) -> Issued {
        self.issue(&Leaf::user(DOMAIN, "operator"))
    }

    /// A channel that trusts this hub. With TLS 1.3 it opens whoever the client is: only a call tells.
    pub(crate) fn channel(&self, to: SocketAddr, client: Option<&Issued>) -> Channel {
        channel(to, self.authority.cert_pem(), client)
    }
}

pub(crate) fn channel(to: SocketAddr, ca: &str, client: Option<&Issued>) -> Channel {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("localhost");
    if let Some(client) = client {
        tls = tls.identity(Identity::from_pem(&client.cert_pem, &client.key_pem));
    }
    let endpoint = Endpoint::from_shared(format!("https://{to}")).unwrap();
    endpoint.tls_config(tls).unwrap().timeout(crate::replica::PATIENCE).connect_lazy()
}

fn signing_key(dir: &Path) -> Key {
    let pki = dir.join("pki");
    gpuheal_ctl::pki::init(&gpuheal_ctl::pki::Request::new(&pki, vec![cluster("unused")], now())).unwrap();
    Key::read(&pki.join("signing/command.key")).unwrap()
}
