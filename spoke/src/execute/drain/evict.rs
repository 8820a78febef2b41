//! One eviction: our own `policy/v1` body with the UID as precondition, strictly validated. kube's own call sends a key
//! that API servers ignore, and with it the precondition. What was not answered is looked up by UID before it is asked
//! again.

use std::time::Duration;

use gpuheal_proto::kubernetes::FIELD_MANAGER;
use gpuheal_spoke_core::drain::{Answer, PodFacts, Reply, admission::against, classify, lacks_right};
use k8s_openapi::api::{core::v1::Pod, policy::v1::PodDisruptionBudget};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Preconditions},
    core::{Selector, SelectorExt as _},
};
use serde_json::json;

use super::super::api::{Error, Kube, Raw, causes, retry_after};

/// How much of a server's or a webhook's words is told: they go into the HealAction, an Event and to the hub, and an Event
/// takes 1024 bytes. 600 leave room for the pod's name, which has at most 253 and its namespace 63.
const WORDS_CHARS_MAX: usize = 600;

/// What to ask for.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) pod: PodFacts,
    pub(super) grace_secs: u64,
    /// An earlier call was not answered: look first.
    pub(super) doubt: bool,
    /// Delete past the budgets.
    pub(super) bypass: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Gone,
    Budget {
        wait: Option<Duration>,
        why: String,
    },
    Throttled {
        wait: Option<Duration>,
    },
    /// Not asked for: the API server wants to be left alone, since this one's turn came.
    Unsent,
    ManyBudgets {
        why: String,
    },
    Terminating,
    Denied {
        wait: Option<Duration>,
        why: String,
    },
    /// The API server failed at it.
    Failed {
        wait: Option<Duration>,
        why: String,
    },
    /// Not evicted, as a look has shown.
    Again {
        wait: Option<Duration>,
        /// What the server said instead of an answer.
        why: String,
    },
    /// Not known.
    Doubt,
    Invalid {
        why: String,
    },
    /// Our account may not: what the server says.
    NoRight {
        why: String,
    },
}

/// Asks once, and looks once where the answer leaves it open. Neither waits: this is joined when the drain ends.
pub(super) async fn evict(kube: &Kube, call: &Call) -> Outcome {
    if call.doubt {
        return look(kube, &call.pod).await;
    }
    if call.bypass {
        return delete(kube, call).await;
    }
    dies_at!("execute.before-evict");
    match kube.raw("evict", request(call)).await {
        Ok(raw) => understand(kube, call, &raw).await,
        Err(error) if error.unsent() => Outcome::Unsent,
        Err(error) => look_after(kube, call, error.to_string()).await,
    }
}

fn request(call: &Call) -> http::Request<Vec<u8>> {
    let PodFacts { namespace, name, uid, .. } = &call.pod;
    let body = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": {"gracePeriodSeconds": call.grace_secs, "preconditions": {"uid": uid}},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction?fieldValidation=Strict&fieldManager={FIELD_MANAGER}");
    http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::ACCEPT, "application/json")
        .body(body.to_string().into_bytes())
        .expect("names of Kubernetes objects are valid in a path")
}

