//! A pod as far as draining looks at it, from its JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::time::{Timestamp, parse_rfc3339};
use serde_json::Value;

/// What we read of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFacts {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`: what ties.
    pub uid: String,
    /// `spec.nodeName`.
    pub node: String,
    /// `status.phase`.
    pub phase: String,
    /// The controlling owner.
    pub owner: Option<Owner>,
    /// A static pod's mirror.
    pub mirror: bool,
    /// Has a deletionTimestamp.
    pub deleting: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Option<Duration>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Names of extended resources that any container asks for.
    pub resources: BTreeSet<String>,
    /// How much of each its containers ask for together; a number that cannot be read is left out.
    pub amounts: BTreeMap<String, u64>,
    /// When its kubelet took it on.
    pub started: Option<Timestamp>,
    /// Names of the ResourceClaims that it shares devices by; `None` for one that is made from a template and not known yet.
    pub device_claims: Vec<Option<String>>,
    /// Names of its PersistentVolumeClaims.
    pub claims: Vec<String>,
    /// The Ready condition is True.
    pub ready: bool,
    /// `metadata.finalizers`.
    pub finalizers: Vec<Finalizer>,
    /// UUIDs of the GPUs that it uses, when some source has told; empty = unknown.
    pub gpu_uuids: BTreeSet<String>,
}

/// The owner that controls a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// What keeps a deleted pod, and who put it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finalizer {
    /// As in `metadata.finalizers`.
    pub name: String,
    /// Who wrote it, by `metadata.managedFields`; empty when those do not say.
    pub managers: BTreeSet<String>,
}

impl std::fmt::Display for Finalizer {
    /// With its owner: the manager that wrote it, else the domain in its name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let managers: Vec<_> = self.managers.iter().map(String::as_str).collect();
        match (managers.as_slice(), self.name.split_once('/')) {
            ([], Some((domain, _))) => write!(f, "{} (of {domain})", self.name),
            ([], None) => write!(f, "{} (of Kubernetes itself)", self.name),
            (managers, _) => write!(f, "{} (set by {})", self.name, managers.join(", ")),
        }
    }
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

impl Owner {
    /// Whether it keeps a number of equal replicas, so that "the only ready one" means something.
    #[must_use]
    pub fn replicated(&self) -> bool {
        matches!(self.kind.as_str(), "StatefulSet" | "ReplicaSet" | "ReplicationController")
    }
}

