//! Who is known to use which GPU, and of whom that is not known.

use serde_json::json;

use super::*;
use crate::verify::testing;

const STARTED: &str = "2026-11-29T12:00:00Z";

fn at(seconds: u64) -> Timestamp {
    gpuheal_proto::time::parse_rfc3339(STARTED).unwrap().after(Duration::from_secs(seconds))
}

fn pod(name: &str, gpus: u32, claims: &Value) -> PodFacts {
    let amount = json!({"nvidia.com/gpu": gpus.to_string()});
    PodFacts::from_json(&json!({
        "metadata": {"namespace": "ml", "name": name, "uid": name},
        "spec": {"containers": [{"resources": {"limits": amount, "requests": amount}}], "resourceClaims": claims},
        "status": {"phase": "Running", "startTime": STARTED},
    }))
    .unwrap()
}

fn told(mut pod: PodFacts, users: Option<&Users>, claims: &Claims) -> Vec<String> {
    let gpuheal_proto::command::Step::Drain(drain) = testing::drain() else { unreachable!() };
    tell(&mut pod, &drain, users, claims);
    pod.gpu_uuids.into_iter().collect()
}

fn users(as_of: Timestamp, all: &[(&str, &str)]) -> Users {
    let mut users = Users::new(as_of);
    all.iter().for_each(|(pod, gpu)| users.uses(pod, gpu));
    users
}

#[test]
fn a_pods_gpus_are_known_all_together_or_not_at_all() {
    let both = users(at(300), &[("ml/a", "GPU-1"), ("ml/b", "GPU-2"), ("ml/b", "GPU-3"), ("other/c", "GPU-4")]);
    let none = Claims::default();
    assert_eq!(told(pod("a", 1, &json!([])), Some(&both), &none), ["GPU-1"]);
    assert_eq!(told(pod("b", 2, &json!([])), Some(&both), &none), ["GPU-2", "GPU-3"]);
    assert!(
        told(pod("b", 3, &json!([])), Some(&both), &none).is_empty(),
        "the row of a third is missing: it may be the faulty one"
    );
    assert!(told(pod("c", 1, &json!([])), Some(&both), &none).is_empty(), "another of that name in another namespace");
    assert!(told(pod("a", 1, &json!([])), None, &none).is_empty());
}

#[test]
fn what_a_page_says_of_a_pod_that_has_just_begun_may_be_of_the_one_before() {
    for (as_of, known) in [(at(0), false), (at(59), false), (at(60), true)] {
        let page = users(as_of, &[("ml/a", "GPU-1")]);
        assert_eq!(!told(pod("a", 1, &json!([])), Some(&page), &Claims::default()).is_empty(), known, "{as_of}");
    }
    let page = users(at(300), &[("ml/a", "GPU-1")]);
    assert!(told(PodFacts { started: None, ..pod("a", 1, &json!([])) }, Some(&page), &Claims::default()).is_empty());
}

fn claim(devices: &[(&str, &str)]) -> Value {
    let result = |(driver, device): &(&str, &str)| json!({"driver": driver, "pool": "n1", "device": device});
    json!({"status": {"allocation": {"devices": {"results": devices.iter().map(result).collect::<Vec<_>>()}}}})
}

#[test]
fn a_claims_gpus_are_those_that_it_was_given() {
    let slice = json!({"spec": {"pool": {"name": "n1"}, "devices": [
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}},
        {"name": "gpu-1-mig-3", "basic": {"attributes": {"uuid": {"string": "MIG-x"}, "parentUUID": {"string": "GPU-1"}}}},
        {"name": "gpu-2", "attributes": {"type": {"string": "gpu"}}},
    ]}});
    let known = devices([&slice]);
    let mut claims = Claims::default();
    let gpu = "gpu.nvidia.com";
    for (name, given) in [
        ("ml/whole", vec![(gpu, "gpu-0"), ("dra.net", "nic-0")]),
        ("ml/slice", vec![(gpu, "gpu-1-mig-3")]),
        ("ml/nameless", vec![(gpu, "gpu-2")]),
        ("ml/nic", vec![("dra.net", "nic-0")]),
        ("ml/waits", vec![]),
    ] {
        claims.take(name, &claim(&given), &known);
    }
    let by = |names: &[&str]| json!(names.iter().map(|name| json!({"name": name, "resourceClaimName": name})).collect::<Vec<_>>());
    for (names, want) in [
        (vec!["whole"], vec!["GPU-0"]),
        (vec!["slice", "whole", "nic"], vec!["GPU-0", "GPU-1"]),
        (vec!["whole", "nameless"], vec![]),
        (vec!["waits"], vec![]),
        (vec!["not-read"], vec![]),
    ] {
        assert_eq!(told(pod("a", 0, &by(&names)), None, &claims), want, "{names:?}");
    }
    let page = users(at(300), &[("ml/a", "GPU-7")]);
    assert_eq!(told(pod("a", 1, &by(&["whole"])), Some(&page), &claims), ["GPU-0", "GPU-7"], "both ways at once");
    assert!(told(pod("a", 1, &by(&["whole"])), None, &claims).is_empty());
}
