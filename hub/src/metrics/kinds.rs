//! Counters, gauges and histograms that keep the names they are given, and their Prometheus text.
//! Label values are `&'static str`, so that nothing that came from outside can become a series.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A number that only grows.
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    help: &'static str,
    value: AtomicU64,
}

impl Counter {
    pub(crate) const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, value: AtomicU64::new(0) }
    }

    /// Adds to it.
    pub fn add(&self, n: u64) {
        self.value.fetch_add(n, Relaxed);
    }

    pub(super) fn write(&self, out: &mut String) {
        head(out, self.name, self.help, "counter");
        let _ = writeln!(out, "{} {}", self.name, self.value.load(Relaxed));
    }
}

/// A number that goes up and down.
#[derive(Debug)]
pub struct Gauge {
    name: &'static str,
    help: &'static str,
    value: AtomicI64,
}

impl Gauge {
    pub(crate) const fn new(name: &'static str, help: &'static str) -> Self {
        Self { name, help, value: AtomicI64::new(0) }
    }

    /// Sets it.
    pub fn set(&self, value: i64) {
        self.value.store(value, Relaxed);
    }

    pub(super) fn write(&self, out: &mut String) {
        head(out, self.name, self.help, "gauge");
        let _ = writeln!(out, "{} {}", self.name, self.value.load(Relaxed));
    }
}

/// Counters under one name, told apart by N labels.
#[derive(Debug)]
pub struct Family<const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    values: Mutex<BTreeMap<[&'static str; N], u64>>,
}

impl<const N: usize> Family<N> {
    pub(crate) const fn counter(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self { name, help, labels, values: Mutex::new(BTreeMap::new()) }
    }

    /// Adds one.
    pub fn inc(&self, labels: [&'static str; N]) {
        self.add(labels, 1);
    }

    /// Adds `n`.
    pub fn add(&self, labels: [&'static str; N], n: u64) {
        *self.values.lock().unwrap_or_else(PoisonError::into_inner).entry(labels).or_default() += n;
    }

    pub(super) fn write(&self, out: &mut String) {
        head(out, self.name, self.help, "counter");
        let values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        for (values, n) in values.iter() {
            let pairs: Vec<String> = self.labels.iter().zip(values).map(|(label, value)| format!("{label}=\"{value}\"")).collect();
            let _ = writeln!(out, "{}{{{}}} {n}", self.name, pairs.join(","));
        }
    }
}

/// Upper bounds in seconds: from a commit on a fast disk to the longest wait anyone puts up with.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// How long things took.
#[derive(Debug)]
pub struct Histogram {
    name: &'static str,
    help: &'static str,
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            buckets: [const { AtomicU64::new(0) }; BOUNDS.len()],
            count: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
        }
    }

    /// One thing took this long.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at].fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn write(&self, out: &mut String) {
        head(out, self.name, self.help, "histogram");
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += bucket.load(Relaxed);
            let _ = writeln!(out, "{}_bucket{{le=\"{bound}\"}} {below}", self.name);
        }
        // Taken last and never below the buckets, although others go on counting meanwhile.
        let count = self.count.load(Relaxed).max(below);
        let _ = writeln!(out, "{}_bucket{{le=\"+Inf\"}} {count}", self.name);
        let _ = writeln!(out, "{}_sum {}", self.name, Duration::from_micros(self.sum_us.load(Relaxed)).as_secs_f64());
        let _ = writeln!(out, "{}_count {count}", self.name);
    }
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_writes_one_line_per_set_of_labels_under_the_name_it_was_given() {
        static FAMILY: Family<2> = Family::counter("gpu_selfhealing_hub_x", "What.", ["a", "b"]);
        FAMILY.inc(["1", "2"]);
        FAMILY.add(["1", "3"], 4);
        let mut out = String::new();
        FAMILY.write(&mut out);
        let want = "# HELP gpu_selfhealing_hub_x What.\n# TYPE gpu_selfhealing_hub_x counter\n\
                    gpu_selfhealing_hub_x{a=\"1\",b=\"2\"} 1\ngpu_selfhealing_hub_x{a=\"1\",b=\"3\"} 4\n";
        assert_eq!(out, want);
    }

    #[test]
    fn buckets_of_a_histogram_add_up() {
        static HISTOGRAM: Histogram = Histogram::new("h", "What.");
        for ms in [1, 2, 700, 60_000] {
            HISTOGRAM.observe(Duration::from_millis(ms));
        }
        let mut out = String::new();
        HISTOGRAM.write(&mut out);
        for line in
            ["h_bucket{le=\"0.001\"} 1", "h_bucket{le=\"1\"} 3", "h_bucket{le=\"30\"} 3", "h_bucket{le=\"+Inf\"} 4", "h_count 4"]
        {
            assert!(out.lines().any(|have| have == line), "{line} in\n{out}");
        }
    }
}
