//! What the account must not be able to do, tried as that account on Kubernetes itself with each grant in turn, from the
//! files that ship as kubectl applies them. Each line of what is printed says what was tried and what the API server
//! answered. kubesim has no RBAC, and nothing of this is tried there.

use std::fmt::Write as _;

use gpuheal_spoke::rights::{ACCOUNT, Grant, RIGHTS};
use http::{Method, Request, header};
use kube::{Client, client::Body};
use kubesim::build;
use serde_json::{Value, json};
use testkube::{connect::connect, raw, seed::POOL, settled};

use crate::{account, world::World};

testkube::claims![
    // Whatever it tries, it tries with each of the six grants.
    what_the_account_must_not_do_is_refused_with_every_grant,
    the_api_server_finds_nothing_wrong_with_the_policies,
];

/// Where the shipped files put it.
const HOME: &str = "gpu-selfhealing";
/// A taint of somebody else's, on every node that is tried.
const KEEP: &str = "team.io/keep";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// One request.
struct Try {
    what: String,
    method: Method,
    path: String,
    kind: &'static str,
    body: Option<Value>,
    /// Somebody else's name to act in.
    impersonates: Option<&'static str>,
}

impl Try {
    fn new(what: &str, method: Method, path: &str, kind: &'static str, body: Option<Value>) -> Self {
        Self { what: what.to_owned(), method, path: path.to_owned(), kind, body, impersonates: None }
    }

    async fn ask(&self, client: &Client) -> raw::Answer {
        let Some(user) = self.impersonates else {
            return raw::send(client, self.method.clone(), &self.path, self.kind, self.body.as_ref()).await;
        };
        let request = Request::builder().method(self.method.clone()).uri(&self.path).header("Impersonate-User", user);
        let request = request.header(header::ACCEPT, "application/json").body(Body::empty()).unwrap();
        let (parts, body) = client.send(request).await.unwrap().into_parts();
        let text = String::from_utf8(body.collect_bytes().await.unwrap().to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or_default();
        raw::Answer { code: parts.status.as_u16(), headers: parts.headers, json, text }
    }
}

fn get(what: &str, path: &str) -> Try {
    Try::new(what, Method::GET, path, "", None)
}

fn post(what: &str, path: &str, body: Value) -> Try {
    Try::new(what, Method::POST, path, "application/json", Some(body))
}

fn put(what: &str, path: &str, body: Value) -> Try {
    Try::new(what, Method::PUT, path, "application/json", Some(body))
}

fn merge(what: &str, path: &str, body: Value) -> Try {
    Try::new(what, Method::PATCH, path, raw::MERGE_PATCH, Some(body))
}

fn delete(what: &str, path: &str) -> Try {
    Try::new(what, Method::DELETE, path, "application/json", None)
}

fn object(api: &str, kind: &str, name: &str, more: &Value) -> Value {
    let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    json_patch::merge(&mut object, more);
    object
}

fn keep(value: &str) -> Value {
    json!({"key": KEEP, "value": value, "effect": "NoSchedule"})
}

/// Changes of a node that the role's `patch` would let pass.
fn of_a_node(node: &str) -> Vec<Try> {
    let path = format!("/api/v1/nodes/{node}");
    let metadata = |what: &str, metadata: Value| merge(what, &path, json!({"metadata": metadata}));
    let spec = |what: &str, spec: Value| merge(what, &path, json!({"spec": spec}));
    vec![
        metadata("set another label", json!({"labels": {"team.io/x": "y"}})),
        metadata("change another label", json!({"labels": {POOL: "elsewhere"}})),
        metadata("take another label off", json!({"labels": {POOL: null}})),
        metadata("set a label with our prefix that is the owner's", json!({"labels": {"gpu-selfhealing.io/opt-out": "true"}})),
        metadata("set another annotation", json!({"annotations": {"team.io/x": "y"}})),
        metadata("change another annotation", json!({"annotations": {KEEP: "y"}})),
        metadata("take another annotation off", json!({"annotations": {KEEP: null}})),
        metadata("set an annotation with our prefix that is not ours", json!({"annotations": {"gpu-selfhealing.io/x": "y"}})),
        metadata("set a finalizer", json!({"finalizers": ["team.io/hold"]})),
        metadata("set an owner", json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]})),
        spec("set another taint", json!({"taints": [keep("x"), {"key": "team.io/y", "effect": "NoSchedule"}]})),
        spec("take another taint off", json!({"taints": null})),
        spec("change another taint", json!({"taints": [keep("y")]})),
        spec(
            "set our taint as NoExecute",
            json!({"taints": [keep("x"), {"key": "gpu-selfhealing.io/faulty", "effect": "NoExecute"}]}),
        ),
        spec("set the provider's id", json!({"providerID": "somewhere://else"})),
        spec(
            "set another label along with a cordon",
            json!({"unschedulable": true, "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}),
        ),
        Try::new(
            "set another label by server-side apply",
            Method::PATCH,
            &format!("{path}?fieldManager=gpu-selfhealing&force=true"),
            raw::APPLY_PATCH,
            Some(object("v1", "Node", node, &json!({"metadata": {"labels": {"team.io/x": "y"}}}))),
        ),
    ]
}

