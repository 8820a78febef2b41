//! `gpuheal-spoke doctor`, the program as it ships: what it says of a cluster before the install and after, to a person and
//! to the spoke's own account. Other claims share the cluster, so that each finding is told by what it is about.

use gpuheal_spoke::{
    healaction::{HealAction, HealActionSpec, Tombstone},
    rights::{ACCOUNT, Grant},
};
use kubesim::build;
use serde_json::{Value, json};
use testkube::{raw, settled};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    account,
    program::{Program, doctor},
    world::World,
};

testkube::claims![
    before_the_install_it_says_what_is_missing_and_after_it_that_all_is_there,
    it_names_what_a_drain_would_meet,
    the_spokes_own_account_may_ask_and_what_it_may_not_see_is_told,
    rights_in_one_namespace_alone_are_no_problem_and_pods_in_another_are_told_of,
    a_right_to_change_nodes_without_its_policy_is_a_problem,
    a_policy_that_somebody_narrowed_is_told_with_the_place,
    a_right_to_two_objects_is_not_held_with_one_of_them,
    whoever_may_change_what_we_write_to_nodes_is_told,
    it_says_which_exporters_lack_what,
    it_looks_at_the_webhook_as_alertmanager_would_and_starts_nothing,
    it_tells_what_runs_of_ours_and_which_records_are_stuck,
    it_changes_nothing,
];

/// An exporter that serves a page to whoever connects.
async fn exporter(page: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}", page.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

const WHOLE: &str = "DCGM_FI_DEV_XID_ERRORS{gpu=\"0\",UUID=\"GPU-1\"} 0\n\
    DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu=\"0\",UUID=\"GPU-1\"} 0\n\
    DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{gpu=\"0\",UUID=\"GPU-1\"} 0\n\
    DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\"} 40\n\
    DCGM_FI_DEV_GPU_UTIL{gpu=\"0\",UUID=\"GPU-1\"} 0\n";

/// All nodes of this claim have that exporter.
fn everywhere(w: &World, url: &str) -> Vec<String> {
    (1..=4).map(|n| format!("--exporter={url}={}", w.name(&format!("n{n}")))).collect()
}

async fn before_the_install_it_says_what_is_missing_and_after_it_that_all_is_there(w: World) {
    let (admin, home) = (w.admin_kubeconfig(), format!("new-{}", w.home));
    let exporters = everywhere(&w, &exporter(WHOLE).await);
    let mut args = vec!["--namespace", &*home, "-o", "json"];
    args.extend(exporters.iter().map(String::as_str));
    let before = doctor(&admin, &args).await;
    assert_eq!(before.code, Some(1), "{}", before.text);
    let observe = format!("gpuheal-spoke rights observe --namespace {home} | kubectl apply -f -");
    assert_eq!(before.is("problem", "namespace", &home, "is missing")["next"], observe);
    before.is("problem", "lease", "gpu-selfhealing-leader", "is missing");
    before.is("problem", "fence", "gpu-selfhealing-fence", "is missing");
    before.is("note", "config", "", "nothing narrows");
    before.is("ok", "version", "", "Kubernetes v1.");
    before.is("ok", "clock", "", "0 s apart");
    before.is("ok", "gpus", "", "GPUs on");
    // As the API server has it, defaults and all.
    before.is("ok", "crd", "HealAction", "is the one of this version");
    if w.is_kubernetes() {
        let lacks = before.is("problem", "rights", &account::user(&home), "lacks");
        assert!(lacks["found"].as_str().unwrap().contains("for observe: get leases"), "{lacks}");
        assert_eq!(lacks["next"], observe);
    }

    account::install(&w.cluster, &w.admin, &home, &[Grant::Observe]).await;
    let broken = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gpu-selfhealing-config"},
        "data": {"config.yaml": "ceiling: {nodesOut: many}"}});
    raw::post(&w.admin, &format!("/api/v1/namespaces/{home}/configmaps"), &broken).await.expect(201);
    let after = doctor(&admin, &args).await;
    for (check, about) in
        [("namespace", home.as_str()), ("lease", "gpu-selfhealing-leader"), ("fence", "gpu-selfhealing-fence"), ("rights", "")]
    {
        let finding = after.finding(check, about, "").unwrap_or_else(|| panic!("no {check} in {}", after.text));
        assert!(["ok", "note", "warning"].contains(&finding["level"].as_str().unwrap()), "{finding}");
    }
    after.is("ok", "rights", &account::user(&home), "has every right that observe takes");
    after.is("problem", "config", "gpu-selfhealing-config", "ceiling.nodesOut");
    let narrow = json!({"data": {"config.yaml": "ceiling: {mode: mark}"}});
    let path = format!("/api/v1/namespaces/{home}/configmaps/gpu-selfhealing-config");
    raw::patch(&w.admin, &path, raw::MERGE_PATCH, &narrow).await.expect(200);
    let well = doctor(&admin, &args).await;
    well.is("ok", "config", "gpu-selfhealing-config", "its own limit is mode mark");
    // On kubesim the cluster is this claim's own: there is nothing else to be found.
    if !w.is_kubernetes() {
        assert_eq!((well.code, &well.report["problems"]), (Some(0), &json!(0)), "{}", well.text);
        args.truncate(2);
        let table = doctor(&admin, &args).await;
        assert_eq!(table.code, Some(1), "without exporters: {}", table.text);
        assert!(table.text.starts_with("problem  exporter   4 of 4 nodes with GPUs have none: "), "{}", table.text);
        assert!(table.text.contains("\n                    -> run dcgm-exporter there"), "{}", table.text);
    }
    let usage = doctor(&admin, &["--mode", "levitate"]).await;
    assert_eq!(usage.code, Some(2), "{}", usage.text);
}

