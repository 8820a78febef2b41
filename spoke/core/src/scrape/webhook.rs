//! Alertmanager's webhook body to typed alerts: per alert, never by the group's status.
//!
//! Accepts what Alertmanager sends from 0.15 on, Rancher v2 (no version, group key or fingerprint; `alert_name`) and
//! Grafana (more keys). One unreadable alert is reported with its path and the others are used; a body that is no such
//! body at all is an error with the byte where it went wrong. Says nothing about truth: a resolved alert is not a repair.

mod fingerprint;
mod subject;

use std::collections::BTreeMap;

use gpuheal_proto::time::{Timestamp, parse_rfc3339};
use serde_json::{Map, Value};

use super::alias::AlertLabels;

pub use fingerprint::Fingerprint;
pub use subject::{AlertGpu, AlertReading, AlertWorkload, NodeCandidate, NodeIdentity, Subject};

/// Largest body: [`ALERTS_MAX`] alerts of 4 KiB, three times what a DCGM alert with its annotations takes.
pub const WEBHOOK_BYTES_MAX: usize = ALERTS_MAX * 4096;
/// Most alerts of one body. A group of a thousand is a fleet-wide outage; Alertmanager's `max_alerts` can cut it.
pub const ALERTS_MAX: usize = 1000;
/// Most labels of one alert; what the largest DCGM alert has, twice over.
pub const LABELS_MAX: usize = 128;
/// Most values of one body, counted by the commas and brackets that part them. A parsed value takes 32 bytes and can be
/// written in two, so without this a body of 4 MB could cost 64; now it is 5. A thousand alerts have some 50,000.
pub const VALUES_MAX: usize = 150_000;
/// How many refused alerts are kept with path and reason.
pub const REFUSED_KEPT: usize = 8;

/// 0002-01-01T00:00:00Z. What is before it is the zero time, whatever its offset made of it.
const YEAR_2: Timestamp = Timestamp::from_unix_ms(-62_104_060_800_000);

/// Why a body was refused as a whole. The sender gets 400, and 413 for the sizes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More bytes than are ever read.
    #[error("body of {bytes} bytes is larger than {bytes_max}")]
    TooLarge {
        /// Size of the body.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// No JSON, or nested deeper than 127 levels.
    #[error("no JSON at byte {offset} (line {line}, column {column}): {problem}")]
    NoJson {
        /// Where, counted in bytes from 0.
        offset: usize,
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
        /// What the parser said.
        problem: String,
    },
    /// JSON of another shape.
    #[error("{path}: expected {expected}")]
    WrongShape {
        /// Path of the field.
        path: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// More values than are ever read.
    #[error("{values} values are more than {values_max}")]
    TooManyValues {
        /// How many there were.
        values: usize,
        /// The limit.
        values_max: usize,
    },
    /// More alerts than are ever read.
    #[error("{alerts} alerts are more than {alerts_max}")]
    TooManyAlerts {
        /// How many there were.
        alerts: usize,
        /// The limit.
        alerts_max: usize,
    },
}

/// Whether one alert stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// It stands.
    Firing,
    /// It does not. Starts nothing and proves nothing.
    Resolved,
}

/// A body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Webhook {
    /// The receiver's name as Alertmanager writes it, regex-escaped.
    pub receiver: String,
    /// The group's key; empty where the sender has none.
    pub group_key: String,
    /// Why it was sent, from Alertmanager 0.32 on.
    pub notification_reason: String,
    /// Alerts that the sender left out: where not 0, nothing follows from an alert that is absent.
    pub truncated_alerts: u64,
    /// The readable alerts.
    pub alerts: Vec<Alert>,
    /// How many alerts could not be read.
    pub refused_total: u32,
    /// The first of them.
    pub refused: Vec<Refused>,
}

/// One alert that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Path of the field, such as `alerts[3].startsAt`.
    pub path: String,
    /// What belongs there.
    pub expected: &'static str,
}

/// One alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Its own status.
    pub status: Status,
    /// `alertname`, or Rancher's `alert_name`; empty if it has neither.
    pub name: String,
    /// As sent, or computed from the labels.
    pub fingerprint: Fingerprint,
    /// When it began. With the fingerprint this is what makes a repeat a repeat.
    pub starts_at: Option<Timestamp>,
    /// When it ended; Alertmanager's year 1 of a firing alert is none.
    pub ends_at: Option<Timestamp>,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// What the labels say about node, GPU, readings and workload.
    pub subject: Subject,
}

