//! Node conditions to readings, with the polarity of each platform.
//!
//! `AcceleratedHardwareReady` is bad when False, `GPUDeviceLost` when True, and the table says which. Some conditions say
//! only that the monitor itself is blind: a source problem and no hardware fault. How long a condition has been bad is
//! kept here by its type ([`FirstBad`]), since reasons alternate and agents reset the transition time. A condition that
//! nobody listed is none of ours, and Unknown is neither good nor bad.

mod message;

use std::collections::BTreeMap;
use std::time::Duration;

use gpuheal_proto::time::Timestamp;
use serde::{Deserialize, Serialize};

pub use message::{Named, named_in};

/// Longest reason or message that is looked at. Kubernetes allows 32 KiB of message; what is looked for stands in front.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Most conditions of a node that are held. The chattiest platform has 25.
pub const CONDITIONS_MAX: usize = 64;

/// A condition as the Node object has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition<'a> {
    /// `type`.
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// `reason`.
    pub reason: &'a str,
    /// `message`.
    pub message: &'a str,
}

/// Which status means broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum BadWhen {
    /// A condition that names a trouble.
    True,
    /// A condition that names a virtue.
    False,
}

impl From<bool> for BadWhen {
    fn from(status: bool) -> Self {
        if status { Self::True } else { Self::False }
    }
}

impl From<BadWhen> for bool {
    fn from(bad: BadWhen) -> Self {
        bad == BadWhen::True
    }
}

/// What kind of trouble a condition tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// The GPU in general; reason and message say more.
    Gpu,
    /// Xids.
    Xid,
    /// Memory, ECC, remapped rows.
    Memory,
    /// Heat or clocks held back by it.
    Thermal,
    /// Power.
    Power,
    /// PCIe.
    Pcie,
    /// NVLink or NVSwitch.
    Nvlink,
    /// A GPU is missing.
    GpuLost,
    /// Driver, firmware or device plugin.
    Driver,
    /// The monitor cannot see: a source problem.
    Source,
    /// CPU, memory, disk, kernel, network: the node and no GPU.
    Node,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// Its polarity.
    pub bad: BadWhen,
    /// Its topic.
    pub topic: Topic,
}

/// The table of known conditions; operators add their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conditions {
    rules: BTreeMap<String, Rule>,
}

/// What a condition says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Not in its bad state. Not a proof of health: an agent restart clears conditions too.
    NotBad,
    /// The agent does not know.
    Unknown,
    /// In its bad state.
    Bad(Bad),
}

/// A condition in its bad state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// What it is about. [`Topic::Source`] where the reason says that the monitor is blind.
    pub topic: Topic,
    /// What reason and message name.
    pub named: Named,
}

impl Conditions {
    /// Adds or replaces a row.
    #[must_use]
    pub fn with(mut self, kind: &str, rule: Rule) -> Self {
        self.rules.insert(kind.to_owned(), rule);
        self
    }

    /// The row of a condition type.
    pub fn rule(&self, kind: &str) -> Option<Rule> {
        self.rules.get(kind).copied()
    }

    /// What a condition says; `None` for one that is none of ours.
    pub fn read(&self, condition: &Condition<'_>) -> Option<Reading> {
        let rule = self.rule(condition.kind)?;
        let bad = match (condition.status, rule.bad) {
            ("True", BadWhen::True) | ("False", BadWhen::False) => true,
            ("True", BadWhen::False) | ("False", BadWhen::True) => false,
            _ => return Some(Reading::Unknown),
        };
        if !bad {
            return Some(Reading::NotBad);
        }
        let named = named_in(condition.reason, condition.message);
        let topic = if message::monitor_is_blind(condition.reason) { Topic::Source } else { rule.topic };
        Some(Reading::Bad(Bad { topic, named }))
    }
}

impl Default for Conditions {
    fn default() -> Self {
        let rows = TRUE_IS_BAD.iter().map(|row| (row, BadWhen::True));
        let rows = rows.chain(FALSE_IS_BAD.iter().map(|row| (row, BadWhen::False)));
        Self { rules: rows.map(|(&(kind, topic), bad)| (kind.to_owned(), Rule { bad, topic })).collect() }
    }
}

