//! Detection settings as the detectors use them: typed, in range, spans instead of milliseconds. What does not parse is
//! refused as a whole, with each reason; what the hub left at 0 is the default and never "at once" or "for ever".

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::link::v1;

use crate::scrape::{
    alias::{AlertLabels, Alias, Aliases, LabelMeaning},
    conditions::{BadWhen, Conditions, Rule, Topic},
    metric::Metric,
};

/// Celsius that a threshold can have: below it every GPU is hot, above it none ever is.
const CELSIUS: std::ops::RangeInclusive<f64> = 20.0..=150.0;
/// How often an exporter may be asked: each second to each hour.
const INTERVAL_MS: std::ops::RangeInclusive<u32> = 1_000..=3_600_000;
/// Longest span that a setting may have: a day.
const SPAN_MS_MAX: u32 = 86_400_000;
/// Most models with thresholds of their own, as `state.proto` says.
const MODELS_MAX: usize = 64;
/// Most own alert labels, as `state.proto` says.
const ALERT_LABELS_MAX: usize = 64;
/// Most own metric names, as `state.proto` says.
const ALIASES_MAX: usize = 256;
/// Most conditions, as `state.proto` says.
const CONDITIONS_MAX: usize = 128;
/// How long a condition must be bad where no setting says so: agents restart within a minute.
const CONDITION_HOLD: Duration = Duration::from_secs(60);

/// When a GPU is too hot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thermal {
    /// Above it: code `warn`.
    pub warn_celsius: f64,
    /// Above it: code `high`.
    pub high_celsius: f64,
    /// For how long it must be above.
    pub dwell: Duration,
}

/// The settings in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Their version; 0 are the defaults.
    pub version: u64,
    /// How often exporters are asked.
    pub scrape_interval: Duration,
    /// Thresholds of every model.
    pub thermal: Thermal,
    /// Thresholds of models by a part of their name, longest part first.
    pub thermal_by_model: Vec<(String, Thermal)>,
    /// How many Xids of one code in the window are a reason of their own.
    pub xid_errors: u32,
    /// That window.
    pub xid_window: Duration,
    /// After how many scrapes without its rows a GPU is lost.
    pub gpu_lost_scrapes: u32,
    /// Older news of a source is no predecessor and no evidence.
    pub stale_after: Duration,
    /// A source without news for so long is broken.
    pub broken_after: Duration,
    /// How long allocatable must be below capacity.
    pub allocatable_debounce: Duration,
    /// Which conditions count, and when they are bad.
    pub conditions: Conditions,
    /// How long each must be bad; others for a minute.
    pub holds: BTreeMap<String, Duration>,
    /// The operator's own metric names beside the known ones.
    pub aliases: Aliases,
    /// The operator's own alert labels before the known ones.
    pub alert_labels: AlertLabels,
    /// Exporters say nothing.
    pub scrape_off: bool,
    /// Alerts say nothing.
    pub webhook_off: bool,
    /// Node conditions say nothing.
    pub conditions_off: bool,
    /// Allocatable says nothing.
    pub allocatable_off: bool,
}

/// One thing that is wrong with settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A number of milliseconds out of its range.
    #[error("{field} is {got} ms, {min} to {max} are allowed")]
    Span {
        /// The field.
        field: &'static str,
        /// What it says.
        got: u32,
        /// The least.
        min: u32,
        /// The most.
        max: u32,
    },
    /// Thresholds that contradict each other, or that no GPU has.
    #[error("thermal for {model}: warn {warn} and high {high} are not 20 <= warn <= high <= 150")]
    Thermal {
        /// Whose.
        model: String,
        /// As given.
        warn: f64,
        /// As given.
        high: f64,
    },
    /// Neither True nor False.
    #[error("condition {kind:?} has bad_status {got:?}, True or False is allowed")]
    BadStatus {
        /// The condition.
        kind: String,
        /// As given.
        got: String,
    },
    /// An own name for a metric that nobody knows.
    #[error("metric_aliases maps {own:?} to {metric:?}, which is no known metric")]
    Alias {
        /// The operator's name.
        own: String,
        /// What it should stand for.
        metric: String,
    },
    /// An own alert label for a meaning that no label has.
    #[error("alert_labels maps {own:?} to {meaning:?}, which is nothing that a label says")]
    AlertLabel {
        /// The operator's label.
        own: String,
        /// What it should say.
        meaning: String,
    },
    /// A list over its limit.
    #[error("{field} has {got} entries, {max} are allowed")]
    TooMany {
        /// The field.
        field: &'static str,
        /// How many there are.
        got: usize,
        /// The limit.
        max: usize,
    },
}

impl Default for Settings {
    fn default() -> Self {
        let scrape_interval = Duration::from_secs(60);
        Self {
            version: 0,
            scrape_interval,
            thermal: Thermal { warn_celsius: 80.0, high_celsius: 85.0, dwell: Duration::from_secs(60) },
            thermal_by_model: Vec::new(),
            xid_errors: 5,
            xid_window: Duration::from_secs(300),
            gpu_lost_scrapes: 3,
            stale_after: scrape_interval * 3,
            broken_after: Duration::from_secs(300),
            allocatable_debounce: Duration::from_secs(180),
            conditions: Conditions::default(),
            holds: BTreeMap::new(),
            aliases: Aliases::new(),
            alert_labels: AlertLabels::default(),
            scrape_off: false,
            webhook_off: false,
            conditions_off: false,
            allocatable_off: false,
        }
    }
}

