//! What the narrow table of `kubectl get healactions` shows, where the whole would not fit eighty columns, and whether a drain is
//! held. Pure.
//!
//! Eighty columns are: 26 of the name, 13 of the node, 15 of what is done, 9 of the state, 5 of the age (`7d23h`), and four gaps of
//! three. The whole of each is in `-o wide`.

use gpuheal_proto::{bytes_text::clip, time::Timestamp};

use super::{HealActionStatus, PodRecord, record::set_condition};

/// `ip-10-0-12-34` is 13.
pub(super) const NODE_MAX: usize = 13;
/// `release xid 119` is 15, and leaves a `mark` ten letters for its fault.
pub(super) const WHAT_MAX: usize = 15;
/// Stands for what was cut off.
const CUT: char = '~';
/// Of what holds a drain so much is told beside its pods, where all of it is.
const BLOCKED_TEXT_MAX: usize = 512;

/// A node's name: its first label, and of that the end, in which those of one cluster differ.
pub(super) fn node(name: &str) -> String {
    if name.len() <= NODE_MAX {
        return name.to_owned();
    }
    let label = name.split('.').next().unwrap_or_default();
    let letters = label.chars().count();
    if letters <= NODE_MAX {
        return label.to_owned();
    }
    std::iter::once(CUT).chain(label.chars().skip(letters + 1 - NODE_MAX)).collect()
}

/// What is done and for which fault.
pub(super) fn what(action: &str, fault: &str) -> String {
    let whole = format!("{action} {fault}");
    let whole = whole.trim_end();
    if whole.len() <= WHAT_MAX {
        return whole.to_owned();
    }
    format!("{}{CUT}", clip(whole, WHAT_MAX - 1))
}

/// The state as the table has it: a drain that is held does not look like one that gets on.
pub(super) fn state(status: &HealActionStatus) -> String {
    let blocked = status.conditions.iter().any(|condition| condition.type_ == BLOCKED && condition.status == "True");
    if blocked && status.state == "STARTED" { "BLOCKED".to_owned() } else { status.state.clone() }
}

const BLOCKED: &str = "Blocked";

/// Says whether a drain at work is held, by which pod and why; nothing of a command that never was. Written with what is written anyway.
pub fn set_blocked(status: &mut HealActionStatus, now: Timestamp) {
    let pods: Vec<_> = status.steps.iter().filter(|step| step.state == "running").flat_map(|step| &step.pods).collect();
    let open = pods.iter().filter(|pod| !matches!(pod.state.as_str(), "gone" | "skipped")).count();
    let held: Vec<_> = pods.into_iter().filter(|pod| is_held(pod)).collect();
    let known = status.conditions.iter().any(|condition| condition.type_ == BLOCKED);
    if let Some(first) = held.first() {
        let told = format!("{} of {open} pods: {}/{}: {}", held.len(), first.namespace, first.name, first.reason);
        set_condition(status, BLOCKED, true, "PodsHeld", clip(&told, BLOCKED_TEXT_MAX), now);
    } else if known {
        set_condition(status, BLOCKED, false, "NothingHeld", "", now);
    }
}

/// It may not be evicted yet, or was and does not go.
fn is_held(pod: &PodRecord) -> bool {
    pod.state == "blocked" || pod.state == "evicting" && !pod.reason.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healaction::StepRecord;

    #[test]
    fn a_node_is_shown_by_what_tells_it_from_others() {
        for (name, shown) in [
            ("n1", "n1"),
            ("gpu-node-0123", "gpu-node-0123"),
            ("ip-10-0-12-34.eu-west-1.compute.internal", "ip-10-0-12-34"),
            ("gke-training-pool-a3-8f2d1c0b-x7kq", "~1c0b-x7kq"),
            ("", ""),
        ] {
            let told = node(name);
            assert!(told.len() <= NODE_MAX && told.ends_with(shown.trim_start_matches(CUT)), "{name}: {told}");
        }
        assert_eq!(node(&"n".repeat(253)), format!("~{}", "n".repeat(12)));
    }

    #[test]
    fn what_is_done_is_shown_with_its_fault_as_far_as_it_fits() {
        for (action, fault, shown) in [
            ("mark", "xid 79", "mark xid 79"),
            ("release", "xid 119", "release xid 119"),
            ("evict", "", "evict"),
            ("", "", ""),
            ("restart", "node_condition KernelDead", "restart node_c~"),
            ("evict", "alert ääääääää", "evict alert ä~"),
        ] {
            assert_eq!(what(action, fault), shown);
        }
    }

    fn pod(name: &str, state: &str, reason: &str) -> PodRecord {
        let (namespace, name, state, reason) = ("ml".to_owned(), name.to_owned(), state.to_owned(), reason.to_owned());
        PodRecord { namespace, name, state, reason, ..PodRecord::default() }
    }

    #[test]
    fn a_drain_that_is_held_says_so_by_whom_and_why_and_takes_it_back() {
        let running = |pods| StepRecord { state: "running".into(), pods, ..StepRecord::default() };
        let mut status = HealActionStatus { state: "STARTED".into(), ..HealActionStatus::default() };
        status.steps = vec![running(vec![pod("a", "evicting", ""), pod("b", "waiting", "")])];
        set_blocked(&mut status, Timestamp::EPOCH);
        assert_eq!((status.conditions.len(), state(&status).as_str()), (0, "STARTED"), "it never was");
        let why = "the budget guarded needs 1 healthy pods and has 1";
        status.steps =
            vec![running(vec![pod("a", "gone", ""), pod("b", "blocked", why), pod("c", "evicting", "held by finalizer x")])];
        set_blocked(&mut status, Timestamp::EPOCH);
        let told = &status.conditions[0];
        assert_eq!((&*told.type_, &*told.status, &*told.reason), ("Blocked", "True", "PodsHeld"));
        assert_eq!(told.message, format!("2 of 2 pods: ml/b: {why}"));
        assert_eq!(state(&status), "BLOCKED");
        status.steps = vec![running(vec![pod("b", "blocked", &"x".repeat(9999))])];
        set_blocked(&mut status, Timestamp::from_unix_ms(1));
        assert_eq!((status.conditions.len(), status.conditions[0].message.len()), (1, BLOCKED_TEXT_MAX));
        assert_eq!(status.conditions[0].last_transition_time, Timestamp::EPOCH.to_string(), "since then");
        status.steps[0].state = "failed".into();
        status.state = "FAILED".into();
        set_blocked(&mut status, Timestamp::EPOCH);
        assert_eq!((status.conditions[0].status.as_str(), state(&status).as_str()), ("False", "FAILED"));
    }
}
