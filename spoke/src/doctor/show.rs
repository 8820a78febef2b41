//! A report for people, and for scripts. Names and messages come from clusters: no character of theirs steers a terminal.

use std::fmt::Write as _;

use anyhow::Context as _;

use super::{Finding, Report};
use crate::args::Output;

/// Where the found text begins: behind `problem` and the longest check.
const LEVEL_WIDTH: usize = 7;
const CHECK_WIDTH: usize = 9;
/// What is to be done stands below what was found.
const INDENT: usize = LEVEL_WIDTH + CHECK_WIDTH + 4;

pub(super) fn text(report: &Report, form: Output) -> anyhow::Result<String> {
    Ok(match form {
        Output::Table => table(report),
        Output::Json => serde_json::to_string_pretty(report).context("write the report as JSON")? + "\n",
        Output::Yaml => serde_saphyr::to_string(report).context("write the report as YAML")?,
    })
}

fn table(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        line(&mut text, finding);
    }
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let (problems, warnings) = (plural(report.problems, "problem"), plural(report.warnings, "warning"));
    let _ = writeln!(text, "\n{problems}, {warnings}, for mode {} in namespace {}", report.mode, report.namespace);
    if !report.unguarded.is_empty() {
        let _ = writeln!(text, "what guards the cluster could not all be looked at: {}", report.unguarded.join(", "));
    }
    text
}

fn line(text: &mut String, finding: &Finding) {
    let (level, check) = (finding.level.word(), finding.check);
    let about = if finding.about.is_empty() { String::new() } else { format!("{} ", clean(&finding.about)) };
    let _ = writeln!(text, "{level:LEVEL_WIDTH$}  {check:CHECK_WIDTH$}  {about}{}", clean(&finding.found));
    if !finding.next.is_empty() {
        let _ = writeln!(text, "{:INDENT$}-> {}", "", clean(&finding.next));
    }
}

/// One line, with what steers or ends it shown by its number.
fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        // Marks of direction hide what a line says.
        let hides = c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        if hides { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}
