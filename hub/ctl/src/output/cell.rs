//! Moments and flags as text for one cell.

use gpuheal_proto::time::Timestamp;

/// How long ago, in one unit: `42s`, `7m`, `3h`, `12d`; empty for never.
pub(super) fn age(at_unix_ms: i64, now: Timestamp) -> String {
    if at_unix_ms == 0 {
        return String::new();
    }
    let seconds = now.since(Timestamp::from_unix_ms(at_unix_ms)).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long until then; empty when it is past or never was.
pub(super) fn until(at_unix_ms: i64, now: Timestamp) -> String {
    if at_unix_ms <= now.unix_ms() { String::new() } else { age(now.unix_ms(), Timestamp::from_unix_ms(at_unix_ms)) }
}

/// `yes` or nothing, so that the eye finds the yes.
pub(super) fn flag(on: bool) -> String {
    if on { "yes".into() } else { String::new() }
}
