use proptest::prelude::*;
use serde_json::{Value, json};

use super::{answer::*, *};
use crate::verify::testing;

fn pod(name: &str, extra: &Value) -> PodFacts {
    let mut pod = json!({
        "metadata": {"namespace": "ml", "name": name, "uid": format!("uid-{name}"),
            "ownerReferences": [{"kind": "ReplicaSet", "name": "rs", "uid": "o1", "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    json_patch::merge(&mut pod, extra);
    PodFacts::from_json(&pod).unwrap()
}

fn plain(name: &str) -> PodFacts {
    pod(name, &json!({}))
}

fn with_storage(name: &str) -> PodFacts {
    pod(name, &json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}}))
}

fn planned(pods: Vec<PodFacts>, change: impl FnOnce(&mut Drain)) -> Plan {
    planned_of(&GpuResources::default(), pods, change)
}

fn planned_of(gpus: &GpuResources, pods: Vec<PodFacts>, change: impl FnOnce(&mut Drain)) -> Plan {
    let gpuheal_proto::command::Step::Drain(mut drain) = testing::drain() else { unreachable!() };
    change(&mut drain);
    let allowed = BTreeSet::from(["ml".to_owned()]);
    let bound = BTreeSet::from(["ml/data".to_owned()]);
    plan(
        pods,
        &Rules {
            drain: &drain,
            gpus,
            gpu: None,
            namespace_allowed: &|namespace| namespace != "kube-system",
            stateful_allowed: &allowed,
            bound_claims: &bound,
            ready_by_owner: &Ready::from([
                ("o1".to_owned(), ["uid-db-0".to_owned(), "uid-db-1".to_owned()].into()),
                ("alone".to_owned(), ["uid-z".to_owned()].into()),
            ]),
            other_devices: &BTreeSet::from(["ml/nic-1".to_owned(), "ml/nic-2".to_owned()]),
            spared: &BTreeSet::new(),
        },
    )
}

fn names(list: &[Planned]) -> Vec<&str> {
    list.iter().map(|planned| planned.pod.name.as_str()).collect()
}

#[test]
fn gpu_pods_go_stateless_first_and_the_rest_stays() {
    let daemon =
        pod("ds", &json!({"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": true}]}}));
    let cpu = pod("cpu", &json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}));
    let mirror = pod("mirror", &json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}));
    let done = pod("done", &json!({"status": {"phase": "Succeeded"}}));
    let plan = planned(vec![with_storage("db-0"), plain("b"), daemon, plain("a"), cpu, mirror, done], |_| {});
    assert_eq!(names(&plan.stateless), ["a", "b"]);
    assert_eq!(names(&plan.stateful), ["db-0"]);
    assert_eq!(plan.skipped.len(), 4);
    assert_eq!(plan.leftovers().count(), 0, "none of those keeps the node from being drained");
}

