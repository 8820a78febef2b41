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
        LabelIter { rest: self.raw, head: None, quoting: Quoting::Undecided }
    }

    /// The raw value of one label.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().map_while(Result::ok).find(|label| label.name == name).map(|label| label.raw)
    }
}

impl<'a> Label<'a> {
    /// The value with `\\`, `\"` and `\n` undone where the row escapes.
    pub fn text(&self) -> Cow<'a, str> {
        if self.escaped && self.raw.contains('\\') {
            Cow::Owned(unescaped(self.raw))
        } else {
            Cow::Borrowed(self.raw)
        }
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

/// Where the next label stands in the text.
#[derive(Clone, Copy, Debug)]
struct Head {
    name: usize,
    name_end: usize,
    value: usize,
}

/// See [`Labels::iter`].
#[derive(Clone, Debug)]
pub struct LabelIter<'a> {
    rest: &'a str,
    /// Found while looking for the end of the value before.
    head: Option<Head>,
    quoting: Quoting,
}

impl<'a> Iterator for LabelIter<'a> {
    type Item = Result<Label<'a>, LabelsMalformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(head) = self.head.take().or_else(|| head(self.rest)) else {
            let left = std::mem::take(&mut self.rest);
            return if is_end(left) { None } else { Some(Err(LabelsMalformed)) };
        };
        let Some(value_end) = self.value_end(head.value) else {
            self.rest = "";
            return Some(Err(LabelsMalformed));
        };
        let (name, raw) = (&self.rest[head.name..head.name_end], &self.rest[head.value..value_end]);
        self.rest = &self.rest[value_end + 1..];
        Some(Ok(Label { name, raw, escaped: self.quoting != Quoting::Bare }))
    }
}

impl LabelIter<'_> {
    /// Where the quote stands that ends the value, and as a side effect the head of what follows.
    fn value_end(&mut self, value: usize) -> Option<usize> {
        let bytes = self.rest.as_bytes();
        let mut from = value;
        loop {
            let quote = from + memchr::memchr(b'"', &bytes[from..])?;
            let tail = &self.rest[quote + 1..];
            let next = head(tail);
            from = quote + 1;
            if next.is_none() && !is_end(tail) {
                continue;
            }
            if self.quoting != Quoting::Bare && is_escaped(&bytes[value..quote]) {
                if self.quoting == Quoting::Undecided {
                    self.quoting = if escapes_throughout(&self.rest[value..]) { Quoting::Escaped } else { Quoting::Bare };
                }
                if self.quoting == Quoting::Escaped {
                    continue;
                }
            }
            self.head = next;
            return Some(quote);
        }
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
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
}

/// Whether the text, from within a value on, reads to its end as the format says.
fn escapes_throughout(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        match bytes.get(at) {
            None => return false,
            Some(b'\\') => at += 2,
            Some(b'"') => {
                at += 1;
                if text.get(at..).is_some_and(is_end) {
                    return true;
                }
                match text.get(at..).and_then(head) {
                    Some(head) => at += head.value,
                    None => return false,
                }
            }
            Some(_) => at += 1,
        }
    }
}

/// The label at the start of the text: commas and blanks, a name, `=`, a quote.
fn head(text: &str) -> Option<Head> {
    let bytes = text.as_bytes();
    let skip = |mut at: usize, blank: fn(u8) -> bool| {
        while at < bytes.len() && blank(bytes[at]) {
            at += 1;
        }
        at
    };
    let name = skip(0, |b| b == b',' || b == b' ' || b == b'\t');
    let name_end = skip(name, |b| b.is_ascii_alphanumeric() || b == b'_' || b == b':');
    let equals = skip(name_end, |b| b == b' ');
    if name_end == name || bytes.get(equals) != Some(&b'=') {
        return None;
    }
    let quote = skip(equals + 1, |b| b == b' ');
    (bytes.get(quote) == Some(&b'"')).then_some(Head { name, name_end, value: quote + 1 })
}

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
