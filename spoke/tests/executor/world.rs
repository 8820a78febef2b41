//! What one claim works with: four GPU nodes, a namespace of ours, one of pods, and the way its spokes go to the API server.
//! Names bear the claim's number, so that claims on one API server do not see each other; a claim says `n1` to `n4`.

use std::{path::PathBuf, process::Stdio, sync::Arc};

use gpuheal_proto::{
    command::{Command, Step},
    ids::CommandId,
    kubernetes::{CONFIG_KEY, CONFIG_MAP, LEASE},
};
use gpuheal_spoke::{
    healaction::{HealAction, HealActionSpec, name_of},
    rights::{Grant, Place, RIGHTS},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Client, CustomResourceExt as _};
use kubesim::{Fault, Then, When, build};
use serde_json::{Value, json};
use testkube::{
    AuditEntry, Kubelet, NodeSpec, TestCluster,
    cluster::Mark,
    connect::connect,
    raw::{self, Answer},
    seed::POOL,
    settled,
};

use crate::{account, hub, replica::Spoke, wire::Wire};

pub(crate) struct World {
    pub(crate) cluster: Arc<TestCluster>,
    /// A person who may do everything.
    pub(crate) admin: Client,
    /// The spokes' own account, which may do what ships with them.
    account: String,
    machines: Kubelet,
    number: usize,
    from: Mark,
    pub(crate) wire: Arc<Wire>,
    /// Our own namespace.
    pub(crate) home: String,
    /// The pods' namespace.
    pub(crate) ns: String,
}

impl testkube::claims::World for World {
    const SUITE: &'static str = "executor";
    const SHARES_KUBESIM: bool = false;

    async fn on(cluster: Arc<TestCluster>, number: usize) -> Self {
        let admin = cluster.client().await;
        let (home, ns, pool) = (format!("heal-{number}"), format!("ml-{number}"), format!("c{number}"));
        cluster.apply_crd(&admin, &serde_json::to_value(HealAction::crd()).unwrap()).await;
        let account = account::install(&cluster, &admin, &home, &Grant::ALL).await;
        cluster.create_namespace(&admin, &ns).await;
        take_creations(&admin, &home).await;
        let nodes = (1..=4).map(|n| NodeSpec::new(format!("{pool}-n{n}"), 8).label(POOL, &pool)).collect();
        let machines = cluster.start_nodes(nodes).await;
        let wire = Wire::new(format!("{POOL}%3D{pool}"));
        let from = cluster.mark().await;
        Self { cluster, admin, account, machines, number, from, wire, home, ns }
    }
}

impl World {
    /// The same with a home of its own, where its spokes' account has no more than these grants.
    pub(crate) async fn granted(mut self, grants: &[Grant]) -> Self {
        self.home = format!("less-{}", self.number);
        self.account = account::install(&self.cluster, &self.admin, &self.home, grants).await;
        take_creations(&self.admin, &self.home).await;
        self
    }

    /// The same, and as to pods and workloads in this claim's namespace alone. Gives another one, in which the account has no such
    /// right: the namespace `far`.
    pub(crate) async fn granted_at_home(mut self, grants: &[Grant]) -> (Self, String) {
        self.home = format!("less-{}", self.number);
        let far = format!("far-{}", self.number);
        self.cluster.create_namespace(&self.admin, &far).await;
        self.account =
            account::install_within(&self.cluster, &self.admin, &self.home, grants, std::slice::from_ref(&self.ns)).await;
        take_creations(&self.admin, &self.home).await;
        for right in RIGHTS.iter().filter(|right| right.place == Place::Workloads) {
            for verb in right.verbs {
                self.deny_in(&far, verb, right.resource);
            }
        }
        (self, far)
    }

    /// A replica's client, with the rights of the spoke's account: by this name the API server's record knows it.
    pub(crate) async fn client(&self, replica: &str) -> Client {
        let client = connect(&self.account, &format!("{}{replica}", self.agents())).await.unwrap();
        self.wire.client(replica, client)
    }

    /// What the API server was asked by the spokes' account since this claim began, by its own record: all of it.
    pub(crate) async fn asked_by_account(&self) -> Vec<AuditEntry> {
        let name = account::user(&self.home);
        let all = self.cluster.requests_since(self.from).await;
        all.into_iter().filter(|entry| entry.user == name).collect()
    }