async fn it_names_what_a_drain_would_meet(w: World) {
    // One of one must stay; two budgets; no controller; scratch space; storage without the namespace's word, on a local disk.
    w.guarded_pod().await;
    w.budget("one", "both").await;
    w.budget("two", "both").await;
    w.gpu_pod("both-1", "n2", json!({"metadata": {"labels": {"app": "both"}}})).await;
    w.gpu_pod("alone", "n3", json!({"metadata": {"ownerReferences": null}})).await;
    w.gpu_pod("scratch", "n3", json!({"spec": {"volumes": [{"name": "tmp", "emptyDir": {}}]}})).await;
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let ephemeral = json!({"name": "tmp", "ephemeral": {"volumeClaimTemplate": template}});
    w.gpu_pod("spill", "n3", json!({"spec": {"volumes": [ephemeral]}})).await;
    w.gpu_pod("shm", "n3", json!({"spec": {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}})).await;
    w.stateful_pod("db-0", "n4").await;
    let args = ["--namespace", &*w.home, "-o", "json"];
    let said = doctor(&w.admin_kubeconfig(), &args).await;
    let about = |name: &str| format!("{}/{name}", w.ns);
    said.is("ok", "dra", "resource.k8s.io", "v1 is served");
    assert_eq!(said.code, Some(1));
    said.is("problem", "budget", &about("guarded"), "lets no pod go, ever: 1 of 1 must be healthy");
    let twice = said.is("problem", "budget", &about("both-1"), "is under 2 budgets");
    assert!(twice["found"].as_str().unwrap().ends_with("one, two"), "{twice}");
    said.is("warning", "pods", &w.ns, "1 GPU pod that no controller makes anew, which a drain leaves where they are: alone");
    let scratch = said.is("warning", "pods", &w.ns, "with data that is the pod's or the node's alone");
    assert!(scratch["found"].as_str().unwrap().ends_with(": scratch, spill"), "{scratch}");
    let word = said.is("warning", "stateful", &w.ns, "1 GPU pod with storage, whose eviction the namespace has not allowed");
    assert!(
        word["next"]
            .as_str()
            .unwrap()
            .ends_with(&format!("kubectl label namespace {} gpu-selfhealing.io/stateful-eviction=allowed", w.ns)),
        "{word}"
    );
    w.allow_stateful_eviction().await;
    let said = doctor(&w.admin_kubeconfig(), &args).await;
    said.is("ok", "stateful", &w.ns, "whose eviction the namespace allows");
    // Only there a volume knows its claim.
    if w.is_kubernetes() {
        said.is("warning", "storage", &w.ns, "so that no other node can start it: db-0");
    }
}

