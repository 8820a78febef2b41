//! Drains of one GPU: of its users alone where it is known who they are, of all where it is not, and saying which it was.

use std::time::Duration;

use gpuheal_proto::{
    command::Command,
    fault::GpuRef,
    ids::GpuUuid,
    link::v1::{CommandState, CommandStatus},
};
use gpuheal_spoke::clock;
use gpuheal_spoke_core::drain::Users;
use serde_json::{Value, json};
use testkube::settled;

use super::in_state;
use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    only_the_users_of_the_faulty_gpu_go_and_who_uses_another_stays_and_is_told,
    where_nobody_tells_who_uses_the_gpu_every_gpu_pod_goes_and_that_is_said,
    who_takes_the_drain_of_one_gpu_up_spares_whom_its_first_leader_spared,
    the_devices_that_a_claim_was_given_tell_whose_gpu_it_is,
    a_gpu_that_no_source_knows_spares_nobody_and_that_is_said,
    each_gpu_that_fails_has_its_users_drained_by_a_command_of_its_own,
];

/// The GPU at fault, and one beside it.
const FAULTY: &str = "GPU-11111111-0000-0000-0000-000000000000";
const OTHER: &str = "GPU-22222222-0000-0000-0000-000000000000";

async fn of_the_faulty_gpu(w: &World) -> Command {
    let mut command = w.command("n1", 1, vec![mark(), drain()]).await;
    command.target.gpu = Some(named(FAULTY));
    command
}

fn named(uuid: &str) -> GpuRef {
    GpuRef { uuid: Some(GpuUuid::parse(uuid).unwrap()), ..GpuRef::default() }
}

/// What an exporter says once all of these pods have run for a while.
fn exporter_says(w: &World, spoke: &Spoke, users: &[(&str, &str)]) {
    let mut says = Users::new(clock::wall().after(Duration::from_secs(3600)));
    users.iter().for_each(|(pod, gpu)| says.uses(&format!("{}/{pod}", w.ns), gpu));
    *spoke.exporter.0.lock().unwrap() = Ok(says);
}

