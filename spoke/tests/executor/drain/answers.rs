//! What an eviction is answered, and what is made of it. Kubernetes gives those answers itself where a claim can make it; the
//! rest is said on the way there.

use gpuheal_proto::link::v1::{CommandState, CommandStatus};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use testkube::{raw, settled};

use super::blocked;
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    a_webhook_that_cannot_be_asked_is_named_and_is_not_taken_for_several_budgets,
    a_policy_that_says_no_is_named_and_the_pod_goes_once_it_is_lifted,
    a_webhooks_no_is_its_no_whatever_status_it_gives,
    what_is_said_of_a_pod_that_is_there_all_the_same_is_not_believed,
    a_budget_that_could_not_be_decided_on_in_time_is_asked_again,
    a_failing_api_server_is_told_as_what_it_is,
    a_pod_whose_namespace_goes_away_is_left_to_it,
    a_budget_that_keeps_a_pod_which_is_not_ready_is_told_with_the_way_out,
    a_pod_that_a_budget_keeps_after_a_webhook_did_has_an_event_of_each,
];

const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Something that is against evictions in this claim's namespace, until it is lifted.
struct Against {
    person: Client,
    paths: Vec<String>,
}

impl Against {
    /// Creates the objects; nothing where nobody looks at them.
    async fn set_up(w: &World, objects: &[(&str, &Value)]) -> Option<Self> {
        if !w.is_kubernetes() {
            return None;
        }
        let person = w.admin.clone();
        let mut paths = Vec::new();
        for (plural, object) in objects {
            raw::post(&person, &format!("{ADMISSION}/{plural}"), object).await.expect(201);
            paths.push(format!("{ADMISSION}/{plural}/{}", object["metadata"]["name"].as_str().unwrap()));
        }
        Some(Self { person, paths })
    }

    /// Waits until it is in force, and gives the server's answer.
    async fn answer(&self, w: &World, pod: &str) -> raw::Answer {
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction?dryRun=All", w.ns);
        let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": w.ns, "name": pod}});
        settled::until("evictions are refused", || async {
            let answer = raw::post(&self.person, &path, &body).await;
            (answer.code >= 400).then_some(answer)
        })
        .await
    }

    async fn lift(self) {
        for path in self.paths {
            raw::send(&self.person, Method::DELETE, &path, raw::MERGE_PATCH, None).await.expect(200);
        }
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn in_namespace(w: &World) -> Value {
    json!({"matchLabels": {"kubernetes.io/metadata.name": w.ns}})
}

fn evictions() -> Value {
    json!([{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"]}])
}

/// A mark and a drain of `n1`, whose only pod is `web-1`: what was told when it was blocked first.
async fn told_blocked(w: &World, spoke: &mut Spoke) -> (gpuheal_proto::command::Command, String) {
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    let running = spoke.told("that it is blocked", |status| blocked(status, "web-1").is_some()).await;
    (command, blocked(&running, "web-1").unwrap())
}

fn calls(end: &CommandStatus) -> u32 {
    end.steps.iter().flat_map(|step| &step.pods).map(|pod| pod.eviction_calls).sum()
}

async fn a_webhook_that_cannot_be_asked_is_named_and_is_not_taken_for_several_budgets(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": format!("guard-{}", w.ns)},
        "webhooks": [{
            "name": "guard.example.com", "clientConfig": {"url": "https://127.0.0.1:1/"}, "failurePolicy": "Fail",
            "rules": evictions(), "namespaceSelector": in_namespace(&w), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
        }],
    });
    let against = Against::set_up(&w, &[("validatingwebhookconfigurations", &webhook)]).await;
    match &against {
        Some(against) => {
            let answer = against.answer(&w, "web-1").await;
            assert_eq!((answer.code, answer.reason()), (500, "InternalError"), "{}", answer.text);
        }
        None => w.wire.answer(
            "/eviction",
            status(
                500,
                "InternalError",
                r#"Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: Post "https://127.0.0.1:1/?timeout=1s": dial tcp 127.0.0.1:1: connect: connection refused"#,
            ),
        ),
    }
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, why) = told_blocked(&w, &mut spoke).await;
    assert!(why.starts_with("the admission webhook guard.example.com could not be asked: "), "{why}");
    assert!(!why.contains("Budget"), "{why}");
    if let Some(against) = against {
        against.lift().await;
    }
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("web-1").await;
}

async fn a_policy_that_says_no_is_named_and_the_pod_goes_once_it_is_lifted(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let name = format!("ask-first-{}", w.ns);
    let api = "admissionregistration.k8s.io/v1";
    let rules = json!({"namespaceSelector": in_namespace(&w), "resourceRules": evictions()});
    let policy = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"failurePolicy": "Fail", "matchConstraints": rules, "validations": [{"expression": "false", "message": "ask first"}]},
    });
    let binding = json!({
        "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    let objects = [("validatingadmissionpolicies", &policy), ("validatingadmissionpolicybindings", &binding)];
    let against = Against::set_up(&w, &objects).await;
    match &against {
        Some(against) => {
            let answer = against.answer(&w, "web-1").await;
            assert_eq!((answer.code, answer.reason()), (422, "Invalid"), "{}", answer.text);
        }
        None => {
            let message = format!(
                "pods \"web-1\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: ask first"
            );
            w.wire.answer("/eviction", status(422, "Invalid", &message));
        }
    }
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, why) = told_blocked(&w, &mut spoke).await;
    assert_eq!(why, format!("the admission policy {name} says no: ask first"));
    if let Some(against) = against {
        against.lift().await;
    }
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("web-1").await;
}

