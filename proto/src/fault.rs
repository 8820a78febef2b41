//! What signals mean: a fault of one GPU or node, with the witness that saw it.

mod wire;

#[cfg(test)]
mod tests;

use crate::{
    ids::{ClusterId, FaultKey, GpuPlace, GpuSlot, GpuUuid, NodeName, NodeUid, ParseIdError},
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

impl GpuRef {
    /// What tells it from the others of its node; `None` when its source named neither slot nor UUID.
    #[must_use]
    pub fn place(&self) -> Option<GpuPlace> {
        let uuid = || self.uuid.clone().map(GpuPlace::Uuid);
        self.slot.clone().map(GpuPlace::Slot).or_else(uuid)
    }

    /// Whether it has a place.
    #[must_use]
    pub const fn is_placed(&self) -> bool {
        self.slot.is_some() || self.uuid.is_some()
    }

    /// Whether that is its place.
    #[must_use]
    pub fn is_at(&self, place: &GpuPlace) -> bool {
        match place {
            GpuPlace::Slot(slot) => self.slot.as_ref() == Some(slot),
            GpuPlace::Uuid(uuid) => self.slot.is_none() && self.uuid.as_ref() == Some(uuid),
        }
    }
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
        let place = self.gpu.as_ref().and_then(GpuRef::place);
        FaultKey::derive(cluster, &self.node.uid, place.as_ref(), self.class.as_str(), &self.code)
    }

    /// The fault if its key is the one that it has in `cluster`. A spoke that knows GPUs by their slot alone gives all of a node that
    /// have none one key: nobody can tell which of them it means, so that it is taken for one of the whole node.
    ///
    /// # Errors
    /// The key that it must have.
    pub fn of_cluster(self, cluster: &ClusterId) -> Result<Self, FaultKey> {
        let derived = self.derived_key(cluster);
        if derived == self.key {
            return Ok(self);
        }
        let slotless = self.gpu.as_ref().is_some_and(|gpu| gpu.slot.is_none());
        let of_node = Self { gpu: None, ..self };
        if slotless && of_node.derived_key(cluster) == of_node.key { Ok(of_node) } else { Err(derived) }
    }
}

/// A fault as the hub knows it, of which a leader that has told nothing of it is asked how it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// As it was last told; its witness is any of them.
    pub fault: Fault,
    /// All kinds of observers that told of it.
    pub witnesses: std::collections::BTreeSet<Witness>,
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
