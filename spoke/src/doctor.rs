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
    /// Checks of what guards the cluster that could not be looked at: nobody may go by a report without them.
    pub unguarded: Vec<&'static str>,
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
            unguarded: unguarded(&findings),
            findings,
        }
    }

    /// What the program ends with: 0 when there is no problem and all that guards was seen, 1 for problems, 3 where none was found and
    /// something that guards could not be looked at. 2 is wrong usage.
    #[must_use]
    pub const fn exit_status(&self) -> u8 {
        match (self.problems, self.unguarded.is_empty()) {
            (0, true) => 0,
            (0, false) => 3,
            _ => 1,
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

/// What holds a spoke to what it may do: its rights, the policies that pin it to its own fields, the owner's ceiling.
const GUARDS: [&str; 3] = ["rights", "admission", "config"];

fn unguarded(findings: &[Finding]) -> Vec<&'static str> {
    let unseen = |guard: &&str| findings.iter().any(|finding| finding.check == *guard && finding.level == Level::Unseen);
    GUARDS.into_iter().filter(unseen).collect()
}

/// Looks and judges.
///
/// # Errors
/// Where there is no client to ask with.
pub async fn run(doctor: &args::Doctor) -> anyhow::Result<Report> {
    Ok(Report::new(&look(doctor).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_not_see_a_guard_does_not_say_that_all_is_well() {
        let status = |findings: &[(Level, &'static str)]| {
            let findings: Vec<_> =
                findings.iter().map(|(level, check)| Finding::new(*level, check, "", String::new(), "")).collect();
            let problems = findings.iter().filter(|finding| finding.level == Level::Problem).count();
            let unguarded = unguarded(&findings);
            Report { version: "", namespace: String::new(), mode: "mark", problems, warnings: 0, unguarded, findings }.exit_status()
        };
        assert_eq!(status(&[(Level::Ok, "admission"), (Level::Warning, "lease"), (Level::Unseen, "budget")]), 0);
        for guard in GUARDS {
            assert_eq!(status(&[(Level::Unseen, guard)]), 3, "{guard}");
        }
        assert_eq!(status(&[(Level::Unseen, "admission"), (Level::Problem, "crd")]), 1);
    }
}
