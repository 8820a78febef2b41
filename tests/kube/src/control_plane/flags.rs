//! The command lines of the four parts: what a test cluster needs, and no more.
//! Where a flag departs from Kubernetes' default there is a reason beside it.

use super::files::Files;

/// Controllers that run. Not the node lifecycle controller, since nobody renews the nodes, and not the
/// pod garbage collector, which would clear away what a test has left standing on purpose.
const CONTROLLERS: [&str; 14] = [
    "disruption-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "persistentvolume-binder-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "root-ca-certificate-publisher-controller",
    "validatingadmissionpolicy-status-controller",
];

pub(super) fn etcd(files: &Files, port: u16, peer_port: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    vec![
        files.flag("data-dir", "etcd"),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // Its data dies with the test; an fsync per write would be most of what the tests wait for.
        "--unsafe-no-fsync=true".into(),
        "--log-level=warn".into(),
    ]
}

pub(super) fn api_server(files: &Files, etcd_port: u16, port: u16) -> Vec<String> {
    vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        files.flag("cert-dir", "generated"),
        files.flag("tls-cert-file", "serving.crt"),
        files.flag("tls-private-key-file", "serving.key"),
        files.flag("token-auth-file", "tokens.csv"),
        "--authorization-mode=RBAC".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        files.flag("service-account-key-file", "service-accounts.pub"),
        files.flag("service-account-signing-key-file", "service-accounts.key"),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        "--endpoint-reconciler-type=none".into(),
        "--allow-privileged=true".into(),
        files.flag("audit-policy-file", "audit-policy.json"),
        files.flag("audit-log-path", "audit.log"),
        // MB: never begins a second file, since a mark is a place in the first. 10 GB is 10 million requests.
        "--audit-log-maxsize=10000".into(),
        "--profiling=false".into(),
    ]
}

pub(super) fn controllers(files: &Files, port: u16) -> Vec<String> {
    vec![
        files.flag("kubeconfig", "controllers.kubeconfig"),
        files.flag("service-account-private-key-file", "service-accounts.key"),
        files.flag("root-ca-file", "ca.crt"),
        format!("--controllers={}", CONTROLLERS.join(",")),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        files.flag("cert-dir", "generated-controllers"),
        // One of each; an election would only add seconds.
        "--leader-elect=false".into(),
        // The default of 20 a second would make every test wait for the one that creates most.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

pub(super) fn scheduler(files: &Files, port: u16) -> Vec<String> {
    vec![
        files.flag("config", "scheduler.json"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        files.flag("cert-dir", "generated-scheduler"),
    ]
}