/// Changes of a workload that the role's `patch` would let pass.
fn of_a_workload(path: &str) -> Vec<Try> {
    let change = |what: &str, patch: Value| merge(what, path, patch);
    let template = |what: &str, template: Value| merge(what, path, json!({"spec": {"template": template}}));
    vec![
        change("scale a workload", json!({"spec": {"replicas": 5}})),
        change("pause a workload", json!({"spec": {"paused": true}})),
        change("label a workload", json!({"metadata": {"labels": {"team.io/x": "y"}}})),
        change("annotate a workload", json!({"metadata": {"annotations": {"team.io/x": "y"}}})),
        change("set a workload's finalizer", json!({"metadata": {"finalizers": ["team.io/hold"]}})),
        template("change an image", json!({"spec": {"containers": [{"name": "evil", "image": "registry.invalid/evil"}]}})),
        template("change the pods' account", json!({"spec": {"serviceAccountName": "other"}})),
        template("label the pods", json!({"metadata": {"labels": {"team.io/x": "y"}}})),
        template(
            "set another annotation of the pods",
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}),
        ),
    ]
}

/// What no role gives.
fn by_no_role(w: &World) -> Vec<Try> {
    let (node, pod) = (format!("/api/v1/nodes/{}", w.name("n1")), format!("/api/v1/namespaces/{}/pods/web-1", w.ns));
    let workload = format!("/apis/apps/v1/namespaces/{}/deployments/web", w.ns);
    let core = |namespace: &str, plural: &str| format!("/api/v1/namespaces/{namespace}/{plural}");
    let lease = |namespace: &str, name: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases{name}");
    let admin = json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}]});
    let everything = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut all = vec![
        post("make a node", "/api/v1/nodes", object("v1", "Node", "made", &json!({}))),
        delete("delete a node", &node),
        delete("delete all nodes", &format!("/api/v1/nodes?labelSelector={POOL}%3Dnone")),
        put("replace a node", &node, object("v1", "Node", &w.name("n1"), &json!({}))),
        merge("write a node's status", &format!("{node}/status"), json!({"status": {"capacity": {"nvidia.com/gpu": "0"}}})),
        get("reach a kubelet through the API server", &format!("{node}/proxy/pods")),
        post("make a pod", &core(&w.ns, "pods"), build::cpu_pod(&w.ns, "made", &w.name("n1"), &[])),
        merge("label a pod", &pod, json!({"metadata": {"labels": {"x": "y"}}})),
        merge("take a pod's finalizers off", &pod, json!({"metadata": {"finalizers": null}})),
        merge("write a pod's status", &format!("{pod}/status"), json!({"status": {"phase": "Failed"}})),
        delete("delete all pods of a namespace", &core(&w.ns, "pods?labelSelector=no%3Done")),
        post("run a command in a pod", &format!("{pod}/exec?command=id"), json!({})),
        get("read a pod's log", &format!("{pod}/log")),
        post("forward a port", &format!("{pod}/portforward"), json!({})),
        post(
            "bind a pod to a node",
            &format!("{pod}/binding"),
            object("v1", "Binding", "web-1", &json!({"target": {"kind": "Node", "name": w.name("n2")}})),
        ),
        merge("put a container into a pod", &format!("{pod}/ephemeralcontainers"), json!({"spec": {"ephemeralContainers": []}})),
        get("list every Secret", "/api/v1/secrets"),
        get("list the Secrets of our own namespace", &core(HOME, "secrets")),
        get("read a Secret of kube-system", &core("kube-system", "secrets/any")),
        post("make a Secret", &core(HOME, "secrets"), object("v1", "Secret", "made", &json!({}))),
        post(
            "take another account's token",
            &core("kube-system", "serviceaccounts/namespace-controller/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}),
        ),
        get("list the ConfigMaps of our own namespace", &core(HOME, "configmaps")),
        get("read another ConfigMap of our own namespace", &core(HOME, "configmaps/kube-root-ca.crt")),
        get("read a ConfigMap of kube-system", &core("kube-system", "configmaps/kube-root-ca.crt")),
        merge("raise its own ceiling", &core(HOME, "configmaps/gpu-selfhealing-config"), json!({"data": {"config.yaml": ""}})),
        post("make a ConfigMap", &core(HOME, "configmaps"), object("v1", "ConfigMap", "made", &json!({}))),
        delete("delete the fence", &core(HOME, "configmaps/gpu-selfhealing-fence")),
        post("make a Lease", &lease(HOME, ""), object("coordination.k8s.io/v1", "Lease", "made", &json!({}))),
        delete("delete our Lease", &lease(HOME, "/gpu-selfhealing-leader")),
        get("read another Lease of our own namespace", &lease(HOME, "/other")),
        merge("take the scheduler's Lease", &lease("kube-system", "/kube-scheduler"), json!({"spec": {"holderIdentity": "me"}})),
        put(
            "renew a node's Lease",
            &lease("kube-node-lease", &format!("/{}", w.name("n1"))),
            object("coordination.k8s.io/v1", "Lease", &w.name("n1"), &json!({})),
        ),
        get("list the HealActions of another namespace", &format!("/apis/gpu-selfhealing.io/v1/namespaces/{}/healactions", w.home)),
        put(
            "rewrite a HealAction",
            &format!("/apis/gpu-selfhealing.io/v1/namespaces/{HOME}/healactions/x"),
            object("gpu-selfhealing.io/v1", "HealAction", "x", &json!({"spec": {}})),
        ),
        merge(
            "change the HealActions' schema",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/healactions.gpu-selfhealing.io",
            json!({"metadata": {"labels": {"x": "y"}}}),
        ),
        get("list every namespace", "/api/v1/namespaces"),
        merge(
            "give a namespace's word for its owner",
            &format!("/api/v1/namespaces/{}", w.ns),
            json!({"metadata": {"labels": {"gpu-selfhealing.io/stateful-eviction": "allowed"}}}),
        ),
        delete("delete a namespace", &format!("/api/v1/namespaces/{}", w.ns)),
        merge(
            "loosen a budget",
            &format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/any", w.ns),
            json!({"spec": {"minAvailable": 0}}),
        ),
        delete("delete a budget", &format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets/any", w.ns)),
        delete("delete a workload", &workload),
        merge("scale a workload by its subresource", &format!("{workload}/scale"), json!({"spec": {"replicas": 5}})),
        merge("write a workload's status", &format!("{workload}/status"), json!({"status": {"replicas": 5}})),
        post(
            "make a workload",
            &format!("/apis/apps/v1/namespaces/{}/deployments", w.ns),
            build::deployment(&w.ns, "made", 0, 1, &[("a", "b")]),
        ),
        post("make a Job", &format!("/apis/batch/v1/namespaces/{}/jobs", w.ns), object("batch/v1", "Job", "made", &json!({}))),
        delete("delete a claim", &core(&w.ns, "persistentvolumeclaims/any")),
        get("list volumes", "/api/v1/persistentvolumes"),
        get("list Events of a namespace", &core(&w.ns, "events")),
        delete("delete Events of nodes", &core("default", "events")),
        post(
            "bind itself to cluster-admin",
            &format!("{RBAC}/clusterrolebindings"),
            object(rbac, "ClusterRoleBinding", "made", &admin),
        ),
        post(
            "bind itself to cluster-admin in its own namespace",
            &format!("{RBAC}/namespaces/{HOME}/rolebindings"),
            object(rbac, "RoleBinding", "made", &admin),
        ),
        merge("widen its own role", &format!("{RBAC}/clusterroles/{HOME}-spoke-observe"), everything.clone()),
        post("make a role of everything", &format!("{RBAC}/namespaces/{HOME}/roles"), object(rbac, "Role", "made", &everything)),
        delete("lift the policy on nodes", &format!("{ADMISSION}/validatingadmissionpolicies/{HOME}-spoke-nodes")),
        delete("lift the policy's binding", &format!("{ADMISSION}/validatingadmissionpolicybindings/{HOME}-spoke-nodes")),
        post(
            "put a webhook in everybody's way",
            &format!("{ADMISSION}/mutatingwebhookconfigurations"),
            object("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "made", &json!({})),
        ),
        post(
            "ask for a certificate",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            object(
                "certificates.k8s.io/v1",
                "CertificateSigningRequest",
                "made",
                &json!({"spec": {"request": "", "signerName": "x/y", "usages": []}}),
            ),
        ),
        post(
            "check others' tokens",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}),
        ),
        get("read the API server's metrics", "/metrics"),
    ];
    for user in ["admin", "system:serviceaccount:kube-system:namespace-controller", "system:node:n1"] {
        let mut one = get(&format!("act as {user}"), "/api/v1/nodes");
        one.impersonates = Some(user);
        all.push(one);
    }
    all
}

