//! Moments and spans. A `Timestamp` is milliseconds since the Unix epoch, and always an argument of pure code.

use std::{fmt, time::Duration};

/// A moment: milliseconds since 1970-01-01T00:00:00Z. Which clock it is from is said where it is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The epoch itself; also "never" where a message leaves a time out.
    pub const EPOCH: Self = Self(0);

    /// From milliseconds since the epoch.
    #[must_use]
    pub const fn from_unix_ms(unix_ms: i64) -> Self {
        Self(unix_ms)
    }

    /// As milliseconds since the epoch.
    #[must_use]
    pub const fn unix_ms(self) -> i64 {
        self.0
    }

    /// This moment plus a span; stays at the end of time rather than wrap.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(millis(span)))
    }

    /// This moment minus a span; stays at the start of time rather than wrap.
    #[must_use]
    pub const fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(millis(span)))
    }

    /// This moment as it is by a clock that was set by so many milliseconds.
    #[must_use]
    pub const fn moved(self, by_ms: i64) -> Self {
        Self(self.0.saturating_add(by_ms))
    }

    /// How long ago `then` was, seen from this moment. Zero when it is still to come.
    #[must_use]
    pub const fn since(self, then: Self) -> Duration {
        let ms = self.0.saturating_sub(then.0);
        if ms <= 0 { Duration::ZERO } else { Duration::from_millis(ms.unsigned_abs()) }
    }
}

const fn millis(span: Duration) -> i64 {
    let ms = span.as_millis();
    if ms > i64::MAX as u128 { i64::MAX } else { ms as i64 }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds: `2026-11-29T19:05:00.000Z`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.div_euclid(MS_PER_DAY);
        let ms = self.0.rem_euclid(MS_PER_DAY);
        let (year, month, day) = civil(days);
        let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
        write!(f, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{ms:03}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const MS_PER_DAY: i64 = 86_400_000;

/// Days since the epoch to (year, month, day) of the proleptic Gregorian calendar, counting years from March so that
/// the leap day comes last: an era is 400 years = 146,097 days.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// Reads RFC 3339 as Kubernetes and Alertmanager write it: any offset, 0 to 9 fractional digits.
///
/// # Errors
/// When the text is not such a moment.
pub fn parse_rfc3339(text: &str) -> Result<Timestamp, ParseTimeError> {
    parse(text).ok_or_else(|| ParseTimeError { text: crate::bytes_text::clip(text, 64).to_owned() })
}

fn parse(text: &str) -> Option<Timestamp> {
    let b = text.as_bytes();
    if b.len() < 20 || b[4] != b'-' || b[7] != b'-' || !matches!(b[10], b'T' | b't' | b' ') || b[13] != b':' || b[16] != b':' {
        return None;
    }
    let n = |r: std::ops::Range<usize>| -> Option<i64> {
        let digits = b.get(r)?;
        digits.iter().all(u8::is_ascii_digit).then(|| digits.iter().fold(0, |n, d| n * 10 + i64::from(d - b'0')))
    };
    let (year, month, day) = (n(0..4)?, n(5..7)?, n(8..10)?);
    let (h, m, s) = (n(11..13)?, n(14..16)?, n(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || h > 23 || m > 59 || s > 60 {
        return None;
    }
    let mut at = 19;
    let mut ms = 0;
    if b[at] == b'.' {
        let len = b[at + 1..].iter().take_while(|d| d.is_ascii_digit()).count();
        if len == 0 || len > 9 {
            return None;
        }
        ms = b[at + 1..at + 1 + len].iter().chain([b'0'; 3].iter()).take(3).fold(0, |n, d| n * 10 + i64::from(d - b'0'));
        at += 1 + len;
    }
    let offset_min = match b.get(at)? {
        b'Z' | b'z' if b.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if b.len() == at + 6 && b[at + 3] == b':' => {
            let min = n(at + 1..at + 3)? * 60 + n(at + 4..at + 6)?;
            if *sign == b'+' { min } else { -min }
        }
        _ => return None,
    };
    let secs = (days_from_civil(year, month, day) * 24 + h) * 3600 + m * 60 + s - offset_min * 60;
    Some(Timestamp(secs * 1000 + ms))
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let doy = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// A text that is not an RFC 3339 moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time like 2026-11-29T19:05:00Z")]
pub struct ParseTimeError {
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_reads_offsets_and_fractions_and_prints_utc() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
            ("2026-09-14T03:12:41.221Z", "2026-09-14T03:12:41.221Z"),
            ("2021-03-01T17:30:00.123456789+05:30", "2021-03-01T12:00:00.123Z"),
            ("2024-02-29T22:00:00-02:00", "2024-03-01T00:00:00.000Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(parse_rfc3339(text).unwrap().to_string(), want, "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in
            ["", "yesterday", "2026-13-01T00:00:00Z", "2026-09-14T03:12:41", "2026-09-14T03:12:41.Z", "2026-09-14T03:12:41+5:30"]
        {
            assert!(parse_rfc3339(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_span_back_from_the_future_is_zero() {
        let now = Timestamp::from_unix_ms(1_000);
        assert_eq!(now.since(now.after(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(now.since(now.before(Duration::from_secs(1))), Duration::from_secs(1));
    }
}
