//! The Prometheus text format, read in place: the hot path of a scrape.
//!
//! Rows borrow from the page and nothing is allocated per row. A line that cannot be read is counted with its number
//! and reason and the rest of the page is used, because exporters do print text where a number belongs, do not escape
//! label values, and get cut off. Labels are found here but parsed only when somebody looks, see [`Labels`].
//! Never fetches and never asks for OpenMetrics. Called by `dcgm.rs` once per scrape.

mod bad;
mod labels;
mod number;

pub use bad::{BAD_LINES_KEPT, BadLine, BadLines, Reason};
pub use labels::{Label, LabelIter, Labels, LabelsMalformed};

/// Largest page that is read. 16 GPUs, each whole and in 7 slices, with 100 metrics of 500 bytes make 6.4 MB; the
/// fetcher stops at the same figure, before the memory is spent.
pub const EXPOSITION_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Longest line that is read. Real rows have 200 to 700 bytes; pod labels can add 64 pairs of 126 bytes.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

/// Why a whole page was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More bytes than are ever read.
    #[error("page of {bytes} bytes is larger than {bytes_max}")]
    PageTooLarge {
        /// Size of the page.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
}

/// One sample as the page has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// Line number, from 1.
    pub line: u32,
    /// Name of the metric.
    pub name: &'a str,
    /// What stood between the braces.
    pub labels: Labels<'a>,
    /// The value; may be NaN or infinite, as the format allows.
    pub value: f64,
    /// The time stamp, where there is one.
    pub timestamp_ms: Option<i64>,
}

/// Walks over the rows of a page; afterwards [`Rows::bad`] tells what was refused.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    rest: &'a [u8],
    line: u32,
    /// The last name that was checked: rows of one metric follow each other, so the check is a comparison.
    name: &'a str,
    bad: BadLines,
}

/// The rows of a page. An empty page has none, which is for the caller to judge.
pub fn rows(page: &[u8]) -> Result<Rows<'_>, Error> {
    let (bytes, bytes_max) = (page.len(), EXPOSITION_BYTES_MAX);
    if bytes > bytes_max {
        return Err(Error::PageTooLarge { bytes, bytes_max });
    }
    Ok(Rows { rest: page, line: 0, name: "", bad: BadLines::default() })
}

impl<'a> Rows<'a> {
    /// Counts a row as bad after all: its labels turned out to be unreadable.
    pub fn reject(&mut self, row: &Row<'_>, reason: Reason) {
        self.bad.note(row.line, reason);
    }

    /// What has been refused so far.
    pub fn bad(&self) -> &BadLines {
        &self.bad
    }

    /// Gives up the walk and keeps the count of what was refused.
    pub fn into_bad(self) -> BadLines {
        self.bad
    }

    fn parse(&mut self, line: &'a [u8]) -> Result<Row<'a>, Reason> {
        if line.len() > LINE_BYTES_MAX {
            return Err(Reason::LineTooLong);
        }
        let text = std::str::from_utf8(line).map_err(|_| Reason::NotUtf8)?;
        let name_end = memchr::memchr3(b'{', b' ', b'\t', line).ok_or(Reason::ValueMissing)?;
        let name = &text[..name_end];
        if name.is_empty() || name != self.name {
            if !is_name(name) {
                return Err(Reason::BadName);
            }
            self.name = name;
        }
        let (labels, tail) = split_labels(&text[name_end..])?;
        let (value, timestamp_ms) = number::value_and_timestamp(tail)?;
        Ok(Row { line: self.line, name, labels: Labels::new(labels), value, timestamp_ms })
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    fn next(&mut self) -> Option<Row<'a>> {
        while !self.rest.is_empty() {
            self.line += 1;
            let Some(end) = memchr::memchr(b'\n', self.rest) else {
                // Cut off: `... 79` may have lost its second digit, so the last line counts only with its newline.
                let half = trimmed(std::mem::take(&mut self.rest));
                if !half.is_empty() && half[0] != b'#' {
                    self.bad.note(self.line, Reason::HalfLine);
                }
                return None;
            };
            let line = trimmed(&self.rest[..end]);
            self.rest = &self.rest[end + 1..];
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            match self.parse(line) {
                Ok(row) => return Some(row),
                Err(reason) => self.bad.note(self.line, reason),
            }
        }
        None
    }
}

/// Parts `{labels} value` into its two halves; without braces there are no labels.
fn split_labels(text: &str) -> Result<(&str, &str), Reason> {
    let text = text.trim_start_matches([' ', '\t']);
    let Some(inner) = text.strip_prefix('{') else {
        return Ok(("", text));
    };
    // The last brace: a label value may hold one, the value behind it cannot.
    let close = memchr::memrchr(b'}', inner.as_bytes()).ok_or(Reason::LabelsUnclosed)?;
    let (labels, tail) = (&inner[..close], &inner[close + 1..]);
    // Unless that was the brace of an exemplar, whose number must never be taken for the sample's.
    if memchr::memchr(b'#', labels.as_bytes()).is_some()
        && let Some(exemplar) = labels.rfind(" # {")
        && let Some(close) = labels[..exemplar].rfind('}')
        && number::value_and_timestamp(&labels[close + 1..exemplar]).is_ok()
    {
        return Ok((&labels[..close], &labels[close + 1..exemplar]));
    }
    Ok((labels, tail))
}

fn is_name(name: &str) -> bool {
    let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':');
    starts_well && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

/// Without blanks and carriage return at either end. Looks at the ends only: most lines have neither.
fn trimmed(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\r', rest @ ..] = line {
        line = rest;
    }
    while let [rest @ .., b' ' | b'\t' | b'\r'] = line {
        line = rest;
    }
    line
}

#[cfg(test)]
mod tests;
