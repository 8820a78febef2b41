//! Rows of an exporter's page to typed GPU samples.
//!
//! A GPU is its UUID, else its PCI slot, else its index on this page: rows with and without pod labels are the same GPU,
//! and time slicing's row per pod is one sample. MIG rows stay apart from the whole GPU's. Names are only hints: the
//! caller knows which node it scraped. Judges nothing: an empty page is an empty [`Page`], not eight lost GPUs.

mod inventory;
mod labels;

use std::collections::BTreeMap;

use self::inventory::Inventory;
use self::labels::Parsed;
use super::alias::Aliases;
use super::exposition::{self, BadLines, Reason};
use super::metric::{Metric, NoReading};
use super::slot::PciSlot;

pub use inventory::{DETAILS_MAX, GPUS_MAX, MIGS_MAX, WORKLOADS_MAX};

/// Everything that one scrape says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page<'a> {
    /// The GPUs that had at least one row, in the order of the page.
    pub gpus: Vec<GpuRow<'a>>,
    /// The readings, duplicates merged.
    pub samples: Vec<GpuSample<'a>>,
    /// Readable rows, used or not.
    pub rows: u32,
    /// Rows that were readable but are no sample, by reason.
    pub skipped: BTreeMap<Skip, u32>,
    /// Rows per known metric, by its place in [`Metric::ALL`]. See [`Page::rows_of`].
    present: Vec<u32>,
    /// Lines that could not be read.
    pub errors: BadLines,
}

/// One GPU as the page knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuRow<'a> {
    /// `GPU-…`.
    pub uuid: Option<&'a str>,
    /// Where it sits.
    pub slot: Option<PciSlot>,
    /// Its index, which a reboot may change.
    pub index_hint: Option<u16>,
    /// Its model.
    pub model: Option<&'a str>,
    /// The driver's version.
    pub driver: Option<&'a str>,
    /// Node, exporter pod or container id: whatever the exporter took for its host name.
    pub hostname_hint: Option<&'a str>,
    /// Its MIG instances.
    pub mig: Vec<MigInstance<'a>>,
    /// The pods that use it or a part of it.
    pub workloads: Vec<Workload<'a>>,
}

/// One MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigInstance<'a> {
    /// GPU_I_ID.
    pub id: u16,
    /// Its profile, such as `1g.5gb`.
    pub profile: &'a str,
}

/// A pod on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload<'a> {
    /// Namespace; empty where the exporter names none.
    pub namespace: &'a str,
    /// Pod.
    pub pod: &'a str,
    /// Container; empty where the exporter names none.
    pub container: &'a str,
    /// GPU_I_ID of the slice it uses.
    pub mig: Option<u16>,
}

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuSample<'a> {
    /// Which of [`Page::gpus`].
    pub gpu: u16,
    /// GPU_I_ID where the reading is a MIG instance's; `None` is the whole GPU.
    pub mig: Option<u16>,
    /// What was measured.
    pub metric: Metric,
    /// In the metric's unit.
    pub value: f64,
    /// What the row says beside its value.
    pub detail: Detail<'a>,
    /// The row's own time, where it has one.
    pub timestamp_ms: Option<i64>,
}

/// What tells rows of one metric and one GPU apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail<'a> {
    /// Nothing.
    #[default]
    Plain,
    /// Windowed count of one Xid; no code on the row that says "none".
    XidWindow {
        /// The Xid.
        code: Option<u16>,
        /// Length of the window.
        window_ms: Option<u32>,
    },
    /// A clock event, such as `hw_thermal`.
    ClockEvent(&'a str),
    /// A DCGM health watch and its code.
    Health {
        /// Such as `MEM`.
        watch: &'a str,
        /// Such as `DCGM_FR_VOLATILE_DBE_DETECTED`.
        code: &'a str,
    },
    /// A path to another GPU.
    Peer {
        /// The other GPU as the exporter names it.
        gpu: &'a str,
        /// Such as `OK`.
        status: &'a str,
    },
    /// One NVLink.
    Link(u16),
}

/// Why a readable row is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// The metric is none of ours.
    UnknownMetric,
    /// The number is no reading.
    NoReading(NoReading),
    /// The row names no GPU. It is never taken for GPU 0.
    NoGpu,
    /// The same reading again, as with time slicing.
    Duplicate,
    /// More GPUs, instances or details than a node can have.
    TooMany,
}

/// Reads a page.
pub fn decode<'a>(page: &'a [u8], aliases: &Aliases) -> Result<Page<'a>, exposition::Error> {
    let mut rows = exposition::rows(page)?;
    let mut out = Page { present: vec![0; Metric::ALL.len()], ..Page::default() };
    let mut inventory = Inventory::default();
    let (mut name, mut alias) = ("", None);
    while let Some(row) = rows.next() {
        out.rows += 1;
        if row.name != name {
            (name, alias) = (row.name, aliases.get(row.name));
            inventory.start_metric();
        }
        let Some(alias) = alias else {
            skip(&mut out.skipped, Skip::UnknownMetric);
            continue;
        };
        out.present[alias.metric as usize] += 1;
        let Ok(text) = inventory.place(row.labels, &mut out.gpus) else {
            rows.reject(&row, Reason::LabelsMalformed);
            continue;
        };
        let value = alias.metric.accept(row.value * alias.scale).map_err(Skip::NoReading);
        let kept = inventory.entity_of(text).and_then(|entity| {
            let sample = sample(inventory.gpu_of(entity), inventory.labels_of(text), alias.metric, value?, row.timestamp_ms);
            inventory.keep(entity, sample, &mut out.samples)
        });
        if let Err(reason) = kept {
            skip(&mut out.skipped, reason);
        }
    }
    out.errors = rows.into_bad();
    Ok(out)
}

fn sample<'a>(gpu: u16, labels: &Parsed<'a>, metric: Metric, value: f64, timestamp_ms: Option<i64>) -> GpuSample<'a> {
    let detail = match metric {
        Metric::XidCount => Detail::XidWindow { code: labels.xid, window_ms: labels.window_ms },
        Metric::ClockEvents => Detail::ClockEvent(labels.clock_event),
        Metric::HealthStatus => Detail::Health { watch: labels.health_watch, code: labels.health_code },
        Metric::P2pStatus => Detail::Peer { gpu: labels.peer_gpu, status: labels.link_status },
        _ => labels.nvlink.map_or(Detail::Plain, Detail::Link),
    };
    GpuSample { gpu, mig: labels.mig.map(|mig| mig.id), metric, value, detail, timestamp_ms }
}

fn skip(skipped: &mut BTreeMap<Skip, u32>, reason: Skip) {
    *skipped.entry(reason).or_default() += 1;
}

impl<'a> Page<'a> {
    /// The GPU of a sample.
    pub fn gpu(&self, sample: &GpuSample<'a>) -> &GpuRow<'a> {
        &self.gpus[usize::from(sample.gpu)]
    }

    /// How many rows of this metric there were, those without a reading included. 0 = the signal is not available.
    pub fn rows_of(&self, metric: Metric) -> u32 {
        self.present.get(metric as usize).copied().unwrap_or_default()
    }

    /// The samples of one metric.
    pub fn of(&self, metric: Metric) -> impl Iterator<Item = &GpuSample<'a>> {
        self.samples.iter().filter(move |sample| sample.metric == metric)
    }

    /// How many rows were skipped for this reason.
    pub fn skipped(&self, reason: Skip) -> u32 {
        self.skipped.get(&reason).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
