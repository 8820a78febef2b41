//! Results as tables, JSON or YAML. A table fits the terminal; in a pipe each row is one line, whatever its length.

mod cell;
mod rows;

use std::{
    io::{self, IsTerminal as _, Write},
    path::{Path, PathBuf},
};

use comfy_table::{ContentArrangement, Table, presets};
use gpuheal_proto::{
    fleet::v1::{
        ApplyPolicyResponse, ExplainResponse, FaultSummary, GetPolicyResponse, ProcessResponse, ResumeFleetResponse,
        StopFleetResponse,
    },
    time::Timestamp,
};
use serde::Serialize;

use crate::args::Format;
pub(crate) use rows::{Checked, Row};

/// Writes results to standard output.
pub(crate) struct Printer {
    format: Format,
    now: Timestamp,
    out: Box<dyn Write>,
    /// Rows may be wrapped: a person looks at them.
    fitted: bool,
}

#[derive(Serialize)]
struct List<'a, T> {
    items: &'a [T],
    /// There is more on the hub than was asked for.
    truncated: bool,
}

impl Printer {
    pub(crate) fn new(format: Format, now: Timestamp) -> Self {
        let out = io::stdout();
        Self { format, now, fitted: out.is_terminal(), out: Box::new(out) }
    }

    /// A list of one kind.
    pub(crate) fn list<T: Row + Serialize>(&mut self, items: &[T], more: bool) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(&List { items, truncated: more });
        }
        if items.is_empty() {
            return writeln!(io::stderr(), "nothing found");
        }
        let rows = items.iter().map(|item| item.cells(self.now)).collect();
        let text = table(T::HEAD, rows, self.fitted);
        writeln!(self.out, "{text}")?;
        if more {
            writeln!(io::stderr(), "there is more: raise --limit")?;
        }
        Ok(())
    }

    /// The files that were written.
    pub(crate) fn files(&mut self, files: &[PathBuf]) -> io::Result<()> {
        let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        if self.format != Format::Table {
            return self.value(&List { items: &names, truncated: false });
        }
        for name in names {
            writeln!(self.out, "{name}")?;
        }
        writeln!(io::stderr(), "development keys: fine for a test bed, not for production")
    }

    /// What came of a request by hand.
    pub(crate) fn process(&mut self, answer: &ProcessResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        let mut line = answer.outcome.clone();
        for (lead, text) in [(" command ", &answer.command_id), (": ", &answer.reason)] {
            if !text.is_empty() {
                line.push_str(lead);
                line.push_str(&cell::clean(text));
            }
        }
        writeln!(self.out, "{line}")
    }

    /// That the fleet stands still.
    pub(crate) fn stopped(&mut self, answer: &StopFleetResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        let was = if answer.already { "was stopped already" } else { "is stopped" };
        writeln!(self.out, "the fleet {was}: {}", cell::clean(&answer.reason))?;
        writeln!(io::stderr(), "gpuhealctl resume --reason WHY lets it go on")
    }

    /// That it goes on.
    pub(crate) fn resumed(&mut self, answer: &ResumeFleetResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        match answer.stopped_for.as_str() {
            "" => writeln!(self.out, "the fleet was not stopped"),
            why => writeln!(self.out, "the fleet goes on; it was stopped for: {}", cell::clean(why)),
        }
    }

    /// What became of a policy.
    pub(crate) fn applied(&mut self, answer: &ApplyPolicyResponse, file: &Path, dry_run: bool) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        for problem in &answer.problems {
            let at = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
            let message = cell::clean(&problem.message);
            writeln!(io::stderr(), "{}:{}:{}: {at}{message}", file.display(), problem.line, problem.column)?;
        }
        match (answer.problems.len(), dry_run, answer.unchanged) {
            (0, true, _) => writeln!(self.out, "policy is valid; nothing was changed"),
            (0, false, true) => writeln!(self.out, "policy revision {} is in force already", answer.revision),
            (0, false, false) => writeln!(self.out, "policy revision {} is in force", answer.revision),
            (1, ..) => writeln!(io::stderr(), "one problem: nothing was changed"),
            (count, ..) => writeln!(io::stderr(), "{count} problems: nothing was changed"),
        }
    }

    /// A policy, as it can be applied again.
    pub(crate) fn policy(&mut self, answer: &GetPolicyResponse) -> io::Result<()> {
        if self.format == Format::Json {
            return self.value(answer);
        }
        let at = Timestamp::from_unix_ms(answer.applied_unix_ms);
        writeln!(
            self.out,
            "# revision {} digest {} applied {at} by {}",
            answer.revision,
            answer.digest,
            cell::clean(&answer.applied_by)
        )?;
        self.out.write_all(answer.yaml.as_bytes())?;
        if answer.yaml.ends_with('\n') { Ok(()) } else { writeln!(self.out) }
    }

    /// What was decided, why, and what would change it.
    pub(crate) fn explain(&mut self, answer: &ExplainResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        let head = format!("node {} of cluster {}: {}", answer.node, answer.cluster_id, answer.outcome);
        writeln!(self.out, "{}", cell::clean(&head))?;
        if !answer.incident_id.is_empty() {
            writeln!(self.out, "incident {}, policy revision {}", answer.incident_id, answer.policy_revision)?;
        }
        self.section("why", &answer.reasons)?;
        self.section("each fault", &judged(&answer.faults))?;
        self.section("steps", &answer.steps)?;
        self.section("what would change it", &answer.would_change)?;
        if !answer.faults.is_empty() {
            let rows = answer.faults.iter().map(|fault| fault.cells(self.now)).collect();
            let text = table(FaultSummary::HEAD, rows, self.fitted);
            writeln!(self.out, "\n{text}")?;
        }
        if !answer.history.is_empty() {
            let rows = answer.history.iter().map(|decision| decision.cells(self.now)).collect();
            let text = table(gpuheal_proto::fleet::v1::DecisionSummary::HEAD, rows, self.fitted);
            writeln!(self.out, "\n{text}")?;
        }
        Ok(())
    }

    fn section(&mut self, title: &str, lines: &[String]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(self.out, "\n{title}:")?;
        for line in lines {
            writeln!(self.out, "  - {}", cell::clean(line))?;
        }
        Ok(())
    }

    fn value(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = match self.format {
            Format::Yaml => serde_saphyr::to_string(value).map_err(io::Error::other)?,
            Format::Json | Format::Table => serde_json::to_string_pretty(value).map_err(io::Error::other)? + "\n",
        };
        self.out.write_all(text.as_bytes())
    }
}

/// How each fault was judged: its level by which rule, how far the policy goes for it, and what comes of it. Faults that
/// differ only in the GPU are one line.
fn judged(faults: &[FaultSummary]) -> Vec<String> {
    let mut lines: Vec<(String, String, usize)> = Vec::new();
    for fault in faults.iter().filter(|fault| !fault.rule.is_empty()) {
        let what = format!("{} {}", fault.class, fault.code);
        let how = format!("{} by {}, mode {}: {}", fault.level, fault.rule, fault.mode, fault.outcome);
        match lines.iter_mut().find(|(known, same, _)| *known == what && *same == how) {
            Some((_, _, count)) => *count += 1,
            None => lines.push((what, how, 1)),
        }
    }
    let line = |(what, how, count): (String, String, usize)| match count {
        1 => format!("{what}: {how}"),
        count => format!("{what} ({count} GPUs): {how}"),
    };
    lines.into_iter().map(line).collect()
}

fn table(head: &[&str], rows: Vec<Vec<String>>, fitted: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(if fitted { ContentArrangement::Dynamic } else { ContentArrangement::Disabled });
    table.set_header(head.iter().copied());
    for row in rows {
        table.add_row(row.iter().map(|text| cell::clean(text)).collect::<Vec<_>>());
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests;
