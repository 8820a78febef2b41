//! What signals mean: a fault of one GPU or node, with the witness that saw it.

use crate::{
    bytes_text::clip,
    ids::{ClusterId, FaultKey, GpuSlot, GpuUuid, NodeName, NodeUid, ParseIdError},
    limits,
    link::v1,
    time::Timestamp,
    words::words,
};

words!(
    /// The kind of a fault.
    FaultClass {
        /// A driver error report; the code is its number.
        Xid = "xid",
        /// Uncorrectable memory errors.
        Ecc = "ecc",
        /// Row remapping failed or is pending.
        RowRemap = "row_remap",
        /// Too hot; code `warn` or `high`.
        Thermal = "thermal",
        /// A GPU that is no longer there.
        GpuLost = "gpu_lost",
        /// NVLink or NVSwitch.
        Nvlink = "nvlink",
        /// PCIe.
        Pcie = "pcie",
        /// Driver or its probe.
        Driver = "driver",
        /// A node condition in its bad state; the code is its type.
        NodeCondition = "node_condition",
        /// An alert that names no class we know; the code is its name.
        Alert = "alert",
        /// Fewer allocatable GPUs than capacity.
        Allocatable = "allocatable",
        /// Odd utilisation.
        Utilisation = "utilisation",
        /// A pod was refused or failed for its GPU.
        PodFailure = "pod_failure",
        /// The observer itself is ill: stale, broken or absent.
        Source = "source",
        /// A DCGM health watch; the code is its name.
        HealthWatch = "health_watch",
    }
);

words!(
    /// The kind of observer. Two kinds that agree corroborate; one number alone harms nobody.
    Witness {
        /// A gauge of the exporter.
        ExporterGauge = "exporter_gauge",
        /// A count or counter of the exporter.
        ExporterCounter = "exporter_counter",
        /// DCGM's own health watches.
        DcgmHealth = "dcgm_health",
        /// A decoded kernel line.
        KernelLine = "kernel_line",
        /// Allocatable below capacity, or a ResourceSlice taint.
        Allocatable = "allocatable",
        /// A node condition.
        NodeCondition = "node_condition",
        /// An alert.
        Alert = "alert",
        /// A pod failed on that GPU.
        PodFailure = "pod_failure",
        /// The GPU's rows are gone while its neighbours are fresh.
        MissingRows = "missing_rows",
        /// Another field of the same GPU agrees.
        SecondField = "second_field",
    }
);

words!(
    /// Was the change itself seen, or was it there when we first looked?
    Onset {
        /// Found already there, age unknown: never by itself a reason for harm.
        Standing = "standing",
        /// Seen to change between two observations of one source start.
        Edge = "edge",
    }
);

/// A node as faults and commands name it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeRef {
    /// For people.
    pub name: NodeName,
    /// What ties.
    pub uid: NodeUid,
    /// Attribute; empty when unknown.
    pub boot_id: String,
}

/// A GPU as far as its source names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GpuRef {
    /// Where it sits.
    pub slot: Option<GpuSlot>,
    /// Which one it is.
    pub uuid: Option<GpuUuid>,
    /// For thresholds and people; empty when unknown.
    pub model: String,
}

/// One fault as one witness saw it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Fault {
    /// Identity.
    pub key: FaultKey,
    /// Where.
    pub node: NodeRef,
    /// Which GPU; `None` = the whole node, or nobody said.
    pub gpu: Option<GpuRef>,
    /// Kind.
    pub class: FaultClass,
    /// Code within the kind.
    pub code: String,
    /// Edge or standing.
    pub onset: Onset,
    /// Who saw it.
    pub witness: Witness,
    /// When the spoke saw it; information only.
    pub observed_at: Timestamp,
    /// The reading, in the metric's own unit; 0 when there is none.
    pub value: f64,
    /// The threshold it passed; 0 when there is none.
    pub threshold: f64,
    /// How often in the window.
    pub count: u32,
    /// The observer by name.
    pub source: String,
    /// What the source said.
    pub detail: String,
    /// `namespace/pod` that used the GPU, or empty.
    pub workload: String,
}

impl Fault {
    /// The key that this fault must have in `cluster`.
    #[must_use]
    pub fn derived_key(&self, cluster: &ClusterId) -> FaultKey {
        let slot = self.gpu.as_ref().and_then(|gpu| gpu.slot.as_ref());
        FaultKey::derive(cluster, &self.node.uid, slot, self.class.as_str(), &self.code)
    }
}

