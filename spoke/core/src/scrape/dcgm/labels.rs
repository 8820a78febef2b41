//! The labels of one exporter row, sorted by what they say.

use super::super::exposition::{Labels, LabelsMalformed};
use super::super::slot::PciSlot;
use super::{MigInstance, Workload};

/// Every label that the decoder reads. Text that is absent is empty.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parsed<'a> {
    pub(super) index: Option<u16>,
    pub(super) uuid: Option<&'a str>,
    pub(super) slot: Option<PciSlot>,
    pub(super) model: Option<&'a str>,
    pub(super) driver: Option<&'a str>,
    pub(super) hostname: Option<&'a str>,
    pub(super) mig: Option<MigInstance<'a>>,
    pub(super) xid: Option<u16>,
    pub(super) window_ms: Option<u32>,
    pub(super) clock_event: &'a str,
    pub(super) health_watch: &'a str,
    pub(super) health_code: &'a str,
    pub(super) peer_gpu: &'a str,
    pub(super) link_status: &'a str,
    pub(super) nvlink: Option<u16>,
    pod: Pod<'a>,
    exported: Pod<'a>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Pod<'a> {
    namespace: &'a str,
    pod: &'a str,
    container: &'a str,
}

impl<'a> Parsed<'a> {
    pub(super) fn read(labels: Labels<'a>) -> Result<Self, LabelsMalformed> {
        let mut out = Self::default();
        let (mut mig_id, mut mig_profile) = (None, "");
        for label in labels.iter() {
            let label = label?;
            let value = label.raw;
            if value.is_empty() {
                continue;
            }
            match label.name {
                "gpu" => out.index = value.parse().ok(),
                "UUID" | "uuid" | "gpu_uuid" => out.uuid = Some(value),
                "pci_bus_id" => out.slot = PciSlot::parse(value).ok(),
                "modelName" | "model_name" => out.model = Some(value),
                "DCGM_FI_DRIVER_VERSION" => out.driver = Some(value),
                "Hostname" | "hostname" => out.hostname = Some(value),
                "GPU_I_ID" => mig_id = value.parse().ok(),
                "GPU_I_PROFILE" => mig_profile = value,
                "xid" => out.xid = value.parse().ok(),
                "window_size_in_ms" => out.window_ms = value.parse().ok(),
                "clock_event" => out.clock_event = value,
                "health_watch" => out.health_watch = value,
                "health_error_code" => out.health_code = value,
                "peer_gpu" => out.peer_gpu = value,
                "link_status" => out.link_status = value,
                "nvlink" => out.nvlink = value.parse().ok(),
                "pod" | "pod_name" => out.pod.pod = value,
                "namespace" | "pod_namespace" => out.pod.namespace = value,
                "container" | "container_name" => out.pod.container = value,
                "exported_pod" => out.exported.pod = value,
                "exported_namespace" => out.exported.namespace = value,
                "exported_container" => out.exported.container = value,
                _ => {}
            }
        }
        out.mig = mig_id.map(|id| MigInstance { id, profile: mig_profile });
        Ok(out)
    }

    /// The pod that uses the GPU. Where Prometheus stood between, the exporter's own pod took the plain names.
    pub(super) fn workload(&self) -> Option<Workload<'a>> {
        let Pod { namespace, pod, container } = if self.exported.pod.is_empty() { self.pod } else { self.exported };
        (!pod.is_empty()).then_some(Workload { namespace, pod, container, mig: self.mig.map(|mig| mig.id) })
    }

    /// Whether the row says which GPU it is about.
    pub(super) fn names_gpu(&self) -> bool {
        self.uuid.is_some() || self.slot.is_some() || self.index.is_some()
    }
}