impl PodFacts {
    /// From the pod's JSON; nothing when it has no name or UID.
    #[must_use]
    pub fn from_json(pod: &Value) -> Option<Self> {
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let array = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let claim =
            |volume: &Value| volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str).map(ToOwned::to_owned);
        let facts = Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            uid: text("/metadata/uid"),
            node: text("/spec/nodeName"),
            phase: text("/status/phase"),
            owner: array("/metadata/ownerReferences").iter().find(|owner| owner["controller"] == true).map(owner),
            mirror: pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some(),
            deleting: pod.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null()),
            grace: pod.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_u64).map(Duration::from_secs),
            labels: pod.pointer("/metadata/labels").and_then(Value::as_object).map(labels).unwrap_or_default(),
            resources: array("/spec/initContainers").iter().chain(array("/spec/containers")).flat_map(resources).collect(),
            amounts: amounts(array("/spec/containers"), array("/spec/initContainers")),
            started: parse_rfc3339(&text("/status/startTime")).ok(),
            device_claims: array("/spec/resourceClaims").iter().map(|claim| device_claim(pod, claim)).collect(),
            claims: array("/spec/volumes").iter().filter_map(claim).collect(),
            ready: array("/status/conditions").iter().any(|c| c["type"] == "Ready" && c["status"] == "True"),
            finalizers: array("/metadata/finalizers").iter().filter_map(|name| Some(finalizer(pod, name.as_str()?))).collect(),
            gpu_uuids: BTreeSet::new(),
        };
        (!facts.uid.is_empty() && !facts.name.is_empty()).then_some(facts)
    }

    /// Its work is over.
    #[must_use]
    pub fn finished(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// `namespace/name` of each ResourceClaim; `None` where its name is not known.
    pub fn device_claims(&self) -> impl Iterator<Item = Option<String>> {
        self.device_claims.iter().map(|claim| claim.as_ref().map(|claim| format!("{}/{claim}", self.namespace)))
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

fn owner(owner: &Value) -> Owner {
    let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
    Owner { kind: text("kind"), name: text("name"), uid: text("uid") }
}

/// The object behind an entry of `spec.resourceClaims`: named there, or in the status once it was made from its template.
fn device_claim(pod: &Value, claim: &Value) -> Option<String> {
    let made = pod.pointer("/status/resourceClaimStatuses").and_then(Value::as_array).into_iter().flatten();
    let made = made.filter(|status| status["name"] == claim["name"]).find_map(|status| status["resourceClaimName"].as_str());
    claim["resourceClaimName"].as_str().or(made).map(ToOwned::to_owned)
}

fn finalizer(pod: &Value, name: &str) -> Finalizer {
    let key = format!("v:{}", Value::from(name));
    let wrote = |entry: &&Value| entry["fieldsV1"]["f:metadata"]["f:finalizers"].get(&key).is_some();
    let entries = pod.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let managers = entries.filter(wrote).filter_map(|entry| entry["manager"].as_str()).map(ToOwned::to_owned).collect();
    Finalizer { name: name.to_owned(), managers }
}

fn labels(map: &serde_json::Map<String, Value>) -> BTreeMap<String, String> {
    map.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// What an init container asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// It is restarted for as long as the pod lives: a sidecar.
    pub sidecar: bool,
    /// How much of each extended resource.
    pub amounts: BTreeMap<String, u64>,
}

/// What a pod asks for at once, by what its containers ask for each. They run together and have theirs at once, and with them the
/// sidecars. Any other init container runs before them, beside the sidecars that were begun by then, and may be given what comes free
/// again.
#[must_use]
pub fn at_once(containers: impl Iterator<Item = BTreeMap<String, u64>>, init: impl Iterator<Item = Init>) -> BTreeMap<String, u64> {
    let add = |sum: &mut BTreeMap<String, u64>, amounts: BTreeMap<String, u64>| {
        for (name, amount) in amounts {
            let sum = sum.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    };
    let (mut together, mut most) = (BTreeMap::new(), BTreeMap::<String, u64>::new());
    for Init { sidecar, amounts } in init {
        let mut now = together.clone();
        add(&mut now, amounts);
        if sidecar {
            together = now;
        } else {
            now.into_iter().for_each(|(name, amount)| highest(&mut most, name, amount));
        }
    }
    containers.for_each(|amounts| add(&mut together, amounts));
    together.into_iter().for_each(|(name, amount)| highest(&mut most, name, amount));
    most
}

/// A number that cannot be read is left out.
fn amounts(containers: &[Value], init: &[Value]) -> BTreeMap<String, u64> {
    let of = |container: &Value| -> BTreeMap<String, u64> {
        let amount = |name: &String| {
            let asked = ["requests", "limits"].iter().filter_map(|kind| container["resources"][kind][name].as_str()?.parse().ok());
            asked.max()
        };
        resources(container).iter().filter_map(|name| Some((name.clone(), amount(name)?))).collect()
    };
    let init = init.iter().map(|one| Init { sidecar: one["restartPolicy"] == "Always", amounts: of(one) });
    at_once(containers.iter().map(of), init)
}

fn highest(most: &mut BTreeMap<String, u64>, name: String, amount: u64) {
    let known = most.entry(name).or_default();
    *known = amount.max(*known);
}

/// Extended resources have a domain in their name; a request of 0 is none. Limits count too: for extended resources the
/// API server copies them into requests.
fn resources(container: &Value) -> Vec<String> {
    ["/resources/requests", "/resources/limits"]
        .iter()
        .filter_map(|pointer| container.pointer(pointer)?.as_object())
        .flatten()
        .filter(|(name, quantity)| name.contains('/') && *quantity != "0" && *quantity != 0)
        .map(|(name, _)| name.clone())
        .collect()
}
