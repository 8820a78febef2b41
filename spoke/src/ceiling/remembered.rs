//! That the cluster's owner has had a ConfigMap, beyond the life of one process: the fence remembers it. A process that begins
//! without one and finds that there was one only observes, as with one that nobody can read. Where there never was any, none is
//! asked for.

use std::{future::Future, time::Duration};

use gpuheal_proto::chain::chain;
use tokio::sync::watch;

use crate::{
    fence::FenceStore,
    ports::{LocalConfig, Lost},
};

/// Waits after the fence could not be read or written: who installs the account is waiting, and one small request each.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// What there is, once it is known whether there was one before; and the work that finds out. Reads the fence once in a
/// process's life, and writes it once in a cluster's.
pub(crate) fn remembered(
    seen: watch::Receiver<Option<LocalConfig>>,
    fences: FenceStore,
    retry: Duration,
) -> (watch::Receiver<Option<LocalConfig>>, impl Future<Output = ()>) {
    let (told, config) = watch::channel(None);
    (config, remember(seen, told, fences, retry))
}

/// Ends when nobody tells or hears any more. What the watch brings is passed on at once, whatever is being asked of the fence: it may
/// be a stop.
async fn remember(
    mut seen: watch::Receiver<Option<LocalConfig>>,
    told: watch::Sender<Option<LocalConfig>>,
    fences: FenceStore,
    retry: Duration,
) {
    // Whether one was here, as far as the fence is known to say so.
    let mut before = None;
    let mut pause = Duration::ZERO;
    loop {
        let local = seen.borrow_and_update().clone();
        let there = local.as_ref().is_some_and(LocalConfig::was_there);
        let open = match (&local, before) {
            (None, _) | (Some(_), Some(true)) => false,
            (Some(_), Some(false)) => there,
            (Some(_), None) => true,
        };
        match (local, before) {
            (Some(local), _) if there => tell(&told, local),
            (None, _) | (Some(_), None) => {}
            (Some(local), Some(false)) => tell(&told, local),
            (Some(local), Some(true)) => tell(&told, LocalConfig { lost: Some(Lost::ObjectUnread), ..local }),
        }
        let ask = async {
            tokio::time::sleep(pause).await;
            if there { fences.note_ceiling().await.map(|()| true) } else { fences.ceiling_seen().await }
        };
        tokio::select! {
            changed = seen.changed() => if changed.is_err() {
                return;
            },
            () = told.closed() => return,
            answer = ask, if open => match answer {
                Ok(was) => (before, pause) = (Some(was), Duration::ZERO),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(%error, "whether the owner has had a ceiling here is not known or noted, it is tried again");
                    pause = retry;
                }
            },
        }
    }
}

fn tell(told: &watch::Sender<Option<LocalConfig>>, local: LocalConfig) {
    told.send_if_modified(|known| known.replace(local.clone()) != Some(local));
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::kubernetes::FENCE;
    use kube::config::Kubeconfig;
    use kubesim::{Config, Fault, KubeSim, Then, When};
    use serde_json::{Value, json};

    use super::*;
    use crate::{execute::api::Kube, fence::CEILING_SEEN};

    struct Cluster {
        sim: KubeSim,
        fences: FenceStore,
    }

    async fn cluster(fence: Value) -> Cluster {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = KubeSim::start(Config::default()).await.unwrap();
        sim.store().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ours"}})).unwrap();
        let metadata = json!({"name": FENCE, "namespace": "ours"});
        sim.store().create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": fence})).unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let fences = FenceStore::new(Kube::new(kube::Client::try_from(config).unwrap()), "ours".into());
        Cluster { sim, fences }
    }

    impl Cluster {
        /// As a process that begins, and whose watch shows this.
        fn begins(&self, with: LocalConfig) -> (watch::Sender<Option<LocalConfig>>, watch::Receiver<Option<LocalConfig>>) {
            let (seen, watched) = watch::channel(Some(with));
            let (config, work) = remembered(watched, self.fences.clone(), Duration::from_millis(20));
            tokio::spawn(work);
            (seen, config)
        }

        fn fence(&self) -> Value {
            self.sim.store().get("configmaps", "ours", FENCE).unwrap()["data"].clone()
        }
    }

    async fn first(config: &mut watch::Receiver<Option<LocalConfig>>) -> LocalConfig {
        config.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    #[tokio::test]
    async fn a_process_that_begins_without_the_config_map_that_was_here_only_observes_and_one_that_never_had_any_asks_for_none() {
        let cluster = cluster(json!({"hubTerm": "7"})).await;
        let (seen, mut config) = cluster.begins(LocalConfig::default());
        assert_eq!(first(&mut config).await, LocalConfig::default());
        let there = LocalConfig { resource_version: "1".into(), yaml: "ceiling: {nodesOut: 1}".into(), lost: None };
        seen.send_replace(Some(there.clone()));
        assert_eq!(*config.wait_for(|known| known.as_ref() == Some(&there)).await.unwrap(), Some(there));
        let bound = tokio::time::timeout(Duration::from_secs(20), async {
            while cluster.fence() != json!({"hubTerm": "7", CEILING_SEEN: "true"}) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        bound.await.unwrap();
        let (_seen, mut config) = cluster.begins(LocalConfig::default());
        assert_eq!(first(&mut config).await.lost, Some(Lost::ObjectUnread));
    }

    #[tokio::test]
    async fn a_stop_is_told_at_once_however_long_the_fence_takes() {
        let cluster = cluster(json!({})).await;
        cluster.sim.faults().add(Fault::always(When::verb("get", "configmaps"), Then::Hang));
        let local = |yaml: &str| LocalConfig { resource_version: "1".into(), yaml: yaml.into(), lost: None };
        let (seen, mut config) = cluster.begins(local(""));
        assert_eq!(first(&mut config).await, local(""));
        seen.send_replace(Some(local("ceiling: {stop: true}")));
        let told = config.wait_for(|known| known.as_ref().is_some_and(|known| !known.yaml.is_empty()));
        assert!(tokio::time::timeout(Duration::from_secs(1), told).await.is_ok(), "one call may take two seconds");
    }

    #[tokio::test]
    async fn while_the_fence_cannot_be_read_nobody_is_told_that_there_is_no_ceiling() {
        let cluster = cluster(json!({CEILING_SEEN: "true"})).await;
        let denied = cluster.sim.faults().deny("get", "configmaps", None);
        let (_seen, mut config) = cluster.begins(LocalConfig::default());
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(*config.borrow_and_update(), None);
        cluster.sim.faults().remove(denied);
        assert_eq!(first(&mut config).await.lost, Some(Lost::ObjectUnread));
    }
}
