//! What an alert is about: node, GPU, readings, workload, as far as its labels tell.
//!
//! Nothing is guessed. A missing GPU label is no GPU, an address is no name, and the exporter's own pod is no workload.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::alias::{AlertLabels, LabelMeaning};
use super::super::metric::Metric;
use super::super::slot::PciSlot;

/// Everything the labels say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Subject {
    /// Who the node may be, best first. Empty means that the alert names none, which is to be shown and not dropped.
    pub node: Vec<NodeCandidate>,
    /// Which GPU; `None` is the node as a whole, never GPU 0.
    pub gpu: Option<AlertGpu>,
    /// Values that the labels carry.
    pub readings: Vec<AlertReading>,
    /// The pod that uses the GPU.
    pub workload: Option<AlertWorkload>,
}

/// One possible node, with the label that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCandidate {
    /// The label.
    pub label: String,
    /// What it says.
    pub identity: NodeIdentity,
}

/// How a label names a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeIdentity {
    /// A node's name. It may look like an address: there are nodes called `10.0.15.233`.
    Name(String),
    /// A name that may as well be a pod's or a container's.
    MaybeName(String),
    /// The address of a node or of the exporter's pod: to be looked up in both, never used as a name.
    Address(IpAddr),
}

/// The GPU of an alert.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertGpu {
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// Where it sits.
    pub slot: Option<PciSlot>,
    /// Its index: a hint, since it can change at a reboot.
    pub index_hint: Option<u16>,
}

/// A value that a label carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlertReading {
    /// Number of an Xid.
    XidCode(u16),
    /// How many Xids there were.
    XidCount(u32),
    /// °C.
    GpuTemp(f64),
}

/// The pod on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlertWorkload {
    /// Its namespace; may be empty.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its container; may be empty.
    pub container: String,
}

impl Subject {
    pub(super) fn of(labels: &BTreeMap<String, String>, names: &AlertLabels) -> Self {
        let labels = Reader { labels, names };
        Self { node: labels.node(), gpu: labels.gpu(), readings: labels.readings(), workload: labels.workload() }
    }
}

struct Reader<'a> {
    labels: &'a BTreeMap<String, String>,
    names: &'a AlertLabels,
}

impl<'a> Reader<'a> {
    /// The labels of one meaning that are present and not empty.
    fn all(&self, meaning: LabelMeaning) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (labels, names) = (self.labels, self.names);
        let filled = names.carrying(meaning).filter_map(move |name| labels.get_key_value(name));
        filled.map(|(name, value)| (name.as_str(), value.trim())).filter(|(_, value)| !value.is_empty())
    }

    fn first<T>(&self, meaning: LabelMeaning, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.all(meaning).find_map(|(_, value)| read(value))
    }

    fn node(&self) -> Vec<NodeCandidate> {
        let candidate = |label: &str, identity| NodeCandidate { label: label.to_owned(), identity };
        let mut out: Vec<_> =
            self.all(LabelMeaning::Node).map(|(label, name)| candidate(label, NodeIdentity::Name(name.to_owned()))).collect();
        // Where the node is named, the instance is whoever reported it, such as kube-state-metrics on another node.
        if out.is_empty() {
            let hints = self.all(LabelMeaning::NodeHint);
            out.extend(hints.map(|(label, name)| candidate(label, NodeIdentity::MaybeName(name.to_owned()))));
            let instances = self.all(LabelMeaning::Instance);
            out.extend(instances.map(|(label, instance)| candidate(label, host(instance))));
        }
        out
    }

    fn gpu(&self) -> Option<AlertGpu> {
        // Other things have a UUID too.
        let is_gpu = |text: &str| text.get(..4).is_some_and(|head| head.eq_ignore_ascii_case("GPU-"));
        let gpu = AlertGpu {
            uuid: self.first(LabelMeaning::GpuUuid, |text| is_gpu(text).then(|| text.to_owned())),
            slot: self.first(LabelMeaning::GpuSlot, |text| PciSlot::parse(text).ok()),
            index_hint: self.first(LabelMeaning::GpuIndex, |text| text.parse().ok()),
        };
        (gpu != AlertGpu::default()).then_some(gpu)
    }

    fn readings(&self) -> Vec<AlertReading> {
        let code = self.first(LabelMeaning::XidCode, |text| number(Metric::XidLast, text));
        // 0 is the exporter's "no error".
        let code = code.filter(|&code| code > 0.0).map(|code| AlertReading::XidCode(code as u16));
        let count = self.first(LabelMeaning::XidCount, |text| number(Metric::XidCount, text));
        let count = count.map(|count| AlertReading::XidCount(count as u32));
        let temp = self.first(LabelMeaning::GpuTemp, |text| number(Metric::GpuTemp, text)).map(AlertReading::GpuTemp);
        [code, count, temp].into_iter().flatten().collect()
    }

    fn workload(&self) -> Option<AlertWorkload> {
        let text = |meaning| self.first(meaning, |text| Some(text.to_owned()));
        let pod = text(LabelMeaning::WorkloadPod)?;
        Some(AlertWorkload {
            namespace: text(LabelMeaning::WorkloadNamespace).unwrap_or_default(),
            pod,
            container: text(LabelMeaning::WorkloadContainer).unwrap_or_default(),
        })
    }
}

fn number(metric: Metric, text: &str) -> Option<f64> {
    text.parse().ok().and_then(|value| metric.accept(value).ok())
}

/// The host of `host:port`, `[v6]:port` or a bare host.
fn host(instance: &str) -> NodeIdentity {
    if let Ok(address) = instance.parse() {
        return NodeIdentity::Address(address);
    }
    let host = instance.rsplit_once(':').map_or(instance, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(address) => NodeIdentity::Address(address),
        Err(_) => NodeIdentity::MaybeName(bare.to_owned()),
    }
}
