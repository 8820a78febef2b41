//! Who is known to use which GPU, and of whom that is not known.

use serde_json::json;

use super::*;

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
    tell(&mut pod, &GpuResources::default(), users, claims);
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
    let slice = json!({"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "n1"}, "devices": [
        {"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}},
        {"name": "gpu-1-mig-3", "basic": {"attributes": {"uuid": {"string": "MIG-x"}, "parentUUID": {"string": "GPU-1"}}}},
        {"name": "gpu-2", "attributes": {"type": {"string": "gpu"}}},
    ]}});
    let mut claims = Claims::to(Devices::of(&[slice]));
    let gpu = "gpu.nvidia.com";
    for (name, given) in [
        ("ml/whole", vec![(gpu, "gpu-0"), ("dra.net", "nic-0")]),
        ("ml/slice", vec![(gpu, "gpu-1-mig-3")]),
        ("ml/nameless", vec![(gpu, "gpu-2")]),
        ("ml/nic", vec![("dra.net", "nic-0")]),
        ("ml/waits", vec![]),
    ] {
        claims.take(name, &claim(&given));
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

fn slice(driver: &str, generation: i64, devices: &[(&str, &str)]) -> Value {
    let device = |(name, uuid): &(&str, &str)| json!({"name": name, "attributes": {"uuid": {"string": uuid}}});
    let devices: Vec<_> = devices.iter().map(device).collect();
    json!({"spec": {"driver": driver, "pool": {"name": "n1", "generation": generation}, "devices": devices}})
}

#[test]
fn only_slices_of_the_driver_of_gpus_and_of_the_newest_generation_of_their_pool_tell_of_gpus() {
    let gpu = "gpu.nvidia.com";
    let slices = [
        slice(gpu, 2, &[("gpu-0", "GPU-new")]),
        slice(gpu, 1, &[("gpu-0", "GPU-old"), ("gpu-1", "GPU-gone")]),
        slice(gpu, 2, &[("gpu-2", "GPU-2")]),
        // Of another driver, in a pool and of a device of the same name, and published more often.
        slice("dra.example.com", 9, &[("gpu-0", "other"), ("gpu-1", "other")]),
    ];
    for order in [vec![0, 1, 2, 3], vec![3, 2, 1, 0]] {
        let slices: Vec<_> = order.iter().map(|at: &usize| slices[*at].clone()).collect();
        let mut claims = Claims::to(Devices::of(&slices));
        for device in ["gpu-0", "gpu-1", "gpu-2"] {
            claims.take(&format!("ml/{device}"), &claim(&[(gpu, device)]));
        }
        let by = |name: &str| json!([{"name": name, "resourceClaimName": name}]);
        let of = |name: &str| told(pod("a", 0, &by(name)), None, &claims);
        assert_eq!((of("gpu-0"), of("gpu-1"), of("gpu-2")), (vec!["GPU-new".into()], vec![], vec!["GPU-2".into()]), "{order:?}");
        let knows = |uuid: &str| claims.knows(&GpuUuid::parse(uuid).unwrap());
        assert_eq!(["GPU-new", "GPU-old", "GPU-gone", "GPU-2", "other"].map(knows), [true, false, false, true, false]);
    }
}

fn container(gpus: u32, always: bool) -> Value {
    let restart = if always { json!("Always") } else { Value::Null };
    json!({"restartPolicy": restart, "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}})
}

#[test]
fn a_sidecar_holds_its_gpus_beside_its_pods_other_containers() {
    let (once, sidecar) = (|gpus| container(gpus, false), |gpus| container(gpus, true));
    for (init, want) in [
        (vec![sidecar(1)], 3),
        (vec![once(1)], 2),
        (vec![once(5)], 5),
        (vec![sidecar(1), once(2)], 3),
        (vec![once(2), sidecar(1)], 3),
        (vec![sidecar(1), once(3)], 4),
        (vec![once(3), sidecar(1)], 3),
        (vec![sidecar(1), sidecar(1)], 4),
    ] {
        let spec = json!({"containers": [once(1), once(1)], "initContainers": init});
        let pod = PodFacts::from_json(&json!({"metadata": {"name": "a", "uid": "a"}, "spec": spec})).unwrap();
        assert_eq!(pod.amounts.get("nvidia.com/gpu"), Some(&want), "{spec}");
    }
}

#[test]
fn a_pod_of_which_only_the_sidecars_gpu_is_not_told_is_not_known_to_use_another() {
    let spec = json!({"containers": [container(1, false)], "initContainers": [container(1, true)]});
    let status = json!({"phase": "Running", "startTime": STARTED});
    let metadata = json!({"namespace": "ml", "name": "a", "uid": "a"});
    let pod = PodFacts::from_json(&json!({"metadata": metadata, "spec": spec, "status": status})).unwrap();
    assert!(told(pod.clone(), Some(&users(at(300), &[("ml/a", "GPU-1")])), &Claims::default()).is_empty());
    let both = users(at(300), &[("ml/a", "GPU-1"), ("ml/a", "GPU-2")]);
    assert_eq!(told(pod, Some(&both), &Claims::default()), ["GPU-1", "GPU-2"]);
}

#[test]
fn a_gpu_is_known_once_a_page_or_a_slice_has_shown_it() {
    let mut page = users(at(300), &[("ml/a", "GPU-1")]);
    page.shows("GPU-2");
    let knows = |uuid: &str| page.knows(&GpuUuid::parse(uuid).unwrap());
    assert_eq!(["GPU-1", "GPU-2", "GPU-3"].map(knows), [true, true, false]);
}
