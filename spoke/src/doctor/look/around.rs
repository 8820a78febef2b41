//! What the spoke would meet: nodes, GPU pods and what is on them, exporters, the webhook's listener.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt as _;
use gpuheal_proto::{
    chain::chain,
    kubernetes::{LABEL_EVICT, LABEL_STATEFUL_EVICTION},
};
use gpuheal_spoke_core::{
    gpu_resources::GpuResources,
    scrape::{alias::Aliases, dcgm, metric::Metric},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolume, Pod, PodSpec},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::ListParams,
    core::{Selector, SelectorExt as _},
};

use super::{
    super::facts::{self, Exporter, Seen, Webhook},
    all, get,
};
use crate::{
    args::Doctor,
    scrape::{self, Fetcher},
    watch::{PodSeen, ServicePod, gpu_count},
};

/// Exporters asked at once: of 8 MiB a page at most, 128 MiB.
const AT_ONCE: usize = 16;
/// One page, and one answer of the listener.
const HTTP_WITHIN: Duration = Duration::from_secs(10);
/// Labels by which GPU and node feature discovery say that there is a GPU.
const GPU_LABELS: [(&str, &str); 2] = [("nvidia.com/gpu.present", "true"), ("feature.node.kubernetes.io/pci-10de.present", "true")];
/// In the names of models without ECC memory: gamers' cards, which are found in many a lab.
const WITHOUT_ECC: [&str; 2] = ["GeForce", "TITAN"];

pub(super) async fn nodes(client: &Client, gpus: &GpuResources) -> Seen<Vec<facts::Node>> {
    all(&Api::<Node>::all(client.clone()), ListParams::default(), |node| {
        let status = node.status.unwrap_or_default();
        let labels = node.metadata.labels.unwrap_or_default();
        Some(facts::Node {
            gpus: gpu_count(status.capacity.as_ref(), gpus),
            offered: gpu_count(status.allocatable.as_ref(), gpus),
            driver: driver(&labels),
            labelled: GPU_LABELS.iter().any(|(key, value)| labels.get(*key).is_some_and(|has| has == value)),
            name: node.metadata.name.unwrap_or_default(),
        })
    })
    .await
}

/// As GPU feature discovery tells it: at once, or in parts where it is older.
fn driver(labels: &BTreeMap<String, String>) -> String {
    let full = labels.get("nvidia.com/cuda.driver-version.full").cloned();
    let parts = ["major", "minor", "rev"].map(|part| labels.get(&format!("nvidia.com/cuda.driver.{part}")).map(String::as_str));
    full.unwrap_or_else(|| parts.into_iter().flatten().collect::<Vec<_>>().join("."))
}

/// GPU pods that a drain would look at, and exporters' pods.
pub(super) async fn pods(client: &Client, args: &Doctor, gpus: &GpuResources) -> (Seen<Vec<facts::Pod>>, Seen<Vec<ServicePod>>) {
    let api: Api<Pod> = Api::all(client.clone());
    let exporters = ListParams::default().labels(&args.sources.exporter_selector);
    tokio::join!(all(&api, ListParams::default(), |pod| gpu_pod(pod, gpus)), all(&api, exporters, service_pod))
}

/// Whether it asks for GPUs, by resource or by claim.
fn holds_gpu(spec: &PodSpec, gpus: &GpuResources) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let asked = containers.filter_map(|container| container.resources.as_ref());
    let asked = asked.flat_map(|both| [both.limits.as_ref(), both.requests.as_ref()]).flatten();
    spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
        || asked.flat_map(BTreeMap::keys).any(|name| gpus.is_gpu(name))
}