impl Settings {
    /// Reads what the hub sent.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(wire: &v1::DetectionSettings) -> Result<Self, Vec<Error>> {
        let mut errors = Vec::new();
        let base = Self::default();
        let mut span = |field, got: u32, default: Duration, range: std::ops::RangeInclusive<u32>| {
            if got == 0 {
                return default;
            }
            if !range.contains(&got) {
                errors.push(Error::Span { field, got, min: *range.start(), max: *range.end() });
            }
            Duration::from_millis(got.into())
        };
        let scrape_interval = span("scrape_interval_ms", wire.scrape_interval_ms, base.scrape_interval, INTERVAL_MS);
        let xid_window = span("xid_window_ms", wire.xid_window_ms, base.xid_window, 1_000..=SPAN_MS_MAX);
        let broken_after = span("broken_after_ms", wire.broken_after_ms, base.broken_after, 1_000..=SPAN_MS_MAX);
        let allocatable_debounce =
            span("allocatable_debounce_ms", wire.allocatable_debounce_ms, base.allocatable_debounce, 1..=SPAN_MS_MAX);
        let intervals = or_default(wire.stale_after_intervals, 3).min(1_000);
        let thermal = thermal("every model", wire.thermal.as_ref(), base.thermal, &mut errors);
        let (conditions, holds) = conditions(&wire.conditions, &mut errors);
        let settings = Self {
            version: wire.version,
            scrape_interval,
            thermal,
            thermal_by_model: by_model(&wire.thermal_by_model, thermal, &mut errors),
            xid_errors: or_default(wire.xid_errors, base.xid_errors),
            xid_window,
            gpu_lost_scrapes: or_default(wire.gpu_lost_scrapes, base.gpu_lost_scrapes),
            stale_after: scrape_interval * intervals,
            broken_after,
            allocatable_debounce,
            conditions,
            holds,
            aliases: aliases(&wire.metric_aliases, &mut errors),
            alert_labels: alert_labels(&wire.alert_labels, &mut errors),
            scrape_off: wire.scrape_off,
            webhook_off: wire.webhook_off,
            conditions_off: wire.conditions_off,
            allocatable_off: wire.allocatable_off,
        };
        if errors.is_empty() { Ok(settings) } else { Err(errors) }
    }

    /// The thresholds of a model: of the longest part of its name that settings know, else everybody's.
    #[must_use]
    pub fn thermal_of(&self, model: &str) -> Thermal {
        let own = self.thermal_by_model.iter().find(|(part, _)| model.contains(part.as_str()));
        own.map_or(self.thermal, |&(_, thermal)| thermal)
    }

    /// How long a condition must be bad.
    #[must_use]
    pub fn hold_of(&self, kind: &str) -> Duration {
        self.holds.get(kind).copied().unwrap_or(CONDITION_HOLD)
    }
}

fn or_default(got: u32, default: u32) -> u32 {
    if got == 0 { default } else { got }
}

fn thermal(model: &str, wire: Option<&v1::ThermalSettings>, base: Thermal, errors: &mut Vec<Error>) -> Thermal {
    let Some(wire) = wire else { return base };
    let (warn, high) = (wire.warn_celsius, wire.high_celsius);
    // NaN is in no range.
    if !CELSIUS.contains(&warn) || !CELSIUS.contains(&high) || warn > high {
        errors.push(Error::Thermal { model: model.to_owned(), warn, high });
    }
    if wire.dwell_ms > SPAN_MS_MAX {
        errors.push(Error::Span { field: "thermal.dwell_ms", got: wire.dwell_ms, min: 0, max: SPAN_MS_MAX });
    }
    Thermal { warn_celsius: warn, high_celsius: high, dwell: Duration::from_millis(wire.dwell_ms.into()) }
}

fn by_model(wire: &BTreeMap<String, v1::ThermalSettings>, base: Thermal, errors: &mut Vec<Error>) -> Vec<(String, Thermal)> {
    within("thermal_by_model", wire.len(), MODELS_MAX, errors);
    let mut models: Vec<_> = wire.iter().map(|(model, own)| (model.clone(), thermal(model, Some(own), base, errors))).collect();
    models.sort_by_key(|(part, _)| std::cmp::Reverse(part.len()));
    models
}

