//! The binary: starts with objects from a file, writes a kubeconfig, and stops cleanly when told to.

use std::process::Stdio;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

const DATA: &str = "# a comment first
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-1
  annotations:
    note: \"a line\\n---\\nin a value\"
status:
  conditions: [{type: Ready, status: 'True'}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: p, namespace: ml}
  spec: {nodeName: gpu-1, containers: [{name: main, image: x}]}
---
";

#[tokio::test]
async fn the_binary_serves_what_its_file_says_until_it_is_told_to_stop() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data.yaml"), folder.path().join("kubeconfig"));
    std::fs::write(&data, DATA).unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_kubesim"))
        .args(["--name", "demo-1", "--data"])
        .arg(&data)
        .arg("--kubeconfig-out")
        .arg(&config)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    assert!(lines.next_line().await.unwrap().unwrap().starts_with("https://127.0.0.1:"));

    let kubeconfig = Kubeconfig::read_from(&config).unwrap();
    assert_eq!(kubeconfig.current_context.as_deref(), Some("demo-1"));
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let node = Api::<Node>::all(client.clone()).get("gpu-1").await.unwrap();
    assert_eq!(node.annotations()["note"], "a line\n---\nin a value");
    assert!(Api::<Pod>::namespaced(client, "ml").get("p").await.is_ok());

    let pid = process.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    let ended = tokio::time::timeout(std::time::Duration::from_secs(60), process.wait()).await.expect("stops in time").unwrap();
    assert!(ended.success());
}
