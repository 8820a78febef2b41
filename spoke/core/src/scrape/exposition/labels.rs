//! Labels of one row, parsed while one walks over them.
//!
//! The exporter writes label values without escaping them, so a bare `"` or `\` can stand inside a value, and a comma
//! between labels has been forgotten before. A quote therefore ends a value only where another label, or the end,
//! follows. Text that does escape is read as the format says; which of the two a row means is decided once per row.

use std::borrow::Cow;

/// The text between the braces of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labels<'a> {
    raw: &'a str,
}

/// One label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value as written; [`Label::text`] undoes the escapes.
    pub raw: &'a str,
    escaped: bool,
}

/// The labels cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("labels are malformed")]
pub struct LabelsMalformed;

impl<'a> Labels<'a> {
    pub(super) fn new(raw: &'a str) -> Self {
        Self { raw }
    }

    /// The text as it stands. Two rows with equal text have equal labels.
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    /// Walks over the labels. Ends after the first error.
    pub fn iter(&self) -> LabelIter<'a> {
        LabelIter { text: self.raw, unseen: 0, at: 0, head: None, quoting: Quoting::Undecided }
    }

    /// The raw value of one label.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().map_while(Result::ok).find(|label| label.name == name).map(|label| label.raw)
    }
}

impl<'a> Label<'a> {
    /// The value with `\\`, `\"` and `\n` undone where the row escapes.
    pub fn text(&self) -> Cow<'a, str> {
        if self.escaped && self.raw.contains('\\') { Cow::Owned(unescaped(self.raw)) } else { Cow::Borrowed(self.raw) }
    }
}

/// How a row writes a quote inside a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoting {
    /// Nothing seen yet that would tell.
    Undecided,
    /// As the format says.
    Escaped,
    /// Not at all.
    Bare,
}

/// Name and opening quote of a label.
#[derive(Clone, Copy, Debug)]
struct Head {
    name: usize,
    name_end: usize,
    quote: usize,
}

/// See [`Labels::iter`].
#[derive(Clone, Debug)]
pub struct LabelIter<'a> {
    text: &'a str,
    /// From here on no quote was looked at yet.
    unseen: usize,
    /// Behind the closing quote of the label before.
    at: usize,
    /// Found while looking for the end of the value before.
    head: Option<Head>,
    quoting: Quoting,
}

impl<'a> Iterator for LabelIter<'a> {
    type Item = Result<Label<'a>, LabelsMalformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.head.is_none() {
            // Only for the first label; afterwards the end of one is the head of the next.
            let Some(quote) = self.next_quote() else {
                let at = std::mem::replace(&mut self.at, self.text.len());
                return if is_end(&self.text[at..]) { None } else { Some(Err(LabelsMalformed)) };
            };
            self.head = head(self.text, self.at, quote);
        }
        let label = self.head.take().and_then(|head| self.label(head));
        if label.is_none() {
            (self.at, self.unseen) = (self.text.len(), self.text.len());
        }
        Some(label.ok_or(LabelsMalformed))
    }
}

impl<'a> LabelIter<'a> {
    #[inline]
    fn next_quote(&mut self) -> Option<usize> {
        let quote = find_quote(self.text.as_bytes(), self.unseen);
        self.unseen = quote.map_or(self.text.len(), |quote| quote + 1);
        quote
    }

    /// Finds where the value ends, which leaves the head of what follows behind.
    #[inline]
    fn label(&mut self, head: Head) -> Option<Label<'a>> {
        let value = head.quote + 1;
        let mut quote = self.next_quote()?;
        loop {
            let next = self.next_quote();
            let following = next.and_then(|next| self::head(self.text, quote + 1, next));
            let ends_here = following.is_some() || (next.is_none() && is_end(&self.text[quote + 1..]));
            if ends_here && !self.escapes(value, quote) {
                (self.head, self.at) = (following, quote + 1);
                let (name, raw) = (&self.text[head.name..head.name_end], &self.text[value..quote]);
                return Some(Label { name, raw, escaped: self.quoting != Quoting::Bare });
            }
            quote = next?;
        }
    }

    /// Whether the quote, though another label follows, belongs to the value: the row escapes and this one is.
    fn escapes(&mut self, value: usize, quote: usize) -> bool {
        if self.quoting == Quoting::Bare || !is_escaped(&self.text.as_bytes()[value..quote]) {
            return false;
        }
        if self.quoting == Quoting::Undecided {
            let throughout = escapes_throughout(self.text, value);
            self.quoting = if throughout { Quoting::Escaped } else { Quoting::Bare };
        }
        self.quoting == Quoting::Escaped
    }
}

fn unescaped(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(char) = chars.next() {
        match (char, chars.clone().next()) {
            ('\\', Some(known @ ('\\' | '"' | 'n'))) => {
                text.push(if known == 'n' { '\n' } else { known });
                chars.next();
            }
            _ => text.push(char),
        }
    }
    text
}

