//! Pods as the HealAction keeps them, and in words.

use gpuheal_spoke_core::drain::{PodFacts, Skipped};

use crate::healaction::PodRecord;

/// Bytes of an owner's UID in a record: one of the API server's own has 36.
const OWNER_UID_MAX: usize = 64;

/// The record of a pod that is to go.
pub(in super::super) fn planned_record(pod: &PodFacts) -> PodRecord {
    record(pod, "planned", String::new(), 0)
}

/// The record of a pod that stays.
pub(in super::super) fn skipped_record(skipped: &Skipped) -> PodRecord {
    record(&skipped.pod, "skipped", skipped.why.clone(), 0)
}

pub(super) fn record(pod: &PodFacts, state: &str, reason: String, eviction_calls: u32) -> PodRecord {
    PodRecord {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        state: state.to_owned(),
        reason,
        spared: false,
        came_later: false,
        past_budget: false,
        eviction_calls,
        owner_uid: pod.owner.as_ref().map(|owner| owner_uid(&owner.uid)).unwrap_or_default(),
    }
}

/// An owner's UID as a record keeps it. Whoever may make a pod writes its owners, and the API server asks no more of a UID there
/// than that it is not empty: what is none is left out, since a record that does not fit its schema would keep the whole node from
/// being healed.
fn owner_uid(uid: &str) -> String {
    let fits = uid.len() <= OWNER_UID_MAX && uid.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { uid.to_owned() } else { String::new() }
}

pub(super) fn blocked_words(pod: &PodFacts, why: &str) -> String {
    format!("pod {}/{} cannot be evicted yet: {why}", pod.namespace, pod.name)
}

pub(super) fn finalizers(pod: &PodFacts) -> String {
    pod.finalizers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
