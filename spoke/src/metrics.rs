//! What the spoke counts, in the Prometheus text format. A registry of our own, since the names asked for do not all
//! end as the usual crates would have them. Series with a node in them exist only for nodes that were acted on or
//! skipped, and age out; no id, uuid or message is ever a label.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::clock;

/// How a family behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes both ways.
    Gauge,
    /// Sum and count of what was observed.
    Summary,
}

/// One metric: its name, what it tells, how it behaves.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    ages: bool,
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Counter, ages: false }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Gauge, ages: false }
}

const fn summary(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: Kind::Summary, ages: false }
}

/// A series of a family that ages goes when it has not moved for this long: two cooldowns at their longest.
pub const SERIES_LIFE: Duration = Duration::from_secs(3600);
/// Most series of one family: 1,000 nodes with four actions each. A new one beyond is not kept.
const SERIES_MAX: usize = 4096;

/// Nodes acted on. Labels: node, action.
pub const PROCESSED: Family =
    Family { ages: true, ..counter("gpu_selfhealing_processed_total", "Actions done to nodes, by node and action.") };
/// Nodes not acted on though something asked for it. Labels: node, reason.
pub const SKIPPED: Family =
    Family { ages: true, ..counter("gpu_selfhealing_processed_skipped", "Actions not done to nodes, by node and reason.") };
/// Commands by what verifying said. Labels: outcome.
pub const VERIFIED: Family =
    counter("gpu_selfhealing_spoke_commands_verified_total", "Commands checked, by outcome: verified, or the word of the refusal.");
/// Time of verifying.
pub const VERIFY_SECONDS: Family =
    summary("gpu_selfhealing_spoke_verify_duration_seconds", "From a command's bytes to what verifying said of them.");
/// Pods evicted.
pub const EVICTED: Family = counter("gpu_selfhealing_evict_pods_total", "Pods whose eviction the API server accepted.");
/// Parts of the detectors' memory that a start could not read.
pub const MEMORIES_LOST: Family =
    counter("gpu_selfhealing_spoke_memories_lost_total", "Nodes of which what the detectors held could not be read at the start.");
/// 1 while this replica leads.
pub const LEADER: Family = gauge("gpu_selfhealing_leader_active", "1 while this replica holds the Lease.");
/// Faults journaled and not yet acked.
pub const QUEUE: Family = gauge("gpu_selfhealing_queue_depth", "Faults in the journal that the hub has not acked.");
/// Writes of our annotations that failed.
pub const ANNOTATION_FAILED: Family =
    counter("gpu_selfhealing_annotation_write_failures_total", "Writes of node annotations that failed.");
/// Alerts by what became of them. Labels: outcome.
pub const ALERTS: Family = counter("gpu_selfhealing_spoke_alerts_total", "Alerts received, by what became of them.");
/// Alerts that could not be read in a body whose others were used.
pub const ALERTS_MALFORMED: Family =
    counter("gpu_selfhealing_spoke_alerts_malformed_total", "Alerts that could not be read inside a body that could.");
/// Faults journaled. Labels: class.
pub const FAULTS: Family = counter("gpu_selfhealing_spoke_faults_total", "Faults written to the journal, by class.");
/// Scrapes by outcome. Labels: outcome.
pub const SCRAPES: Family = counter("gpu_selfhealing_spoke_scrapes_total", "Pages asked of exporters, by outcome.");
/// How long a scrape took.
pub const SCRAPE_SECONDS: Family =
    summary("gpu_selfhealing_spoke_scrape_duration_seconds", "Time from request to the page's last byte.");
/// Lines and rows that were not used. Labels: reason.
pub const ROWS_REFUSED: Family =
    counter("gpu_selfhealing_spoke_rows_refused_total", "Exporter lines that could not be used, by reason.");
/// Signals that led to nothing. Labels: reason.
pub const SIGNALS_SKIPPED: Family =
    counter("gpu_selfhealing_spoke_signals_skipped_total", "Signals that led to no fault, by reason.");
/// Sightings of what was known.
pub const SIGNALS_REPEATED: Family =
    counter("gpu_selfhealing_spoke_signals_repeated_total", "Sightings of faults that were known already.");