async fn the_spokes_own_account_may_ask_and_what_it_may_not_see_is_told(w: World) {
    let w = w.granted(&[Grant::Observe]).await;
    let heal = doctor(w.account_kubeconfig(), &["--namespace", &w.home, "--mode", "approve", "-o", "json"]).await;
    heal.is("ok", "namespace", &w.home, "is there");
    heal.is("ok", "gpus", "", "GPUs on");
    if !w.is_kubernetes() {
        return;
    }
    assert_eq!(heal.code, Some(1));
    let next = |grant: &str| format!("gpuheal-spoke rights {grant} --namespace {} | kubectl apply -f -", w.home);
    assert_eq!(heal.is("problem", "rights", "", "lacks 1 of 1 rights for mark: patch nodes")["next"], next("mark"));
    assert_eq!(heal.is("problem", "rights", "", "lacks 9 of 9 rights for heal")["next"], next("heal"));
    assert!(heal.finding("rights", "", "lacks 1 of 1 rights for notify").is_some(), "{}", heal.text);
    assert!(heal.finding("rights", "", "for observe").is_none(), "{}", heal.text);
    assert_eq!(heal.report["unguarded"], json!(["admission"]), "{}", heal.text);
    for check in ["crd", "admission", "budget"] {
        heal.is("unseen", check, "", "is forbidden");
    }
    let observe = doctor(w.account_kubeconfig(), &["--namespace", &w.home, "-o", "json"]).await;
    observe.is("ok", "rights", &account::user(&w.home), "has every right that observe takes");
    assert!(observe.finding("rights", "", "may do what no spoke ever does").is_none(), "{}", observe.text);
    assert!(observe.finding("rights", "", "goes further").is_none(), "{}", observe.text);
}

async fn rights_in_one_namespace_alone_are_no_problem_and_pods_in_another_are_told_of(w: World) {
    let (w, far) = w.granted_at_home(&[Grant::Observe, Grant::Notify, Grant::Mark, Grant::Heal]).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.gpu_pod_in(&far, "far-1", "n1").await;
    let (kubeconfig, user) = (w.admin_kubeconfig(), account::user(&w.home));
    let args = ["--namespace", &*w.home, "--mode", "heal", "-o", "json"];
    let said = doctor(&kubeconfig, &args).await;
    let alone = said.is("note", "rights", &user, "has heal in these namespaces alone: ");
    assert!(alone["found"].as_str().unwrap().ends_with(&w.ns), "{alone}");
    said.is("ok", "rights", &user, "has every right that heal takes");
    assert!(said.finding("rights", &user, "lacks").is_none(), "{}", said.text);
    let stays = said.is("warning", "rights", &far, "1 GPU pod whose eviction the account has no right to");
    let next = stays["next"].as_str().unwrap();
    assert!(next.contains("gpuheal-spoke rights heal ") && next.contains(&format!("{},{far} | kubectl apply", w.ns)), "{stays}");
    assert!(said.finding("rights", &w.ns, "").is_none(), "{}", said.text);
    // What its owner has left out of the ceiling too surprises nobody.
    let config = json!({"metadata": {"name": "gpu-selfhealing-config"}, "data": {"config.yaml": format!("ceiling: {{namespaces: [{}]}}", w.ns)}});
    w.post(&format!("/api/v1/namespaces/{}/configmaps", w.home), &config).await;
    doctor(&kubeconfig, &args).await.is("note", "rights", &far, "that the ceiling leaves out too");
    let asked = doctor(&kubeconfig, &[&args[..], &["--namespaces", &format!("{},{far}", w.ns)]].concat()).await;
    asked.is("problem", "rights", &user, &format!("lacks the rights for heal in {far}"));
}

