//! Clients for the cluster's API: from a kubeconfig file, else from the pod's own account. Two of them, because the
//! client's own retry hides what the executor must see (a 429 of a PDB among others).

use std::{path::Path, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Connecting to the API server. A hung one is told from a slow one within it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How the API server's own audit names us.
const USER_AGENT: &str = concat!("gpuheal-spoke/", env!("CARGO_PKG_VERSION"));

/// The clients.
#[derive(Clone)]
pub struct Clients {
    /// For lists and watches: retries what is throttled.
    pub read: Client,
    /// For whatever changes something: each answer is seen, none is retried.
    pub act: Client,
}

/// Makes the clients. Does not call the API yet.
///
/// # Errors
/// When there is no usable configuration.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Clients, Error> {
    let mut config = match kubeconfig {
        Some(path) => Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?,
        None => Config::incluster()?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.headers.push((http::header::USER_AGENT, http::HeaderValue::from_static(USER_AGENT)));
    let read = Client::try_from(config.clone())?;
    config.default_retry = false;
    Ok(Clients { read, act: Client::try_from(config)? })
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error("kubeconfig cannot be used")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// Not in a pod either.
    #[error("no kubeconfig given, and this is no pod with an account of its own")]
    InCluster(#[from] kube::config::InClusterError),
    /// TLS or URL.
    #[error("no client can be made of the configuration")]
    Client(#[from] kube::Error),
}