/// KubeVirt's says 429, which a busy server says too, and others 404.
async fn a_webhooks_no_is_its_no_whatever_status_it_gives(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let no = r#"admission webhook "evict.example.com" denied the request: its virtual machine is being moved"#;
    w.wire.answer("/eviction", status(404, "NotFound", no));
    w.wire.answer("/eviction", status(429, "TooManyRequests", no));
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, why) = told_blocked(&w, &mut spoke).await;
    assert_eq!(why, "the admission webhook evict.example.com says no: its virtual machine is being moved");
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), calls(&end)), (CommandState::Succeeded, 3), "{}", end.reason);
    w.gone("web-1").await;
}

async fn what_is_said_of_a_pod_that_is_there_all_the_same_is_not_believed(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.wire.answer("/eviction", status(404, "NotFound", r#"pods "web-1" not found"#));
    w.wire.answer("/eviction", status(409, "Conflict", "the UID in the precondition does not match the UID in record"));
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!((end.state(), calls(&end)), (CommandState::Succeeded, 3), "{}", end.reason);
    assert_eq!(w.evictions().await.iter().filter(|entry| entry.code == 201).count(), 1);
    w.gone("web-1").await;
}

async fn a_budget_that_could_not_be_decided_on_in_time_is_asked_again(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut late = status(504, "Timeout", "Timeout: couldn't update PodDisruptionBudget due to conflicts");
    late["details"] = json!({"retryAfterSeconds": 1});
    w.wire.answer("/eviction", late);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark(), drain()]).await).await;
    assert_eq!((end.state(), calls(&end)), (CommandState::Succeeded, 2), "{}", end.reason);
    w.gone("web-1").await;
}

async fn a_failing_api_server_is_told_as_what_it_is(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.wire.answer("/eviction", status(500, "", "etcdserver: request timed out"));
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, why) = told_blocked(&w, &mut spoke).await;
    assert_eq!(why, "the API server failed at its eviction: etcdserver: request timed out");
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), calls(&end)), (CommandState::Succeeded, 2), "{}", end.reason);
}

async fn a_pod_whose_namespace_goes_away_is_left_to_it(w: World) {
    w.gpu_pod("web-1", "n1", json!({})).await;
    let mut leaving = status(403, "Forbidden", r#"pods "web-1" is forbidden: unable to create new content in namespace x"#);
    leaving["details"] = json!({"causes": [{"reason": "NamespaceTerminating", "message": "x", "field": "metadata.namespace"}]});
    w.wire.answer("/eviction", leaving);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, why) = told_blocked(&w, &mut spoke).await;
    assert_eq!(why, "its namespace is going away");
    w.delete_now("web-1").await;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), calls(&end)), (CommandState::Succeeded, 1), "{}", end.reason);
}

async fn a_budget_that_keeps_a_pod_which_is_not_ready_is_told_with_the_way_out(w: World) {
    w.guarded_pod().await;
    let path = format!("/api/v1/namespaces/{}/pods/guarded-1/status", w.ns);
    let conditions = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    raw::patch(&w.admin, &path, raw::STRATEGIC_MERGE_PATCH, &conditions).await.expect(200);
    let mut spoke = Spoke::leading(&w, "a", "").await;
    spoke.send(signed(&w.command("n1", 1, vec![mark(), drain()]).await)).await;
    let running = spoke.told("that it is blocked", |status| blocked(status, "guarded-1").is_some()).await;
    let why = blocked(&running, "guarded-1").unwrap();
    assert!(
        why.contains("guarded") && why.contains("not ready") && why.contains("unhealthyPodEvictionPolicy: AlwaysAllow"),
        "{why}"
    );
}

async fn a_pod_that_a_budget_keeps_after_a_webhook_did_has_an_event_of_each(w: World) {
    w.guarded_pod().await;
    let no = |why: &str| status(403, "Forbidden", &format!(r#"admission webhook "evict.example.com" denied the request: {why}"#));
    w.wire.answer("/eviction", no("ask first"));
    w.wire.answer("/eviction", no("in other words"));
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    spoke.told("that its budget keeps it", |status| blocked(status, "guarded-1").is_some_and(|why| why.contains("budget"))).await;
    w.free_budget().await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.told_all(&command).await;
    let event = |what: &str, kind: &str| (what.to_owned(), "guarded-1".to_owned(), kind.to_owned());
    assert_eq!(w.pod_events().await, [event("blocked", "Warning"), event("blocked", "Warning"), event("evict", "Normal")]);
}