/// Reads a body.
pub fn decode(body: &[u8], names: &AlertLabels) -> Result<Webhook, Error> {
    let (bytes, bytes_max) = (body.len(), WEBHOOK_BYTES_MAX);
    if bytes > bytes_max {
        return Err(Error::TooLarge { bytes, bytes_max });
    }
    let (values, values_max) = (memchr::memchr3_iter(b',', b'[', b'{', body).count(), VALUES_MAX);
    if values > values_max {
        return Err(Error::TooManyValues { values, values_max });
    }
    let body = serde_json::from_slice(body).map_err(|error| no_json(body, &error))?;
    let Value::Object(mut fields) = body else {
        return Err(Error::WrongShape { path: "body", expected: "an object" });
    };
    let alerts = match fields.remove("alerts") {
        Some(Value::Array(alerts)) => alerts,
        _ => return Err(Error::WrongShape { path: "alerts", expected: "a list" }),
    };
    if alerts.len() > ALERTS_MAX {
        return Err(Error::TooManyAlerts { alerts: alerts.len(), alerts_max: ALERTS_MAX });
    }
    let mut out = Webhook {
        receiver: take_text(&mut fields, "receiver"),
        group_key: take_text(&mut fields, "groupKey"),
        notification_reason: take_text(&mut fields, "notification_reason"),
        truncated_alerts: fields.get("truncatedAlerts").and_then(Value::as_u64).unwrap_or_default(),
        ..Webhook::default()
    };
    for (at, value) in alerts.into_iter().enumerate() {
        match alert(value, names) {
            Ok(alert) => out.alerts.push(alert),
            Err(problem) => out.refuse(at, problem),
        }
    }
    Ok(out)
}

impl Webhook {
    fn refuse(&mut self, at: usize, (field, expected): Problem) {
        self.refused_total += 1;
        if self.refused.len() < REFUSED_KEPT {
            self.refused.push(Refused { path: format!("alerts[{at}]{field}"), expected });
        }
    }
}

/// Path within the alert, and what belongs there.
type Problem = (String, &'static str);

fn alert(value: Value, names: &AlertLabels) -> Result<Alert, Problem> {
    let Value::Object(mut fields) = value else {
        return Err((String::new(), "an object"));
    };
    let labels = match fields.remove("labels") {
        Some(Value::Object(labels)) => text_map(labels)?,
        _ => return Err((".labels".to_owned(), "an object")),
    };
    let starts_at = time(&fields, "startsAt")?;
    let ends_at = time(&fields, "endsAt")?;
    let status = match fields.get("status") {
        Some(Value::String(status)) if status == "firing" => Status::Firing,
        Some(Value::String(status)) if status == "resolved" => Status::Resolved,
        // Never the group's: it says firing as long as any alert of the group does.
        None if ends_at.is_none() => Status::Firing,
        None => Status::Resolved,
        Some(_) => return Err((".status".to_owned(), "firing or resolved")),
    };
    let sent = fields.get("fingerprint").and_then(Value::as_str).and_then(Fingerprint::parse);
    let name = labels.get("alertname").or_else(|| labels.get("alert_name")).cloned().unwrap_or_default();
    Ok(Alert {
        status,
        name,
        fingerprint: sent.unwrap_or_else(|| Fingerprint::of(&labels)),
        starts_at,
        ends_at,
        subject: Subject::of(&labels, names),
        labels,
    })
}

/// Labels are text, but posters other than Alertmanager write numbers and booleans.
fn text_map(labels: Map<String, Value>) -> Result<BTreeMap<String, String>, Problem> {
    if labels.len() > LABELS_MAX {
        return Err((".labels".to_owned(), "at most 128 labels"));
    }
    let mut out = BTreeMap::new();
    for (name, value) in labels {
        let text = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(bool) => bool.to_string(),
            Value::Null => continue,
            Value::Array(_) | Value::Object(_) => return Err((format!(".labels.{}", shortened(name)), "text")),
        };
        out.insert(name, text);
    }
    Ok(out)
}

/// A path in a report must not be as long as the body.
fn shortened(mut name: String) -> String {
    let cut = (0..=64).rev().find(|&at| name.is_char_boundary(at)).unwrap_or_default();
    name.truncate(cut);
    name
}

/// A time, unless it is left out or Go's zero time (the year 1), which both mean "not yet".
fn time(fields: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, Problem> {
    let text = match fields.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.is_empty() => return Ok(None),
        Some(Value::String(text)) => text,
        Some(_) => return Err((format!(".{name}"), "an RFC 3339 time")),
    };
    let time = parse_rfc3339(text).map_err(|_| (format!(".{name}"), "an RFC 3339 time"))?;
    Ok((time >= YEAR_2).then_some(time))
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> String {
    match fields.remove(name) {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}

fn no_json(body: &[u8], error: &serde_json::Error) -> Error {
    let (line, column) = (error.line(), error.column());
    let before: usize = body.split_inclusive(|&b| b == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    let offset = (before + column.saturating_sub(1)).min(body.len());
    // Without the parser's own ` at line 1 column 2`.
    let problem = error.to_string();
    let problem = problem.split(" at line ").next().unwrap_or_default().to_owned();
    Error::NoJson { offset, line, column, problem }
}

#[cfg(test)]
mod tests;