const FALSE_IS_BAD: &[(&str, Topic)] = &[
    // EKS node monitoring agent.
    ("AcceleratedHardwareReady", Topic::Gpu),
    ("KernelReady", Topic::Node),
    ("NetworkingReady", Topic::Node),
    ("StorageReady", Topic::Node),
    ("ContainerRuntimeReady", Topic::Node),
    // Kubernetes itself.
    ("Ready", Topic::Node),
];

const TRUE_IS_BAD: &[(&str, Topic)] = &[
    // Kubernetes itself.
    ("MemoryPressure", Topic::Node),
    ("DiskPressure", Topic::Node),
    ("PIDPressure", Topic::Node),
    ("NetworkUnavailable", Topic::Node),
    // Node problem detector.
    ("KernelDeadlock", Topic::Node),
    ("ReadonlyFilesystem", Topic::Node),
    ("FrequentKubeletRestart", Topic::Node),
    ("FrequentContainerdRestart", Topic::Node),
    ("FrequentUnregisterNetDevice", Topic::Node),
    // NVSentinel.
    ("GpuXidError", Topic::Xid),
    ("GpuMemWatch", Topic::Memory),
    ("GpuThermalWatch", Topic::Thermal),
    ("GpuThermalMarginWatch", Topic::Thermal),
    ("GpuPowerWatch", Topic::Power),
    ("GpuPcieWatch", Topic::Pcie),
    ("GpuNvlinkWatch", Topic::Nvlink),
    ("GpuNvswitchFatalWatch", Topic::Nvlink),
    ("GpuInforomWatch", Topic::Driver),
    ("GpuDcgmConnectivityFailure", Topic::Source),
    ("GpuDcgmUnresponsive", Topic::Source),
    ("SysLogsXIDError", Topic::Xid),
    ("SysLogsSXIDError", Topic::Nvlink),
    ("SysLogsGPUFallenOff", Topic::GpuLost),
    ("SysLogsNICDriverError", Topic::Node),
    // GKE device plugin.
    ("XidCriticalError", Topic::Xid),
    // AKS.
    ("GPUMissing", Topic::GpuLost),
    ("NVLinkStatusInactive", Topic::Nvlink),
    ("XIDErrors", Topic::Xid),
    ("IBLinkFlapping", Topic::Node),
    ("GPUClockThrottling", Topic::Thermal),
    ("UnhealthyNvidiaDevicePlugin", Topic::Driver),
    // azurehpc.
    ("GpuCount", Topic::GpuLost),
    ("GpuNvlink", Topic::Nvlink),
    ("GpuXid", Topic::Xid),
    // Tencent TKE.
    ("GPUDeviceLost", Topic::GpuLost),
    ("GPUDoubleBitEccError", Topic::Memory),
    ("GPUHighSingleBitEccError", Topic::Memory),
    ("GPUInfoROMCorrupted", Topic::Driver),
    ("GPUNvlinkError", Topic::Nvlink),
    ("GPUPCIeError", Topic::Pcie),
    ("GPUPendingRetiredPages", Topic::Memory),
    ("GPUPowerError", Topic::Power),
    ("GPURemappingRowsError", Topic::Memory),
    ("GPUTempError", Topic::Thermal),
    ("GPUXIDFatalError", Topic::Xid),
    ("GPUXIDWarningError", Topic::Xid),
];

/// When each condition type of one node was first seen bad. The type is the key: not the reason, which alternates, and
/// not `lastTransitionTime`, which agents reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FirstBad {
    since: BTreeMap<String, Timestamp>,
}

impl FirstBad {
    /// Since when each has been bad, for a clock that is set.
    pub fn moments(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        self.since.values_mut()
    }

    /// Takes one reading and tells for how long the condition has been bad; `None` if it is not. Unknown changes
    /// nothing: not knowing is no recovery.
    pub fn observe(&mut self, kind: &str, reading: &Reading, now: Timestamp) -> Option<Duration> {
        match reading {
            Reading::NotBad => {
                self.since.remove(kind);
                None
            }
            Reading::Unknown => self.since.get(kind).map(|&since| now.since(since)),
            Reading::Bad(_) => {
                if !self.since.contains_key(kind) && self.since.len() >= CONDITIONS_MAX {
                    return Some(Duration::ZERO);
                }
                let since = *self.since.entry(kind.to_owned()).or_insert(now);
                Some(now.since(since))
            }
        }
    }
}

#[cfg(test)]
mod tests;
