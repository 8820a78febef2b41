use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::kubernetes::NAMESPACE;
use gpuheal_spoke_core::scrape::metric::Metric;
use kube::CustomResourceExt as _;

use super::*;
use crate::{
    doctor::facts::{Account, Action, Budget, Exporter, Lease, Mutator, Node, OwnersConfig, Pod, Server, Spoke, Webhook},
    healaction::HealAction,
    rights::{Grant, RIGHTS, Sheet},
};

/// A cluster in which a spoke that heals has all that it needs.
fn well() -> Facts {
    let held = RIGHTS.iter().enumerate().filter(|(_, right)| Grant::Heal.covers(right.grant));
    let held = held.flat_map(|(at, right)| right.verbs.iter().map(move |verb| ((at, *verb), true))).collect();
    let page = [Metric::XidLast, Metric::EccUncorrectedVolatile, Metric::EccCorrectedVolatile, Metric::GpuTemp, Metric::GpuUtil];
    Facts {
        namespace: NAMESPACE.to_owned(),
        mode: Grant::Heal,
        namespaces: Vec::new(),
        server: Ok(Server { version: "v1.36.3".to_owned(), number: (1, 36), clock_off: Some(Duration::ZERO) }),
        account: Ok(Account { user: "spoke".to_owned(), ours: true, held, within: BTreeMap::new(), beyond: Vec::new() }),
        home: Ok(true),
        crd: Ok(Some(serde_json::to_value(HealAction::crd()).unwrap())),
        policies: Ok(Sheet::Admission.objects(NAMESPACE)),
        lease: Ok(Some(Lease { holder: "a".to_owned(), age: Some(Duration::from_secs(1)), lasts: Duration::from_secs(15) })),
        fence: Ok(Some(BTreeMap::new())),
        config: Ok(OwnersConfig::Text("ceiling: {nodesOut: 1}".to_owned())),
        nodes: Ok(vec![Node { name: "n1".to_owned(), gpus: 8, offered: 8, labelled: true, driver: "570.1".to_owned() }]),
        mutators: Ok(Vec::new()),
        exporters: Ok(vec![Exporter {
            node: "n1".to_owned(),
            address: "10.0.0.1:9400".to_owned(),
            page: Ok(page.into()),
            without_ecc: false,
        }]),
        webhook: Some(Webhook {
            url: "http://spoke:8080".to_owned(),
            ready: Ok((200, "ok\n".to_owned())),
            without_token: Ok(401),
            with_token: Some(Ok(400)),
        }),
        dra: Ok(vec!["v1".to_owned(), "v1beta2".to_owned()]),
        pods: Ok(vec![pod("web-1")]),
        budgets: Ok(vec![budget("web")]),
        allowed: Ok(["ml".to_owned()].into()),
        local_claims: Ok([].into()),
        plugins: Ok(["n1".to_owned()].into()),
        spokes: Ok(["a", "b"].map(|name| Spoke { name: name.to_owned(), ready: true, ..Spoke::default() }).into()),
        actions: Ok(vec![action()]),
        snapshots: Ok(Some([("ml/data".to_owned(), Duration::from_secs(3600))].into())),
    }
}

/// A mark that stands for a year, and waits for its release.
fn action() -> Action {
    let overdue = Duration::from_secs(365 * 86_400);
    Action { name: "01k".to_owned(), held: true, waits_for_release: true, overdue, ..Action::default() }
}

fn pod(name: &str) -> Pod {
    Pod { namespace: "ml".to_owned(), name: name.to_owned(), controller: "ReplicaSet web".to_owned(), ..Pod::default() }
}

fn budget(name: &str) -> Budget {
    let (namespace, covers) = ("ml".to_owned(), vec!["ml/web-1".to_owned()]);
    Budget { namespace, name: name.to_owned(), covers, expected: 3, desired: 2, healthy: 3, ..Budget::default() }
}

/// Levels, checks and words of what is not as it must be.
fn against(facts: &Facts) -> Vec<String> {
    let all = judge(facts);
    let words = |one: &Finding| format!("{} {} {} {} -> {}", one.level.word(), one.check, one.about, one.found, one.next);
    all.iter().filter(|one| !matches!(one.level, Level::Ok | Level::Note)).map(words).collect()
}

#[test]
fn a_cluster_in_which_all_is_well_has_neither_problem_nor_warning() {
    assert_eq!(against(&well()), Vec::<String>::new());
    let checks: std::collections::BTreeSet<_> = judge(&well()).iter().map(|finding| finding.check).collect();
    for check in [
        "version",
        "clock",
        "namespace",
        "rights",
        "crd",
        "admission",
        "lease",
        "fence",
        "config",
        "gpus",
        "exporter",
        "webhook",
        "budget",
        "driver",
        "plugin",
        "spokes",
        "healactions",
    ] {
        assert!(checks.contains(check), "{check}");
    }
}

