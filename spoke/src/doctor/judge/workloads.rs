//! Findings about what a drain would meet: budgets that let no pod go, pods that nobody makes anew, storage.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_proto::kubernetes::LABEL_STATEFUL_EVICTION;
use gpuheal_spoke_core::drain::EVICT_WORDS;

use super::{seen, some};
use crate::{
    doctor::{
        Finding, Level,
        facts::{Budget, Facts, Pod},
    },
    execute::{DRA_GROUP, DRA_VERSION},
};

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut all = Vec::new();
    if let Some(served) = seen("dra", &facts.dra, &mut all) {
        all.push(dra(served));
    }
    if let Some(known) = seen("budget", &facts.budgets, &mut all) {
        budgets(known, &mut all);
    }
    if let Some(known) = seen("pods", &facts.pods, &mut all) {
        pods(known, &mut all);
        stateful(facts, known, &mut all);
    }
    all
}

/// A drain of one GPU asks for ResourceClaims and ResourceSlices in one version.
fn dra(served: &[String]) -> Finding {
    let finding = |level, found: String, next| Finding::new(level, "dra", DRA_GROUP, found, next);
    if served.is_empty() {
        return finding(Level::Ok, "is not served: no pod has its GPU by a ResourceClaim".to_owned(), "");
    }
    if served.iter().any(|version| version == DRA_VERSION) {
        return finding(Level::Ok, format!("{DRA_VERSION} is served: what a ResourceClaim was given can be told"), "");
    }
    let found = format!(
        "is served as {} and not as {DRA_VERSION}: which GPU a ResourceClaim was given is not known, and a pod with any claim counts as one \
         that uses the faulty GPU",
        served.join(", ")
    );
    finding(Level::Warning, found, "upgrade to Kubernetes 1.34, which serves v1 by default, where pods have their GPUs by claims")
}

/// Only budgets that are on pods with GPUs are in a drain's way.
fn budgets(known: &[Budget], all: &mut Vec<Finding>) {
    let before = all.len();
    let mut on: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for budget in known.iter().filter(|budget| !budget.covers.is_empty()) {
        let about = format!("{}/{}", budget.namespace, budget.name);
        let mut tell = |level, found, next| all.push(Finding::new(level, "budget", &about, found, next));
        let Budget { expected, desired, healthy, .. } = *budget;
        if !budget.failed.is_empty() {
            let found = format!("its numbers cannot be told, so that no pod of it ever goes: {}", budget.failed);
            tell(Level::Problem, found, "cover only pods whose controller has a scale, or use maxUnavailable no more");
        } else if expected > 0 && desired >= expected {
            let found = format!("lets no pod go, ever: {desired} of {expected} must be healthy");
            tell(Level::Problem, found, "lower minAvailable, raise maxUnavailable, or add a replica");
        } else if healthy < desired && !budget.unhealthy_may_go {
            let found = format!("{healthy} are healthy and {desired} must be: pods that are not ready hold the others");
            tell(Level::Warning, found, "mend those pods, or set unhealthyPodEvictionPolicy: AlwaysAllow");
        }
        budget.covers.iter().for_each(|pod| on.entry(pod).or_default().push(&budget.name));
    }
    for (pod, budgets) in on.into_iter().filter(|(_, budgets)| budgets.len() > 1) {
        let found = format!("is under {} budgets, and no such pod can be evicted: {}", budgets.len(), some(&budgets));
        all.push(Finding::new(Level::Problem, "budget", pod, found, "leave it one"));
    }
    if all.len() == before {
        all.push(Finding::new(Level::Ok, "budget", "", "none is in a drain's way for ever".to_owned(), ""));
    }
}

/// One finding per namespace and kind: a fleet of pods is no list for people.
fn pods(known: &[Pod], all: &mut Vec<Finding>) {
    let mut tell = |level, fits: &dyn Fn(&Pod) -> bool, found: &str, next: &str| {
        for (namespace, names) in by_namespace(known, fits) {
            let found = format!("{} {found}: {}", count(names.len()), some(&names));
            all.push(Finding::new(level, "pods", namespace, found, next));
        }
    };
    tell(
        Level::Warning,
        &|pod| pod.controller.is_empty() && pod.evict.is_none(),
        "that no controller makes anew, which a drain leaves where they are",
        "give them a controller, or let them go: gpu-selfhealing.io/evict: now",
    );
    tell(
        Level::Warning,
        &|pod| !pod.scratch.is_empty(),
        "with data that is the pod's or the node's alone (emptyDir, ephemeral, hostPath), which an eviction loses or leaves behind",
        "keep checkpoints elsewhere, or let them finish: gpu-selfhealing.io/evict: after-completion",
    );
    tell(
        Level::Warning,
        &|pod| pod.evict.as_deref().is_some_and(|word| !EVICT_WORDS.contains(&word)),
        "whose label gpu-selfhealing.io/evict says what nobody knows, which counts as never",
        "set it to now, after-completion or never",
    );
    tell(Level::Note, &|pod| pod.evict.as_deref() == Some("never"), "never to be evicted, by a label", "");
    if known.is_empty() {
        all.push(Finding::new(Level::Note, "pods", "", "no pod holds a GPU".to_owned(), ""));
    }
}

/// The namespace's word, and volumes that are on one node alone.
fn stateful(facts: &Facts, known: &[Pod], all: &mut Vec<Finding>) {
    let stateful = by_namespace(known, &|pod| !pod.claims.is_empty());
    if stateful.is_empty() {
        return;
    }
    if let Some(allowed) = seen("stateful", &facts.allowed, all) {
        for (namespace, names) in stateful {
            all.push(if allowed.contains(namespace) {
                let found = format!("{} with storage, whose eviction the namespace allows", count(names.len()));
                Finding::new(Level::Ok, "stateful", namespace, found, "")
            } else {
                let found = format!("{} with storage, whose eviction the namespace has not allowed: {}", count(names.len()), some(&names));
                let next = format!(
                    "confirm storage and backups with its owner, then kubectl label namespace {namespace} {LABEL_STATEFUL_EVICTION}=allowed"
                );
                Finding::new(Level::Warning, "stateful", namespace, found, &next)
            });
        }
    }
    if let Some(local) = seen("storage", &facts.local_claims, all) {
        let is_local = |pod: &Pod| pod.claims.iter().any(|claim| local.contains(&format!("{}/{claim}", pod.namespace)));
        for (namespace, names) in by_namespace(known, &is_local) {
            let found = format!(
                "{} with a volume on one node's own disk, so that no other node can start it: {}",
                count(names.len()),
                some(&names)
            );
            all.push(Finding::new(Level::Warning, "storage", namespace, found, "move the data to storage that other nodes reach"));
        }
    }
}

fn count(pods: usize) -> String {
    format!("{pods} GPU pod{}", if pods == 1 { "" } else { "s" })
}

fn by_namespace<'a>(known: &'a [Pod], fits: &dyn Fn(&Pod) -> bool) -> BTreeMap<&'a str, Vec<&'a str>> {
    let mut names: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in known.iter().filter(|pod| fits(pod)) {
        names.entry(&pod.namespace).or_default().insert(&pod.name);
    }
    names.into_iter().map(|(namespace, names)| (namespace, names.into_iter().collect())).collect()
}