async fn understand(kube: &Kube, call: &Call, raw: &Raw) -> Outcome {
    let causes = raw.answer.as_ref().map(causes).unwrap_or_default();
    let wait = raw.retry_after.or_else(|| raw.answer.as_ref().and_then(retry_after));
    let (reason, message) = raw.answer.as_ref().map(|status| (status.reason.as_str(), status.message.as_str())).unwrap_or_default();
    match classify(Reply { status: raw.status, reason, message, causes: &causes, retry_after: wait }) {
        Answer::Accepted => {
            dies_at!("execute.evicted");
            Outcome::Accepted
        }
        Answer::Differs => look_after(kube, call, words(raw)).await,
        Answer::Budget { retry_after } => {
            Outcome::Budget { wait: retry_after, why: budget_words(raw).unwrap_or_else(|| words(raw)) }
        }
        Answer::Throttled { retry_after } => {
            kube.slow(retry_after.unwrap_or(Duration::from_secs(1)));
            Outcome::Throttled { wait: retry_after }
        }
        Answer::ManyBudgets => Outcome::ManyBudgets { why: name_budgets(kube, &call.pod).await },
        Answer::NamespaceTerminating => Outcome::Terminating,
        Answer::Denied { retry_after } => Outcome::Denied { wait: retry_after, why: words(raw) },
        Answer::NoRight => Outcome::NoRight { why: words(raw) },
        Answer::WebhookFailed => Outcome::Denied { wait: None, why: words(raw) },
        Answer::Failed { retry_after } => match look(kube, &call.pod).await {
            Outcome::Again { .. } => {
                Outcome::Failed { wait: retry_after, why: format!("the API server failed at its eviction: {}", words(raw)) }
            }
            settled => settled,
        },
        Answer::Unanswered { retry_after } => match look_after(kube, call, words(raw)).await {
            Outcome::Again { why, .. } => Outcome::Again { wait: retry_after, why },
            settled => settled,
        },
        Answer::Invalid => Outcome::Invalid { why: words(raw) },
    }
}

/// What the server says, with the webhook's or policy's name where one is against it.
fn words(raw: &Raw) -> String {
    let Some(status) = raw.answer.as_ref().filter(|status| !status.message.is_empty()) else {
        return format!("HTTP {}", raw.status);
    };
    let words = against(&status.message).map_or_else(|| status.message.clone(), |against| against.to_string());
    words.chars().take(WORDS_CHARS_MAX).collect()
}

/// The server's own words: which budget, and its numbers.
fn budget_words(raw: &Raw) -> Option<String> {
    let details = raw.answer.as_ref()?.details.as_ref()?;
    details
        .causes
        .iter()
        .find(|cause| cause.reason == "DisruptionBudget")
        .map(|cause| cause.message.clone())
        .filter(|text| !text.is_empty())
}

/// The same after an answer that left it open; what was said is told with it, should the pod still be there.
async fn look_after(kube: &Kube, call: &Call, said: String) -> Outcome {
    match look(kube, &call.pod).await {
        Outcome::Again { wait, .. } => Outcome::Again { wait, why: said },
        settled => settled,
    }
}

/// Whose name it is now.
async fn look(kube: &Kube, pod: &PodFacts) -> Outcome {
    let api: Api<Pod> = Api::namespaced(kube.client(), &pod.namespace);
    match kube.effect("get pod", api.get_opt(&pod.name)).await {
        Ok(None) => Outcome::Gone,
        Ok(Some(found)) if found.metadata.uid.as_deref() != Some(&pod.uid) => Outcome::Gone,
        Ok(Some(found)) if found.metadata.deletion_timestamp.is_some() => Outcome::Accepted,
        Ok(Some(_)) => Outcome::Again { wait: None, why: String::new() },
        Err(_) => Outcome::Doubt,
    }
}