    fn agents(&self) -> String {
        format!("executor-{}-", self.number)
    }

    // What the API server was asked by our spokes, by its own record.

    pub(crate) async fn mark(&self) -> Mark {
        self.cluster.mark().await
    }

    /// Requests since, watches and the elector's left out.
    pub(crate) async fn requests_since(&self, mark: Mark) -> Vec<AuditEntry> {
        let ours = |entry: &AuditEntry| entry.user_agent.starts_with(&self.agents());
        let all = self.cluster.requests_since(mark).await;
        all.into_iter().filter(|entry| ours(entry) && !entry.is_watch() && entry.resource != "leases").collect()
    }

    /// All writes to such a resource, refused or not.
    pub(crate) async fn writes_to(&self, resource: &str) -> Vec<AuditEntry> {
        let all = self.requests_since(self.from).await;
        all.into_iter().filter(|entry| entry.is_write() && entry.resource == resource).collect()
    }

    pub(crate) async fn evictions(&self) -> Vec<AuditEntry> {
        self.writes_to("pods").await.into_iter().filter(|entry| entry.subresource == "eviction").collect()
    }

    // What goes wrong on purpose: kubesim's own switches, or the way there.

    pub(crate) fn lose_answer_to_eviction(&self) {
        match self.cluster.as_sim() {
            Some(sim) => drop(sim.faults().lose_answer("create", "pods/eviction")),
            None => self.wire.lose_answer("/eviction"),
        }
    }

    /// The next eviction is not taken: the API server is overloaded, and asks for a second.
    pub(crate) fn throttle_eviction(&self) {
        self.throttle("pods/eviction", "/eviction");
    }

    /// The next intent is not taken, in the same way.
    pub(crate) fn throttle_intent(&self) {
        self.throttle("healactions", "/healactions");
    }

    fn throttle(&self, resource: &str, end: &'static str) {
        match self.cluster.as_sim() {
            Some(sim) => {
                let when = When::verb("create", resource);
                sim.faults().add(Fault::once(when, Then::Throttle { retry_after: Some(1) }));
            }
            None => self.wire.throttle(end),
        }
    }

    /// On kubesim, which has no grants, what an account was not granted.
    pub(crate) fn deny(&self, verb: &str, resource: &str) {
        if let Some(sim) = self.cluster.as_sim() {
            sim.faults().deny(verb, resource, Some(&account::user(&self.home)));
        }
    }

    /// The same in one namespace; whoever asks about all of them is told no as well.
    fn deny_in(&self, namespace: &str, verb: &str, resource: &str) {
        let Some(sim) = self.cluster.as_sim() else { return };
        for namespace in [namespace, ""] {
            let when = When { namespace: Some(namespace.to_owned()), ..When::verb(verb, resource) };
            sim.faults().add(Fault::always(when.by(&account::user(&self.home)), Then::Deny));
        }
    }

    pub(crate) fn cut_pod_watches(&self) {
        match self.cluster.as_sim() {
            Some(sim) => sim.faults().drop_watches("pods"),
            None => self.wire.cut_pods(),
        }
    }

    pub(crate) fn deny_events(&self) {
        match self.cluster.as_sim() {
            Some(sim) => drop(sim.faults().deny("create", "events", None)),
            None => self.wire.deny("/events"),
        }
    }

    pub(crate) fn stall_node_watches(&self) {
        match self.cluster.as_sim() {
            Some(sim) => drop(sim.faults().stall_watches("nodes")),
            None => self.wire.stall_nodes(),
        }
    }

    /// From now on the API server's clock is so far ahead.
    pub(crate) fn skew_clock(&self, by: std::time::Duration) {
        match self.cluster.as_sim() {
            Some(sim) => sim.faults().set_clock_skew(by.as_secs().try_into().unwrap()),
            None => self.wire.skew(by),
        }
    }

    // Objects.

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let answer = raw::get(&self.admin, path).await;
        if answer.code == 404 { None } else { Some(answer.expect(200).json) }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Value {
        raw::post(&self.admin, path, body).await.expect(201).json
    }

    pub(crate) async fn merge(&self, path: &str, patch: &Value) -> Answer {
        raw::patch(&self.admin, path, raw::MERGE_PATCH, patch).await.expect(200)
    }

    pub(crate) fn name(&self, node: &str) -> String {
        format!("c{}-{node}", self.number)
    }