/// What is given, and from which grant on. All of it by dry run, so that each can be tried with every grant.
fn by_grant(w: &World) -> Vec<(Grant, Try)> {
    let node = format!("/api/v1/nodes/{}?dryRun=All", w.name("n1"));
    let workload = format!("/apis/apps/v1/namespaces/{}/deployments/web?dryRun=All", w.ns);
    let pod = format!("/api/v1/namespaces/{}/pods/web-1", w.ns);
    let ours = json!({"key": "gpu-selfhealing.io/faulty", "value": "true", "effect": "NoSchedule"});
    let annotations = json!({"gpu-selfhealing.io/last-process-time": "t", "gpu-selfhealing.io/process-id": "p",
        "gpu-selfhealing.io/plan-revision": "1"});
    let about = json!({"kind": "Node", "name": w.name("n1")});
    let restarted = json!({"spec": {"template": {"metadata": {"annotations": {"gpu-selfhealing.io/restarted-by": "x"}}}}});
    let bearing = |what, patch| (Grant::Mark, merge(what, &node, patch));
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
    vec![
        (Grant::Observe, get("list nodes", "/api/v1/nodes?limit=1")),
        (Grant::Observe, get("list pods", "/api/v1/pods?limit=1")),
        (
            Grant::Notify,
            post(
                "post an Event on a node",
                "/api/v1/namespaces/default/events?dryRun=All",
                object("v1", "Event", "made", &json!({"metadata": {"namespace": "default"}, "involvedObject": about})),
            ),
        ),
        bearing("set our label", json!({"metadata": {"labels": {"gpu-selfhealing.io/status": "faulty"}}})),
        bearing("set our taint beside another", json!({"spec": {"taints": [keep("x"), ours]}})),
        bearing("cordon", json!({"spec": {"unschedulable": true}})),
        bearing("set our annotations", json!({"metadata": {"annotations": annotations}})),
        (
            Grant::Heal,
            post(
                "evict a pod",
                &format!("{pod}/eviction?dryRun=All"),
                json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-1", "namespace": w.ns}}),
            ),
        ),
        (Grant::Heal, get("read a pod", &pod)),
        (
            Grant::Heal,
            post(
                "post an Event on a pod",
                &format!("/api/v1/namespaces/{}/events?dryRun=All", w.ns),
                object("v1", "Event", "made", &json!({"involvedObject": {"kind": "Pod", "name": "web-1", "namespace": w.ns}})),
            ),
        ),
        (Grant::Restart, merge("restart a workload", &workload, restarted)),
        (Grant::PastBudgets, Try::new("delete a pod", Method::DELETE, &pod, "application/json", Some(options))),
    ]
}

