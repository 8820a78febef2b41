//! Spans as people write them: `15m`, `1h30m`, `30s`, `500ms`.

use std::time::Duration;

/// Reads a span; every number needs its unit.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let ms = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        rest = &rest[unit..];
        total = total.checked_add(Duration::from_millis(number.checked_mul(ms)?))?;
    }
    Some(total)
}

/// A span for people, to the second.
#[must_use]
pub fn show(span: Duration) -> String {
    let secs = span.as_secs();
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, 0) => format!("{} ms", span.as_millis()),
        (0, 0, s) => format!("{s} s"),
        (0, m, 0) => format!("{m} min"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, 0, _) => format!("{h} h"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}