#[test]
fn each_thing_that_is_wrong_is_told_once_with_what_to_do() {
    type Spoil = fn(&mut Facts);
    let spoilt: [(Spoil, &str, &str); 47] = [
        (|f| server(f).number = (1, 21), "problem version", "upgrade"),
        (|f| server(f).number = (1, 29), "warning version", "RBAC alone guards"),
        (|f| server(f).clock_off = Some(Duration::from_secs(11)), "warning clock", "11 s apart"),
        (|f| server(f).clock_off = Some(Duration::from_secs(31)), "problem clock", "synchronise"),
        (|f| f.home = Ok(false), "problem namespace gpu-selfhealing is missing", "kubectl apply -f deploy/spoke/observe.yaml"),
        (
            |f| lose(f, "patch", "nodes"),
            "problem rights spoke lacks 1 of 1 rights for mark: patch nodes",
            "deploy/spoke/modes/mark.yaml",
        ),
        (
            |f| lose(f, "create", "pods/eviction"),
            "problem rights spoke lacks 1 of 9 rights for heal",
            "deploy/spoke/modes/heal.yaml",
        ),
        (
            |f| account(f).beyond.push("list secrets".to_owned()),
            "warning rights spoke may do what no spoke ever does: list secrets",
            "take it away",
        ),
        (|f| f.crd = Ok(None), "problem crd HealAction is missing", "deploy/spoke/crd.yaml"),
        (|f| crd(f)["spec"]["versions"][0]["name"] = "v0".into(), "problem crd HealAction is not the one", "deploy/spoke/crd.yaml"),
        (
            |f| drop(f.policies.as_mut().unwrap().remove(1)),
            "problem admission gpu-selfhealing-spoke-nodes",
            "deploy/spoke/admission.yaml",
        ),
        (
            |f| f.policies.as_mut().unwrap()[2]["spec"]["failurePolicy"] = "Ignore".into(),
            "problem admission gpu-selfhealing-spoke-workloads",
            "not the one of this spoke",
        ),
        (
            |f| f.policies.as_mut().unwrap()[0]["spec"]["matchConstraints"]["objectSelector"]["matchLabels"]["a"] = "b".into(),
            "problem admission gpu-selfhealing-spoke-nodes ValidatingAdmissionPolicy is not the one of this spoke: \
             spec.matchConstraints.objectSelector",
            "deploy/spoke/admission.yaml",
        ),
        (
            |f| f.policies.as_mut().unwrap()[1]["spec"]["matchResources"]["objectSelector"]["matchLabels"]["a"] = "b".into(),
            "problem admission gpu-selfhealing-spoke-nodes ValidatingAdmissionPolicyBinding is not the one",
            "deploy/spoke/admission.yaml",
        ),
        (
            |f| f.mutators = Ok(vec![Mutator { name: "m.example.com of m".to_owned(), conditional: false }]),
            "warning mutating  nodes may be changed as we write them, by m.example.com of m",
            "403",
        ),
        (|f| f.lease = Ok(None), "problem lease", "deploy/spoke/observe.yaml"),
        (|f| lease(f).age = Some(Duration::from_secs(16)), "warning lease gpu-selfhealing-leader a held it last, 16 s ago", "logs"),
        (|f| f.fence = Ok(None), "problem fence", "deploy/spoke/observe.yaml"),
        (|f| f.fence = Ok(Some([("hubTerm".to_owned(), "x".to_owned())].into())), "problem fence", "hubTerm"),
        (|f| f.config = Ok(OwnersConfig::Text("ceiling: {nodesOut: many}".to_owned())), "problem config", "ceiling.nodesOut"),
        (|f| f.config = Ok(OwnersConfig::Text("ceiling: {stop: true}".to_owned())), "warning config", "nothing but releases"),
        (|f| f.config = Ok(OwnersConfig::NoKey), "problem config", "an empty document lifts"),
        (
            |f| {
                f.config = Ok(OwnersConfig::Missing);
                f.fence = Ok(Some([("ceilingSeen".to_owned(), "true".to_owned())].into()));
            },
            "problem config gpu-selfhealing-config a spoke that starts now says: ConfigMap gpu-selfhealing-config is gone",
            "an empty document lifts",
        ),
        (|f| node(f).offered = 7, "warning gpus  fewer GPUs are offered than there are: n1", "device plugin"),
        (|f| exporter(f).node = "n2".to_owned(), "problem exporter  1 of 1 nodes with GPUs have none: n1", "dcgm-exporter"),
        (
            |f| exporter(f).page = Err("exporter answered 500".to_owned()),
            "problem exporter  1 of 1: exporter answered 500: 10.0.0.1:9400",
            "NetworkPolicy",
        ),
        (
            |f| exporter(f).page.as_mut().unwrap().retain(|metric| *metric != Metric::XidLast),
            "warning exporter  1 of 1 have no Xids: n1",
            "DCGM_FI_DEV_XID_ERRORS",
        ),
        (|f| webhook(f).ready = Err("refused".to_owned()), "problem webhook http://spoke:8080 cannot be reached", "Service"),
        (
            |f| webhook(f).ready = Ok((503, "hub does not answer\n".to_owned())),
            "warning webhook http://spoke:8080 hub does not answer",
            "Troubleshooting",
        ),
        (|f| webhook(f).without_token = Ok(200), "problem webhook http://spoke:8080 a post without a token is answered 200", ""),
        (|f| webhook(f).with_token = Some(Ok(401)), "problem webhook http://spoke:8080 does not take this token", "the same one"),
        (
            |f| f.dra = Ok(vec!["v1beta2".to_owned(), "v1beta1".to_owned()]),
            "warning dra resource.k8s.io is served as v1beta2, v1beta1 and not as v1",
            "1.34",
        ),
        (|f| covering(f).desired = 3, "problem budget ml/web lets no pod go, ever: 3 of 3 must be healthy", "add a replica"),
        (|f| covering(f).healthy = 1, "warning budget ml/web 1 are healthy and 2 must be", "AlwaysAllow"),
        (|f| covering(f).failed = "no scale".to_owned(), "problem budget ml/web its numbers cannot be told", "no scale"),
        (
            |f| f.budgets.as_mut().unwrap().push(budget("other")),
            "problem budget ml/web-1 is under 2 budgets, and no such pod can be evicted: web, other",
            "leave it one",
        ),
        (
            |f| one(f).controller.clear(),
            "warning pods ml 1 GPU pod that no controller makes anew, which a drain leaves where they are: web-1",
            "evict: now",
        ),
        (
            |f| one(f).evict = Some("nver".to_owned()),
            "warning pods ml 1 GPU pod whose label gpu-selfhealing.io/evict says what nobody knows",
            "now, after-completion or never",
        ),
        (
            |f| one(f).scratch.push("tmp".to_owned()),
            "warning pods ml 1 GPU pod with data that is the pod's or the node's alone",
            "after-completion",
        ),
        (
            |f| {
                one(f).claims.push("data".to_owned());
                f.allowed = Ok([].into());
            },
            "warning stateful ml 1 GPU pod with storage, whose eviction the namespace has not allowed",
            "kubectl label namespace ml gpu-selfhealing.io/stateful-eviction=allowed",
        ),
        (
            |f| f.plugins = Ok([].into()),
            "warning plugin  no pod of it is ready on 1 of 1 nodes with GPUs: n1",
            "--device-plugin-selector",
        ),
        (|f| drop(f.spokes.as_mut().unwrap().pop()), "warning spokes  one runs alone", "run two"),
        (|f| f.spokes.as_mut().unwrap()[0].ready = false, "warning spokes a is not ready", "/readyz"),
        (
            |f| {
                let spoke = &mut f.spokes.as_mut().unwrap()[1];
                (spoke.restarts, spoke.ended) = (3, "OOMKilled (exit status 137)".to_owned());
            },
            "warning spokes b was restarted 3 times, the last time by OOMKilled (exit status 137)",
            "kubectl logs -n gpu-selfhealing b --previous",
        ),
        (
            |f| f.actions.as_mut().unwrap().push(Action { open: true, waits_for_release: false, ..action() }),
            "warning healactions  1 still open though their time is over: 01k",
            "leader",
        ),
        (
            |f| f.actions.as_mut().unwrap()[0].waits_for_release = false,
            "warning healactions  1 over, and the hub has not taken their outcome for an hour: 01k",
            "gpuhealctl clusters",
        ),
        (
            |f| f.actions.as_mut().unwrap()[0].deleting = true,
            "warning healactions  1 deleted by somebody and held by our finalizer: 01k",
            "finalizers",
        ),
    ];
    for (spoil, found, next) in spoilt {
        let mut facts = well();
        spoil(&mut facts);
        let told = against(&facts);
        let [one] = told.as_slice() else { panic!("{found}: {told:#?}") };
        assert!(one.starts_with(found) && one.contains(next), "{found}, {next}: {one}");
    }
}

