//! Claims about the test control plane itself: it comes up, places pods with the stand-in kubelet's help,
//! keeps a record of who asked what, and leaves no process behind.

use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;
use testkube::{ControlPlane, Kubelet, NodeSpec, raw, settled};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bound_pod_runs_and_a_deleted_one_is_gone_after_its_exit_time() {
    let began = Instant::now();
    let plane = ControlPlane::shared();
    eprintln!("ready after {} ms", began.elapsed().as_millis());
    let client = plane.client().await;
    let node = NodeSpec::new("smoke-1", 8).label("pool", "smoke");
    let _kubelet = Kubelet::start(plane.kubelet_client().await, vec![node]).await.expect("registers");

    let mark = plane.mark().await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "smoke", "annotations": { testkube::kubelet::EXIT_AFTER_MS: "50" } },
        "spec": {
            "nodeSelector": { "pool": "smoke" },
            "containers": [{ "name": "c", "image": "none", "resources": { "limits": { "nvidia.com/gpu": "1" } } }],
        },
    }))
    .expect("it is a pod");
    pods.create(&PostParams::default(), &pod).await.expect("creates");
    settled::is_true("the pod runs", || async {
        let pod = raw::get(&client, "/api/v1/namespaces/default/pods/smoke").await;
        pod.json["status"]["phase"] == "Running"
    })
    .await;
    raw::delete(&client, "/api/v1/namespaces/default/pods/smoke", None).await.expect(200);
    settled::is_true("the pod is gone", || async {
        raw::get(&client, "/api/v1/namespaces/default/pods/smoke").await.code == 404
    })
    .await;

    let seen = plane.requests_since(mark).await;
    let mine: Vec<_> = seen.iter().filter(|entry| entry.user == "admin" && entry.is_write()).collect();
    let verbs: Vec<&str> = mine.iter().map(|entry| entry.verb.as_str()).collect();
    assert_eq!(verbs, ["create", "delete"], "{mine:?}");
    assert!(seen.iter().any(|entry| entry.user == "system:kube-scheduler" && entry.subresource == "binding"));
}

#[tokio::test]
async fn a_dropped_control_plane_leaves_no_process_behind() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plane = ControlPlane::start(dir.path()).expect("starts");
    let server = plane.server().trim_start_matches("https://").to_owned();
    assert!(std::net::TcpStream::connect(&server).is_ok());
    drop(plane);
    assert!(std::net::TcpStream::connect(&server).is_err());
}
