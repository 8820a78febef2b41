//! Whether a ResourceClaim is for a GPU: a claim may as well be for a NIC or a share of memory, and a pod that holds nothing
//! else has no business in a drain. By what is known; what is not is a GPU, since a pod that is forgotten keeps its GPU busy.

use serde_json::Value;

/// The driver of the DRA driver for NVIDIA GPUs.
const GPU_DRIVER: &str = "gpu.nvidia.com";
/// Its device classes: whole GPUs, MIG slices, GPUs passed through to a virtual machine.
const GPU_CLASSES: [&str; 3] = ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com"];
/// Classes of the same vendor that are no GPUs: channels of a compute domain.
const OTHER_CLASSES_SUFFIX: &str = ".nvidia.com";
/// How the names of those begin.
const OTHER_CLASSES_PREFIX: &str = "compute-domain-";

/// Whether this ResourceClaim is known to be for no GPU. What was allocated tells more than what was asked for: a class bears
/// any name that the cluster's owner gives it.
#[must_use]
pub fn is_other(claim: &Value) -> bool {
    let allocated = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array);
    if let Some(results) = allocated.filter(|results| !results.is_empty()) {
        return results.iter().all(|result| result["driver"].as_str().is_some_and(|driver| driver != GPU_DRIVER));
    }
    let requests = claim.pointer("/spec/devices/requests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    !requests.is_empty() && requests.iter().all(|request| classes(request).is_some_and(|all| all.into_iter().all(is_other_class)))
}

/// Pool and device of each GPU that was given to this ResourceClaim; `None` while nothing was.
#[must_use]
pub fn gpus(claim: &Value) -> Option<Vec<(&str, &str)>> {
    let given = claim.pointer("/status/allocation/devices/results").and_then(Value::as_array).filter(|all| !all.is_empty())?;
    let ours = given.iter().filter(|result| is_of_gpus(result));
    ours.map(|result| Some((result["pool"].as_str()?, result["device"].as_str()?))).collect()
}

/// Whether what was allocated, or the spec of a ResourceSlice, is of the driver of GPUs.
pub(super) fn is_of_gpus(named: &Value) -> bool {
    named["driver"] == GPU_DRIVER
}

/// The classes that a request may be met from; `None` when it names none. v1 has them in `exactly` or `firstAvailable`,
/// v1beta1 in the request itself.
fn classes(request: &Value) -> Option<Vec<&str>> {
    let alternatives = request.get("firstAvailable").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let here = [request, &request["exactly"]].into_iter().filter(|place| place.get("deviceClassName").is_some());
    let classes: Option<Vec<_>> = here.chain(alternatives).map(|place| place["deviceClassName"].as_str()).collect();
    classes.filter(|classes| !classes.is_empty())
}

/// Only classes of which we know that nobody else means a GPU by them.
fn is_other_class(class: &str) -> bool {
    !GPU_CLASSES.contains(&class) && class.starts_with(OTHER_CLASSES_PREFIX) && class.ends_with(OTHER_CLASSES_SUFFIX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(request: &Value) -> Value {
        json!({"spec": {"devices": {"requests": [request]}}})
    }

    fn allocated(drivers: &[&str]) -> Value {
        let results: Vec<_> = drivers.iter().map(|driver| json!({"driver": driver, "pool": "n1", "device": "d"})).collect();
        json!({"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "fast"}}]}},
            "status": {"allocation": {"devices": {"results": results}}}})
    }

    #[test]
    fn what_was_allocated_tells_a_nic_from_a_gpu_whatever_its_class_is_called() {
        assert!(is_other(&allocated(&["dra.net"])));
        assert!(!is_other(&allocated(&["gpu.nvidia.com"])));
        assert!(!is_other(&allocated(&["dra.net", "gpu.nvidia.com"])), "one of both is a GPU's");
        assert!(!is_other(&allocated(&[])), "nothing allocated, and nobody knows what the class fast is");
    }

    #[test]
    fn what_is_only_asked_for_is_a_gpu_unless_its_class_is_known_for_another() {
        for gpu in ["gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "fast"] {
            assert!(!is_other(&asked(&json!({"exactly": {"deviceClassName": gpu}}))), "{gpu}");
            assert!(!is_other(&asked(&json!({"deviceClassName": gpu}))), "{gpu}");
        }
        let channel = json!({"deviceClassName": "compute-domain-default-channel.nvidia.com"});
        assert!(is_other(&asked(&channel)));
        assert!(is_other(&asked(&json!({"exactly": channel}))));
        assert!(!is_other(&asked(&json!({"firstAvailable": [channel, {"deviceClassName": "gpu.nvidia.com"}]}))));
        for unknown in [json!({}), asked(&json!({})), json!({"spec": {"devices": {"requests": []}}})] {
            assert!(!is_other(&unknown), "{unknown}");
        }
    }
}
