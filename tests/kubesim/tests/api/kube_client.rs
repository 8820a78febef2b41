//! The kube crate against a simulated cluster: typed lists and reflectors, through a cut and a compaction.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};
use kubesim::{KubeSim, build};
use serde_json::json;

use crate::client::still;

async fn client(sim: &KubeSim) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

#[tokio::test]
async fn typed_objects_survive_the_way() {
    let (sim, _) = still().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    sim.store().create(build::exporter_pod("gpu", "a", 9400)).unwrap();
    let client = client(&sim).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let list = nodes.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let patched =
        nodes.patch("a", &PatchParams::apply("spoke"), &Patch::Merge(json!({ "spec": { "unschedulable": true } }))).await.unwrap();
    assert_eq!(patched.spec.unwrap().unschedulable, Some(true));
    let pods: Api<Pod> = Api::all(client);
    assert_eq!(pods.list(&ListParams::default().fields("spec.nodeName=a")).await.unwrap().items.len(), 1);
    assert!(pods.list_metadata(&ListParams::default()).await.unwrap().items[0].metadata.uid.is_some());
}

#[tokio::test]
async fn a_reflector_sees_every_node_through_a_cut_and_a_compaction() {
    let (sim, _) = still().await;
    sim.store().create(build::gpu_node("a", 8, "H100")).unwrap();
    let nodes: Api<Node> = Api::all(client(&sim).await);
    let mut seen = watcher(nodes, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .map_ok(|node| node.metadata.name.unwrap())
        .filter_map(|item| async { item.ok() })
        .boxed();
    let mut expect = async |name: &str| {
        let found = async { while seen.next().await.unwrap() != name {} };
        tokio::time::timeout(std::time::Duration::from_secs(60), found).await.expect(name);
    };
    expect("a").await;
    sim.faults().drop_watches("nodes");
    sim.store().create(build::gpu_node("b", 8, "H100")).unwrap();
    expect("b").await;
    let gone = sim.faults().add(kubesim::Fault::once(kubesim::When::verb("watch", "nodes"), kubesim::Then::WatchGone));
    sim.faults().drop_watches("nodes");
    sim.store().create(build::gpu_node("c", 8, "H100")).unwrap();
    expect("c").await;
    assert!(!sim.faults().remove(gone), "the refusal was met");
}