/// True where an odd number of backslashes stands before a quote.
#[inline]
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
}

/// Whether the text, from within a value on, reads to its end as the format says.
fn escapes_throughout(text: &str, value: usize) -> bool {
    let bytes = text.as_bytes();
    let mut at = value;
    loop {
        match bytes.get(at) {
            None => return false,
            Some(b'\\') => at += 2,
            Some(b'"') => {
                let Some(next) = find_quote(bytes, at + 1) else {
                    return is_end(&text[at + 1..]);
                };
                if head(text, at + 1, next).is_none() {
                    return false;
                }
                at = next + 1;
            }
            Some(_) => at += 1,
        }
    }
}

/// The label whose value opens with the quote: separators from `from` on, a name, `=`.
#[inline]
fn head(text: &str, from: usize, quote: usize) -> Option<Head> {
    let bytes = text.as_bytes();
    let equals = back(bytes, from, quote, |b| b == b' ');
    if equals == from || bytes[equals - 1] != b'=' {
        return None;
    }
    let name_end = back(bytes, from, equals - 1, |b| b == b' ');
    let name = back(bytes, from, name_end, is_in_name);
    (name < name_end && is_end(&text[from..name])).then_some(Head { name, name_end, quote })
}

/// Eight bytes at a time: most names and values are too short for a vector search to pay.
#[inline]
fn find_quote(bytes: &[u8], from: usize) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let mut at = from;
    while let Some(Ok(word)) = bytes.get(at..at + 8).map(<[u8; 8]>::try_from) {
        // A quote makes a zero byte, and the lowest zero byte is found without carry from below.
        let zeroed = u64::from_le_bytes(word) ^ (ONES * b'"' as u64);
        let found = zeroed.wrapping_sub(ONES) & !zeroed & (ONES << 7);
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    bytes.get(at..)?.iter().position(|&b| b == b'"').map(|ahead| at + ahead)
}

/// Goes back from `at`, as far as `from`, over the bytes that belong.
#[inline]
fn back(bytes: &[u8], from: usize, mut at: usize, belongs: impl Fn(u8) -> bool) -> usize {
    while at > from && belongs(bytes[at - 1]) {
        at -= 1;
    }
    at
}

/// Whether a byte can stand in a name.
pub(super) fn is_in_name(byte: u8) -> bool {
    IN_NAME[usize::from(byte)]
}

static IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_' || byte as u8 == b':';
        byte += 1;
    }
    table
};

#[inline]
fn is_end(text: &str) -> bool {
    text.bytes().all(|b| b == b',' || b == b' ' || b == b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(raw: &str) -> Vec<(String, String)> {
        let labels = Labels::new(raw).iter();
        labels.map(|label| label.unwrap()).map(|label| (label.name.to_owned(), label.text().into_owned())).collect()
    }

    fn own(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn escaped_text_is_read_as_the_format_says() {
        assert_eq!(pairs(r#"a="x \"y\" \\ z",b="line\nnext","#), own(&[("a", r#"x "y" \ z"#), ("b", "line\nnext")]));
        assert_eq!(pairs(r#"a="q\",b=",c="d""#), own(&[("a", r#"q",b="#), ("c", "d")]));
    }

    #[test]
    fn unescaped_quotes_and_backslashes_do_not_lose_the_row() {
        assert_eq!(pairs(r#"msg="he said "no", twice",gpu="3""#), own(&[("msg", r#"he said "no", twice"#), ("gpu", "3")]));
        assert_eq!(pairs(r#"path="C:\",gpu="3""#), own(&[("path", r"C:\"), ("gpu", "3")]));
        assert_eq!(pairs(r#"gpu="3",path="C:\""#), own(&[("gpu", "3"), ("path", r"C:\")]));
    }

    #[test]
    fn a_forgotten_comma_does_not_lose_the_row() {
        assert_eq!(pairs(r#"gpu="0"UUID="GPU-1",x="y""#), own(&[("gpu", "0"), ("UUID", "GPU-1"), ("x", "y")]));
    }

    #[test]
    fn blanks_around_names_are_allowed() {
        assert_eq!(pairs(r#" a = "1" , b="2" ,"#), own(&[("a", "1"), ("b", "2")]));
    }

    #[test]
    fn braces_commas_and_equals_signs_in_values_are_text() {
        assert_eq!(pairs(r#"a="{x=1,y=2}",b="k=v""#), own(&[("a", "{x=1,y=2}"), ("b", "k=v")]));
    }

    #[test]
    fn what_has_no_name_or_no_end_is_malformed() {
        for raw in ["a", r#"a="1"#, r#""x""#, r#"=“1”"#, r#"a=1"#] {
            assert!(Labels::new(raw).iter().any(|label| label.is_err()), "{raw}");
        }
    }
}
