//! kubesim's record of requests in the shape of the real API server's audit log, so that one question serves both.

use kubesim::KubeSim;
use testkube::AuditEntry;

/// Everything that a simulated API server has answered, in order.
#[must_use]
pub fn of_sim(sim: &KubeSim) -> Vec<AuditEntry> {
    let entry = |record: kubesim::Record| AuditEntry {
        verb: record.verb,
        group: record.group,
        resource: record.resource,
        subresource: record.subresource,
        namespace: record.namespace,
        name: record.name,
        user: record.user,
        user_agent: record.user_agent,
        code: record.code,
        uri: record.path,
    };
    sim.recorder().requests().into_iter().map(entry).collect()
}

/// Eviction requests for a pod, by the answer's code.
#[must_use]
pub fn evictions<'a>(requests: &'a [AuditEntry], pod: &str) -> Vec<&'a AuditEntry> {
    let of_pod =
        |r: &&AuditEntry| r.resource == "pods" && r.subresource == "eviction" && format!("{}/{}", r.namespace, r.name) == pod;
    requests.iter().filter(of_pod).collect()
}

/// Writes to a Node by a spoke: label, taint, annotations, cordon.
#[must_use]
pub fn node_writes<'a>(requests: &'a [AuditEntry], node: &str) -> Vec<&'a AuditEntry> {
    let by_spoke =
        |r: &&AuditEntry| r.user_agent.starts_with("gpuheal-spoke") && r.resource == "nodes" && r.name == node && r.is_write();
    requests.iter().filter(by_spoke).collect()
}