fn conditions(wire: &[v1::ConditionRule], errors: &mut Vec<Error>) -> (Conditions, BTreeMap<String, Duration>) {
    within("conditions", wire.len(), CONDITIONS_MAX, errors);
    let mut table = Conditions::default();
    let mut holds = BTreeMap::new();
    for rule in wire {
        let bad = match rule.bad_status.as_str() {
            "True" => BadWhen::True,
            "False" => BadWhen::False,
            got => {
                errors.push(Error::BadStatus { kind: rule.r#type.clone(), got: got.to_owned() });
                continue;
            }
        };
        let topic = table.rule(&rule.r#type).map_or(Topic::Node, |known| known.topic);
        table = table.with(&rule.r#type, Rule { bad, topic });
        if rule.hold_ms > 0 {
            holds.insert(rule.r#type.clone(), Duration::from_millis(rule.hold_ms.min(SPAN_MS_MAX).into()));
        }
    }
    (table, holds)
}

/// An own name stands for one of DCGM's names or one of ours.
fn aliases(wire: &BTreeMap<String, String>, errors: &mut Vec<Error>) -> Aliases {
    within("metric_aliases", wire.len(), ALIASES_MAX, errors);
    let known = Aliases::new();
    let mut table = Aliases::new();
    for (own, metric) in wire {
        let alias = known.get(metric).or_else(|| Some(Alias { metric: metric.parse::<Metric>().ok()?, scale: 1.0 }));
        match alias {
            Some(alias) => table = table.with(own, alias),
            None => errors.push(Error::Alias { own: own.clone(), metric: metric.clone() }),
        }
    }
    table
}

/// An own label stands before those that are known, for one of the meanings that labels have.
fn alert_labels(wire: &BTreeMap<String, String>, errors: &mut Vec<Error>) -> AlertLabels {
    within("alert_labels", wire.len(), ALERT_LABELS_MAX, errors);
    let mut table = AlertLabels::default();
    for (own, meaning) in wire {
        match serde_json::from_value::<LabelMeaning>(serde_json::Value::String(meaning.clone())) {
            Ok(meaning) => table = table.with(own, meaning),
            Err(_) => errors.push(Error::AlertLabel { own: own.clone(), meaning: meaning.clone() }),
        }
    }
    table
}

fn within(field: &'static str, got: usize, max: usize, errors: &mut Vec<Error>) {
    if got > max {
        errors.push(Error::TooMany { field, got, max });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(warn: f64, high: f64) -> v1::ThermalSettings {
        v1::ThermalSettings { warn_celsius: warn, high_celsius: high, dwell_ms: 30_000 }
    }

    #[test]
    fn nothing_said_is_the_defaults() {
        assert_eq!(Settings::parse(&v1::DetectionSettings::default()).unwrap(), Settings::default());
    }

    #[test]
    fn the_longest_part_of_a_model_name_gives_its_thresholds() {
        let wire = v1::DetectionSettings {
            thermal_by_model: [("H100".to_owned(), model(85.0, 90.0)), ("H100 80GB".to_owned(), model(70.0, 75.0))].into(),
            ..Default::default()
        };
        let settings = Settings::parse(&wire).unwrap();
        assert_eq!(settings.thermal_of("NVIDIA H100 80GB HBM3").warn_celsius, 70.0);
        assert_eq!(settings.thermal_of("NVIDIA H100 PCIe").warn_celsius, 85.0);
        assert_eq!(settings.thermal_of("Tesla V100").warn_celsius, 80.0);
    }

    #[test]
    fn each_thing_that_is_wrong_is_told() {
        let wire = v1::DetectionSettings {
            scrape_interval_ms: 1,
            thermal: Some(model(90.0, 85.0)),
            metric_aliases: [("mine".to_owned(), "warmth".to_owned())].into(),
            conditions: vec![v1::ConditionRule { r#type: "X".into(), bad_status: "maybe".into(), hold_ms: 0 }],
            ..Default::default()
        };
        let errors: Vec<String> = Settings::parse(&wire).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(errors.len(), 4, "{errors:?}");
        assert!(errors[0].contains("1000 to 3600000"), "{errors:?}");
    }

    #[test]
    fn own_alert_labels_stand_before_the_known_ones_and_every_meaning_is_known() {
        let labels = [("machine".to_owned(), "node".to_owned())];
        let wire = v1::DetectionSettings { alert_labels: labels.into(), ..Default::default() };
        let settings = Settings::parse(&wire).unwrap();
        assert_eq!(settings.alert_labels.carrying(LabelMeaning::Node).next(), Some("machine"));
        for meaning in gpuheal_proto::words::ALERT_LABEL_MEANINGS {
            let wire = v1::DetectionSettings { alert_labels: [("x".to_owned(), meaning.to_owned())].into(), ..Default::default() };
            assert!(Settings::parse(&wire).is_ok(), "{meaning}");
        }
        let wire = v1::DetectionSettings { alert_labels: [("x".to_owned(), "mood".to_owned())].into(), ..Default::default() };
        assert_eq!(Settings::parse(&wire).unwrap_err().len(), 1);
    }

    #[test]
    fn own_names_stand_for_dcgms_or_ours() {
        let names = [("mine".to_owned(), "DCGM_FI_DEV_GPU_TEMP".to_owned()), ("other".to_owned(), "gpu_temp".to_owned())];
        let wire = v1::DetectionSettings { metric_aliases: names.into(), ..Default::default() };
        let settings = Settings::parse(&wire).unwrap();
        assert_eq!(settings.aliases.get("mine").unwrap().metric, Metric::GpuTemp);
        assert_eq!(settings.aliases.get("other").unwrap().metric, Metric::GpuTemp);
    }
}
