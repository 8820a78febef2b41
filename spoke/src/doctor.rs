//! `gpuheal-spoke doctor`: what stands in the way of a spoke in this cluster, before it is installed and after. Looks, and
//! changes nothing; each finding says what to do next. What is looked at is in [`look`], what follows from it in [`judge`],
//! which is pure. The rights come from the same table as the account's own files.

mod facts;
mod judge;
mod look;
mod show;

use serde::Serialize;

pub use self::{facts::Facts, judge::judge, look::look};
use crate::args;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The spoke cannot do there what it is to do.
    Problem,
    /// It can, and something will surprise somebody.
    Warning,
    /// It could not be looked at.
    Unseen,
    /// Worth knowing.
    Note,
    /// As it must be.
    Ok,
}

impl Level {
    const fn word(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Unseen => "unseen",
            Self::Note => "note",
            Self::Ok => "ok",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad.
    pub level: Level,
    /// Of what: a word that stays the same.
    pub check: &'static str,
    /// Which object, where it is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// What was found.
    pub found: String,
    /// What to do next; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl Finding {
    fn new(level: Level, check: &'static str, about: &str, found: String, next: &str) -> Self {
        Self { level, check, about: about.to_owned(), found, next: next.to_owned() }
    }
}

/// All findings, the worst first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Our own version.
    pub version: &'static str,
    /// Of our own objects.
    pub namespace: String,
    /// How far the account was judged for.
    pub mode: &'static str,
    /// Findings that are problems.
    pub problems: usize,
    /// Findings that are warnings.
    pub warnings: usize,
    /// Each of them.
    pub findings: Vec<Finding>,
}

impl Report {
    fn new(facts: &Facts) -> Self {
        let mut findings = judge(facts);
        findings.sort_by_key(|finding| finding.level);
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            namespace: facts.namespace.clone(),
            mode: facts.mode.name(),
            problems: count(Level::Problem),
            warnings: count(Level::Warning),
            findings,
        }
    }

    /// In the form that was asked for.
    ///
    /// # Errors
    /// When the findings are no text, which they are.
    pub fn text(&self, form: args::Output) -> anyhow::Result<String> {
        show::text(self, form)
    }
}

/// Looks and judges.
///
/// # Errors
/// Where there is no client to ask with.
pub async fn run(doctor: &args::Doctor) -> anyhow::Result<Report> {
    Ok(Report::new(&look(doctor).await?))
}