/// Why a fault's message cannot be believed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A part that must be there is not.
    #[error("fault has no {field}")]
    Missing {
        /// Name of the field.
        field: &'static str,
    },
    /// An enum value that this version does not know: a refusal, never a default.
    #[error("fault has an unknown {field}: {value}")]
    Unknown {
        /// Name of the field.
        field: &'static str,
        /// Its number on the wire.
        value: i32,
    },
    /// A text over its limit.
    #[error("fault has a {field} of {bytes} bytes, {max} are allowed")]
    TooLong {
        /// Name of the field.
        field: &'static str,
        /// Its length.
        bytes: usize,
        /// Its limit.
        max: usize,
    },
    /// A text with a zero byte: Postgres cannot hold one, and no source has a reason to send one.
    #[error("fault has a {field} with a zero byte")]
    ZeroByte {
        /// Name of the field.
        field: &'static str,
    },
    /// An id that breaks its rule.
    #[error(transparent)]
    Id(#[from] ParseIdError),
}

macro_rules! wire {
    ($ours:ident, $wire:ident, $field:literal, $first:ident $(, $variant:ident)*) => {
        impl From<$ours> for v1::$wire {
            fn from(word: $ours) -> Self {
                match word { $ours::$first => Self::$first, $($ours::$variant => Self::$variant),* }
            }
        }
        impl $ours {
            fn from_wire(value: i32) -> Result<Self, Error> {
                match v1::$wire::try_from(value) {
                    Ok(v1::$wire::$first) => Ok(Self::$first),
                    $(Ok(v1::$wire::$variant) => Ok(Self::$variant),)*
                    Ok(v1::$wire::Unspecified) | Err(_) => Err(Error::Unknown { field: $field, value }),
                }
            }
        }
    };
}
wire!(
    FaultClass,
    FaultClass,
    "class",
    Xid,
    Ecc,
    RowRemap,
    Thermal,
    GpuLost,
    Nvlink,
    Pcie,
    Driver,
    NodeCondition,
    Alert,
    Allocatable,
    Utilisation,
    PodFailure,
    Source,
    HealthWatch
);
wire!(
    Witness,
    Witness,
    "witness",
    ExporterGauge,
    ExporterCounter,
    DcgmHealth,
    KernelLine,
    Allocatable,
    NodeCondition,
    Alert,
    PodFailure,
    MissingRows,
    SecondField
);
wire!(Onset, Onset, "onset", Standing, Edge);

impl TryFrom<v1::NodeRef> for NodeRef {
    type Error = Error;
    fn try_from(node: v1::NodeRef) -> Result<Self, Error> {
        let boot_id = within(node.boot_id, "boot_id", limits::SOURCE_BYTES_MAX)?;
        Ok(Self { name: NodeName::parse(&node.name)?, uid: NodeUid::parse(&node.uid)?, boot_id })
    }
}

impl From<&NodeRef> for v1::NodeRef {
    fn from(node: &NodeRef) -> Self {
        Self { name: node.name.to_string(), uid: node.uid.to_string(), boot_id: node.boot_id.clone() }
    }
}

impl TryFrom<v1::GpuRef> for GpuRef {
    type Error = Error;
    fn try_from(gpu: v1::GpuRef) -> Result<Self, Error> {
        let slot = (!gpu.slot.is_empty()).then(|| GpuSlot::parse(&gpu.slot)).transpose()?;
        let uuid = (!gpu.uuid.is_empty()).then(|| GpuUuid::parse(&gpu.uuid)).transpose()?;
        let model = within(clip(&gpu.model, limits::SOURCE_BYTES_MAX).to_owned(), "model", limits::SOURCE_BYTES_MAX)?;
        Ok(Self { slot, uuid, model })
    }
}

impl From<&GpuRef> for v1::GpuRef {
    fn from(gpu: &GpuRef) -> Self {
        let text = |id: Option<&str>| id.unwrap_or_default().to_owned();
        Self {
            slot: text(gpu.slot.as_ref().map(GpuSlot::as_str)),
            uuid: text(gpu.uuid.as_ref().map(GpuUuid::as_str)),
            model: gpu.model.clone(),
        }
    }
}

impl TryFrom<v1::Fault> for Fault {
    type Error = Error;
    fn try_from(fault: v1::Fault) -> Result<Self, Error> {
        Ok(Self {
            key: FaultKey::parse(&fault.fault_key)?,
            node: fault.node.ok_or(Error::Missing { field: "node" })?.try_into()?,
            gpu: fault.gpu.map(GpuRef::try_from).transpose()?,
            class: FaultClass::from_wire(fault.class)?,
            code: within(fault.code, "code", limits::CODE_BYTES_MAX)?,
            onset: Onset::from_wire(fault.onset)?,
            witness: Witness::from_wire(fault.witness)?,
            observed_at: Timestamp::from_unix_ms(fault.observed_unix_ms),
            value: finite(fault.value),
            threshold: finite(fault.threshold),
            count: fault.count,
            source: within(fault.source, "source", limits::SOURCE_BYTES_MAX)?,
            detail: within(fault.detail, "detail", limits::DETAIL_BYTES_MAX)?,
            workload: within(fault.workload, "workload", limits::DETAIL_BYTES_MAX)?,
        })
    }
}

