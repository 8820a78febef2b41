//! Pure: ages as kubectl prints them: 45s, 5m30s, 3h12m, 2d4h, 12d.

use chrono::{DateTime, Utc};

pub(super) fn since(stamp: &str, now: DateTime<Utc>) -> String {
    match DateTime::parse_from_rfc3339(stamp) {
        Ok(then) => human((now - then.to_utc()).num_seconds()),
        Err(_) => "<unknown>".into(),
    }
}

fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let pair = |whole: i64, unit: char, part: i64, small: char| {
        if part == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{part}{small}") }
    };
    match seconds {
        ..0 => "0s".into(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        for (seconds, text) in [
            (-1, "0s"),
            (119, "119s"),
            (150, "2m30s"),
            (180, "3m"),
            (5_400, "90m"),
            (11_100, "3h5m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (1_000_000, "11d"),
        ] {
            assert_eq!(human(seconds), text);
        }
    }
}