/// Sources by state. Labels: state.
pub const SOURCES: Family = gauge("gpu_selfhealing_spoke_sources", "Sources of signals, by state.");
/// 1 while attached.
pub const ATTACHED: Family = gauge("gpu_selfhealing_spoke_link_attached", "1 while the hub answers on the link.");
/// Attempts to attach by outcome. Labels: outcome.
pub const ATTACHES: Family = counter("gpu_selfhealing_spoke_link_attaches_total", "Attempts to attach, by outcome.");
/// Wall clock less the hub's time.
pub const CLOCK_AHEAD: Family = gauge(
    "gpu_selfhealing_spoke_clock_ahead_seconds",
    "How far this machine's wall clock was ahead of the hub's time when it attached last; below 0, behind.",
);
/// Messages dropped at the link. Labels: reason.
pub const LINK_DROPPED: Family = counter("gpu_selfhealing_spoke_link_dropped_total", "Messages set aside at the link, by reason.");
/// Bytes on disk.
pub const JOURNAL_BYTES: Family = gauge("gpu_selfhealing_spoke_journal_bytes", "Bytes of the journal on disk.");
/// Appends that failed. Labels: reason.
pub const JOURNAL_FAILED: Family =
    counter("gpu_selfhealing_spoke_journal_failures_total", "Appends to the journal that failed, by reason.");
/// Faults given up by a full journal. Labels: class.
pub const JOURNAL_GIVEN_UP: Family = counter(
    "gpu_selfhealing_spoke_journal_given_up_total",
    "Faults that a full journal gave up before the hub had them, by class.",
);
/// Seconds since a watch said anything. Labels: kind.
pub const WATCH_AGE: Family = gauge(
    "gpu_selfhealing_spoke_watch_age_seconds",
    "Time since the last event or bookmark of a watch, of several of a kind the oldest.",
);
/// Identity files read. Labels: outcome.
pub const TLS_RELOADS: Family = counter(
    "gpu_selfhealing_spoke_tls_reloads_total",
    "Times that changed identity files were read, by outcome (ok, failed): failed, the last good ones stay in force.",
);
/// When the certificate ends.
pub const CERTIFICATE_ENDS: Family =
    gauge("gpu_selfhealing_spoke_certificate_not_after_seconds", "Unix time at which this spoke's certificate ends.");
/// Errors of a watch. Labels: kind.
pub const WATCH_ERRORS: Family = counter("gpu_selfhealing_spoke_watch_errors_total", "Errors of watches.");
/// Version of the detection settings in force.
pub const SETTINGS_VERSION: Family = gauge("gpu_selfhealing_spoke_settings_version", "Version of the detection settings in force.");

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    value: f64,
    count: u64,
    touched: Duration,
}

#[derive(Debug)]
struct Entry {
    family: Family,
    series: BTreeMap<String, Series>,
}

/// The registry. Shared by everybody; each call holds its lock for one map access.
#[derive(Debug, Default)]
pub struct Metrics {
    entries: Mutex<BTreeMap<&'static str, Entry>>,
}

