//! Cutting text to a length in bytes without breaking a character, and to what can be stored.

use std::borrow::Cow;

/// The longest prefix of `text` that is at most `bytes_max` long and ends between characters.
#[must_use]
pub fn clip(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The same of a text from outside, each zero byte shown as U+FFFD: neither Postgres nor its JSON holds one, and what held one
/// would be set aside.
#[must_use]
pub fn clip_storable(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.contains('\0') {
        Cow::Owned(clip(&text.replace('\0', "\u{fffd}"), bytes_max).to_owned())
    } else {
        Cow::Borrowed(clip(text, bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::{clip, clip_storable};

    #[test]
    fn a_zero_byte_is_shown_within_the_length() {
        assert_eq!(clip_storable("abc", 2), "ab");
        assert_eq!(clip_storable("a\0b", 9), "a\u{fffd}b");
        assert_eq!(clip_storable("a\0b", 4), "a\u{fffd}");
        assert_eq!(clip_storable("a\0b", 3), "a");
    }

    #[test]
    fn a_clip_never_splits_a_character() {
        assert_eq!(clip("abc", 5), "abc");
        assert_eq!(clip("aäb", 2), "a");
        assert_eq!(clip("aäb", 3), "aä");
    }
}