#[test]
fn init_containers_mig_slices_device_claims_and_own_resource_names_count_as_gpus() {
    let none = json!({"resources": {"requests": {"cpu": "1"}}});
    let init = pod(
        "init",
        &json!({"spec": {"containers": [none], "initContainers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}}),
    );
    let mig = pod("mig", &json!({"spec": {"containers": [{"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}]}}));
    let dra = pod("dra", &json!({"spec": {"containers": [none], "resourceClaims": [{"name": "gpu"}]}}));
    let zero = pod(
        "zero",
        &json!({"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "0"}, "limits": {"nvidia.com/gpu": "0"}}}]}}),
    );
    let own = pod("own", &json!({"spec": {"containers": [{"resources": {"requests": {"example.com/accel": "1"}}}]}}));
    assert_eq!(names(&planned(vec![init, mig, dra, zero], |_| {}).stateless), ["dra", "init", "mig"]);
    assert_eq!(
        names(&planned_of(&GpuResources::of(&["example.com/".to_owned()]), vec![own, plain("a")], |_| {}).stateless),
        ["own"]
    );
}

#[test]
fn a_pod_with_storage_stays_until_policy_its_namespace_and_its_claim_say_yes() {
    let elsewhere = pod(
        "x",
        &json!({"metadata": {"namespace": "prod"}, "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let unbound = pod("y", &json!({"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "new"}}]}}));
    let single = pod(
        "z",
        &json!({"metadata": {"ownerReferences": [{"kind": "StatefulSet", "name": "s", "uid": "alone", "controller": true}]},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}}),
    );
    let plan = planned(vec![elsewhere, unbound, single], |_| {});
    let why: Vec<_> = plan.leftovers().map(|skipped| skipped.why.as_str()).collect();
    assert_eq!(
        why,
        [
            "has storage, and namespace prod does not allow stateful eviction",
            "its claim new is not bound",
            "the only ready replica of StatefulSet s",
        ]
    );
    assert!(planned(vec![with_storage("db-0")], |drain| drain.include_stateful = false).stateful.is_empty());
}

#[test]
fn a_replica_of_which_no_other_is_known_to_be_ready_does_not_go() {
    let of = |owner: &str, ready: &str| {
        let owners = json!([{"kind": "StatefulSet", "name": "s", "uid": owner, "controller": true}]);
        let conditions = json!([{"type": "Ready", "status": ready}]);
        pod(
            "y",
            &json!({"metadata": {"ownerReferences": owners}, "status": {"conditions": conditions},
            "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}}),
        )
    };
    let ready = |uids: &[&str]| Ready::from([("s".to_owned(), uids.iter().map(|uid| (*uid).to_owned()).collect())]);
    assert_eq!(only_ready(&of("s", "True"), &ready(&["uid-y", "uid-x"])), None);
    assert_eq!(only_ready(&of("s", "True"), &ready(&["uid-x"])), None, "our watch may not show it itself");
    assert!(only_ready(&of("s", "True"), &ready(&["uid-y"])).is_some());
    assert!(only_ready(&of("unseen", "True"), &ready(&["uid-x"])).is_some(), "who knows of no other has no other");
    assert_eq!(only_ready(&of("s", "False"), &ready(&[])), None, "it serves nobody");
}

#[test]
fn a_pods_own_word_is_kept() {
    let never = pod("never", &json!({"metadata": {"labels": {LABEL_EVICT: "never"}}}));
    let later = pod("later", &json!({"metadata": {"labels": {LABEL_EVICT: "after-completion"}}}));
    let now = pod("now", &json!({"metadata": {"labels": {LABEL_EVICT: "now"}}}));
    let plan = planned(vec![never, later, now], |_| {});
    assert_eq!(plan.stateless.iter().map(|p| p.after_completion).collect::<Vec<_>>(), [true, false]);
    assert_eq!(plan.leftovers().count(), 1, "it holds a GPU: the node is not drained");
}

#[test]
fn a_word_that_nobody_knows_protects_its_pod_and_is_named() {
    for word in ["Never", "nver", "false", "no", ""] {
        let plan = planned(vec![pod("a", &json!({"metadata": {"labels": {LABEL_EVICT: word}}}))], |_| {});
        let why: Vec<_> = plan.leftovers().map(|skipped| skipped.why.clone()).collect();
        assert_eq!(why, [format!("label {LABEL_EVICT}: {word:?} is none of now, after-completion, never, and counts as never")]);
    }
}

#[test]
fn a_namespace_outside_the_ceiling_is_not_touched() {
    let system = pod("s", &json!({"metadata": {"namespace": "kube-system"}}));
    assert_eq!(
        planned(vec![system], |_| {}).leftovers().next().unwrap().why,
        "the cluster's ceiling does not allow namespace kube-system"
    );
}

#[test]
fn with_one_gpu_at_fault_only_its_users_go_and_unknown_users_count_as_users() {
    let gpu = GpuUuid::parse("GPU-1").unwrap();
    let gpuheal_proto::command::Step::Drain(drain) = testing::drain() else { unreachable!() };
    let on = |name: &str, uuid: &str| PodFacts { gpu_uuids: BTreeSet::from([uuid.to_owned()]), ..plain(name) };
    let known_before = BTreeSet::from(["uid-before".to_owned(), "uid-moved".to_owned()]);
    let none = BTreeSet::new();
    let plan = plan(
        vec![on("mine", "GPU-1"), on("other", "GPU-2"), plain("unknown"), plain("before"), on("moved", "GPU-1")],
        &Rules {
            drain: &drain,
            gpus: &GpuResources::default(),
            gpu: Some(&gpu),
            namespace_allowed: &|_| true,
            stateful_allowed: &none,
            bound_claims: &none,
            ready_by_owner: &Ready::new(),
            other_devices: &none,
            spared: &known_before,
        },
    );
    assert_eq!(names(&plan.stateless), ["mine", "moved", "unknown"]);
    assert_eq!(plan.spared, BTreeSet::from(["uid-before".to_owned(), "uid-other".to_owned()]));
    let why: Vec<_> = plan.skipped.iter().map(|skipped| skipped.why.as_str()).collect();
    assert_eq!(why, ["uses another GPU: GPU-2", "uses another GPU, as was known when the drain began"]);
    assert_eq!(plan.leftovers().count(), 0, "they do not keep the faulty GPU busy");
}

#[test]
fn a_pod_with_a_nics_claim_alone_stays_and_with_one_that_is_not_known_it_goes() {
    let none = json!({"resources": {"requests": {"cpu": "1"}}});
    let claims = |name: &str, claims: Value, made: Value| {
        pod(name, &json!({"spec": {"containers": [none], "resourceClaims": claims}, "status": {"resourceClaimStatuses": made}}))
    };
    let nic = claims("nic", json!([{"name": "net", "resourceClaimName": "nic-1"}]), json!([]));
    let made = claims(
        "made",
        json!([{"name": "net", "resourceClaimTemplateName": "t"}]),
        json!([{"name": "net", "resourceClaimName": "nic-2"}]),
    );
    let both = claims(
        "both",
        json!([{"name": "net", "resourceClaimName": "nic-1"}, {"name": "gpu", "resourceClaimName": "gpu-1"}]),
        json!([]),
    );
    let not_made = claims("not-made", json!([{"name": "net", "resourceClaimTemplateName": "t"}]), json!([]));
    let with_gpu = pod("with-gpu", &json!({"spec": {"resourceClaims": [{"name": "net", "resourceClaimName": "nic-1"}]}}));
    let plan = planned(vec![nic, made, both, not_made, with_gpu], |_| {});
    assert_eq!(names(&plan.stateless), ["both", "not-made", "with-gpu"]);
    assert_eq!(plan.leftovers().count(), 0, "those that stay keep no GPU");
}

#[test]
fn a_finalizer_is_named_with_who_wrote_it_or_with_its_domain() {
    let fields = |name: &str| json!({"f:metadata": {"f:finalizers": {".": {}, format!("v:\"{name}\""): {}}}});
    let pod = pod(
        "held",
        &json!({"metadata": {
            "finalizers": ["team.example/hold", "other.example/hold", "orphan"],
            "managedFields": [
                {"manager": "team-operator", "operation": "Update", "fieldsV1": fields("team.example/hold")},
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {}}}},
            ],
        }}),
    );
    let words: Vec<_> = pod.finalizers.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        ["team.example/hold (set by team-operator)", "other.example/hold (of other.example)", "orphan (of Kubernetes itself)"]
    );
}

fn ask(status: u16, causes: &[&str], retry_after: Option<Duration>) -> Answer {
    classify(Reply { status, reason: "", message: "", causes, retry_after })
}

fn says(status: u16, reason: &str, message: &str) -> Answer {
    classify(Reply { status, reason, message, causes: &[], retry_after: None })
}

#[test]
fn answers_are_told_apart_by_status_and_cause() {
    let secs = Duration::from_secs;
    assert_eq!(ask(201, &[], None), Answer::Accepted);
    assert_eq!(ask(404, &[], None), Answer::Differs, "also what stands in between may know no such pod");
    assert_eq!(ask(409, &[], None), Answer::Differs);
    assert_eq!(ask(429, &["DisruptionBudget"], None), Answer::Budget { retry_after: None });
    assert_eq!(ask(429, &["DisruptionBudget"], Some(secs(10))), Answer::Budget { retry_after: Some(secs(10)) });
    assert_eq!(ask(429, &[], Some(secs(1))), Answer::Throttled { retry_after: Some(secs(1)) }, "throttling is no PDB");
    assert_eq!(ask(403, &["NamespaceTerminating"], None), Answer::NamespaceTerminating);
    assert_eq!(ask(403, &[], None), Answer::Denied { retry_after: None }, "a budget below zero");
    let rbac = r#"pods "a" is forbidden: User "system:serviceaccount:x:y" cannot create resource "pods/eviction" in API group """#;
    assert_eq!(says(403, "Forbidden", rbac), Answer::NoRight);
    assert_eq!(ask(400, &[], None), Answer::Denied { retry_after: None }, "no reason: a proxy's word");
    assert_eq!(says(400, "BadRequest", "strict decoding error"), Answer::Invalid);
    assert_eq!(ask(504, &[], Some(secs(10))), Answer::Unanswered { retry_after: Some(secs(10)) });
    assert_eq!(ask(503, &[], None), Answer::Unanswered { retry_after: None });
}

#[test]
fn of_the_servers_500s_only_that_of_several_budgets_is_one() {
    let budgets = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(says(500, "", budgets), Answer::ManyBudgets);
    let webhook = r#"Internal error occurred: failed calling webhook "a.b": failed to call webhook: Post "https://x": EOF"#;
    assert_eq!(says(500, "InternalError", webhook), Answer::WebhookFailed);
    for (reason, message) in [("", "etcdserver: request timed out"), ("", ""), ("InternalError", "Internal error occurred: x")] {
        assert_eq!(says(500, reason, message), Answer::Failed { retry_after: None }, "{message}");
    }
}

#[test]
fn what_a_webhook_says_no_by_is_neither_a_missing_pod_nor_a_busy_server() {
    let no = r#"admission webhook "evict.kubevirt.io" denied the request: Eviction triggered evacuation of VMI "ml/vm""#;
    for status in [400, 403, 404, 409, 410, 422, 429, 500, 503] {
        assert_eq!(says(status, "TooManyRequests", no), Answer::Denied { retry_after: None }, "{status}");
    }
    let policy = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
    assert_eq!(says(422, "Invalid", policy), Answer::Denied { retry_after: None }, "its request was as it should be");
}

#[test]
fn grace_is_the_pods_own_capped_and_never_nothing() {
    let grace = |secs: Option<u64>, max| {
        let pod = PodFacts { grace: secs.map(Duration::from_secs), ..PodFacts::default() };
        grace_secs(&pod, Duration::from_secs(max))
    };
    assert_eq!(grace(Some(20), 60), 20);
    assert_eq!(grace(Some(3600), 60), 60);
    assert_eq!(grace(None, 60), 30);
    assert_eq!(grace(Some(0), 60), 1, "0 would delete it past its kubelet");
    assert_eq!(grace(Some(20), 0), 1);
}

proptest! {
    #[test]
    fn a_wait_grows_stays_bounded_and_never_undercuts_the_server(attempt in 0..40_u32, asked in proptest::option::of(0..60_u64), chance in 0.0..1.0_f64) {
        let asked = asked.map(Duration::from_secs);
        let wait = backoff(attempt, asked, chance);
        prop_assert!(wait >= BACKOFF_BASE / 2);
        prop_assert!(wait <= BACKOFF_MAX.max(asked.unwrap_or_default()));
        prop_assert!(wait >= asked.unwrap_or_default());
    }
}

#[test]
fn a_pod_that_nobody_makes_anew_goes_by_its_own_word_alone() {
    let alone = |word: Option<&str>| {
        pod("alone", &json!({"metadata": {"ownerReferences": null, "labels": {"gpu-selfhealing.io/evict": word}}}))
    };
    assert_eq!(bare(&plain("made")), None);
    // An owner that does not control it makes none.
    let owned = pod("owned", &json!({"metadata": {"ownerReferences": [{"kind": "Notebook", "name": "n", "uid": "o2"}]}}));
    for pod in [alone(None), alone(Some("soon")), owned] {
        assert!(bare(&pod).is_some_and(|why| why.contains("evict: now")), "{}", pod.name);
    }
    for word in ["now", "after-completion"] {
        assert_eq!(bare(&alone(Some(word))), None, "{word}");
    }
}
