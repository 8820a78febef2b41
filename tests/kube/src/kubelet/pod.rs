//! What a kubelet makes of one pod: is it to be started, and when is it gone after its deletion.
//! Pure: reads a pod, gives a decision or a patch; time spans come from the pod itself.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kubesim::build::{EXIT_AFTER_MS, HANG, POD_IP, READY, START_AFTER_MS};
use serde_json::{Value, json};

/// What containers need that obey at once.
const OBEY: Duration = Duration::from_millis(10);

/// What is to be done about a pod that is bound to one of our nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Its containers are to be started and will run after this long.
    Start(Duration),
    /// Nothing changes.
    Keep,
    /// Its containers are stopping and will be gone after this long.
    Stop(Duration),
    /// Its containers are stopping and will never be gone.
    Hang,
}

pub(crate) fn duty(pod: &Pod) -> Duty {
    if pod.metadata.deletion_timestamp.is_some() {
        return stopping(pod);
    }
    match phase(pod) {
        "Pending" | "" => Duty::Start(millis(pod, START_AFTER_MS).unwrap_or_default()),
        _ => Duty::Keep,
    }
}

fn stopping(pod: &Pod) -> Duty {
    if annotation(pod, HANG) == Some("true") {
        return Duty::Hang;
    }
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0).max(0).unsigned_abs();
    let grace = Duration::from_secs(grace);
    Duty::Stop(millis(pod, EXIT_AFTER_MS).unwrap_or(OBEY).min(grace))
}

fn millis(pod: &Pod, key: &str) -> Option<Duration> {
    annotation(pod, key)?.parse().ok().map(Duration::from_millis)
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn container_names(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.map(|container| (container.name.as_str(), container.image.as_deref().unwrap_or_default()))
}

/// Merge patch of the status of a pod whose containers run; `restarts` counts earlier starts.
pub(crate) fn running(pod: &Pod, restarts: u32, now: &str) -> Value {
    let ready = annotation(pod, READY) != Some("false");
    let ip = annotation(pod, POD_IP).unwrap_or("127.0.0.1");
    let statuses: Vec<Value> = container_names(pod)
        .map(|(name, image)| {
            json!({
                "name": name, "image": image, "imageID": image, "ready": ready, "started": true,
                "restartCount": restarts,
                "containerID": format!("stand-in://{}", uuid::Uuid::new_v4().simple()),
                "state": { "running": { "startedAt": now } },
            })
        })
        .collect();
    status_patch(
        pod,
        json!({
            "phase": "Running",
            "startTime": now,
            "hostIP": "127.0.0.1", "hostIPs": [{ "ip": "127.0.0.1" }],
            "podIP": ip, "podIPs": [{ "ip": ip }],
            "conditions": conditions(ready, now),
            "containerStatuses": statuses,
        }),
    )
}

/// Merge patch of the status of a pod whose containers have exited after their SIGTERM.
pub(crate) fn stopped(pod: &Pod, now: &str) -> Value {
    let statuses: Vec<Value> = container_names(pod)
        .map(|(name, image)| {
            json!({
                "name": name, "image": image, "imageID": image, "ready": false, "started": false,
                "restartCount": 0,
                "state": { "terminated": { "exitCode": 0, "reason": "Completed", "finishedAt": now } },
            })
        })
        .collect();
    status_patch(
        pod,
        json!({
            "phase": "Succeeded",
            "conditions": conditions(false, now),
            "containerStatuses": statuses,
        }),
    )
}

/// Bound to the pod's UID: a namesake that has come since must not get this status.
fn status_patch(pod: &Pod, status: Value) -> Value {
    json!({ "metadata": { "uid": pod.metadata.uid }, "status": status })
}

fn conditions(ready: bool, now: &str) -> Value {
    let condition = |kind: &str, holds: bool| json!({ "type": kind, "status": if holds { "True" } else { "False" }, "lastTransitionTime": now });
    json!([
        condition("PodScheduled", true),
        condition("Initialized", true),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(grace: Option<i64>, annotations: &[(&str, &str)], phase: &str) -> Pod {
        let annotations: serde_json::Map<String, Value> =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let mut pod = json!({
            "metadata": { "name": "p", "uid": "u", "annotations": annotations },
            "spec": { "containers": [{ "name": "c" }] },
            "status": { "phase": phase },
        });
        if let Some(grace) = grace {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        }
        serde_json::from_value(pod).expect("it is a pod")
    }

    #[test]
    fn a_deleted_pod_obeys_at_once_unless_it_says_otherwise() {
        assert_eq!(duty(&pod(Some(30), &[], "Running")), Duty::Stop(OBEY));
        assert_eq!(duty(&pod(Some(30), &[(EXIT_AFTER_MS, "250")], "Running")), Duty::Stop(Duration::from_millis(250)));
    }

    #[test]
    fn a_slow_exit_is_cut_off_at_the_grace() {
        assert_eq!(duty(&pod(Some(1), &[(EXIT_AFTER_MS, "60000")], "Running")), Duty::Stop(Duration::from_secs(1)));
    }

    #[test]
    fn a_hanging_pod_never_goes() {
        assert_eq!(duty(&pod(Some(1), &[(HANG, "true")], "Running")), Duty::Hang);
    }

    #[test]
    fn only_a_pending_pod_is_started() {
        assert_eq!(duty(&pod(None, &[], "Pending")), Duty::Start(Duration::ZERO));
        assert_eq!(duty(&pod(None, &[(START_AFTER_MS, "70")], "Pending")), Duty::Start(Duration::from_millis(70)));
        assert_eq!(duty(&pod(None, &[], "Running")), Duty::Keep);
        assert_eq!(duty(&pod(None, &[], "Succeeded")), Duty::Keep);
    }
}