    fn node_path(&self, node: &str) -> String {
        format!("/api/v1/nodes/{}", self.name(node))
    }

    pub(crate) async fn node(&self, node: &str) -> Value {
        self.get(&self.node_path(node)).await.expect("the claim's nodes stay")
    }

    /// As a person changes it.
    pub(crate) async fn change_node(&self, node: &str, patch: Value) {
        self.merge(&self.node_path(node), &patch).await;
    }

    /// By server-side apply, which is what tells of a hand that leaves `false` behind.
    pub(crate) async fn apply_node(&self, node: &str, manager: &str, what: Value) {
        let path = format!("{}?fieldManager={manager}&force=true", self.node_path(node));
        let mut body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name(node)}});
        body.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
        raw::patch(&self.admin, &path, raw::APPLY_PATCH, &body).await.expect(200);
    }

    /// Our watches do not show it any more, as when they are late; it is as it was.
    pub(crate) async fn hide_node(&self, node: &str) {
        self.change_node(node, json!({"metadata": {"labels": {POOL: null}}})).await;
    }

    pub(crate) async fn replace_node(&self, node: &str) {
        self.machines.replace_node(&self.name(node)).await.unwrap();
    }

    /// For good: no machine comes in its place.
    pub(crate) async fn delete_node(&self, node: &str) {
        raw::delete(&self.admin, &self.node_path(node), None).await.expect(200);
    }

    /// What selects this claim's nodes.
    pub(crate) fn own_nodes(&self) -> Value {
        json!({POOL: format!("c{}", self.number)})
    }

    /// The node that a pod is bound to, as a claim calls it.
    pub(crate) fn node_of(&self, pod: &Value) -> String {
        let name = pod["spec"]["nodeName"].as_str().unwrap();
        name.strip_prefix(&self.name("")).unwrap().to_owned()
    }

    pub(crate) async fn command(&self, node: &str, plan_rev: u64, steps: Vec<Step>) -> Command {
        hub::command(&self.node(node).await, plan_rev, steps)
    }

    pub(crate) async fn create_workload(&self, plural: &str, object: &Value) {
        self.post(&format!("/apis/apps/v1/namespaces/{}/{plural}", self.ns), object).await;
    }

    fn core(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.ns)
    }

    pub(crate) async fn allow_stateful_eviction(&self) {
        self.stateful_eviction(json!("allowed")).await;
    }

    /// Its owner says no longer that pods with storage may be evicted.
    pub(crate) async fn forbid_stateful_eviction(&self) {
        self.stateful_eviction(Value::Null).await;
    }

    async fn stateful_eviction(&self, word: Value) {
        let labels = json!({"metadata": {"labels": {"gpu-selfhealing.io/stateful-eviction": word}}});
        self.merge(&format!("/api/v1/namespaces/{}", self.ns), &labels).await;
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Value> {
        self.get(&self.core(&format!("pods/{name}"))).await
    }

    /// As a person changes it.
    pub(crate) async fn change_pod(&self, name: &str, patch: Value) {
        self.merge(&self.core(&format!("pods/{name}")), &patch).await;
    }

    /// Waits until there is no such pod. One that has finished holds no GPU any more, and its node is called drained, a
    /// moment before its kubelet deletes it.
    pub(crate) async fn gone(&self, name: &str) {
        settled::is_true("the pod is gone", || async { self.pod(name).await.is_none() }).await;
    }

    /// A running GPU pod whose owner no controller here knows, so that nobody makes another in its place.
    pub(crate) async fn gpu_pod(&self, name: &str, node: &str, extra: Value) -> Value {
        let mut pod = build::gpu_pod(&self.ns, name, &self.name(node), 1, &[("app", "web")]);
        pod["metadata"]["ownerReferences"] = owner("CloneSet", "web");
        json_patch::merge(&mut pod, &extra);
        self.start_pod(&pod).await
    }

    /// The same in another namespace.
    pub(crate) async fn gpu_pod_in(&self, namespace: &str, name: &str, node: &str) {
        let mut pod = build::gpu_pod(namespace, name, &self.name(node), 1, &[("app", "web")]);
        pod["metadata"]["ownerReferences"] = owner("CloneSet", "web");
        self.post(&format!("/api/v1/namespaces/{namespace}/pods"), &pod).await;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        settled::is_true("the pod is ready", || async { self.get(&path).await.is_some_and(|pod| is_ready(&pod)) }).await;
    }

    pub(crate) async fn cpu_pod(&self, name: &str, node: &str) -> Value {
        self.start_pod(&build::cpu_pod(&self.ns, name, &self.name(node), &[])).await
    }

    async fn start_pod(&self, pod: &Value) -> Value {
        self.post(&self.core("pods"), pod).await;
        self.ready_pod(pod["metadata"]["name"].as_str().unwrap()).await
    }

    /// Waits until the pod of that name is ready.
    pub(crate) async fn ready_pod(&self, name: &str) -> Value {
        settled::until("the pod is ready", || async { self.pod(name).await.filter(is_ready) }).await
    }

    /// The pod of a replicated owner, with a bound claim.
    pub(crate) async fn stateful_pod(&self, name: &str, node: &str) -> Value {
        self.stateful_pod_with(name, node, json!({})).await
    }

    /// The same with more to it.
    pub(crate) async fn stateful_pod_with(&self, name: &str, node: &str, extra: Value) -> Value {
        let (claim, volume) = (format!("data-{name}"), format!("{}-{name}", self.ns));
        let storage = json!({"storage": "1Gi"});
        self.post(
            "/api/v1/persistentvolumes",
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {"capacity": storage, "accessModes": ["ReadWriteOnce"], "storageClassName": volume, "hostPath": {"path": "/nowhere"}}}),
        )
        .await;
        self.post(
            &self.core("persistentvolumeclaims"),
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": volume, "volumeName": volume, "resources": {"requests": storage}}}),
        )
        .await;
        if let Some(sim) = self.cluster.as_sim() {
            // Only a StatefulSet's claims are bound there by themselves.
            sim.store().patch_merge("persistentvolumeclaims", &self.ns, &claim, &json!({"status": {"phase": "Bound"}})).unwrap();
        }
        let path = self.core(&format!("persistentvolumeclaims/{claim}"));
        settled::is_true("the claim is bound", || async { self.get(&path).await.unwrap()["status"]["phase"] == "Bound" }).await;
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        let metadata = json!({"labels": {"app": "db"}, "ownerReferences": owner("StatefulSet", "db")});
        let mut all = json!({"metadata": metadata, "spec": {"volumes": volumes}});
        json_patch::merge(&mut all, &extra);
        self.gpu_pod(name, node, all).await
    }

    /// A stateful pod's volume, as its attacher says how it stands on a node. Gives the object's path.
    pub(crate) async fn attachment(&self, pod: &str, node: &str, status: Value) -> String {
        let attachments = "/apis/storage.k8s.io/v1/volumeattachments";
        let (volume, name) = (format!("{}-{pod}", self.ns), format!("csi-{}-{pod}", self.ns));
        let spec = json!({"attacher": "csi.example.com", "nodeName": self.name(node), "source": {"persistentVolumeName": volume}});
        self.post(attachments, &json!({"metadata": {"name": name}, "spec": spec})).await;
        let path = format!("{attachments}/{name}");
        self.merge(&format!("{path}/status"), &json!({"status": status})).await;
        path
    }

    /// A budget that leaves at least one pod of an app.
    pub(crate) async fn budget(&self, name: &str, app: &str) {
        let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", self.ns);
        self.post(&budgets, &build::pdb(&self.ns, name, 1, &[("app", app)])).await;
        settled::is_true("the budget has been looked at", || async {
            let budget = self.get(&format!("{budgets}/{name}")).await.unwrap();
            budget["status"]["observedGeneration"] == budget["metadata"]["generation"]
        })
        .await;
    }

    /// As a person does it who mends what two budgets block.
    pub(crate) async fn remove_budget(&self, name: &str) {
        let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/{name}", self.ns);
        raw::delete(&self.admin, &path, None).await.expect(200);
    }

    /// The pod `guarded-1` on `n1`, which its budget lets nobody evict, and which the budget has counted.
    pub(crate) async fn guarded_pod(&self) -> Value {
        self.budget("guarded", "guarded").await;
        let pod = self.gpu_pod("guarded-1", "n1", json!({"metadata": {"labels": {"app": "guarded"}}})).await;
        let path = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/guarded", self.ns);
        settled::is_true("the budget has counted its pod", || async {
            self.get(&path).await.unwrap()["status"]["currentHealthy"] == 1
        })
        .await;
        pod
    }

    /// A second healthy pod elsewhere: one of the two may go now.
    pub(crate) async fn free_budget(&self) {
        self.gpu_pod("guarded-2", "n2", json!({"metadata": {"labels": {"app": "guarded"}}})).await;
    }

    pub(crate) async fn delete_now(&self, pod: &str) {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        raw::delete(&self.admin, &self.core(&format!("pods/{pod}")), Some(&options)).await.expect(200);
    }

    fn config_path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps/{CONFIG_MAP}", self.home)
    }

    /// As the cluster's owner writes the ConfigMap, also anew.
    pub(crate) async fn configure(&self, yaml: &str) {
        self.write_config(json!({CONFIG_KEY: yaml})).await;
    }

    /// Whatever its data is, and nothing else in it.
    pub(crate) async fn write_config(&self, data: Value) {
        let path = self.config_path();
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP}, "data": data});
        if self.get(&path).await.is_some() {
            raw::put(&self.admin, &path, &map).await.expect(200);
        } else {
            self.post(&format!("/api/v1/namespaces/{}/configmaps", self.home), &map).await;
        }
    }

    /// As somebody deletes it, who may not know what it was for.
    pub(crate) async fn delete_config(&self) {
        raw::delete(&self.admin, &self.config_path(), None).await.expect(200);
    }

    fn action_path(&self, id: CommandId) -> String {
        format!("{}/{}", actions(&self.home), name_of(&id.to_string()))
    }

    pub(crate) async fn action(&self, id: CommandId) -> Option<Value> {
        self.get(&self.action_path(id)).await
    }

    /// As somebody tries to change it; the answer.
    pub(crate) async fn try_change_action(&self, id: CommandId, patch: &Value) -> Answer {
        raw::patch(&self.admin, &self.action_path(id), raw::MERGE_PATCH, patch).await
    }

    pub(crate) fn is_kubernetes(&self) -> bool {
        self.cluster.as_sim().is_none()
    }

    /// An administrator's.
    pub(crate) fn write_kubeconfig(&self, path: &std::path::Path) {
        self.cluster.write_kubeconfig(path);
    }

    /// The same as text.
    pub(crate) fn admin_kubeconfig(&self) -> String {
        self.cluster.kubeconfig_yaml()
    }

    /// What an administrator's kubectl prints. Nothing where Kubernetes is left out, and with it its kubectl.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Option<String> {
        let program = kubectl().await?;
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("kubeconfig");
        self.write_kubeconfig(&config);
        let mut kubectl = tokio::process::Command::new(program);
        kubectl.args(args).env("KUBECONFIG", &config).env("KUBECACHEDIR", dir.path().join("cache"));
        let output = kubectl.output().await.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8(output.stdout).unwrap())
    }

    /// The spokes' account's.
    pub(crate) fn account_kubeconfig(&self) -> &str {
        &self.account
    }

    /// A HealAction that somebody left behind.
    pub(crate) async fn leave_action(&self, action: &HealAction) {
        self.post(&actions(&self.home), &serde_json::to_value(action).unwrap()).await;
    }

    /// As somebody tries to write one; the answer.
    pub(crate) async fn try_leave_action(&self, action: &Value) -> Answer {
        raw::post(&self.admin, &actions(&self.home), action).await
    }

    /// As whoever works on it writes it.
    pub(crate) async fn write_action_status(&self, id: CommandId, status: &Value) {
        self.merge(&format!("{}/status", self.action_path(id)), &json!({"status": status})).await;
    }

    pub(crate) async fn forget_status(&self, id: CommandId) {
        self.merge(&format!("{}/status", self.action_path(id)), &json!({"status": null})).await;
    }

    /// All HealActions are gone, as after a restore of etcd from before them.
    pub(crate) async fn lose_actions(&self) {
        let all = actions(&self.home);
        for action in self.get(&all).await.unwrap()["items"].as_array().unwrap() {
            let path = format!("{all}/{}", action["metadata"]["name"].as_str().unwrap());
            self.merge(&path, &json!({"metadata": {"finalizers": null}})).await;
            raw::delete(&self.admin, &path, None).await.expect(200);
            settled::is_true("the HealAction is gone", || async { self.get(&path).await.is_none() }).await;
        }
    }

    pub(crate) async fn fence(&self) -> Value {
        self.get(&format!("/api/v1/namespaces/{}/configmaps/gpu-selfhealing-fence", self.home)).await.unwrap()
    }

    /// Events on nodes and on what is ours.
    pub(crate) async fn events(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for namespace in ["default", &self.home] {
            let list = self.get(&format!("/api/v1/namespaces/{namespace}/events")).await.unwrap();
            all.extend(list["items"].as_array().cloned().unwrap_or_default());
        }
        all
    }

    /// Events on pods of the claim's namespace, each as its action, its pod and its type.
    pub(crate) async fn pod_events(&self) -> Vec<(String, String, String)> {
        let list = self.get(&format!("/api/v1/namespaces/{}/events", self.ns)).await.unwrap();
        let ours =
            list["items"].as_array().cloned().unwrap_or_default().into_iter().filter(|event| event["reason"] == "GPUSelfHealing");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut all: Vec<_> =
            ours.map(|event| (text(&event["action"]), text(&event["involvedObject"]["name"]), text(&event["type"]))).collect();
        all.sort();
        all
    }

    /// Waits for the Event on the command's HealAction, the last call of all.
    pub(crate) async fn told_all(&self, command: &Command) {
        settled::is_true("the last Event is posted", || async {
            self.events().await.iter().any(|event| event["involvedObject"]["name"] == *name_of(&command.id.to_string()))
        })
        .await;
    }

    pub(crate) async fn give_lease_to(&self, holder: &str) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{LEASE}", self.home);
        self.merge(&path, &json!({"spec": {"holderIdentity": holder}})).await;
    }

    /// As a holder does it that is no spoke of ours, and whose clock is off by so much.
    pub(crate) async fn renew_lease_of(&self, holder: &str, off: SignedDuration, duration: std::time::Duration) {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/{LEASE}", self.home);
        let at = MicroTime(Timestamp::now() + off);
        let spec = json!({"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": duration.as_secs()});
        self.merge(&path, &json!({ "spec": spec })).await;
    }

    /// Kills a leader, and clears its Lease so that the next need not wait until that has run out.
    pub(crate) async fn kill_and_free(&self, spoke: Spoke) {
        spoke.kill();
        self.give_lease_to("").await;
    }

    /// Waits until a replica has looked at the Lease three times more.
    pub(crate) async fn lease_looked_at(&self, replica: &str) {
        let looks = || self.wire.sent().iter().filter(|sent| sent.replica == replica && sent.path.ends_with(LEASE)).count();
        let enough = looks() + 3;
        settled::is_true("the Lease is looked at", || async { looks() >= enough }).await;
    }
}

