//! Text of others on a terminal. Names, reasons and messages come from clusters and from people: no character of theirs may
//! steer the reader's terminal, or make a line read otherwise than it is. What cannot be seen is shown by its number.

use std::fmt::Write as _;

/// Whether a character steers or hides instead of being seen: controls, marks of direction, line and paragraph separators,
/// tags, and whatever else Unicode lets a terminal ignore.
pub(crate) const fn hides(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text on one line, with what cannot be seen escaped: `\n`, `\u{202e}`.
pub(crate) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if hides(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// JSON text with what cannot be seen escaped as JSON does it. Outside of its strings there is nothing but line ends.
pub(crate) fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && hides(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether a text must be in double quotes in YAML: line ends and tabs do no harm in any of its forms.
pub(crate) fn steers(c: char) -> bool {
    hides(c) && !matches!(c, '\n' | '\t')
}

/// YAML text whose strings with such characters are in double quotes, with them escaped as YAML does it.
pub(crate) fn yaml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        let _ = match u32::from(c) {
            number @ ..0x1_0000 if steers(c) => write!(out, "\\u{number:04X}"),
            number if steers(c) => write!(out, "\\U{number:08X}"),
            _ => out.write_char(c),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_or_hides_is_shown_by_its_number() {
        assert_eq!(clean("a\x1b[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        let ranges = [
            '\u{80}'..='\u{9f}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2066}'..='\u{2069}',
            '\u{feff}'..='\u{feff}',
            '\u{e0000}'..='\u{e007f}',
        ];
        for c in ranges.into_iter().flatten() {
            assert_eq!(clean(&format!("n{c}1")), format!("n\\u{{{:x}}}1", u32::from(c)));
        }
    }

    #[test]
    fn what_can_be_seen_stays() {
        let text = "Grüße, GPU №7 \u{1f525} 東京 \\ \"quoted\"";
        assert_eq!(clean(text), text);
    }
}
