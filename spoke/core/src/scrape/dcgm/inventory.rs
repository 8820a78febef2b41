//! Which GPU a row belongs to, found once per label set rather than once per row.
//!
//! A page repeats the same label text for every metric, in the same order. So the text of each row is compared with
//! what stood at that place in the metric before; only what is new is parsed.

use super::super::exposition::{Labels, LabelsMalformed};
use super::super::metric::Metric;
use super::labels::Parsed;
use super::{Detail, GpuRow, GpuSample, Skip};

/// Most GPUs of one page. The largest node today has 16; a static target may stand for a rack of them.
pub const GPUS_MAX: usize = 256;
/// Most MIG instances of one GPU. Hardware allows 7.
pub const MIGS_MAX: usize = 16;
/// Most pods of one GPU. Time slicing is used with up to 48 replicas.
pub const WORKLOADS_MAX: usize = 64;
/// Most samples with a detail per GPU or instance: 18 links with 4 counters, 256 peers, 11 watches, 9 clock events, and
/// as many Xids again.
pub const DETAILS_MAX: usize = 512;

/// Remembered label texts: four per GPU for plain rows and those with details of their own.
const TEXTS_MAX: usize = 4 * GPUS_MAX;
/// How far the text is looked for from where it is expected, before it counts as new.
const LOOK_AHEAD: usize = 32;

/// A GPU as a whole, or one MIG instance of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityId(usize);

#[derive(Debug)]
struct Entity {
    gpu: u16,
    mig: Option<u16>,
    /// For each metric without detail: one more than the index of its sample, 0 for none.
    plain: Vec<u32>,
    /// Indices of the samples with a detail.
    detailed: Vec<u32>,
}

#[derive(Debug)]
struct Known<'a> {
    raw: &'a str,
    place: Result<EntityId, Skip>,
    labels: Parsed<'a>,
}

#[derive(Debug, Default)]
pub(super) struct Inventory<'a> {
    entities: Vec<Entity>,
    texts: Vec<Known<'a>>,
    expected: usize,
}

type Placed<'p, 'a> = Result<(EntityId, &'p Parsed<'a>), Skip>;

impl<'a> Inventory<'a> {
    /// The next row is the first of another metric.
    pub(super) fn start_metric(&mut self) {
        self.expected = 0;
    }

    pub(super) fn gpu_of(&self, entity: EntityId) -> u16 {
        self.entities[entity.0].gpu
    }

    /// Finds or adds the GPU, and the instance, that the labels name.
    pub(super) fn place(&mut self, labels: Labels<'a>, gpus: &mut Vec<GpuRow<'a>>) -> Result<Placed<'static, 'a>, LabelsMalformed>
    where
        Parsed<'a>: 'static,
    {
        let _ = (labels, gpus);
        unimplemented!()
    }
}
