//! RFC 3339 as alerts carry it: any offset, 0 to 9 digits of a second, and the year 1 for "never".

/// The text is no RFC 3339 time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an RFC 3339 time")]
pub struct Malformed;

/// Nanoseconds since 1970. Years outside 1678 to 2261 do not fit and are malformed.
pub fn unix_ns(text: &str) -> Result<i64, Malformed> {
    moment(text)?.ok_or(Malformed)
}

/// As [`unix_ns`], with the year 1 (Go's zero time, whatever its offset made of it) as none.
pub(super) fn moment(text: &str) -> Result<Option<i64>, Malformed> {
    let bytes = text.as_bytes();
    let shape = bytes.len() >= 20 && bytes[4] == b'-' && bytes[7] == b'-' && bytes[13] == b':' && bytes[16] == b':';
    if !shape || !matches!(bytes[10], b'T' | b't' | b' ') {
        return Err(Malformed);
    }
    let (year, month, day) = (digits(bytes, 0, 4)?, digits(bytes, 5, 7)?, digits(bytes, 8, 10)?);
    let (hour, minute, second) = (digits(bytes, 11, 13)?, digits(bytes, 14, 16)?, digits(bytes, 17, 19)?);
    let day_fits = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    // 60 is a leap second.
    if !day_fits || hour > 23 || minute > 59 || second > 60 {
        return Err(Malformed);
    }
    let (nanos, offset_s) = fraction_and_offset(&bytes[19..])?;
    if year <= 1 {
        return Ok(None);
    }
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset_s;
    let ns = seconds.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(nanos));
    ns.map(Some).ok_or(Malformed)
}

fn fraction_and_offset(tail: &[u8]) -> Result<(i64, i64), Malformed> {
    let (nanos, zone) = match tail.strip_prefix(b".") {
        None => (0, tail),
        Some(rest) => {
            let count = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            if count == 0 || count > 9 {
                return Err(Malformed);
            }
            (digits(rest, 0, count)? * 10i64.pow(9 - count as u32), &rest[count..])
        }
    };
    match zone {
        b"Z" | b"z" => Ok((nanos, 0)),
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let (hours, minutes) = (digits(zone, 1, 3)?, digits(zone, 4, 6)?);
            if hours > 23 || minutes > 59 {
                return Err(Malformed);
            }
            let offset_s = hours * 3600 + minutes * 60;
            Ok((nanos, if *sign == b'-' { -offset_s } else { offset_s }))
        }
        _ => Err(Malformed),
    }
}

fn digits(bytes: &[u8], from: usize, to: usize) -> Result<i64, Malformed> {
    let part = bytes.get(from..to).ok_or(Malformed)?;
    part.iter().try_fold(0, |sum, b| if b.is_ascii_digit() { Ok(sum * 10 + i64::from(b - b'0')) } else { Err(Malformed) })
}

fn days_of(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days of the Gregorian calendar, counted in years that begin in March so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_fractions_come_out_as_one_instant() {
        let table = [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-03-01T00:00:00Z", 951_868_800_000_000_000),
            ("2021-03-14T12:59:48.5044478+05:30", 1_615_706_988_504_447_800),
            ("2021-08-22T06:47:54.913Z", 1_629_614_874_913_000_000),
            ("2021-08-22T04:47:54.913000001-02:00", 1_629_614_874_913_000_001),
            ("1969-12-31T23:59:59.9Z", -100_000_000),
            ("2024-02-29T00:00:00+00:00", 1_709_164_800_000_000_000),
        ];
        for (text, want) in table {
            assert_eq!(unix_ns(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn the_zero_time_is_never() {
        assert_eq!(moment("0001-01-01T00:00:00Z"), Ok(None));
        assert_eq!(moment("0001-01-01T00:00:00+05:30"), Ok(None));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let table = ["", "now", "2021-08-22", "2021-02-29T00:00:00Z", "2021-08-22T24:00:00Z", "2021-08-22T06:47:54", "2021-08-22T06:47:54.Z",
            "2021-08-22T06:47:54.1234567890Z", "2021-08-22T06:47:54+0530", "9999-01-01T00:00:00Z", "2021-08-22T06:47:54Zx", "2021-0é-22T06:47:54Z"];
        for text in table {
            assert!(unix_ns(text).is_err(), "{text}");
        }
    }
}
