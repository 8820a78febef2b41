//! kubectl against a simulated cluster: the one that $KUBECTL names, else that of the release whose control plane the other
//! tests run, which `tests/kube/kubectl.sh` finds or builds. Only `KUBE=off` leaves it out: then the same is asked over
//! plain HTTPS, and the test says so.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kubesim::{KubeSim, build};
use serde_json::json;

use crate::client::{Client, lively, until};

fn kubectl() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KUBECTL") {
        return Some(named.into());
    }
    if std::env::var("KUBE").as_deref() == Ok("off") {
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../kube/kubectl.sh");
    let output = Command::new(script).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{script} ended with {}", output.status);
    Some(String::from_utf8(output.stdout).unwrap().lines().last().expect("it prints where kubectl is").into())
}

async fn cluster() -> (KubeSim, Client) {
    let (sim, client) = lively().await;
    for node in ["gpu-1", "gpu-2"] {
        sim.store().create(build::gpu_node(node, 8, "H100")).unwrap();
    }
    sim.store().create(build::deployment("ml", "infer", 2, 2, &[("app", "infer")])).unwrap();
    until("runs", || sim.store().list("pods").iter().filter(|pod| pod["status"]["phase"] == "Running").count() == 2).await;
    (sim, client)
}

struct Shell<'a> {
    program: &'a Path,
    config: PathBuf,
}

impl Shell<'_> {
    async fn run(&self, line: &str) -> String {
        let output = tokio::process::Command::new(self.program)
            .args(line.split_whitespace())
            .env("KUBECONFIG", &self.config)
            .env("KUBECACHEDIR", self.config.with_extension("cache"))
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "kubectl {line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_marks_drains_and_applies() {
    let (sim, client) = cluster().await;
    let Some(program) = kubectl() else {
        eprintln!("KUBE=off: asked over plain HTTPS instead of by kubectl; its tables, cordon, drain and apply were NOT proved");
        return plain(&sim, &client).await;
    };
    let folder = tempfile::tempdir().unwrap();
    let shell = Shell { program: &program, config: folder.path().join("config") };
    sim.write_kubeconfig(&shell.config).unwrap();

    let nodes = shell.run("get nodes").await;
    assert!(
        nodes.starts_with("NAME") && nodes.contains("STATUS") && nodes.contains("VERSION") && nodes.contains("v1.36.3"),
        "{nodes}"
    );
    assert!(shell.run("get pods -n ml -o wide").await.contains("1/1"));

    shell.run("label node gpu-1 gpu-selfhealing.io/status=faulty").await;
    shell.run("taint node gpu-1 gpu-selfhealing.io/faulty=true:NoSchedule").await;
    assert!(shell.run("get nodes -l gpu-selfhealing.io/status=faulty").await.contains("gpu-1"));
    shell.run("cordon gpu-1").await;
    assert!(shell.run("get nodes").await.contains("Ready,SchedulingDisabled"));
    shell.run("drain gpu-1 --ignore-daemonsets --timeout=120s").await;
    assert!(sim.store().list("pods").iter().all(|pod| pod["spec"]["nodeName"] != "gpu-1"));
    shell.run("uncordon gpu-1").await;
    assert!(sim.store().get("nodes", "", "gpu-1").unwrap()["spec"]["unschedulable"].is_null());

    let file = folder.path().join("map.yaml");
    for value in ["1", "2"] {
        std::fs::write(&file, format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: \"{value}\"\n")).unwrap();
        shell.run(&format!("apply -f {}", file.display())).await;
        assert_eq!(sim.store().get("configmaps", "default", "c").unwrap()["data"]["a"], value);
    }
    shell.run("create namespace made-by-kubectl").await;
    shell.run("create deployment web --image=x --replicas=2 -n made-by-kubectl").await;
    shell.run("create poddisruptionbudget web --selector=app=web --min-available=1 -n made-by-kubectl").await;
    shell.run("wait deployment web --for=condition=Available --timeout=120s -n made-by-kubectl").await;
    shell.run("create secret generic s --from-literal=a=b").await;
    assert_eq!(sim.store().get("secrets", "default", "s").unwrap()["data"]["a"], "Yg==");
    assert_eq!(shell.run("auth can-i delete nodes").await.trim(), "yes");

    // kubectl describe finds events by the node's UID as well as by its name.
    let uid = sim.store().get("nodes", "", "gpu-1").unwrap()["metadata"]["uid"].clone();
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e", "namespace": "default" }, "involvedObject": { "kind": "Node", "name": "gpu-1", "uid": uid },
        "reason": "GPUSelfHealing", "message": "quarantined", "type": "Warning",
    });
    sim.store().create(event).unwrap();
    assert!(shell.run("get events --field-selector reason=GPUSelfHealing").await.contains("node/gpu-1"));
    assert!(shell.run("describe node gpu-1").await.contains("quarantined"));
}

async fn plain(sim: &KubeSim, client: &Client) {
    let patch = json!({ "spec": { "unschedulable": true } });
    assert_eq!(client.patch("/api/v1/nodes/gpu-1", "strategic-merge-patch", &patch).await.code, 200);
    for pod in sim.store().list("pods").iter().filter(|pod| pod["spec"]["nodeName"] == "gpu-1") {
        assert_eq!(client.evict(pod["metadata"]["name"].as_str().unwrap(), json!({})).await.code, 201);
    }
    until("drained", || sim.store().list("pods").iter().all(|pod| pod["spec"]["nodeName"] != "gpu-1")).await;
}