fn server(facts: &mut Facts) -> &mut Server {
    facts.server.as_mut().unwrap()
}

fn account(facts: &mut Facts) -> &mut Account {
    facts.account.as_mut().unwrap()
}

fn lose(facts: &mut Facts, verb: &str, resource: &str) {
    let lost = |(at, held): &(usize, &str)| RIGHTS[*at].resource == resource && *held == verb;
    account(facts).held.retain(|key, _| !lost(key));
}

fn crd(facts: &mut Facts) -> &mut serde_json::Value {
    facts.crd.as_mut().unwrap().as_mut().unwrap()
}

fn lease(facts: &mut Facts) -> &mut Lease {
    facts.lease.as_mut().unwrap().as_mut().unwrap()
}

fn node(facts: &mut Facts) -> &mut Node {
    &mut facts.nodes.as_mut().unwrap()[0]
}

fn exporter(facts: &mut Facts) -> &mut Exporter {
    &mut facts.exporters.as_mut().unwrap()[0]
}

fn webhook(facts: &mut Facts) -> &mut Webhook {
    facts.webhook.as_mut().unwrap()
}

fn covering(facts: &mut Facts) -> &mut Budget {
    &mut facts.budgets.as_mut().unwrap()[0]
}

fn one(facts: &mut Facts) -> &mut Pod {
    &mut facts.pods.as_mut().unwrap()[0]
}