impl From<&Fault> for v1::Fault {
    fn from(fault: &Fault) -> Self {
        Self {
            fault_key: fault.key.to_string(),
            node: Some((&fault.node).into()),
            gpu: fault.gpu.as_ref().map(Into::into),
            class: v1::FaultClass::from(fault.class).into(),
            code: clip(&fault.code, limits::CODE_BYTES_MAX).to_owned(),
            onset: v1::Onset::from(fault.onset).into(),
            witness: v1::Witness::from(fault.witness).into(),
            observed_unix_ms: fault.observed_at.unix_ms(),
            value: fault.value,
            threshold: fault.threshold,
            count: fault.count,
            source: clip(&fault.source, limits::SOURCE_BYTES_MAX).to_owned(),
            detail: clip(&fault.detail, limits::DETAIL_BYTES_MAX).to_owned(),
            workload: clip(&fault.workload, limits::DETAIL_BYTES_MAX).to_owned(),
        }
    }
}

fn within(text: String, field: &'static str, max: usize) -> Result<String, Error> {
    if text.len() > max {
        return Err(Error::TooLong { field, bytes: text.len(), max });
    }
    if text.contains('\0') { Err(Error::ZeroByte { field }) } else { Ok(text) }
}

/// JSON and Postgres have no NaN: a reading that is none is 0.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault() -> Fault {
        let cluster = ClusterId::parse("c1").unwrap();
        let node = NodeRef { name: NodeName::parse("n1").unwrap(), uid: NodeUid::parse("u1").unwrap(), boot_id: "b".into() };
        let gpu = GpuRef { slot: GpuSlot::normalise("00000000:5D:00.0"), uuid: None, model: "H100".into() };
        let mut fault = Fault {
            key: FaultKey::derive(&cluster, &node.uid, None, "", ""),
            node,
            gpu: Some(gpu),
            class: FaultClass::Xid,
            code: "79".into(),
            onset: Onset::Edge,
            witness: Witness::ExporterGauge,
            observed_at: Timestamp::from_unix_ms(5),
            value: 79.0,
            threshold: 0.0,
            count: 1,
            source: "exporter".into(),
            detail: String::new(),
            workload: "ml/train-0".into(),
        };
        fault.key = fault.derived_key(&cluster);
        fault
    }

    #[test]
    fn a_fault_survives_the_wire() {
        assert_eq!(Fault::try_from(v1::Fault::from(&fault())).unwrap(), fault());
    }

    #[test]
    fn an_unknown_enum_is_refused_and_never_a_default() {
        let mut wire = v1::Fault::from(&fault());
        wire.witness = 99;
        assert_eq!(Fault::try_from(wire), Err(Error::Unknown { field: "witness", value: 99 }));
        let mut wire = v1::Fault::from(&fault());
        wire.class = 0;
        assert_eq!(Fault::try_from(wire), Err(Error::Unknown { field: "class", value: 0 }));
    }

    #[test]
    fn a_text_over_its_limit_is_refused_with_its_size() {
        let mut wire = v1::Fault::from(&fault());
        wire.code = "x".repeat(limits::CODE_BYTES_MAX + 1);
        assert_eq!(Fault::try_from(wire), Err(Error::TooLong { field: "code", bytes: 129, max: 128 }));
    }

    #[test]
    fn a_zero_byte_in_any_text_is_refused_with_its_field() {
        type Put = fn(&mut v1::Fault);
        let texts: [(&str, Put); 6] = [
            ("code", |fault| fault.code.push('\0')),
            ("source", |fault| fault.source.push('\0')),
            ("detail", |fault| fault.detail.push('\0')),
            ("workload", |fault| fault.workload.push('\0')),
            ("boot_id", |fault| fault.node.as_mut().unwrap().boot_id.push('\0')),
            ("model", |fault| fault.gpu.as_mut().unwrap().model.push('\0')),
        ];
        for (field, put) in texts {
            let mut wire = v1::Fault::from(&fault());
            put(&mut wire);
            assert_eq!(Fault::try_from(wire), Err(Error::ZeroByte { field }));
        }
        let ids: [Put; 2] = [|fault| fault.node.as_mut().unwrap().uid.push('\0'), |fault| fault.fault_key.push('\0')];
        for put in ids {
            let mut wire = v1::Fault::from(&fault());
            put(&mut wire);
            assert!(matches!(Fault::try_from(wire), Err(Error::Id(_))));
        }
    }
}