/// An API server lets the first creations wait for five seconds after it has got a CRD, which is longer than the executor
/// waits for an answer.
async fn take_creations(admin: &Client, home: &str) {
    let action = HealAction::named("probe", home, HealActionSpec::default());
    let path = format!("{}?dryRun=All", actions(home));
    raw::post(admin, &path, &serde_json::to_value(&action).unwrap()).await.expect(201);
}

/// Of the release whose control plane the tests run. Nothing where Kubernetes is left out.
async fn kubectl() -> Option<PathBuf> {
    if !testkube::cluster::real_is_wanted() {
        return None;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/kube/kubectl.sh");
    let output = tokio::process::Command::new(script).stdin(Stdio::null()).stderr(Stdio::inherit()).output().await.unwrap();
    assert!(output.status.success(), "{script} ended with {}", output.status);
    Some(String::from_utf8(output.stdout).unwrap().lines().last().expect("it prints where kubectl is").into())
}

fn actions(home: &str) -> String {
    format!("/apis/gpu-selfhealing.io/v1/namespaces/{home}/healactions")
}

/// Of a group that no controller here knows; the garbage collector leaves alone what it cannot look up.
pub(crate) fn owner(kind: &str, name: &str) -> Value {
    json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": kind, "name": name, "uid": format!("uid-{name}"), "controller": true}])
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Marks of ours on a node.
pub(crate) fn marks(node: &Value) -> (bool, usize, bool) {
    let label = node["metadata"]["labels"]["gpu-selfhealing.io/status"] == "faulty";
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let taints = taints.filter(|taint| taint["key"] == "gpu-selfhealing.io/faulty").count();
    (label, taints, node["spec"]["unschedulable"] == true)
}