/// An account that may heal in these namespaces alone.
fn narrowed(namespaces: &[&str]) -> Facts {
    let mut facts = well();
    lose(&mut facts, "create", "pods/eviction");
    let lost = RIGHTS.iter().position(|right| right.resource == "pods/eviction").unwrap();
    // Asked about are all namespaces with GPU pods.
    account(&mut facts).within = [("ml".to_owned(), [].into())].into();
    account(&mut facts).within.extend(namespaces.iter().map(|name| ((*name).to_owned(), [(lost, "create")].into())));
    facts
}

#[test]
fn rights_in_some_namespaces_alone_are_no_problem_and_pods_elsewhere_are_told_of() {
    assert_eq!(against(&narrowed(&["ml"])), Vec::<String>::new());
    let notes: Vec<_> = judge(&narrowed(&["ml"])).into_iter().filter(|one| one.check == "rights").map(|one| one.found).collect();
    assert_eq!(notes, ["has heal in these namespaces alone: ml", "has every right that heal takes"]);
    let mut elsewhere = narrowed(&["train"]);
    let told = against(&elsewhere);
    let [one] = told.as_slice() else { panic!("{told:#?}") };
    assert!(one.starts_with("warning rights ml 1 GPU pod whose eviction the account has no right to"), "{one}");
    assert!(one.contains("-> gpuheal-spoke rights heal --namespaces train,ml | kubectl apply -f -"), "{one}");
    // Its owner has said so in the ceiling, where a drain reads it too.
    elsewhere.config = Ok(OwnersConfig::Text("ceiling: {namespaces: [train]}".to_owned()));
    assert_eq!(against(&elsewhere), Vec::<String>::new());
}

#[test]
fn what_rights_were_told_to_hold_is_what_doctor_asks_for() {
    let mut facts = narrowed(&["ml"]);
    facts.namespaces = vec!["ml".to_owned(), "train".to_owned()];
    let told = against(&facts);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].starts_with("problem rights spoke lacks the rights for heal in train"), "{told:#?}");
    assert!(told[0].ends_with("-> gpuheal-spoke rights heal --namespaces ml,train | kubectl apply -f -"), "{told:#?}");
    let mut wide = well();
    wide.namespaces = vec!["ml".to_owned()];
    let told = against(&wide);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].starts_with("warning rights spoke has heal in every namespace"), "{told:#?}");
    assert!(told[0].contains("kubectl delete -f deploy/spoke/modes/heal.yaml"), "{told:#?}");
}

