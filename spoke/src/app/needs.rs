//! What must be in the cluster before anything can be done there: our namespace and the HealAction resource. Looked for
//! again and again, so that whoever installs it sees the spoke become ready. Reads only; what cannot be read is not missing.

use std::time::Duration;

use gpuheal_proto::chain::chain;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::ListParams};
use tokio::sync::watch;

use crate::{healaction::HealAction, rights::Sheet};

/// Longest look.
const API_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked.
pub(super) struct Every {
    /// While something is missing: whoever installs it is waiting.
    pub(super) missing: Duration,
    /// While all is there: a CRD that somebody deletes is found within a minute, by one small request.
    pub(super) there: Duration,
}

impl Default for Every {
    fn default() -> Self {
        Self { missing: Duration::from_secs(2), there: Duration::from_secs(60) }
    }
}

/// Looks for ever, tells what is missing, and logs each change once.
pub(super) async fn look(client: Client, namespace: String, every: Every, told: watch::Sender<Vec<String>>) {
    loop {
        let looked = tokio::time::timeout(API_WITHIN, missing(&client, &namespace)).await;
        let well = match looked {
            Ok(Ok(missing)) => {
                let well = missing.is_empty();
                if told.send_if_modified(|known| std::mem::replace(known, missing.clone()) != missing) {
                    log(&missing);
                }
                well
            }
            Ok(Err(error)) => {
                tracing::debug!(error = %chain(&error), "could not be looked up, what was known stays");
                false
            }
            Err(_) => false,
        };
        tokio::time::sleep(if well { every.there } else { every.missing }).await;
    }
}

fn log(missing: &[String]) {
    match missing {
        [] => tracing::info!("the cluster has all that the spoke needs now"),
        missing => tracing::error!(missing = missing.join("; "), "nothing can be done in this cluster yet"),
    }
}

/// What is missing, and the command that mends it.
async fn missing(client: &Client, namespace: &str) -> Result<Vec<String>, kube::Error> {
    let mut missing = Vec::new();
    match Api::<Namespace>::all(client.clone()).get_opt(namespace).await {
        Ok(Some(_)) => {}
        Ok(None) => missing.push(format!("namespace {namespace} is missing: {}", Sheet::Observe.apply(namespace))),
        // An account without that right may be one with all others.
        Err(kube::Error::Api(status)) if status.code == 403 => {}
        Err(error) => return Err(error),
    }
    match Api::<HealAction>::namespaced(client.clone(), namespace).list_metadata(&ListParams::default().limit(1)).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => {
            missing.push("HealAction CRD is missing: kubectl apply -f deploy/spoke/crd.yaml".to_owned());
        }
        Err(kube::Error::Api(status)) if status.code == 403 => {
            missing.push(format!("HealActions may not be listed in namespace {namespace}: {}", status.message));
        }
        Err(error) => return Err(error),
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use kubesim::{Config, KubeSim};
    use serde_json::json;

    use super::*;
    use crate::healaction::crd_yaml;

    #[tokio::test]
    async fn a_cluster_without_our_namespace_or_resource_is_told_with_the_command_that_mends_it() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = KubeSim::start(Config::default()).await.unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let (told, mut lacks) = watch::channel(Vec::new());
        let often = Duration::from_millis(20);
        let every = Every { missing: often, there: often };
        let looking = tokio::spawn(look(Client::try_from(config).unwrap(), "ours".into(), every, told));
        let both = lacks.wait_for(|lacks| lacks.len() == 2).await.unwrap().join("; ");
        assert!(
            both.contains("gpuheal-spoke rights observe --namespace ours | kubectl apply -f -")
                && both.contains("kubectl apply -f deploy/spoke/crd.yaml"),
            "{both}"
        );
        sim.store().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}})).unwrap();
        lacks.wait_for(|lacks| lacks.len() == 1 && lacks[0].starts_with("HealAction CRD is missing")).await.unwrap();
        let crd: serde_json::Value = serde_saphyr::from_str(&crd_yaml()).unwrap();
        sim.store().create(crd).unwrap();
        lacks.wait_for(Vec::is_empty).await.unwrap();
        looking.abort();
    }
}
