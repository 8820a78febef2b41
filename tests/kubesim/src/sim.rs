//! One running cluster: what a test or the demo holds in its hand. Stops when told, or when dropped.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::Clock;
use crate::config::{Config, User};
use crate::controllers;
use crate::faults::Faults;
use crate::http::{App, serve};
use crate::kubeconfig::Access;
use crate::recorder::Recorder;
use crate::store::Store;
use crate::tls::{TlsError, TlsIdentity};

/// The admin's user name.
pub const ADMIN: &str = "kubernetes-admin";
/// There from the start, as in a real cluster.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// A cluster could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A running cluster.
pub struct KubeSim {
    app: Arc<App>,
    name: String,
    address: SocketAddr,
    ca_pem: Arc<str>,
    admin_token: String,
    tasks: TaskTracker,
}

impl KubeSim {
    /// Starts listening and everything that runs beside the server. Ready when this returns.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let tls = match config.tls {
            Some(tls) => tls,
            None => TlsIdentity::generate()?,
        };
        let wanted = SocketAddr::new(config.address, config.port);
        let listening = |source| StartError::Listen { address: wanted, source };
        let listener = TcpListener::bind(wanted).await.map_err(listening)?;
        let address = listener.local_addr().map_err(listening)?;
        let admin_token = config.admin_token.unwrap_or_else(|| Uuid::new_v4().to_string());
        let mut tokens = config.tokens;
        tokens.insert(
            admin_token.clone(),
            User { name: ADMIN.into(), groups: vec!["system:masters".into(), "system:authenticated".into()] },
        );
        let store = Arc::new(Store::new(config.clock.clone(), config.watch_window));
        for namespace in NAMESPACES {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
            store.create(object).expect("a fresh store takes its first namespaces");
        }
        let app = Arc::new(App {
            store,
            faults: Faults::default(),
            recorder: Recorder::default(),
            clock: config.clock,
            tokens: Mutex::new(tokens),
            bookmark_every: config.bookmark_every,
            version: config.version,
            stop: CancellationToken::new(),
        });
        let tasks = TaskTracker::new();
        tasks.spawn(serve(app.clone(), listener, TlsAcceptor::from(tls.server)));
        tasks.spawn(controllers::run(app.store.clone(), config.controllers, app.stop.clone()));
        Ok(Self { app, name: config.name, address, ca_pem: tls.ca_pem, admin_token, tasks })
    }

    /// `https://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The CA that clients must trust.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The admin's bearer token.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// A kubeconfig for the admin.
    pub fn kubeconfig_yaml(&self) -> String {
        self.kubeconfig_for_token(&self.admin_token)
    }

    /// A kubeconfig for the holder of a token.
    pub fn kubeconfig_for_token(&self, token: &str) -> String {
        Access { name: &self.name, url: &self.url(), ca_pem: &self.ca_pem, token }.yaml()
    }

    /// Writes the admin's kubeconfig to a file.
    pub fn write_kubeconfig(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        std::fs::write(path, self.kubeconfig_yaml())
    }

    /// Lets a token in as a user.
    pub fn add_token(&self, token: &str, user: User) {
        self.app.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), user);
    }

    /// What was asked so far.
    pub fn recorder(&self) -> &Recorder {
        &self.app.recorder
    }

    /// What goes wrong on purpose.
    pub fn faults(&self) -> &Faults {
        &self.app.faults
    }

    /// The objects, past HTTP.
    pub fn store(&self) -> &Store {
        &self.app.store
    }

    /// The cluster's clock.
    pub fn clock(&self) -> &Clock {
        &self.app.clock
    }

    /// Stops and waits until nothing runs any more; open connections are cut.
    pub async fn shutdown(self) {
        self.app.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for KubeSim {
    fn drop(&mut self) {
        self.app.stop.cancel();
    }
}