async fn what_the_account_must_not_do_is_refused_with_every_grant(w: World) {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/spoke");
    if !w.is_kubernetes() {
        return;
    }
    w.change_node("n1", json!({"metadata": {"annotations": {KEEP: "x"}}, "spec": {"taints": [keep("x")]}})).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.create_workload("deployments", &build::deployment(&w.ns, "web", 0, 1, &[("app", "web")])).await;
    let before = w.node("n1").await;
    w.kubectl(&["apply", "-f", shipped]).await.expect("kubectl is there with Kubernetes");
    let client = connect(&w.cluster.account_kubeconfig(&w.admin, HOME, ACCOUNT).await, "executor-least").await.unwrap();
    let (mut told, mut answers) = (String::new(), 0);
    for grant in Grant::ALL {
        if grant != Grant::Observe {
            w.kubectl(&["apply", "-f", &format!("{shipped}/modes/{}.yaml", grant.name())]).await.unwrap();
        }
        for right in RIGHTS.iter().filter(|right| right.grant == grant) {
            settled::is_true("the grant is in force", || account::may(&client, right, right.verbs[0], HOME)).await;
        }
        if grant >= Grant::Mark {
            in_force(&client, &of_a_node(&w.name("n1"))[0]).await;
        }
        if grant >= Grant::Restart {
            in_force(&client, &of_a_workload(&workload(&w))[0]).await;
        }
        let nodes = of_a_node(&w.name("n1")).into_iter().map(|one| (one, Some(Grant::Mark)));
        let workloads = of_a_workload(&workload(&w)).into_iter().map(|one| (one, Some(Grant::Restart)));
        let never = by_no_role(&w).into_iter().map(|one| (one, None)).chain(nodes).chain(workloads);
        for (one, by_policy) in never {
            let answer = one.ask(&client).await;
            let _ = writeln!(told, "{}: {} -> {} {}", grant.name(), one.what, answer.code, words(&answer));
            assert_eq!(answer.code, 403, "{told}");
            // From there on the role lets it pass, and the policy does not.
            let policy = answer.message().contains("ValidatingAdmissionPolicy");
            assert_eq!(policy, by_policy.is_some_and(|from| grant >= from), "{told}");
            answers += 1;
        }
        for (from, one) in by_grant(&w) {
            let answer = one.ask(&client).await;
            let _ = writeln!(told, "{}: {} -> {} {}", grant.name(), one.what, answer.code, words(&answer));
            assert_eq!(answer.code < 300, grant >= from, "{told}");
            answers += 1;
        }
    }
    let after = w.node("n1").await;
    assert_eq!((&before["metadata"]["uid"], &before["spec"]), (&after["metadata"]["uid"], &after["spec"]));
    assert_eq!(before["metadata"]["labels"], after["metadata"]["labels"]);
    println!("{told}{answers} answers of the API server to the account of deploy/spoke");
}

