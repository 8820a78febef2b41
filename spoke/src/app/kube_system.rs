//! Which cluster this really is: the UID of its namespace kube-system, which the hub ties the certificate to. A hub takes
//! no Hello without it, so that nothing is said to one until it could be read; all else runs meanwhile.

use std::time::Duration;

use gpuheal_proto::chain::chain;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

/// Longest call.
const API_WITHIN: Duration = Duration::from_secs(10);
/// Between two attempts: whoever grants the right sees the spoke attach while still looking.
pub(super) const RETRY: Duration = Duration::from_secs(5);

const NAMESPACE: &str = "kube-system";

/// Reads it; tries again every `retry` until it can be read.
pub(super) async fn uid(client: Client, retry: Duration) -> String {
    loop {
        match read(&client).await {
            Ok(uid) => return uid,
            Err(error) => {
                tracing::error!(
                    error = %chain(&error),
                    retry_ms = retry.as_millis(),
                    "not attaching to the hub: it asks for the UID of namespace kube-system, which this account must have the right to get"
                );
                tokio::time::sleep(retry).await;
            }
        }
    }
}

async fn read(client: &Client) -> Result<String, Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = tokio::time::timeout(API_WITHIN, api.get(NAMESPACE)).await.map_err(|_| Error::Timeout)??;
    namespace.metadata.uid.filter(|uid| !uid.is_empty()).ok_or(Error::NoUid)
}

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The API server said no, or could not be reached.
    #[error("namespace {NAMESPACE} could not be read")]
    Api(#[from] kube::Error),
    /// It said nothing.
    #[error("namespace {NAMESPACE} was not read within {} s", API_WITHIN.as_secs())]
    Timeout,
    /// It has none.
    #[error("namespace {NAMESPACE} has no UID")]
    NoUid,
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use kubesim::{Config, KubeSim};
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_spoke_that_may_not_read_kube_system_asks_again_until_it_may_and_never_says_nothing() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = KubeSim::start(Config::default()).await.unwrap();
        if sim.store().get("namespaces", "", NAMESPACE).is_none() {
            sim.store().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})).unwrap();
        }
        let real = sim.store().get("namespaces", "", NAMESPACE).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let denied = sim.faults().deny("get", "namespaces", None);
        let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let asking = tokio::spawn(uid(Client::try_from(config).unwrap(), Duration::from_millis(20)));
        let asked = || sim.recorder().requests_since(0).iter().filter(|r| r.resource == "namespaces" && r.code == 403).count();
        while asked() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(!asking.is_finished());
        sim.faults().remove(denied);
        assert_eq!(asking.await.unwrap(), real);
    }
}
