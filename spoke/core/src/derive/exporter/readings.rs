//! The samples of a page sorted by GPU, so that each detector finds what it needs.

use crate::scrape::{
    dcgm::{Detail, GpuSample, Page},
    metric::Metric,
};

/// Everything that a page reads of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Readings<'a> {
    /// By [`Metric`]: the whole GPU's, the sum over its links, or the greatest of its instances where only these have it.
    values: Vec<Option<f64>>,
    /// Last Xids by instance: 0 is the whole GPU.
    pub(super) xids: Vec<(u16, u16)>,
    /// Windowed counts by Xid; instances added up.
    pub(super) counts: Vec<(u16, u32)>,
    /// There were rows of windowed counts, if only the one that says "none".
    pub(super) has_counts: bool,
    /// Some row of the last Xid on this page had no reading: one that is absent here may be among them.
    pub(super) xid_in_doubt: bool,
    /// Thermal clock events that were counted.
    pub(super) thermal_events: Vec<&'a str>,
    /// Watch, code and verdict.
    pub(super) health: Vec<(&'a str, &'a str, u8)>,
}

impl<'a> Readings<'a> {
    /// One for each GPU of the page, in its order.
    pub(super) fn of(page: &Page<'a>) -> Vec<Self> {
        let xids = page.of(Metric::XidLast).count();
        let none = Self {
            values: vec![None; Metric::ALL.len()],
            xids: Vec::new(),
            counts: Vec::new(),
            has_counts: false,
            xid_in_doubt: usize::try_from(page.rows_of(Metric::XidLast)).is_ok_and(|rows| rows > xids),
            thermal_events: Vec::new(),
            health: Vec::new(),
        };
        let mut all = vec![none; page.gpus.len()];
        for sample in &page.samples {
            all[usize::from(sample.gpu)].take(sample);
        }
        // Only now is it known which metrics the whole GPU does not have.
        for sample in page.samples.iter().filter(|sample| sample.mig.is_some()) {
            all[usize::from(sample.gpu)].take_instance(sample);
        }
        all
    }

    pub(super) fn value(&self, metric: Metric) -> Option<f64> {
        self.values[metric as usize]
    }

    fn take(&mut self, sample: &GpuSample<'a>) {
        match sample.detail {
            Detail::XidWindow { code, .. } => self.take_count(code, sample.value),
            Detail::ClockEvent(event @ ("hw_thermal" | "sw_thermal")) if sample.value > 0.0 => self.thermal_events.push(event),
            Detail::Health { watch, code } => self.health.push((watch, code, sample.value as u8)),
            Detail::Link(_) => *self.values[sample.metric as usize].get_or_insert(0.0) += sample.value,
            Detail::Plain if sample.metric == Metric::XidLast => {
                let instance = sample.mig.map_or(0, |mig| mig.saturating_add(1));
                self.xids.push((instance, sample.value as u16));
            }
            Detail::Plain if sample.mig.is_none() => self.values[sample.metric as usize] = Some(sample.value),
            Detail::Plain | Detail::ClockEvent(_) | Detail::Peer { .. } => {}
        }
    }

    fn take_count(&mut self, code: Option<u16>, value: f64) {
        self.has_counts = true;
        let Some(code) = code.filter(|&code| code > 0) else { return };
        match self.counts.iter_mut().find(|(other, _)| *other == code) {
            Some((_, count)) => *count = count.saturating_add(value as u32),
            None => self.counts.push((code, value as u32)),
        }
    }

    fn take_instance(&mut self, sample: &GpuSample<'a>) {
        if sample.detail == Detail::Plain && sample.metric != Metric::XidLast {
            let value = &mut self.values[sample.metric as usize];
            *value = Some(value.map_or(sample.value, |known| known.max(sample.value)));
        }
    }
}