async fn a_right_to_change_nodes_without_its_policy_is_a_problem(w: World) {
    let args = ["--namespace", &*w.home, "--mode", "mark", "-o", "json"];
    let there = doctor(&w.admin_kubeconfig(), &args).await;
    // As the API server has them, defaults and all.
    there.is("ok", "admission", "", "hold the spoke to its own fields");
    let further = there.is("note", "rights", &account::user(&w.home), "goes further than mark");
    assert!(further["found"].as_str().unwrap().contains("create pods/eviction (heal)"), "{further}");
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let name = format!("{}-spoke-nodes", w.home);
    let looser = json!({"spec": {"failurePolicy": "Ignore"}});
    raw::patch(&w.admin, &format!("{admission}/validatingadmissionpolicies/{name}"), raw::MERGE_PATCH, &looser).await.expect(200);
    raw::delete(&w.admin, &format!("{admission}/validatingadmissionpolicybindings/{name}"), None).await.expect(200);
    let gone = doctor(&w.admin_kubeconfig(), &args).await;
    gone.is("problem", "admission", &name, "ValidatingAdmissionPolicyBinding is missing");
    gone.is("problem", "admission", &name, "ValidatingAdmissionPolicy is not the one of this spoke");
    assert_eq!(gone.code, Some(1));
}

async fn a_policy_that_somebody_narrowed_is_told_with_the_place(w: World) {
    let args = ["--namespace", &*w.home, "--mode", "mark", "-o", "json"];
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let name = format!("{}-spoke-nodes", w.home);
    let selector = json!({"matchLabels": {"looked-at": "true"}});
    let fewer = json!({"spec": {"matchConstraints": {"objectSelector": selector}}});
    raw::patch(&w.admin, &format!("{admission}/validatingadmissionpolicies/{name}"), raw::MERGE_PATCH, &fewer).await.expect(200);
    let elsewhere = json!({"spec": {"matchResources": {"objectSelector": selector}}});
    let bindings = format!("{admission}/validatingadmissionpolicybindings/{name}");
    raw::patch(&w.admin, &bindings, raw::MERGE_PATCH, &elsewhere).await.expect(200);
    let said = doctor(&w.admin_kubeconfig(), &args).await;
    said.is(
        "problem",
        "admission",
        &name,
        "ValidatingAdmissionPolicy is not the one of this spoke: spec.matchConstraints.objectSelector",
    );
    said.is("problem", "admission", &name, "ValidatingAdmissionPolicyBinding is not the one of this spoke: spec.matchResources");
    assert_eq!(said.code, Some(1));
}

async fn a_right_to_two_objects_is_not_held_with_one_of_them(w: World) {
    // On kubesim everybody may do everything.
    if !w.is_kubernetes() {
        return;
    }
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let name = format!("{}-spoke-observe", w.home);
    let mut role = w.get(&format!("{roles}/{name}")).await.unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    let by_name = rules.iter_mut().find(|rule| rule["resources"] == json!(["namespaces"])).unwrap();
    assert_eq!(by_name["resourceNames"], json!([w.home, "kube-system"]));
    by_name["resourceNames"] = json!([w.home]);
    raw::put(&w.admin, &format!("{roles}/{name}"), &role).await.expect(200);
    // The name alone: what heal gives besides it would be the right to all of them.
    let heal = format!("{roles}/{}-spoke-heal", w.home);
    raw::delete(&w.admin, &heal, None).await.expect(200);
    settled::is_true("the lost right is told", || async {
        let said = doctor(&w.admin_kubeconfig(), &["--namespace", &w.home, "--mode", "observe", "-o", "json"]).await;
        said.finding("rights", &account::user(&w.home), "rights for observe: get namespaces").is_some()
    })
    .await;
}

