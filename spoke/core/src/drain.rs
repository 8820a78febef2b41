//! Draining a node, planned: which pods, in which order, and which are left with why; how an eviction's answer is to be
//! understood; how long to wait before asking again; how much grace. Pure: sends nothing, knows no clock.

pub mod admission;
mod answer;
pub mod device;
pub mod pod;
pub mod users;
pub mod volume;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::{command::Drain, ids::GpuUuid, kubernetes::LABEL_EVICT};

use crate::gpu_resources::GpuResources;

pub use self::{
    answer::{Answer, Reply, backoff, classify, lacks_right, lacks_right_to},
    pod::PodFacts,
    users::{Claims, Devices, Unknown, Users},
};

/// How the reason of a pod that is spared begins.
const USES_ANOTHER: &str = "uses another GPU";
/// What the label [`LABEL_EVICT`] may say. Anything else is a protection that somebody has mistyped, and protects.
pub const EVICT_WORDS: [&str; 3] = ["now", "after-completion", "never"];
/// Kubernetes' own default grace.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);
/// Never below: 0 deletes at once, past the kubelet.
const GRACE_MIN: Duration = Duration::from_secs(1);

/// UIDs of pods that are ready and stay so, by their controller's UID.
pub type Ready = BTreeMap<String, BTreeSet<String>>;

/// What the planner needs besides the pods.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    /// The command's words.
    pub drain: &'a Drain,
    /// Which resources are GPUs.
    pub gpus: &'a GpuResources,
    /// The GPU, when the fault is one GPU's.
    pub gpu: Option<&'a GpuUuid>,
    /// Namespaces that the ceiling lets us touch.
    pub namespace_allowed: &'a dyn Fn(&str) -> bool,
    /// Namespaces whose owner allows stateful eviction.
    pub stateful_allowed: &'a BTreeSet<String>,
    /// What is known of storage: claims by `namespace/name` that are bound.
    pub bound_claims: &'a BTreeSet<String>,
    /// Ready pods in the whole cluster, as far as seen.
    pub ready_by_owner: &'a Ready,
    /// ResourceClaims, `namespace/name`, of which it is known that they are for no GPU. One that is not known counts as one
    /// that is.
    pub other_devices: &'a BTreeSet<String>,
    /// UIDs of pods of which it was known when this drain began that they use another GPU, whatever is known now.
    pub spared: &'a BTreeSet<String>,
}

/// Which pods go, in order, and which stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// At once, in parallel.
    pub stateless: Vec<Planned>,
    /// After every stateless one is gone, one after the other.
    pub stateful: Vec<Planned>,
    /// Not ours to move, or not allowed.
    pub skipped: Vec<Skipped>,
    /// Of those that are skipped because they use another GPU: their UIDs.
    pub spared: BTreeSet<String>,
}

/// A pod that is to go.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The pod as it was when the plan was made.
    pub pod: PodFacts,
    /// Evict only once its work is done, or at the deadline what policy says.
    pub after_completion: bool,
}

/// A pod that stays.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Which.
    pub pod: PodFacts,
    /// Why.
    pub why: String,
    /// It still holds a GPU, so the node is not drained.
    pub holds_gpu: bool,
}

impl Plan {
    /// Pods that are to go, in order.
    pub fn planned(&self) -> impl Iterator<Item = &Planned> {
        self.stateless.iter().chain(&self.stateful)
    }

    /// Takes from those that are to go whom there is a reason to leave where they are: they stay, and hold their GPUs.
    pub fn hold_back(&mut self, why: impl Fn(&PodFacts) -> Option<String>) {
        for list in [&mut self.stateless, &mut self.stateful] {
            for planned in std::mem::take(list) {
                match why(&planned.pod) {
                    Some(why) => self.skipped.push(Skipped { pod: planned.pod, why, holds_gpu: true }),
                    None => list.push(planned),
                }
            }
        }
    }

    /// Pods that hold a GPU and stay: while there is one, nobody may say that the node is drained.
    pub fn leftovers(&self) -> impl Iterator<Item = &Skipped> {
        self.skipped.iter().filter(|skipped| skipped.holds_gpu)
    }
}

/// Plans the drain of a node from its pods.
#[must_use]
pub fn plan(pods: Vec<PodFacts>, rules: &Rules<'_>) -> Plan {
    let mut plan = Plan::default();
    for pod in pods {
        match judge(&pod, rules) {
            Verdict::Elsewhere(why) => {
                plan.spared.insert(pod.uid.clone());
                plan.skipped.push(Skipped { pod, why, holds_gpu: false });
            }
            Verdict::NotOurs(why) => plan.skipped.push(Skipped { pod, why: why.to_owned(), holds_gpu: false }),
            Verdict::Stays(why) => plan.skipped.push(Skipped { pod, why, holds_gpu: true }),
            Verdict::Goes => {
                let after_completion = after_completion(&pod);
                let list = if pod.claims.is_empty() { &mut plan.stateless } else { &mut plan.stateful };
                list.push(Planned { pod, after_completion });
            }
        }
    }
    let by_name = |a: &Planned, b: &Planned| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name));
    plan.stateless.sort_by(by_name);
    plan.stateful.sort_by(by_name);
    plan
}