fn gpu_pod(pod: Pod, gpus: &GpuResources) -> Option<facts::Pod> {
    let finished = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
    let mirror = pod.metadata.annotations.iter().flatten().any(|(key, _)| key == "kubernetes.io/config.mirror");
    if !pod.spec.as_ref().is_some_and(|spec| holds_gpu(spec, gpus)) || finished || mirror {
        return None;
    }
    let controller = pod.metadata.owner_references.into_iter().flatten().find(|owner| owner.controller == Some(true));
    if controller.as_ref().is_some_and(|owner| owner.kind == "DaemonSet") {
        return None;
    }
    let labels = pod.metadata.labels.unwrap_or_default();
    let (mut claims, mut scratch) = (Vec::new(), Vec::new());
    for volume in pod.spec.and_then(|spec| spec.volumes).into_iter().flatten() {
        // Shared memory is no data that anybody would miss.
        let on_disk = volume.empty_dir.is_some_and(|dir| dir.medium.as_deref() != Some("Memory"));
        if on_disk || volume.host_path.is_some() || volume.ephemeral.is_some() {
            scratch.push(volume.name);
        }
        claims.extend(volume.persistent_volume_claim.map(|claim| claim.claim_name));
    }
    Some(facts::Pod {
        namespace: pod.metadata.namespace.unwrap_or_default(),
        name: pod.metadata.name.unwrap_or_default(),
        evict: labels.get(LABEL_EVICT).cloned(),
        labels,
        controller: controller.map(|owner| format!("{} {}", owner.kind, owner.name)).unwrap_or_default(),
        claims,
        scratch,
    })
}

/// Nothing is on pods that could not be seen.
pub(super) async fn budgets(client: &Client, pods: &Seen<Vec<facts::Pod>>) -> Seen<Vec<facts::Budget>> {
    let pods = pods.as_ref().map_err(Clone::clone)?;
    let mut by_namespace: BTreeMap<&str, Vec<&facts::Pod>> = BTreeMap::new();
    for pod in pods {
        by_namespace.entry(&pod.namespace).or_default().push(pod);
    }
    all(&Api::<PodDisruptionBudget>::all(client.clone()), ListParams::default(), |budget| {
        let namespace = budget.metadata.namespace.unwrap_or_default();
        let (spec, status) = (budget.spec.unwrap_or_default(), budget.status.unwrap_or_default());
        // Without a selector it covers nothing, with an empty one everything.
        let selector = spec.selector.and_then(|selector| Selector::try_from(selector).ok());
        let covers = |pod: &&&facts::Pod| selector.as_ref().is_some_and(|selector| selector.matches(&pod.labels));
        let covers: Vec<_> = by_namespace.get(namespace.as_str()).into_iter().flatten().filter(covers).collect();
        let failed = status.conditions.into_iter().flatten().find(|one| one.reason == "SyncFailed");
        (!covers.is_empty()).then(|| facts::Budget {
            covers: covers.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect(),
            namespace: namespace.clone(),
            name: budget.metadata.name.unwrap_or_default(),
            expected: status.expected_pods,
            desired: status.desired_healthy,
            healthy: status.current_healthy,
            unhealthy_may_go: spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
            failed: failed.map(|one| one.message).unwrap_or_default(),
        })
    })
    .await
}

/// Asked of each namespace by its name, as a drain does: the account may not list them.
pub(super) async fn allowed(client: &Client, pods: &Seen<Vec<facts::Pod>>) -> Seen<BTreeSet<String>> {
    let pods = pods.as_ref().map_err(Clone::clone)?;
    let stateful: BTreeSet<&str> = pods.iter().filter(|pod| !pod.claims.is_empty()).map(|pod| pod.namespace.as_str()).collect();
    let api: Api<Namespace> = Api::all(client.clone());
    let mut allowed = BTreeSet::new();
    for name in stateful {
        let labels = get(&api, name).await?.and_then(|namespace| namespace.metadata.labels).unwrap_or_default();
        if labels.get(LABEL_STATEFUL_EVICTION).is_some_and(|word| word == "allowed") {
            allowed.insert(name.to_owned());
        }
    }
    Ok(allowed)
}