async fn whoever_may_change_what_we_write_to_nodes_is_told(w: World) {
    let args = ["--namespace", &*w.home, "--mode", "mark", "-o", "json"];
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let webhook = |name: &str, resources: &[&str], looks_at: Value| {
        json!({"name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "objectSelector": looks_at,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": resources}]})
    };
    // No node of the claims has that label.
    let some = json!({"matchLabels": {"looked-at-by": w.home}});
    let webhooks = json!([
        webhook("some", &["nodes"], some.clone()),
        webhook("pods", &["pods/status"], json!({"matchLabels": {"a": w.home}}))
    ]);
    let name = format!("mutates-{}", w.home);
    w.post(configurations, &json!({"metadata": {"name": name}, "webhooks": webhooks})).await;
    let said = doctor(&w.admin_kubeconfig(), &args).await;
    let note = said.is("note", "mutating", "", &format!("some.example.com of {name}"));
    assert!(!note["found"].as_str().unwrap().contains("pods.example.com"), "{note}");
    // On kubesim no webhook is asked: there it stands in nobody's way.
    if !w.is_kubernetes() {
        let all = json!([webhook("all", &["*"], json!({}))]);
        w.merge(&format!("{configurations}/{name}"), &json!({"webhooks": all})).await;
        let said = doctor(&w.admin_kubeconfig(), &args).await;
        let warned = said.is("warning", "mutating", "", "nodes may be changed as we write them, by webhook all.example.com");
        assert!(warned["next"].as_str().unwrap().contains("403"), "{warned}");
    }
    raw::delete(&w.admin, &format!("{configurations}/{name}"), None).await.expect(200);
    // And a policy, which takes effect once it is bound. kubesim has none.
    if w.is_kubernetes() {
        let policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}]);
        let set = json!({"expression": "Object{metadata: Object.metadata{labels: {\"looked-at\": \"yes\"}}}"});
        let spec = json!({"matchConstraints": {"resourceRules": rules, "objectSelector": some}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": set}]});
        w.post(policies, &json!({"metadata": {"name": name}, "spec": spec})).await;
        let unbound = doctor(&w.admin_kubeconfig(), &args).await;
        assert!(unbound.finding("mutating", "", &format!("policy {name}")).is_none(), "{}", unbound.text);
        let bindings = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
        w.post(bindings, &json!({"metadata": {"name": name}, "spec": {"policyName": name}})).await;
        doctor(&w.admin_kubeconfig(), &args).await.is("note", "mutating", "", &format!("policy {name}"));
        for path in [bindings, policies] {
            raw::delete(&w.admin, &format!("{path}/{name}"), None).await.expect(200);
        }
    }
}

async fn it_says_which_exporters_lack_what(w: World) {
    let (whole, half) = (exporter(WHOLE).await, exporter("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-1\"} 40\n").await);
    let given = [
        format!("--exporter={whole}={}", w.name("n1")),
        format!("--exporter={half}={}", w.name("n2")),
        format!("--exporter=http://127.0.0.1:1/metrics={}", w.name("n3")),
    ];
    let mut args = vec!["--namespace", &*w.home, "-o", "json"];
    args.extend(given.iter().map(String::as_str));
    let said = doctor(&w.admin_kubeconfig(), &args).await;
    let lacking =
        said.is("warning", "exporter", "", "have no Xids, no uncorrectable ECC errors, no corrected ECC errors, no utilisation");
    assert!(lacking["found"].as_str().unwrap().ends_with(&w.name("n2")), "{lacking}");
    assert!(lacking["next"].as_str().unwrap().contains("DCGM_FI_DEV_XID_ERRORS"), "{lacking}");
    said.is("problem", "exporter", "", "exporter cannot be reached: 127.0.0.1:1");
    said.is("problem", "exporter", "", "nodes with GPUs have none");
    said.is("ok", "exporter", "", "have every metric that is needed");
}

async fn it_looks_at_the_webhook_as_alertmanager_would_and_starts_nothing(w: World) {
    let program = Program::start(&w).await;
    program.waits_for_nothing_but_the_hub().await;
    let url = program.url();
    let said = doctor(&w.admin_kubeconfig(), &["--namespace", &w.home, "--webhook", &url, "-o", "json"]).await;
    said.is("warning", "webhook", &url, "hub does not answer");
    assert!(said.finding("webhook", &url, "a post").is_none(), "without a token it is refused, as it must be: {}", said.text);
    said.is("ok", "lease", "gpu-selfhealing-leader", "whole leads");
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "some-other-token-than-the-spokes").unwrap();
    let token = token.display().to_string();
    let nobody = doctor(
        &w.admin_kubeconfig(),
        &["--namespace", &w.home, "--webhook", "http://127.0.0.1:1", "--webhook-token-file", &token, "-o", "json"],
    )
    .await;
    nobody.is("problem", "webhook", "http://127.0.0.1:1", "cannot be reached");
    let wrong =
        doctor(&w.admin_kubeconfig(), &["--namespace", &w.home, "--webhook", &url, "--webhook-token-file", &token, "-o", "json"])
            .await;
    wrong.is("problem", "webhook", &url, "does not take this token");
    drop(program);
}