enum Verdict {
    NotOurs(&'static str),
    Elsewhere(String),
    Stays(String),
    Goes,
}

fn judge(pod: &PodFacts, rules: &Rules<'_>) -> Verdict {
    if let Some(why) = not_ours(pod, rules) {
        return Verdict::NotOurs(why);
    }
    if let Some(why) = elsewhere(pod, rules) {
        return Verdict::Elsewhere(why);
    }
    match stays(pod, rules).or_else(|| only_ready(pod, rules.ready_by_owner)) {
        Some(why) => Verdict::Stays(why),
        None => Verdict::Goes,
    }
}

/// Why a pod that holds a GPU is left where it is: its own word, the ceiling, its storage. Nothing when nothing keeps it. Also asked
/// when its turn comes, since all of that may change while others go.
#[must_use]
pub fn stays(pod: &PodFacts, rules: &Rules<'_>) -> Option<String> {
    match pod.label(LABEL_EVICT) {
        None => {}
        Some("never") => return Some(format!("label {LABEL_EVICT}: never")),
        Some(word) if EVICT_WORDS.contains(&word) => {}
        Some(word) => {
            return Some(format!("label {LABEL_EVICT}: {word:?} is none of {}, and counts as never", EVICT_WORDS.join(", ")));
        }
    }
    if !(rules.namespace_allowed)(&pod.namespace) {
        return Some(format!("the cluster's ceiling does not allow namespace {}", pod.namespace));
    }
    if pod.claims.is_empty() { None } else { stateful(pod, rules) }
}

fn not_ours(pod: &PodFacts, rules: &Rules<'_>) -> Option<&'static str> {
    if pod.mirror {
        return Some("mirror pod: the kubelet's own");
    }
    if pod.finished() {
        return Some("finished");
    }
    if pod.owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet") {
        return Some("DaemonSet pod: it would come back at once");
    }
    if !holds_gpu(pod, rules.gpus, rules.other_devices) {
        return Some("holds no GPU");
    }
    None
}

/// Known to use other GPUs than the faulty one, now or when the drain began.
fn elsewhere(pod: &PodFacts, rules: &Rules<'_>) -> Option<String> {
    let gpu = rules.gpu?.as_str();
    if !pod.gpu_uuids.is_empty() && !pod.gpu_uuids.contains(gpu) {
        let others: Vec<_> = pod.gpu_uuids.iter().map(String::as_str).collect();
        return Some(format!("{USES_ANOTHER}: {}", others.join(", ")));
    }
    (pod.gpu_uuids.is_empty() && rules.spared.contains(&pod.uid))
        .then(|| format!("{USES_ANOTHER}, as was known when the drain began"))
}

/// The checks of a pod with storage: its namespace's word, its claims bound.
fn stateful(pod: &PodFacts, rules: &Rules<'_>) -> Option<String> {
    if !rules.drain.include_stateful {
        return Some("has storage, and policy leaves stateful pods".to_owned());
    }
    if !rules.stateful_allowed.contains(&pod.namespace) {
        return Some(format!("has storage, and namespace {} does not allow stateful eviction", pod.namespace));
    }
    let unbound = pod.claims.iter().find(|claim| !rules.bound_claims.contains(&format!("{}/{claim}", pod.namespace)));
    unbound.map(|claim| format!("its claim {claim} is not bound"))
}

/// Why a pod with storage does not go yet: no other replica of its owner is ready. What is not known counts as no. Also asked when
/// its turn comes, since then others of them are gone.
#[must_use]
pub fn only_ready(pod: &PodFacts, ready_by_owner: &Ready) -> Option<String> {
    let owner = pod.owner.as_ref().filter(|owner| owner.replicated() && pod.ready && !pod.claims.is_empty())?;
    let others = ready_by_owner.get(&owner.uid).is_some_and(|ready| ready.iter().any(|uid| *uid != pod.uid));
    (!others).then(|| format!("the only ready replica of {} {}", owner.kind, owner.name))
}

/// Why a pod is left where it is that no controller makes anew: once evicted, it and its work are gone. Its own label may let it go.
#[must_use]
pub fn bare(pod: &PodFacts) -> Option<String> {
    let may_go = pod.owner.is_some() || pod.label(LABEL_EVICT).is_some_and(|word| EVICT_WORDS.contains(&word));
    (!may_go).then(|| format!("no controller makes it anew once it is evicted; label {LABEL_EVICT}: now lets it go all the same"))
}

/// Whether a pod asks to be let finish.
#[must_use]
pub fn after_completion(pod: &PodFacts) -> bool {
    pod.label(LABEL_EVICT) == Some("after-completion")
}

/// Whether a pod holds GPUs: requests of any container, init containers included, or a claim of devices of which it is not
/// known that they are others.
#[must_use]
pub fn holds_gpu(pod: &PodFacts, gpus: &GpuResources, other_devices: &BTreeSet<String>) -> bool {
    pod.resources.iter().any(|resource| gpus.is_gpu(resource))
        || pod.device_claims().any(|claim| claim.is_none_or(|claim| !other_devices.contains(&claim)))
}

/// Grace to ask for, in whole seconds: the pod's own, capped, never below one second.
#[must_use]
pub fn grace_secs(pod: &PodFacts, grace_max: Duration) -> u64 {
    pod.grace.unwrap_or(GRACE_DEFAULT).min(grace_max).max(GRACE_MIN).as_secs()
}

#[cfg(test)]
mod tests;
