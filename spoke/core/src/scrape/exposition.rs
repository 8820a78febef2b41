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
    page: &'a [u8],
    /// The same, if all of it is UTF-8: then no line needs to be checked by itself.
    text: Option<&'a str>,
    newlines: memchr::Memchr<'a>,
    /// Where the next line begins.
    at: usize,
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
    let (text, newlines) = (std::str::from_utf8(page).ok(), memchr::memchr_iter(b'\n', page));
    Ok(Rows { page, text, newlines, at: 0, line: 0, name: "", bad: BadLines::default() })
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

    fn parse(&mut self, from: usize, to: usize) -> Result<Row<'a>, Reason> {
        if to - from > LINE_BYTES_MAX {
            return Err(Reason::LineTooLong);
        }
        let line = match self.text {
            Some(text) => &text[from..to],
            None => std::str::from_utf8(&self.page[from..to]).map_err(|_| Reason::NotUtf8)?,
        };
        let (name, rest) = self.split_name(line)?;
        let (labels, tail) = split_labels(rest)?;
        let (value, timestamp_ms) = number::value_and_timestamp(tail)?;
        Ok(Row { line: self.line, name, labels: Labels::new(labels), value, timestamp_ms })
    }

    fn split_name(&mut self, line: &'a str) -> Result<(&'a str, &'a str), Reason> {
        if let Some(rest) = line.strip_prefix(self.name)
            && rest.starts_with('{')
            && !self.name.is_empty()
        {
            return Ok((self.name, rest));
        }
        let end = memchr::memchr3(b'{', b' ', b'\t', line.as_bytes()).ok_or(Reason::ValueMissing)?;
        let (name, rest) = line.split_at(end);
        if !is_name(name) {
            return Err(Reason::BadName);
        }
        self.name = name;
        Ok((name, rest))
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = Row<'a>;

    fn next(&mut self) -> Option<Row<'a>> {
        while self.at < self.page.len() {
            self.line += 1;
            let newline = self.newlines.next();
            let (from, to) = trimmed(self.page, self.at, newline.unwrap_or(self.page.len()));
            self.at = newline.map_or(self.page.len(), |newline| newline + 1);
            if from == to || self.page[from] == b'#' {
                continue;
            }
            // Cut off: `... 79` may have lost its second digit, so the last line counts only with its newline.
            let row = if newline.is_some() { self.parse(from, to) } else { Err(Reason::HalfLine) };
            match row {
                Ok(row) => return Some(row),
                Err(reason) => self.bad.note(self.line, reason),
            }
        }
        None
    }
}

/// Parts `{labels} value` into its two halves; without braces there are no labels.
fn split_labels(text: &str) -> Result<(&str, &str), Reason> {
    let text = text.trim_ascii_start();
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
    starts_well && name.bytes().all(labels::is_in_name)
}

/// The line without blanks and carriage return at either end. Looks at the ends only: most lines have neither.
fn trimmed(page: &[u8], mut from: usize, mut to: usize) -> (usize, usize) {
    let is_blank = |at: usize| matches!(page[at], b' ' | b'\t' | b'\r');
    while from < to && is_blank(from) {
        from += 1;
    }
    while from < to && is_blank(to - 1) {
        to -= 1;
    }
    (from, to)
}

#[cfg(test)]
mod tests;
