//! Claims about the test control plane itself: it comes up, keeps a record of who asked what, and leaves
//! no process behind. What it answers is the contract suite's matter.

use serde_json::json;
use testkube::{ControlPlane, TestCluster, cluster, raw, settled};

/// Says what is not proved when the run was asked to do without Kubernetes itself.
fn left_out(claim: &str) -> bool {
    let out = !cluster::real_is_wanted();
    if out {
        eprintln!("KUBE=off: not proved: {claim}");
    }
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_holds_each_request_with_its_user_and_answer() {
    if left_out("the record holds each request with its user and answer") {
        return;
    }
    let plane = ControlPlane::shared();
    let client = plane.client().await;
    let kubelet = plane.kubelet_client().await;
    let mark = plane.mark().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let body = json!({ "metadata": { "name": "recorded" } });
    raw::post(&client, maps, &body).await.expect(201);
    raw::post(&kubelet, maps, &body).await.expect(409);
    raw::get(&client, &format!("{maps}/recorded")).await.expect(200);

    let seen = plane.requests_since(mark).await;
    let of = |user: &str| -> Vec<(String, u16)> {
        let theirs = seen.iter().filter(|entry| entry.user == user && entry.resource == "configmaps");
        theirs.map(|entry| (entry.verb.clone(), entry.code)).collect()
    };
    assert_eq!(of("admin"), [("create".to_owned(), 201), ("get".to_owned(), 200)]);
    assert_eq!(of("system:stand-in-kubelet"), [("create".to_owned(), 409)]);
    let later = plane.mark().await;
    assert!(!plane.requests_since(later).await.iter().any(|entry| entry.user == "admin" && entry.is_write()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_may_do_only_what_it_was_granted() {
    if left_out("a service account may do only what it was granted") {
        return;
    }
    let real = TestCluster::real().await;
    let client = real.client().await;
    real.create_namespace(&client, "rights").await;
    let kubeconfig = real.service_account(&client, "rights", "spoke").await;
    let spoke = testkube::connect::connect(&kubeconfig, "test").await.expect("a client");
    let pods = "/api/v1/namespaces/rights/pods";
    raw::get(&spoke, pods).await.expect(403);

    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/rights";
    let role = json!({ "metadata": { "name": "r" }, "rules": [{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }] });
    raw::post(&client, &format!("{rbac}/roles"), &role).await.expect(201);
    let binding = json!({
        "metadata": { "name": "r" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r" },
        "subjects": [{ "kind": "ServiceAccount", "namespace": "rights", "name": "spoke" }],
    });
    raw::post(&client, &format!("{rbac}/rolebindings"), &binding).await.expect(201);
    settled::is_true("the grant is known", || async { raw::get(&spoke, pods).await.code == 200 }).await;
    raw::delete(&spoke, &format!("{pods}/any"), None).await.expect(403);
}

#[tokio::test]
async fn a_dropped_control_plane_leaves_no_process_behind() {
    if left_out("a dropped control plane leaves no process behind") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plane = ControlPlane::start(dir.path()).expect("starts");
    let server = plane.server().trim_start_matches("https://").to_owned();
    assert!(std::net::TcpStream::connect(&server).is_ok());
    drop(plane);
    assert!(std::net::TcpStream::connect(&server).is_err());
}

/// Not a claim by itself: the process that the next claim kills. It holds a control plane until then.
#[test]
fn held_until_killed() {
    let Some(dir) = std::env::var_os(HOLD) else { return };
    let plane = ControlPlane::start(dir.as_ref()).expect("starts");
    std::fs::write(std::path::Path::new(&dir).join("server"), plane.server()).expect("the folder is the test's own");
    loop {
        std::thread::park();
    }
}

const HOLD: &str = "TESTKUBE_HOLD_CONTROL_PLANE_IN";

#[tokio::test]
async fn a_killed_test_process_leaves_no_control_plane_behind() {
    if left_out("a killed test process leaves no control plane behind") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut holder = std::process::Command::new(std::env::current_exe().expect("it runs"))
        .args(["held_until_killed", "--exact"])
        .env(HOLD, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it can run twice");
    let server = settled::until("the other process has a control plane", || async {
        std::fs::read_to_string(dir.path().join("server")).ok().filter(|server| !server.is_empty())
    })
    .await;
    let address = server.trim_start_matches("https://").to_owned();
    assert!(std::net::TcpStream::connect(&address).is_ok());
    holder.kill().expect("it is ours");
    holder.wait().expect("it is ours");
    settled::is_true("nothing listens any more", || async { std::net::TcpStream::connect(&address).is_err() }).await;
}
