//! Faults on the wire: each message to our types and back, every text within its limit.

use super::{Asked, Error, Fault, FaultClass, GpuRef, NodeRef, Onset, Witness};
use crate::{
    bytes_text::clip,
    ids::{FaultKey, GpuSlot, GpuUuid, NodeName, NodeUid},
    limits,
    link::v1,
    time::Timestamp,
};

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

impl TryFrom<v1::FaultAsked> for Asked {
    type Error = Error;
    fn try_from(asked: v1::FaultAsked) -> Result<Self, Error> {
        let fault = asked.fault.ok_or(Error::Missing { field: "fault" })?.try_into()?;
        let witnesses = asked.witnesses.into_iter().map(Witness::from_wire).collect::<Result<_, _>>()?;
        Ok(Self { fault, witnesses })
    }
}

impl From<&Asked> for v1::FaultAsked {
    fn from(asked: &Asked) -> Self {
        let witnesses = asked.witnesses.iter().map(|witness| v1::Witness::from(*witness).into()).collect();
        Self { fault: Some((&asked.fault).into()), witnesses }
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