/// Volumes of one node, by the claim that has them. Not looked for where no GPU pod has a claim.
pub(super) async fn local_claims(client: &Client, pods: &Seen<Vec<facts::Pod>>) -> Seen<BTreeSet<String>> {
    if pods.as_ref().map_err(Clone::clone)?.iter().all(|pod| pod.claims.is_empty()) {
        return Ok(BTreeSet::new());
    }
    let local = all(&Api::<PersistentVolume>::all(client.clone()), ListParams::default(), |volume| {
        let spec = volume.spec?;
        let claim = spec.claim_ref?;
        let here = spec.local.is_some() || spec.host_path.is_some();
        here.then(|| format!("{}/{}", claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default()))
    })
    .await?;
    Ok(local.into_iter().collect())
}

/// As the scraper's own watch takes it.
fn service_pod(pod: Pod) -> Option<ServicePod> {
    let seen: PodSeen = serde_json::to_value(pod).and_then(serde_json::from_value).ok()?;
    Some(ServicePod::of(&seen))
}

pub(super) async fn exporters(pods: Seen<Vec<ServicePod>>, args: &Doctor) -> Seen<Vec<Exporter>> {
    let targets = scrape::targets(&mut pods?.iter(), &args.sources.exporters, args.sources.exporter_port);
    let (fetcher, aliases) = (Fetcher::new(), Aliases::new());
    let asked = targets.into_iter().map(|target| async {
        let page = fetcher.get(&target.url, HTTP_WITHIN).await.map_err(|error| error.to_string());
        let read = page.and_then(|page| {
            let page = dcgm::decode(&page.bytes, &aliases).map_err(|error| error.to_string())?;
            Ok((metrics(&page), without_ecc(&page)))
        });
        let without_ecc = read.as_ref().is_ok_and(|(_, without)| *without);
        let page = read.map(|(metrics, _)| metrics);
        Exporter { address: target.address().to_owned(), node: target.node, page, without_ecc }
    });
    let mut known: Vec<Exporter> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    known.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(known)
}

fn metrics(page: &dcgm::Page<'_>) -> BTreeSet<Metric> {
    Metric::ALL.iter().copied().filter(|metric| page.rows_of(*metric) > 0).collect()
}

/// By the names of its GPUs' models: of those that are known to have no ECC memory there is no such metric to export.
fn without_ecc(page: &dcgm::Page<'_>) -> bool {
    let without = |gpu: &dcgm::GpuRow<'_>| gpu.model.is_some_and(|model| WITHOUT_ECC.iter().any(|part| model.contains(part)));
    !page.gpus.is_empty() && page.gpus.iter().all(without)
}

/// Three requests that start nothing: the last is an empty object, which is no alert.
pub(super) async fn webhook(args: &Doctor) -> Option<Webhook> {
    let url = args.webhook.as_ref()?.trim_end_matches('/').to_owned();
    let client = reqwest::Client::builder().timeout(HTTP_WITHIN).redirect(reqwest::redirect::Policy::none()).no_proxy().build();
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            return Some(Webhook { url, ready: Err(error.to_string()), without_token: Err(String::new()), with_token: None });
        }
    };
    let words = |error: reqwest::Error| chain(&error.without_url()).to_string();
    let ready = async {
        let answer = client.get(format!("{url}/readyz")).send().await.map_err(words)?;
        let code = answer.status().as_u16();
        Ok((code, answer.text().await.map_err(words)?))
    };
    let post = |token: Option<String>| {
        let mut request = client.post(format!("{url}/api/v1/alert")).header("content-type", "application/json").body("{}");
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        async move { request.send().await.map(|answer| answer.status().as_u16()).map_err(words) }
    };
    let with_token = match &args.webhook_token_file {
        None => None,
        Some(path) => Some(match tokio::fs::read_to_string(path).await {
            Ok(token) => post(Some(token.trim().to_owned())).await,
            Err(error) => Err(format!("its token cannot be read from {}: {error}", path.display())),
        }),
    };
    let (ready, without_token) = (ready.await, post(None).await);
    Some(Webhook { url, ready, without_token, with_token })
}