/// Past the budgets, by the command's own leave: bound to the UID, with its grace, and never past a finalizer.
async fn delete(kube: &Kube, call: &Call) -> Outcome {
    let api: Api<Pod> = Api::namespaced(kube.client(), &call.pod.namespace);
    let params = DeleteParams {
        grace_period_seconds: u32::try_from(call.grace_secs).ok(),
        preconditions: Some(Preconditions { uid: Some(call.pod.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    dies_at!("execute.before-delete");
    match kube.effect("delete pod", api.delete(&call.pod.name, &params)).await {
        Ok(_) => {
            dies_at!("execute.deleted");
            Outcome::Accepted
        }
        Err(error) if error.unsent() => Outcome::Unsent,
        Err(error) if error.not_found() || error.code() == Some(409) => look(kube, &call.pod).await,
        Err(error) if error.transient() => Outcome::Doubt,
        Err(error) if error.code() == Some(403) && lacks_right(&error.to_string()) => {
            Outcome::NoRight { why: error.to_string().chars().take(WORDS_CHARS_MAX).collect() }
        }
        Err(error) => Outcome::Denied { wait: None, why: error.to_string() },
    }
}

/// The API server names none of several budgets: find those that match, so that a person knows which to mend.
async fn name_budgets(kube: &Kube, pod: &PodFacts) -> String {
    let api: Api<PodDisruptionBudget> = Api::namespaced(kube.client(), &pod.namespace);
    let found: Result<_, Error> = kube.effect("list budgets", api.list(&ListParams::default().limit(500))).await;
    let Ok(found) = found else { return "more than one PodDisruptionBudget matches it".to_owned() };
    let matches = |budget: &PodDisruptionBudget| {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        selector.and_then(|selector| Selector::try_from(selector).ok()).is_some_and(|selector| selector.matches(&pod.labels))
    };
    let names: Vec<_> =
        found.items.iter().filter(|budget| matches(budget)).filter_map(|budget| budget.metadata.name.clone()).collect();
    format!("more than one PodDisruptionBudget matches it ({}): a person must mend that", names.join(", "))
}

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use kubesim::{Config, KubeSim, build};

    use super::*;

    fn said(status: u16, message: &str) -> Raw {
        let answer = kube::core::Status { message: message.to_owned(), code: status, ..kube::core::Status::default() };
        Raw { status, retry_after: None, answer: Some(answer) }
    }

    #[test]
    fn a_webhook_is_named_and_its_words_are_bounded() {
        let long = "x".repeat(10 * WORDS_CHARS_MAX);
        let told = words(&said(403, &format!(r#"admission webhook "guard.example.com" denied the request: {long}"#)));
        assert!(told.starts_with("the admission webhook guard.example.com says no: xxx"), "{told}");
        assert_eq!(told.chars().count(), WORDS_CHARS_MAX);
        assert_eq!(words(&said(500, "")), "HTTP 500");
        assert_eq!(words(&said(500, "etcdserver: request timed out")), "etcdserver: request timed out");
    }

    #[test]
    fn an_eviction_carries_uid_and_grace_under_the_key_that_servers_read() {
        let pod = PodFacts { namespace: "ml".into(), name: "a".into(), uid: "u1".into(), ..PodFacts::default() };
        let request = request(&Call { pod, grace_secs: 20, doubt: false, bypass: false });
        assert_eq!(request.uri(), "/api/v1/namespaces/ml/pods/a/eviction?fieldValidation=Strict&fieldManager=gpu-selfhealing");
        let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
        assert_eq!(body["deleteOptions"], json!({"gracePeriodSeconds": 20, "preconditions": {"uid": "u1"}}));
        assert_eq!(body["apiVersion"], "policy/v1");
        assert!(body.get("delete_options").is_none());
    }

    /// Failure table, row 12.
    #[tokio::test]
    async fn a_pod_that_came_under_the_name_of_one_that_went_is_neither_evicted_nor_deleted_in_its_place() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sim = KubeSim::start(Config::default()).await.unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        let kube = Kube::new(kube::Client::try_from(config).unwrap());
        sim.store().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}})).unwrap();
        // Bound to no node that there is: nobody starts or ends it.
        let came = sim.store().create(build::gpu_pod("ml", "train-0", "n1", 1, &[])).unwrap();
        let pod =
            PodFacts { namespace: "ml".into(), name: "train-0".into(), uid: "of-the-one-before".into(), ..PodFacts::default() };
        for bypass in [false, true] {
            let call = Call { pod: pod.clone(), grace_secs: 0, doubt: false, bypass };
            assert_eq!(evict(&kube, &call).await, Outcome::Gone, "past the budgets: {bypass}");
            let stays = sim.store().get("pods", "ml", "train-0");
            assert_eq!(stays.map(|pod| pod["metadata"].clone()), Some(came["metadata"].clone()), "past the budgets: {bypass}");
        }
    }
}