async fn it_tells_what_runs_of_ours_and_which_records_are_stuck(w: World) {
    let mut replica = build::cpu_pod(&w.home, "spoke-a", &w.name("n1"), &[]);
    replica["spec"]["serviceAccountName"] = json!(ACCOUNT);
    raw::post(&w.admin, &format!("/api/v1/namespaces/{}/pods", w.home), &replica).await.expect(201);
    raw::post(&w.admin, &format!("/api/v1/namespaces/{}/pods", w.home), &build::cpu_pod(&w.home, "other", &w.name("n1"), &[]))
        .await
        .expect(201);
    w.stateful_pod("db-0", "n2").await;
    let late = HealActionSpec { action: "notify".into(), finish_by: "2020-01-01T00:00:00Z".into(), ..HealActionSpec::default() };
    let tombstone = Tombstone { state: "REFUSED".into(), refusal: "EXPIRED".into(), reason: "late".into() };
    w.leave_action(&HealAction::named("open", &w.home, late.clone())).await;
    w.leave_action(&HealAction::named("untold", &w.home, HealActionSpec { tombstone: Some(tombstone.clone()), ..late.clone() }))
        .await;
    w.leave_action(&HealAction::named("deleted", &w.home, HealActionSpec { tombstone: Some(tombstone), ..late })).await;
    let path = format!("/apis/gpu-selfhealing.io/v1/namespaces/{}/healactions/deleted", w.home);
    raw::delete(&w.admin, &path, None).await.expect(200);
    // By the spoke's own account, which may list pods and its own records.
    let said = doctor(w.account_kubeconfig(), &["--namespace", &*w.home, "-o", "json"]).await;
    said.is("warning", "spokes", "", "one runs alone");
    said.is("warning", "healactions", "", "1 still open though their time is over: open");
    said.is("warning", "healactions", "", "1 over, and the hub has not taken their outcome for an hour: untold");
    let held = said.is("warning", "healactions", "", "1 deleted by somebody and held by our finalizer: deleted");
    assert!(held["next"].as_str().unwrap().contains(&format!("kubectl patch ha NAME -n {}", w.home)), "{held}");
    said.is("warning", "plugin", "", "no pod of it is ready on ");
    said.is("note", "driver", "", "its version is not told by ");
    let said = doctor(&w.admin_kubeconfig(), &["--namespace", &*w.home, "-o", "json"]).await;
    said.is("warning", "backup", &w.ns, "the cluster has no VolumeSnapshots, for claims of GPU pods: data-db-0");
    raw::patch(&w.admin, &path, raw::MERGE_PATCH, &json!({"metadata": {"finalizers": null}})).await.expect(200);
}

async fn it_changes_nothing(w: World) {
    let w = w.granted(&[Grant::Observe, Grant::Notify, Grant::Mark, Grant::Heal]).await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.create_workload("deployments", &build::deployment(&w.ns, "web", 0, 1, &[("app", "web")])).await;
    let said = doctor(w.account_kubeconfig(), &["--namespace", &w.home, "--mode", "heal", "-o", "yaml"]).await;
    assert!(said.text.contains("\nmode: heal\n"), "{}", said.text);
    let asked = w.asked_by_account().await;
    let written: Vec<_> = asked.iter().filter(|entry| entry.is_write()).map(testkube::AuditEntry::brief).collect();
    assert_eq!(written, Vec::<String>::new());
    let lists = asked.iter().filter(|entry| entry.verb == "list");
    let whole: Vec<_> = lists.filter(|entry| !entry.uri.contains("limit=500")).map(testkube::AuditEntry::brief).collect();
    assert_eq!(whole, Vec::<String>::new(), "every list is asked for in pages");
    assert_eq!(w.node("n1").await["spec"]["unschedulable"], Value::Null);
}
