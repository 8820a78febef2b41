//! For tests alone: a cluster whose tables a test fills, and the parts that stand on it.

use std::{collections::BTreeMap, sync::Arc};

use gpuheal_proto::{ids::ClusterId, link::v1};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::{
    derive::{self, Derive},
    journal::{Journal, Limits},
    metrics::Metrics,
    ports::{Attachment, Leadership},
    settings::Settings,
    watch::{self as cluster, Ears, Heard, Keep, KeepNodes, KeepPods, KeepServices, NodeEntry, Nodes, Plugins, Touched},
};

/// A cluster, filled by hand.
pub(crate) struct TestCluster {
    keep_nodes: KeepNodes,
    keep_pods: KeepPods,
    pub(crate) nodes: Nodes,
    pub(crate) plugins: Arc<Plugins>,
    pub(crate) derive: Arc<Derive>,
    pub(crate) journal: Journal,
    pub(crate) settings: Arc<Settings>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) touched: Arc<Touched>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) attachment: watch::Sender<Attachment>,
    pub(crate) evidence: mpsc::Receiver<v1::EvidenceBatch>,
    pub(crate) dir: tempfile::TempDir,
}

impl TestCluster {
    /// A cluster that has been listed and is empty; this replica leads and is attached.
    pub(crate) async fn new() -> Self {
        Self::with_journal(tempfile::tempdir().expect("a directory"), Limits::default()).await
    }

    /// The same over a journal of the given size.
    pub(crate) async fn with_journal(dir: tempfile::TempDir, limits: Limits) -> Self {
        let (mut keep_nodes, mut keep_pods, nodes) =
            cluster::keepers(Ears::new(vec![]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
        let (_, exporters, _) = KeepServices::new();
        let (leadership, leading) = watch::channel(Leadership::Leading { lease_transitions: 3 });
        let (attachment, attached) = watch::channel(Attachment { generation: Some(7), ..Attachment::default() });
        let (evidence_tx, evidence) = mpsc::channel(16);
        let (journal, held) = Journal::open(dir.path(), limits).expect("a new journal");
        let heard = Heard::new();
        for kind in [cluster::NODES, cluster::GPU_PODS] {
            heard.note(kind, crate::clock::boottime());
        }
        let (settings, metrics, touched) = (Settings::new(), Metrics::new(), Touched::new());
        let plugins = Plugins::new();
        let deps = derive::Deps {
            cluster: ClusterId::parse("c1").expect("a good id"),
            journal: journal.clone(),
            settings: Arc::clone(&settings),
            nodes: nodes.clone(),
            exporters,
            plugins: Arc::clone(&plugins),
            touched: Arc::clone(&touched),
            metrics: Arc::clone(&metrics),
            leadership: leading,
            attachment: attached,
            evidence: evidence_tx,
        };
        let derive = Derive::new(deps, held);
        keep_nodes.begin();
        keep_nodes.end();
        keep_pods.begin();
        keep_pods.end();
        nodes.ready().await;
        Self {
            keep_nodes,
            keep_pods,
            nodes,
            plugins,
            derive,
            journal,
            settings,
            metrics,
            touched,
            heard,
            leadership,
            attachment,
            evidence,
            dir,
        }
    }

    /// Adds or replaces a node with eight GPUs.
    pub(crate) fn node(&mut self, name: &str, more: &Value) {
        let mut node = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
            "status": {
                "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"},
                "nodeInfo": {"bootID": "boot-1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
            },
        });
        merge(&mut node, more);
        self.keep_nodes.put(serde_json::from_value(node).expect("a node"));
        self.touched.add(name);
    }

    /// Removes a node.
    pub(crate) fn delete_node(&mut self, name: &str) {
        let node = json!({"metadata": {"name": name}});
        self.keep_nodes.remove(serde_json::from_value(node).expect("a node"));
        self.touched.add(name);
    }

    /// Adds a pod that holds a GPU.
    pub(crate) fn gpu_pod(&mut self, name: &str, node: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}")},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
        });
        self.keep_pods.put(serde_json::from_value(pod).expect("a pod"));
        self.touched.add(node);
    }

    /// Every fault in the journal, in order.
    pub(crate) async fn journaled(&self) -> Vec<v1::Fault> {
        use prost::Message as _;
        let stream = self.journal.head().borrow().stream.clone();
        let mut faults = Vec::new();
        while let Ok(crate::journal::Chunk::Faults { faults: more, .. }) = self.journal.read(&stream, faults.len() as u64 + 1).await
        {
            faults.extend(more.into_iter().map(|bytes| v1::Fault::decode(bytes).expect("a fault")));
        }
        faults
    }
}

/// A node as it is kept, from its JSON.
pub(crate) fn node_entry(node: Value) -> Arc<NodeEntry> {
    let name = node["metadata"]["name"].as_str().expect("a node has a name").to_owned();
    let (mut keep, _, nodes) = cluster::keepers(Ears::new(vec![]), &gpuheal_spoke_core::gpu_resources::GpuResources::default());
    keep.put(serde_json::from_value(node).expect("a node"));
    nodes.node(&name).expect("it was just put there")
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            let old: BTreeMap<String, Value> = more.clone().into_iter().collect();
            for (key, value) in old {
                merge(into.entry(key).or_insert(Value::Null), &value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// Writes an identity that signs itself into a directory: for a URI, good until that year's first second.
pub(crate) fn identity_into(dir: &std::path::Path, uri: &str, ends: i32) {
    let mut params = rcgen::CertificateParams::new(vec![]).expect("no names");
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(2000, 1, 1), rcgen::date_time_ymd(ends, 1, 1));
    params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().expect("a URI")));
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let trust = r#"{"version":1,"trust_domain":"dev.gpuheal","key_epoch":1,"command_keys":[],"ca":[]}"#.to_owned();
    for (name, text) in
        [("tls.crt", &certificate), ("tls.key", &key.serialize_pem()), ("ca.crt", &certificate), ("trust.json", &trust)]
    {
        std::fs::write(dir.join(name), text).expect("a directory that can be written to");
    }
}
