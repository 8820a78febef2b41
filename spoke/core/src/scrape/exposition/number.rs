//! The numbers behind the labels: a value, and perhaps a time stamp.

use super::Reason;

/// Powers of ten that an f64 holds exactly, as far as they are used here.
const POWERS: [f64; 16] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

pub(super) fn value_and_timestamp(tail: &str) -> Result<(f64, Option<i64>), Reason> {
    let tail = tail.trim_ascii();
    let (value, timestamp) = match tail.bytes().position(|b| b == b' ' || b == b'\t') {
        None => (tail, ""),
        Some(at) => (&tail[..at], tail[at..].trim_ascii_start()),
    };
    if value.is_empty() {
        return Err(Reason::ValueMissing);
    }
    let value = number(value).ok_or(Reason::ValueNotNumber)?;
    if timestamp.is_empty() {
        return Ok((value, None));
    }
    let timestamp = timestamp.parse().map_err(|_| Reason::TimestampNotNumber)?;
    Ok((value, Some(timestamp)))
}

fn number(text: &str) -> Option<f64> {
    plain_decimal(text.as_bytes()).or_else(|| text.parse().ok())
}

/// `123` and `123.456` with up to 15 digits, which is nearly every value of an exporter: the digits fit an f64 exactly
/// and so does the power of ten, so one division rounds as the slow way would.
fn plain_decimal(digits: &[u8]) -> Option<f64> {
    if digits.len() > 16 {
        return None;
    }
    let (mut mantissa, mut seen, mut decimals) = (0u64, 0usize, None);
    for &byte in digits {
        match byte {
            b'0'..=b'9' => {
                mantissa = mantissa * 10 + u64::from(byte - b'0');
                seen += 1;
            }
            b'.' if decimals.is_none() => decimals = Some(seen),
            _ => return None,
        }
    }
    let decimals = decimals.map_or(0, |whole| seen - whole);
    // 10^15 - 1 is below 2^53, so the conversion loses nothing.
    if seen == 0 || seen > 15 { None } else { Some(mantissa as f64 / POWERS[decimals]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_way_agrees_with_the_long_way() {
        for text in
            ["0", "1", "79", "409.692000", "0.995630", "319159391", "999999999999999", "0.1", ".5", "5.", "123456789.012345", "000"]
        {
            assert_eq!(plain_decimal(text.as_bytes()), Some(text.parse::<f64>().unwrap()), "{text}");
        }
    }

    #[test]
    fn odd_numbers_are_left_to_the_long_way() {
        for text in ["", ".", "1e3", "-1", "+1", "NaN", "1.2.3", "9223372036854775794", "1234567890.1234567"] {
            assert_eq!(plain_decimal(text.as_bytes()), None, "{text}");
        }
        assert_eq!(number("9223372036854775794"), Some(9.223372036854776e18));
        assert_eq!(number("-1.5e3"), Some(-1500.0));
        assert_eq!(number("+Inf"), Some(f64::INFINITY));
        assert_eq!(number("-Inf"), Some(f64::NEG_INFINITY));
        assert!(number("NaN").unwrap().is_nan());
        assert_eq!(number("ERROR"), None);
        assert_eq!(number("<<<NULL>>>"), None);
    }
}
