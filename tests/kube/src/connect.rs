//! A kube client from a kubeconfig's text, as tests want it: no hidden retry, and a name of its own in
//! the record of requests.
//! A client belongs to the runtime that made it: make one per test, share none between tests.

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};

/// Why no client could be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is no kubeconfig, or names what it does not hold.
    #[error("reading the kubeconfig")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The user agent cannot be a header.
    #[error("user agent {0:?}")]
    UserAgent(String),
    /// TLS or the address is not usable.
    #[error("making the client")]
    Client(#[from] kube::Error),
}

/// A client that shows each answer as it came: a 429 is not retried behind the test's back.
pub async fn connect(kubeconfig: &str, user_agent: &str) -> Result<kube::Client, Error> {
    // A second call finds one installed, which is as good.
    rustls::crypto::ring::default_provider().install_default().ok();
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    let agent = HeaderValue::from_str(user_agent).map_err(|_| Error::UserAgent(user_agent.to_owned()))?;
    config.headers.push((USER_AGENT, agent));
    Ok(kube::Client::try_from(config)?)
}
