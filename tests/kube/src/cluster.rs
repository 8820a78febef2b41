//! One handle over the clusters that tests run on, so that a test says once what it needs.
//! What differs between them is here and only here; a claim that needs to know which one it runs on
//! is a claim about the difference.

use std::path::Path;

use kube::Client;
use kubesim::KubeSim;
use serde_json::{Value, json};

use crate::audit::AuditEntry;
use crate::kubelet::{Kubelet, NodeSpec};
use crate::{ControlPlane, connect, control_plane, raw, seed, settled};

/// A cluster for tests.
pub enum TestCluster {
    /// Kubernetes itself, shared by all tests of the process: use names of your own.
    Real(&'static ControlPlane),
    /// Simulated, and the test's own.
    Sim(Box<KubeSim>),
}

/// False when the run was asked, by `KUBE=off`, to do without Kubernetes itself. What is then left out must
/// be named at the run's end as not proved.
#[must_use]
pub fn real_is_wanted() -> bool {
    std::env::var("KUBE").as_deref() != Ok("off")
}

/// A place in a cluster's record of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// In the API server's audit log.
    Real(control_plane::Mark),
    /// The number of a request to kubesim.
    Sim(u64),
}

impl TestCluster {
    /// Kubernetes' own control plane, built and started when need be.
    ///
    /// # Panics
    /// When that fails: a test must fail then, not skip.
    pub async fn real() -> Self {
        let started = tokio::task::spawn_blocking(ControlPlane::shared).await;
        Self::Real(started.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())))
    }

    /// A simulated cluster in which everything runs: scheduler, controllers, kubelets.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn kubesim() -> Self {
        Self::sim(kubesim::Config::default()).await
    }

    /// A simulated cluster as `config` wants it.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn sim(config: kubesim::Config) -> Self {
        Self::Sim(Box::new(KubeSim::start(config).await.expect("a free port on loopback")))
    }

    /// For messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Real(_) => "real",
            Self::Sim(_) => "kubesim",
        }
    }

    /// The simulated cluster, for what only that has: faults on purpose, a clock that can be moved.
    #[must_use]
    pub fn as_sim(&self) -> Option<&KubeSim> {
        match self {
            Self::Real(_) => None,
            Self::Sim(sim) => Some(sim),
        }
    }

    /// An administrator's kubeconfig.
    #[must_use]
    pub fn kubeconfig_yaml(&self) -> String {
        match self {
            Self::Real(plane) => plane.kubeconfig_yaml(),
            Self::Sim(sim) => sim.kubeconfig_yaml(),
        }
    }

    /// A kubeconfig for whomever the token belongs to.
    #[must_use]
    pub fn kubeconfig_with_token(&self, token: &str) -> String {
        match self {
            Self::Real(plane) => plane.kubeconfig_with_token(token),
            Self::Sim(sim) => sim.kubeconfig_for_token(token),
        }
    }

    /// Writes the administrator's kubeconfig, readable by its owner only.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) {
        control_plane::write_private(path, &self.kubeconfig_yaml()).expect("the test's folder is writable");
    }

    /// An administrator's client without hidden retries, for the runtime that calls this.
    pub async fn client(&self) -> Client {
        self.client_as("test").await
    }

    /// The same, with a name of its own in the record.
    ///
    /// # Panics
    /// When the name cannot be a header.
    pub async fn client_as(&self, user_agent: &str) -> Client {
        connect::connect(&self.kubeconfig_yaml(), user_agent).await.expect("the kubeconfig is our own")
    }

    /// The place up to which the record reaches now.
    pub async fn mark(&self) -> Mark {
        match self {
            Self::Real(plane) => Mark::Real(plane.mark().await),
            Self::Sim(sim) => Mark::Sim(sim.recorder().mark()),
        }
    }

    /// The requests that were answered after `mark` and before now, in order of their answers.
    ///
    /// # Panics
    /// When the mark is another cluster's.
    pub async fn requests_since(&self, mark: Mark) -> Vec<AuditEntry> {
        match (self, mark) {
            (Self::Real(plane), Mark::Real(mark)) => plane.requests_since(mark).await,
            (Self::Sim(sim), Mark::Sim(mark)) => sim.recorder().requests_since(mark).into_iter().map(AuditEntry::from).collect(),
            (Self::Real(_) | Self::Sim(_), Mark::Real(_) | Mark::Sim(_)) => panic!("the mark is another cluster's"),
        }
    }

    /// The nodes' machines: registered now. Bound pods run and deleted ones end, in the real cluster until
    /// the handle is dropped.
    ///
    /// # Panics
    /// When a node exists already.
    pub async fn start_nodes(&self, nodes: Vec<NodeSpec>) -> Kubelet {
        match self {
            Self::Real(plane) => Kubelet::start(plane.kubelet_client().await, nodes).await,
            Self::Sim(_) => Kubelet::register_only(self.client_as("stand-in-kubelet").await, nodes).await,
        }
        .expect("the nodes' names are the test's own")
    }

    /// A namespace in which pods can be created.
    ///
    /// # Panics
    /// When it exists already.
    pub async fn create_namespace(&self, client: &Client, name: &str) {
        self.create_labelled_namespace(client, name, &json!({})).await;
    }

    /// The same with labels, such as the one by which its owner allows the eviction of pods with storage.
    ///
    /// # Panics
    /// When it exists already.
    pub async fn create_labelled_namespace(&self, client: &Client, name: &str, labels: &Value) {
        let metadata = json!({ "name": name, "labels": labels });
        let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
        raw::post(client, "/api/v1/namespaces", &body).await.expect(201);
        // Kubernetes refuses a pod until its namespace has the service account.
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        settled::is_true("the namespace has its service account", || async { raw::get(client, &account).await.code == 200 }).await;
    }

    /// Creates a service account and gives a kubeconfig by which to act as it. What it may do is for the test to
    /// grant; kubesim grants everything.
    ///
    /// # Panics
    /// When it exists already.
    pub async fn service_account(&self, client: &Client, namespace: &str, name: &str) -> String {
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        raw::post(client, &accounts, &json!({ "metadata": { "name": name } })).await.expect(201);
        self.account_kubeconfig(client, namespace, name).await
    }

    /// A kubeconfig by which to act as a service account that is there, for an hour.
    ///
    /// # Panics
    /// When it is not.
    pub async fn account_kubeconfig(&self, client: &Client, namespace: &str, name: &str) -> String {
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let request = json!({ "spec": { "audiences": null, "expirationSeconds": 3600 } });
        let answer = raw::post(client, &format!("{accounts}/{name}/token"), &request).await.expect(201);
        let token = answer.json["status"]["token"].as_str().unwrap_or_default();
        self.kubeconfig_with_token(token)
    }

    /// Makes objects, or brings those that are there to this, as `kubectl apply --server-side` does.
    ///
    /// # Panics
    /// When the API server refuses one.
    pub async fn apply(&self, client: &Client, objects: &[Value]) {
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("{}/{name}?fieldManager=installer&force=true", seed::collection(object));
            let answer = raw::patch(client, &path, raw::APPLY_PATCH, object).await;
            assert!([200, 201].contains(&answer.code), "{path}: {}", answer.text);
        }
    }

    /// Creates the CRD unless it is there, and waits until its resources can be used.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub async fn apply_crd(&self, client: &Client, crd: &Value) {
        const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = raw::post(client, CRDS, crd).await;
        assert!([201, 409].contains(&answer.code), "{}", answer.text);
        let text = |pointer: &str| crd.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (group, plural) = (text("/spec/group"), text("/spec/names/plural"));
        let list = format!("/apis/{group}/{}/{plural}", text("/spec/versions/0/name"));
        settled::is_true("the CRD's resources can be listed", || async { raw::get(client, &list).await.code == 200 }).await;
    }
}

impl From<kubesim::Record> for AuditEntry {
    fn from(record: kubesim::Record) -> Self {
        Self {
            verb: record.verb,
            group: record.group,
            resource: record.resource,
            subresource: record.subresource,
            namespace: record.namespace,
            name: record.name,
            user: record.user,
            user_agent: record.user_agent,
            code: record.code,
            uri: record.path,
        }
    }
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}