fn workload(w: &World) -> String {
    format!("/apis/apps/v1/namespaces/{}/deployments/web", w.ns)
}

/// An API server goes by a policy some moments after it has got it.
async fn in_force(client: &Client, refused: &Try) {
    let dry = Try {
        path: format!("{}?dryRun=All", refused.path),
        ..Try::new("", refused.method.clone(), "", refused.kind, refused.body.clone())
    };
    settled::is_true("the policy is in force", || async { dry.ask(client).await.message().contains("ValidatingAdmissionPolicy") })
        .await;
}

fn words(answer: &raw::Answer) -> String {
    let message = if answer.code < 300 { "" } else { answer.message() };
    message.chars().take(180).collect()
}

async fn the_api_server_finds_nothing_wrong_with_the_policies(w: World) {
    if !w.is_kubernetes() {
        return;
    }
    for what in ["nodes", "workloads"] {
        let path = format!("{ADMISSION}/validatingadmissionpolicies/{}-spoke-{what}", w.home);
        let checked = settled::until("its expressions are checked", || async {
            let policy = w.get(&path).await.unwrap();
            (policy["status"]["observedGeneration"] == policy["metadata"]["generation"]).then_some(policy)
        })
        .await;
        assert!(checked["status"]["typeChecking"]["expressionWarnings"].is_null(), "{}", checked["status"]);
    }
}
