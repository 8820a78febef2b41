//! Cutting text to a length in bytes without breaking a character.

/// The longest prefix of `text` that is at most `bytes_max` long and ends between characters.
#[must_use]
pub fn clip(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::clip;

    #[test]
    fn a_clip_never_splits_a_character() {
        assert_eq!(clip("abc", 5), "abc");
        assert_eq!(clip("aäb", 2), "a");
        assert_eq!(clip("aäb", 3), "aä");
    }
}