async fn evicted(w: &World) -> Vec<String> {
    let mut names: Vec<_> = w.evictions().await.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn why_spared(end: &CommandStatus, pod: &str) -> String {
    in_state(end, pod, "skipped").unwrap_or_default()
}

async fn only_the_users_of_the_faulty_gpu_go_and_who_uses_another_stays_and_is_told(w: World) {
    w.gpu_pod("mine", "n1", json!({})).await;
    w.gpu_pod("other", "n1", json!({})).await;
    w.gpu_pod("new", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    // Of the third no row tells: it may use the GPU.
    exporter_says(&w, &spoke, &[("mine", FAULTY), ("other", OTHER)]);
    let command = of_the_faulty_gpu(&w).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(evicted(&w).await, ["mine", "new"]);
    assert!(w.pod("other").await.is_some());
    assert_eq!(why_spared(&end, "other"), format!("uses another GPU: {OTHER}"));
    let action = w.action(command.id).await.unwrap();
    assert_eq!(spared(&action), ["other"], "{action}");
    let action = action.to_string();
    assert!(action.contains(&format!("uses another GPU: {OTHER}")), "{action}");
    let told = format!("1 on other GPUs than {FAULTY} left alone, 1 of which it is not known were to go");
    assert!(action.contains(&told), "{action}");
}

async fn where_nobody_tells_who_uses_the_gpu_every_gpu_pod_goes_and_that_is_said(w: World) {
    w.gpu_pod("a", "n1", json!({})).await;
    w.gpu_pod("b", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = of_the_faulty_gpu(&w).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(evicted(&w).await, ["a", "b"]);
    let why = "the node's exporter has given no page that is known to be fresh";
    let told = format!("which of 2 use {FAULTY} is not known, so all were to go: {why}");
    let messages: Vec<_> = end.steps.iter().map(|step| step.message.as_str()).collect();
    assert!(messages.iter().any(|message| message.contains(&told)), "{messages:?}");
}

async fn who_takes_the_drain_of_one_gpu_up_spares_whom_its_first_leader_spared(w: World) {
    w.guarded_pod().await;
    w.gpu_pod("other", "n1", json!({})).await;
    let first = Spoke::leading(&w, "a", "").await;
    exporter_says(&w, &first, &[("guarded-1", FAULTY), ("other", OTHER)]);
    let command = of_the_faulty_gpu(&w).await;
    first.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    w.kill_and_free(first).await;
    // It has read no page yet.
    let mut second = Spoke::start(&w, "b", "").await;
    w.free_budget().await;
    let end = second.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(evicted(&w).await, ["guarded-1"]);
    assert!(w.pod("other").await.is_some());
    assert!(why_spared(&end, "other").starts_with("uses another GPU"), "{end:?}");
}

/// Pods of the record that say of themselves that they were left alone, by name.
fn spared(action: &Value) -> Vec<&str> {
    let steps = action["status"]["steps"].as_array().into_iter().flatten();
    let pods = steps.flat_map(|step| step["pods"].as_array().into_iter().flatten());
    pods.filter(|pod| pod["spared"] == true).filter_map(|pod| pod["name"].as_str()).collect()
}

async fn a_gpu_that_no_source_knows_spares_nobody_and_that_is_said(w: World) {
    w.gpu_pod("a", "n1", json!({})).await;
    w.gpu_pod("b", "n1", json!({})).await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let third = "GPU-33333333-0000-0000-0000-000000000000";
    // Each is known to use a GPU that is not the one at fault; but nobody has ever seen that.
    exporter_says(&w, &spoke, &[("a", OTHER), ("b", third)]);
    let command = of_the_faulty_gpu(&w).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(evicted(&w).await, ["a", "b"]);
    let action = w.action(command.id).await.unwrap().to_string();
    let told = format!("neither exporter nor ResourceSlices know a GPU {FAULTY} on the node, so every GPU pod was to go");
    assert!(action.contains(&told), "{action}");
}

async fn each_gpu_that_fails_has_its_users_drained_by_a_command_of_its_own(w: World) {
    for pod in ["first", "second", "third"] {
        w.gpu_pod(pod, "n1", json!({})).await;
    }
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let third = "GPU-33333333-0000-0000-0000-000000000000";
    exporter_says(&w, &spoke, &[("first", FAULTY), ("second", OTHER), ("third", third)]);
    let command = of_the_faulty_gpu(&w).await;
    let end = spoke.carry_out(&command).await;
    assert_eq!((end.state(), evicted(&w).await), (CommandState::Succeeded, vec!["first".to_owned()]), "{}", end.reason);
    let mut next = w.command("n1", 2, vec![drain()]).await;
    next.target.gpu = Some(named(OTHER));
    let end = spoke.carry_out(&next).await;
    assert_eq!(
        (end.state(), evicted(&w).await),
        (CommandState::Succeeded, vec!["first".into(), "second".into()]),
        "{}",
        end.reason
    );
    assert!(w.pod("third").await.is_some());
    let action = w.action(next.id).await.unwrap();
    assert_eq!(spared(&action), ["third"], "{action}");
    assert!(action.to_string().contains(&format!("users of {OTHER} alone, 1 on other GPUs left alone")), "{action}");
}

/// A claim that was given a device, and a pod that has it.
pub(crate) async fn claimed(w: &World, name: &str, driver: &str, device: &str) {
    let api = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", w.ns);
    let request = json!({"name": "device", "exactly": {"deviceClassName": driver}});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request]}}});
    w.post(&api, &claim).await;
    let result = json!({"request": "device", "driver": driver, "pool": w.name("n1"), "device": device});
    w.merge(&format!("{api}/{name}/status"), &json!({"status": {"allocation": {"devices": {"results": [result]}}}})).await;
    let container = json!({"name": "main", "image": "registry.example/work:1", "resources": {"claims": [{"name": "device"}]}});
    let spec = json!({"containers": [container], "resourceClaims": [{"name": "device", "resourceClaimName": name}]});
    w.gpu_pod(name, "n1", json!({ "spec": spec })).await;
}

async fn the_devices_that_a_claim_was_given_tell_whose_gpu_it_is(w: World) {
    let device = |name: &str, uuid: &str| json!({"name": name, "attributes": {"uuid": {"string": uuid}}});
    let node = w.name("n1");
    let slice = |name: &str, driver: &str, generation: u32, devices: Value| {
        let pool = json!({"name": node, "generation": generation, "resourceSliceCount": 1});
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("{node}-{name}")},
            "spec": {"driver": driver, "nodeName": node, "devices": devices, "pool": pool}})
    };
    for slice in [
        slice("gpus", "gpu.nvidia.com", 2, json!([device("gpu-0", FAULTY), device("gpu-1", OTHER)])),
        // Neither what the pool had before its driver published it anew, nor what another driver calls so, tells of a GPU.
        slice("old", "gpu.nvidia.com", 1, json!([device("gpu-0", OTHER), device("gpu-1", FAULTY)])),
        slice("other", "dra.example.com", 3, json!([device("gpu-0", OTHER), device("gpu-1", FAULTY)])),
    ] {
        w.post("/apis/resource.k8s.io/v1/resourceslices", &slice).await;
    }
    claimed(&w, "mine", "gpu.nvidia.com", "gpu-0").await;
    claimed(&w, "other", "gpu.nvidia.com", "gpu-1").await;
    claimed(&w, "nic", "dra.example.com", "nic-0").await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&of_the_faulty_gpu(&w).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert_eq!(evicted(&w).await, ["mine"]);
    assert!(why_spared(&end, "other").contains(OTHER), "{end:?}");
}
