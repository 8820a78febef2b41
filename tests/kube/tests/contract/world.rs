//! What one claim works with: a namespace, a pool of nodes and a client of its own on a shared cluster.
//! Names are the claim's number, so claims run side by side without seeing each other.

use std::sync::Arc;

use kube::Client;
use serde_json::{Value, json};
use testkube::raw::{self, Answer};
use testkube::seed::{self, Pool};
use testkube::{Kubelet, TestCluster, settled};

pub(crate) struct World {
    pub(crate) cluster: Arc<TestCluster>,
    pub(crate) client: Client,
    /// What the client calls itself in the record.
    pub(crate) agent: String,
    pub(crate) pool: Pool,
}

impl testkube::claims::World for World {
    const SUITE: &'static str = "contract";
    const SHARES_KUBESIM: bool = true;

    async fn on(cluster: Arc<TestCluster>, number: usize) -> Self {
        let agent = format!("contract-{number}");
        let client = cluster.client_as(&agent).await;
        let pool = Pool { namespace: format!("claim-{number}"), name: format!("pool-{number}") };
        cluster.create_namespace(&client, &pool.namespace).await;
        Self { cluster, client, agent, pool }
    }
}

impl World {
    /// A world in which a claim may do to a simulated cluster what would disturb the others.
    pub(crate) async fn undisturbed(self) -> Self {
        match self.cluster.as_sim() {
            Some(_) => <Self as testkube::claims::World>::on(Arc::new(TestCluster::kubesim().await), 0).await,
            None => self,
        }
    }

    pub(crate) fn ns(&self) -> &str {
        &self.pool.namespace
    }

    /// `/api/v1/nodes/<pool>-<number>`
    pub(crate) fn node_path(&self, number: u32) -> String {
        format!("/api/v1/nodes/{}-{number}", self.pool.name)
    }

    pub(crate) fn core(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.ns())
    }

    pub(crate) fn apis(&self, group_version: &str, plural: &str) -> String {
        format!("/apis/{group_version}/namespaces/{}/{plural}", self.ns())
    }

    pub(crate) async fn nodes(&self, count: u32, gpus: u32) -> Kubelet {
        self.cluster.start_nodes(self.pool.nodes(count, gpus)).await
    }

    pub(crate) async fn create(&self, manifests: &[Value]) {
        seed::create(&self.client, manifests).await;
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        raw::get(&self.client, path).await.expect(200).json
    }

    pub(crate) async fn json_patch(&self, path: &str, operations: Value) -> Answer {
        raw::patch(&self.client, path, raw::JSON_PATCH, &operations).await
    }

    pub(crate) async fn merge_patch(&self, path: &str, patch: Value) -> Answer {
        raw::patch(&self.client, path, raw::MERGE_PATCH, &patch).await
    }

    pub(crate) async fn config_map(&self, name: &str, data: Value) -> Value {
        let body = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
        raw::post(&self.client, &self.core("configmaps"), &body).await.expect(201).json
    }

    /// A running, ready pod of our own, as it is then.
    pub(crate) async fn running_pod(&self, manifest: Value) -> Value {
        let path = format!("{}/{}", self.core("pods"), text(&manifest, "/metadata/name"));
        self.create(&[manifest]).await;
        settled::until("the pod is ready", || async {
            let pod = self.get(&path).await;
            is_ready(&pod).then_some(pod)
        })
        .await
    }

    /// The ready pods of `app=<app>`, once there are `count` and the budgets know of them.
    pub(crate) async fn ready_pods(&self, app: &str, count: usize) -> Vec<Value> {
        let path = format!("{}?labelSelector=app%3D{app}", self.core("pods"));
        settled::until("enough pods are ready", || async {
            let list = self.get(&path).await;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let ready: Vec<Value> = pods.into_iter().filter(is_ready).collect();
            (ready.len() == count).then_some(ready)
        })
        .await
    }

    /// Waits until a budget's status is what `holds` says.
    pub(crate) async fn pdb_status(&self, name: &str, holds: impl Fn(&Value) -> bool + Send + Sync) {
        let path = self.apis("policy/v1", &format!("poddisruptionbudgets/{name}"));
        settled::is_true("the budget's status is up to date", || async {
            let budget = self.get(&path).await;
            budget["status"]["observedGeneration"] == budget["metadata"]["generation"] && holds(&budget["status"])
        })
        .await;
    }

    pub(crate) async fn pdb_allows(&self, name: &str, disruptions: u32) {
        self.pdb_status(name, |status| status["disruptionsAllowed"] == disruptions).await;
    }

    /// A Deployment of `replicas` with a budget of its own, all ready and counted; gives the pods.
    pub(crate) async fn guarded_deployment(&self, app: &str, replicas: u32, min_available: u32) -> Vec<Value> {
        self.create(&[self.pool.deployment(app, replicas, 1), self.pool.pdb(app, app, min_available)]).await;
        let pods = self.ready_pods(app, replicas as usize).await;
        let (healthy, allowed) = (replicas, replicas - min_available);
        self.pdb_status(app, |status| status["currentHealthy"] == healthy && status["disruptionsAllowed"] == allowed).await;
        pods
    }

    pub(crate) fn pod_path(&self, pod: &Value) -> String {
        format!("{}/{}", self.core("pods"), text(pod, "/metadata/name"))
    }

    pub(crate) async fn evict(&self, pod: &Value, query: &str, extra: Value) -> Answer {
        let path = format!("{}/eviction{query}", self.pod_path(pod));
        raw::post(&self.client, &path, &self.eviction(pod, extra)).await
    }

    /// An Eviction's body with `extra` fields at its top.
    pub(crate) fn eviction(&self, pod: &Value, extra: Value) -> Value {
        let mut body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": { "name": pod["metadata"]["name"], "namespace": self.ns() },
        });
        for (key, value) in extra.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        body
    }

    /// True while the pod of this UID is there and not being deleted.
    pub(crate) async fn stands(&self, pod: &Value) -> bool {
        let answer = raw::get(&self.client, &self.pod_path(pod)).await;
        let same = answer.json["metadata"]["uid"] == pod["metadata"]["uid"];
        answer.code == 200 && same && answer.json["metadata"]["deletionTimestamp"].is_null()
    }

    /// The pod as it stood once it was told to go. Told by the watch's history: it may be gone by now, on a slow machine.
    pub(crate) async fn told_to_go(&self, pod: &Value) -> Value {
        raw::told_to_go(&self.client, &self.core("pods"), pod).await
    }

    pub(crate) async fn is_gone(&self, pod: &Value) {
        settled::is_true("the pod of this UID is gone", || async {
            let answer = raw::get(&self.client, &self.pod_path(pod)).await;
            answer.code == 404 || answer.json["metadata"]["uid"] != pod["metadata"]["uid"]
        })
        .await;
    }
}

pub(crate) fn is_ready(pod: &Value) -> bool {
    let ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    let conditions = pod["status"]["conditions"].as_array();
    pod["metadata"]["deletionTimestamp"].is_null() && conditions.into_iter().flatten().any(ready)
}

pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array();
    items.into_iter().flatten().map(|item| text(item, "/metadata/name").to_owned()).collect()
}
