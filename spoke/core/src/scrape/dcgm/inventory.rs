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

/// A label text that was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextId(usize);

impl<'a> Inventory<'a> {
    /// The next row is the first of another metric.
    pub(super) fn start_metric(&mut self) {
        self.expected = 0;
    }

    pub(super) fn gpu_of(&self, entity: EntityId) -> u16 {
        self.entities[entity.0].gpu
    }

    pub(super) fn entity_of(&self, text: TextId) -> Result<EntityId, Skip> {
        self.texts[text.0].place
    }

    pub(super) fn labels_of(&self, text: TextId) -> &Parsed<'a> {
        &self.texts[text.0].labels
    }

    /// Finds or adds the GPU, and the instance, that the labels name.
    pub(super) fn place(&mut self, labels: Labels<'a>, gpus: &mut Vec<GpuRow<'a>>) -> Result<TextId, LabelsMalformed> {
        let until = self.texts.len().min(self.expected + LOOK_AHEAD);
        let from = self.expected.min(until);
        if let Some(ahead) = self.texts[from..until].iter().position(|known| known.raw == labels.raw()) {
            self.expected = from + ahead + 1;
            return Ok(TextId(from + ahead));
        }
        let parsed = Parsed::read(labels)?;
        let place = self.entity(&parsed, gpus);
        if self.texts.len() >= TEXTS_MAX {
            self.texts.pop();
        }
        self.texts.push(Known { raw: labels.raw(), place, labels: parsed });
        Ok(TextId(self.texts.len() - 1))
    }

    /// Takes a sample in, unless the same reading is there: then the greater of the two stays.
    pub(super) fn keep(&mut self, at: EntityId, sample: GpuSample<'a>, samples: &mut Vec<GpuSample<'a>>) -> Result<(), Skip> {
        let entity = &mut self.entities[at.0];
        let before = if sample.detail == Detail::Plain {
            entity.plain[sample.metric as usize].checked_sub(1)
        } else {
            let same = |at: &&u32| {
                let other = &samples[**at as usize];
                other.metric == sample.metric && other.detail == sample.detail
            };
            entity.detailed.iter().find(same).copied()
        };
        if let Some(before) = before {
            let before = &mut samples[before as usize];
            before.value = before.value.max(sample.value);
            return Err(Skip::Duplicate);
        }
        let at = u32::try_from(samples.len()).map_err(|_| Skip::TooMany)?;
        if sample.detail == Detail::Plain {
            entity.plain[sample.metric as usize] = at + 1;
        } else if entity.detailed.len() < DETAILS_MAX {
            entity.detailed.push(at);
        } else {
            return Err(Skip::TooMany);
        }
        samples.push(sample);
        Ok(())
    }

    fn entity(&mut self, labels: &Parsed<'a>, gpus: &mut Vec<GpuRow<'a>>) -> Result<EntityId, Skip> {
        let gpu = find_or_add(labels, gpus)?;
        let row = &mut gpus[usize::from(gpu)];
        if let Some(mig) = labels.mig
            && row.mig.iter().all(|known| known.id != mig.id)
        {
            if row.mig.len() >= MIGS_MAX {
                return Err(Skip::TooMany);
            }
            row.mig.push(mig);
        }
        if let Some(workload) = labels.workload()
            && row.workloads.len() < WORKLOADS_MAX
            && !row.workloads.contains(&workload)
        {
            row.workloads.push(workload);
        }
        let mig = labels.mig.map(|mig| mig.id);
        let known = self.entities.iter().position(|entity| entity.gpu == gpu && entity.mig == mig);
        Ok(EntityId(known.unwrap_or_else(|| {
            self.entities.push(Entity { gpu, mig, plain: vec![0; Metric::ALL.len()], detailed: Vec::new() });
            self.entities.len() - 1
        })))
    }
}

fn find_or_add<'a>(labels: &Parsed<'a>, gpus: &mut Vec<GpuRow<'a>>) -> Result<u16, Skip> {
    if !labels.names_gpu() {
        return Err(Skip::NoGpu);
    }
    let at = match gpus.iter().position(|row| is_same(row, labels)) {
        Some(at) => at,
        None if gpus.len() < GPUS_MAX => {
            gpus.push(GpuRow::default());
            gpus.len() - 1
        }
        None => return Err(Skip::TooMany),
    };
    let row = &mut gpus[at];
    // Rows tell different amounts: link rows have no model, for one.
    row.uuid = row.uuid.or(labels.uuid);
    row.slot = row.slot.or(labels.slot);
    row.index_hint = row.index_hint.or(labels.index);
    row.model = row.model.or(labels.model);
    row.driver = row.driver.or(labels.driver);
    row.hostname_hint = row.hostname_hint.or(labels.hostname);
    u16::try_from(at).map_err(|_| Skip::TooMany)
}

/// Compares by the surest mark that both sides have. Two hosts on one page may both have a GPU 0 and the same slots.
fn is_same(row: &GpuRow<'_>, labels: &Parsed<'_>) -> bool {
    if let (Some(a), Some(b)) = (row.uuid, labels.uuid) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (row.hostname_hint, labels.hostname)
        && a != b
    {
        return false;
    }
    match (row.slot, labels.slot) {
        (Some(a), Some(b)) => a == b,
        _ => row.index_hint.is_some() && row.index_hint == labels.index,
    }
}
