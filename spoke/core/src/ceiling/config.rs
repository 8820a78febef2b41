//! Reading `config.yaml`. Every error says where; unknown keys are errors, since a limit that was mistyped would
//! otherwise be no limit. The caller keeps the last good settings.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::words::{Level, Mode};
use serde::Deserialize;

use super::{Actions, CONFIG_BYTES_MAX, Ceiling, Config, parse_duration};

/// Thresholds that the short form knows.
const THRESHOLDS: [&str; 3] = ["xidErrors", "gpuTempHigh", "gpuTempWarn"];
/// Longest cooldown or grace that is believed to be meant.
const SPAN_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Reads the text of `config.yaml`. An empty one narrows nothing.
///
/// # Errors
/// Each fault of the text with its place.
pub fn parse(text: &str) -> Result<Config, Vec<Error>> {
    if text.len() > CONFIG_BYTES_MAX {
        return Err(vec![Error::at("config.yaml", format!("{} bytes, {CONFIG_BYTES_MAX} are allowed", text.len()))]);
    }
    let raw: Option<Raw> = serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map_or("config.yaml".to_owned(), |at| format!("line {}, column {}", at.line(), at.column()));
        vec![Error { place, message: error.to_string().lines().next().unwrap_or_default().to_owned() }]
    })?;
    raw.unwrap_or_default().check()
}

/// One fault of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct Error {
    /// A path like `ceiling.mode`, or a line and column.
    pub place: String,
    /// What is wrong there.
    pub message: String,
}

impl Error {
    fn at(place: &str, message: impl Into<String>) -> Self {
        Self { place: place.to_owned(), message: message.into() }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Raw {
    cooldown: Option<String>,
    alert_level: Option<String>,
    notify_only: bool,
    thresholds: BTreeMap<String, f64>,
    actions: RawActions,
    ceiling: RawCeiling,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawActions {
    evict: Option<bool>,
    taint: Option<bool>,
    notify: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct RawCeiling {
    mode: Option<String>,
    namespaces: Option<Vec<String>>,
    nodes_out: Option<RawNodesOut>,
    protected_labels: Option<RawLabels>,
    grace_max: Option<String>,
    stop: bool,
}

/// `3`, `10%`, or `{count: 3, percent: 10}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawNodesOut {
    Count(u32),
    Text(String),
    Both(RawBoth),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBoth {
    count: Option<u32>,
    percent: Option<u32>,
}

/// `[key, key=value]` or `{key: value}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawLabels {
    List(Vec<String>),
    Map(BTreeMap<String, String>),
}

impl Raw {
    fn check(self) -> Result<Config, Vec<Error>> {
        let mut errors = Vec::new();
        for (key, value) in &self.thresholds {
            if !THRESHOLDS.contains(&key.as_str()) {
                errors.push(Error::at(&format!("thresholds.{key}"), format!("unknown; known are {}", THRESHOLDS.join(", "))));
            } else if !value.is_finite() || *value < 0.0 {
                errors.push(Error::at(&format!("thresholds.{key}"), "must be a number of 0 or more"));
            }
        }
        let config = Config {
            cooldown: span("cooldown", self.cooldown.as_deref(), &mut errors),
            alert_level: word("alertLevel", self.alert_level.as_deref(), Level::parse, "P0, P1 or P2", &mut errors),
            notify_only: self.notify_only,
            thresholds: self.thresholds,
            actions: Actions {
                evict: self.actions.evict.unwrap_or(true),
                taint: self.actions.taint.unwrap_or(true),
                notify: self.actions.notify.unwrap_or(true),
            },
            ceiling: self.ceiling.check(&mut errors),
        };
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }
}

impl RawCeiling {
    fn check(self, errors: &mut Vec<Error>) -> Ceiling {
        let (nodes_out, nodes_out_percent) = match self.nodes_out {
            None => (None, None),
            Some(RawNodesOut::Count(count)) => (Some(count), None),
            Some(RawNodesOut::Text(text)) => (None, percent(&text, errors)),
            Some(RawNodesOut::Both(both)) => (both.count, both.percent.and_then(|n| in_range(n, errors))),
        };
        let modes = "observe, notify, mark, approve or heal";
        Ceiling {
            mode: word("ceiling.mode", self.mode.as_deref(), Mode::parse, modes, errors).unwrap_or(Mode::Heal),
            namespaces: self.namespaces,
            nodes_out,
            nodes_out_percent,
            protected_labels: self.protected_labels.map(RawLabels::map).unwrap_or_default(),
            grace_max: span("ceiling.graceMax", self.grace_max.as_deref(), errors),
            stop: self.stop,
        }
    }
}

impl RawLabels {
    fn map(self) -> BTreeMap<String, String> {
        match self {
            Self::Map(map) => map,
            Self::List(list) => list
                .into_iter()
                .map(|item| {
                    item.split_once('=').map_or((item.clone(), String::new()), |(key, value)| (key.to_owned(), value.to_owned()))
                })
                .collect(),
        }
    }
}

fn percent(text: &str, errors: &mut Vec<Error>) -> Option<u32> {
    match text.strip_suffix('%').and_then(|number| number.trim().parse().ok()) {
        Some(number) => in_range(number, errors),
        None => {
            errors.push(Error::at("ceiling.nodesOut", format!("{text:?} is neither a count nor a share like 10%")));
            None
        }
    }
}

fn in_range(percent: u32, errors: &mut Vec<Error>) -> Option<u32> {
    if percent > 100 {
        errors.push(Error::at("ceiling.nodesOut", format!("{percent} percent is more than all")));
    }
    Some(percent)
}

fn span(place: &str, text: Option<&str>, errors: &mut Vec<Error>) -> Option<Duration> {
    let text = text?;
    let span = parse_duration(text).filter(|span| *span <= SPAN_MAX);
    if span.is_none() {
        errors.push(Error::at(place, format!("{text:?} is no span like 15m or 1h30m, of 7 days at most")));
    }
    span
}

fn word<T>(place: &str, text: Option<&str>, parse: fn(&str) -> Option<T>, known: &str, errors: &mut Vec<Error>) -> Option<T> {
    let text = text?;
    let word = parse(text);
    if word.is_none() {
        errors.push(Error::at(place, format!("{text:?} is none of {known}")));
    }
    word
}