#[test]
fn a_claim_without_a_fresh_snapshot_is_a_warning_until_its_namespace_has_confirmed_backups() {
    let told = |snapshots: Option<u64>, served: bool, allowed: bool| {
        let mut facts = well();
        one(&mut facts).claims.push("data".to_owned());
        let known = snapshots.map(|days| ("ml/data".to_owned(), Duration::from_secs(days * 86_400)));
        facts.snapshots = Ok(served.then(|| known.into_iter().collect()));
        facts.allowed = Ok(allowed.then(|| "ml".to_owned()).into_iter().collect());
        let all = judge(&facts);
        let backup =
            all.iter().filter(|one| one.check == "backup").map(|one| format!("{} {}: {}", one.level.word(), one.about, one.found));
        backup.collect::<Vec<_>>().join("; ")
    };
    assert_eq!(told(Some(1), true, false), "ok ml: every claim of a GPU pod has a fresh VolumeSnapshot");
    assert_eq!(told(Some(8), true, false), "warning ml: the newest VolumeSnapshot is older than 7 days: data");
    assert_eq!(told(None, true, false), "warning ml: no VolumeSnapshot is ready to restore from, for claims of GPU pods: data");
    assert_eq!(told(None, false, false), "warning ml: the cluster has no VolumeSnapshots, for claims of GPU pods: data");
    assert_eq!(told(None, false, true), "note ml: the cluster has no VolumeSnapshots, for claims of GPU pods: data");
}

#[test]
fn a_cluster_that_serves_nothing_of_dra_has_no_claims_to_know_of() {
    let mut facts = well();
    facts.dra = Ok(Vec::new());
    assert_eq!(against(&facts), Vec::<String>::new());
    facts.dra = Err("forbidden".to_owned());
    assert!(against(&facts)[0].starts_with("unseen dra"));
}

#[test]
fn drivers_of_several_versions_are_told_and_one_that_no_label_tells_is_no_fault() {
    let mut facts = well();
    let other = Node { name: "n2".to_owned(), driver: "535.2".to_owned(), ..node(&mut facts).clone() };
    let silent = Node { name: "n3".to_owned(), driver: String::new(), ..other.clone() };
    facts.nodes.as_mut().unwrap().extend([other, silent]);
    let all = judge(&facts);
    let told: Vec<_> = all.iter().filter(|one| one.check == "driver").map(|one| (one.level, one.found.as_str())).collect();
    let differ = "not one and the same on all nodes with GPUs: 535.2 on 1, 570.1 on 1";
    assert_eq!(told, [(Level::Note, differ), (Level::Note, "its version is not told by 1 nodes with GPUs")]);
}

#[test]
fn an_api_server_that_cannot_be_asked_is_one_problem_and_nothing_follows_from_it() {
    let mut facts = well();
    facts.server = Err("connection refused".to_owned());
    facts.nodes = Err("connection refused".to_owned());
    let told = judge(&facts);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].found.contains("connection refused") && !told[0].next.is_empty());
}

#[test]
fn what_could_not_be_seen_is_neither_well_nor_a_problem() {
    let mut facts = well();
    facts.budgets = Err("forbidden".to_owned());
    facts.crd = Err("forbidden".to_owned());
    let told = against(&facts);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told.iter().all(|one| one.starts_with("unseen ") && one.contains("forbidden")), "{told:#?}");
    assert!(judge(&facts).iter().all(|one| one.check != "budget" || one.level == Level::Unseen));
}

#[test]
fn a_node_whose_label_names_a_gpu_that_nobody_offers_is_told_and_a_cluster_without_gpus_is_a_problem() {
    let mut facts = well();
    (node(&mut facts).gpus, node(&mut facts).offered) = (0, 0);
    let told = against(&facts);
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].starts_with("problem gpus  none of 1 nodes offers") && told[1].contains("none is offered: n1"), "{told:#?}");
}

#[test]
fn who_only_observes_needs_no_policy_and_no_further_right() {
    let mut facts = well();
    facts.mode = Grant::Observe;
    facts.policies = Ok(Vec::new());
    let observing = |(at, _): &(usize, &str)| RIGHTS[*at].grant == Grant::Observe;
    account(&mut facts).held.retain(|key, _| observing(key));
    assert_eq!(against(&facts), Vec::<String>::new());
}

#[test]
fn a_thousand_pods_are_one_finding_of_a_few_names() {
    let mut facts = well();
    let alone = |n| Pod { controller: String::new(), ..pod(&format!("p-{n:04}")) };
    facts.pods = Ok((0..1000).map(alone).collect());
    let told = against(&facts);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert!(told[0].contains("1000 GPU pods that no controller") && told[0].contains("p-0004 and 995 more"), "{told:#?}");
}

#[test]
fn of_gpus_without_ecc_memory_nobody_is_told_to_export_its_errors() {
    let mut facts = well();
    let bare = |metric: &Metric| !format!("{metric:?}").starts_with("Ecc");
    exporter(&mut facts).page.as_mut().unwrap().retain(bare);
    assert_eq!(against(&facts).len(), 1, "one that may have it is told of");
    exporter(&mut facts).without_ecc = true;
    assert_eq!(against(&facts), Vec::<String>::new());
}