impl Metrics {
    /// A registry in which what has no label is there from the start: a rate over it misses nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let metrics = Arc::<Self>::default();
        for family in [EVICTED, ANNOTATION_FAILED, SIGNALS_REPEATED] {
            metrics.add(family, &[], 0.0);
        }
        for family in [LEADER, QUEUE, ATTACHED, JOURNAL_BYTES, SETTINGS_VERSION] {
            metrics.set(family, &[], 0.0);
        }
        metrics
    }

    /// Adds one.
    pub fn inc(&self, family: Family, labels: &[(&str, &str)]) {
        self.add(family, labels, 1.0);
    }

    /// Adds `by`.
    pub fn add(&self, family: Family, labels: &[(&str, &str)], by: f64) {
        self.touch(family, labels, |series| series.value += by);
    }

    /// Sets a gauge.
    pub fn set(&self, family: Family, labels: &[(&str, &str)], value: f64) {
        self.touch(family, labels, |series| series.value = value);
    }

    /// Sets a gauge that has these series and no other any more.
    pub fn only<'a>(&self, family: Family, label: &str, values: impl Iterator<Item = (&'a str, f64)>) {
        let touched = clock::boottime();
        let series =
            values.map(|(name, value)| (key(&[(label, name)]), Series { value, count: 0, touched })).take(SERIES_MAX).collect();
        self.entries.lock().expect("no holder of this lock panics").insert(family.name, Entry { family, series });
    }

    /// Adds an observation to a summary.
    pub fn observe(&self, family: Family, labels: &[(&str, &str)], value: f64) {
        self.touch(family, labels, |series| {
            series.value += value;
            series.count += 1;
        });
    }

    /// Current value of one series, for tests and readiness.
    #[must_use]
    pub fn get(&self, family: Family, labels: &[(&str, &str)]) -> Option<f64> {
        let entries = self.entries.lock().expect("no holder of this lock panics");
        Some(entries.get(family.name)?.series.get(&key(labels))?.value)
    }

    /// Everything as text, aged series left out for good.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_at(clock::boottime())
    }

    fn touch(&self, family: Family, labels: &[(&str, &str)], change: impl FnOnce(&mut Series)) {
        let mut entries = self.entries.lock().expect("no holder of this lock panics");
        let entry = entries.entry(family.name).or_insert_with(|| Entry { family, series: BTreeMap::new() });
        let key = key(labels);
        if entry.series.len() >= SERIES_MAX && !entry.series.contains_key(&key) {
            return;
        }
        let series = entry.series.entry(key).or_default();
        change(series);
        series.touched = clock::boottime();
    }

    fn render_at(&self, now: Duration) -> String {
        let mut out = String::new();
        let mut entries = self.entries.lock().expect("no holder of this lock panics");
        for Entry { family, series } in entries.values_mut() {
            if family.ages {
                series.retain(|_, series| now.saturating_sub(series.touched) < SERIES_LIFE);
            }
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Summary => "summary",
            };
            let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", family.name, family.help, family.name);
            for (labels, series) in series.iter() {
                let _ = match family.kind {
                    Kind::Counter | Kind::Gauge => writeln!(out, "{}{labels} {}", family.name, number(series.value)),
                    Kind::Summary => {
                        let (name, sum, count) = (family.name, series.value, series.count);
                        writeln!(out, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}")
                    }
                };
            }
        }
        out
    }
}

/// As the format spells it: infinity is `+Inf`.
fn number(value: f64) -> String {
    if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() }
}

/// `{a="b",c="d"}`, escaped, or nothing.
fn key(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let pair = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    format!("{{{}}}", labels.iter().map(pair).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_people_query_are_kept_as_given() {
        let metrics = Metrics::new();
        metrics.inc(PROCESSED, &[("node", "n1"), ("action", "evict")]);
        metrics.inc(SKIPPED, &[("node", "n1"), ("reason", "cooldown")]);
        metrics.set(LEADER, &[], 1.0);
        let text = metrics.render();
        assert!(text.contains("\ngpu_selfhealing_processed_total{node=\"n1\",action=\"evict\"} 1\n"), "{text}");
        assert!(text.contains("\ngpu_selfhealing_processed_skipped{node=\"n1\",reason=\"cooldown\"} 1\n"), "{text}");
        assert!(text.contains("# TYPE gpu_selfhealing_leader_active gauge\ngpu_selfhealing_leader_active 1\n"), "{text}");
    }

    #[test]
    fn a_series_per_node_ages_out_and_others_stay() {
        let metrics = Metrics::new();
        metrics.inc(PROCESSED, &[("node", "n1"), ("action", "mark")]);
        metrics.inc(EVICTED, &[]);
        let later = metrics.render_at(clock::boottime() + SERIES_LIFE * 2);
        assert!(!later.contains("n1"), "{later}");
        assert!(later.contains("gpu_selfhealing_evict_pods_total 1"), "{later}");
    }

    #[test]
    fn a_label_cannot_break_out_of_its_quotes() {
        assert_eq!(key(&[("reason", "a\"b\\c\nd")]), "{reason=\"a\\\"b\\\\c\\nd\"}");
    }
}
