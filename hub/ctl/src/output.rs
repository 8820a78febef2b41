//! Results as tables, JSON or YAML. A table fits the terminal; in a pipe each row is one line, whatever its length. Whatever is
//! written for people goes through [`visible::clean`], whoever it came from.

mod cell;
mod fill;
mod grid;
mod progress;
mod rows;
mod value;

use std::{
    io::{self, IsTerminal as _, Write},
    path::{Path, PathBuf},
};

use comfy_table::Table;
use gpuheal_proto::{
    fleet::v1::{
        ApplyPolicyResponse, DecisionSummary, ExplainResponse, FaultSummary, GetPolicyResponse, ProcessResponse,
        ResumeFleetResponse, StopFleetResponse,
    },
    time::Timestamp,
};
use serde::Serialize;

use crate::{args::Format, call::lists::Stopped, visible};
use fill::Fill;
pub use grid::grid;
pub(crate) use progress::Progress;
pub(crate) use rows::{Checked, Row};

/// A terminal that is narrower than this, or says that it is, is written to as if it had this many columns.
const COLUMNS_MIN: u16 = 40;

/// Writes results to standard output.
pub(crate) struct Printer {
    format: Format,
    now: Timestamp,
    out: Box<dyn Write>,
    /// A person looks at it.
    terminal: bool,
    /// Columns that lines must fit into; none in a pipe.
    width: Option<usize>,
}

#[derive(Serialize)]
struct List<'a, T> {
    items: &'a [T],
    /// There is more on the hub than was asked for.
    truncated: bool,
    #[serde(flatten)]
    stopped: &'a Stopped,
}

impl Printer {
    pub(crate) fn new(format: Format, now: Timestamp) -> Self {
        Self { format, now, terminal: io::stdout().is_terminal(), width: columns(), out: Box::new(io::stdout()) }
    }

    /// A list of one kind.
    pub(crate) fn list<T: Row + Serialize>(&mut self, items: &[T], more: bool) -> io::Result<()> {
        self.list_beside(items, more, &Stopped::default())
    }

    /// A list, and what stands still meanwhile.
    pub(crate) fn list_beside<T: Row + Serialize>(&mut self, items: &[T], more: bool, stopped: &Stopped) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(&List { items, truncated: more, stopped });
        }
        standing_still(stopped)?;
        if items.is_empty() {
            return hint("nothing found");
        }
        self.table(items)?;
        if more { hint("there is more: raise --limit") } else { Ok(()) }
    }

    /// The files that were written.
    pub(crate) fn files(&mut self, files: &[PathBuf]) -> io::Result<()> {
        let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
        if self.format != Format::Table {
            return self.value(&List { items: &names, truncated: false, stopped: &Stopped::default() });
        }
        for name in names {
            self.say(&name)?;
        }
        hint("development keys: fine for a test bed, not for production")
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
                line.push_str(text);
            }
        }
        self.say(&line)
    }

    /// That the fleet stands still.
    pub(crate) fn stopped(&mut self, answer: &StopFleetResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        let was = if answer.already { "was stopped already" } else { "is stopped" };
        self.say(&format!("the fleet {was}: {}", answer.reason))?;
        hint("gpuhealctl resume --reason WHY lets it go on")
    }

    /// That it goes on.
    pub(crate) fn resumed(&mut self, answer: &ResumeFleetResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        match answer.stopped_for.as_str() {
            "" => self.say("the fleet was not stopped"),
            why => self.say(&format!("the fleet goes on; it was stopped for: {why}")),
        }
    }

    /// What became of a policy.
    pub(crate) fn applied(&mut self, answer: &ApplyPolicyResponse, file: &Path, dry_run: bool) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        for problem in &answer.problems {
            let at = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
            hint(&format!("{}:{}:{}: {at}{}", file.display(), problem.line, problem.column, problem.message))?;
        }
        match (answer.problems.len(), dry_run, answer.unchanged) {
            (0, true, _) => self.say("policy is valid; nothing was changed"),
            (0, false, true) => self.say(&format!("policy revision {} is in force already", answer.revision)),
            (0, false, false) => self.say(&format!("policy revision {} is in force", answer.revision)),
            (1, ..) => hint("one problem: nothing was changed"),
            (count, ..) => hint(&format!("{count} problems: nothing was changed")),
        }
    }

    /// A policy, in a pipe as it can be applied again.
    pub(crate) fn policy(&mut self, answer: &GetPolicyResponse) -> io::Result<()> {
        if self.format == Format::Json {
            return self.value(answer);
        }
        let at = Timestamp::from_unix_ms(answer.applied_unix_ms);
        let head = format!("# revision {} digest {} applied {at} by {}", answer.revision, answer.digest, answer.applied_by);
        writeln!(self.out, "{}", visible::clean(&head))?;
        if self.terminal {
            return answer.yaml.lines().try_for_each(|line| writeln!(self.out, "{}", visible::clean(line)));
        }
        self.out.write_all(answer.yaml.as_bytes())?;
        if answer.yaml.ends_with('\n') { Ok(()) } else { writeln!(self.out) }
    }

    /// What was decided, why, and what would change it.
    pub(crate) fn explain(&mut self, answer: &ExplainResponse) -> io::Result<()> {
        if self.format != Format::Table {
            return self.value(answer);
        }
        self.say(&format!("node {} of cluster {}: {}", answer.node, answer.cluster_id, answer.outcome))?;
        if !answer.incident_id.is_empty() {
            self.say(&format!("incident {}, policy revision {}", answer.incident_id, answer.policy_revision))?;
        }
        self.section("why", &answer.reasons)?;
        self.section("each fault", &judged(&answer.faults))?;
        self.section("steps", &answer.steps)?;
        self.section("what would change it", &answer.would_change)?;
        self.part::<FaultSummary>(&told_once(&answer.faults))?;
        self.part::<DecisionSummary>(&answer.history)
    }

    fn section(&mut self, title: &str, lines: &[String]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        writeln!(self.out, "\n{title}:")?;
        lines.iter().try_for_each(|line| self.say(&format!("  - {line}")))
    }

    /// A table of its own within an answer.
    fn part<T: Row>(&mut self, items: &[T]) -> io::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        writeln!(self.out)?;
        self.table(items)
    }

    fn table<T: Row>(&mut self, items: &[T]) -> io::Result<()> {
        let rows = items.iter().map(|item| item.cells(self.now)).collect();
        writeln!(self.out, "{}", grid(T::HEAD, T::PROSE, rows, self.width))
    }

    /// One line for people, on several lines of the terminal when it is long.
    fn say(&mut self, line: &str) -> io::Result<()> {
        let line = visible::clean(line);
        let Some(width) = self.width else { return writeln!(self.out, "{line}") };
        let mut fill = Fill::new(width);
        fill.text(&line, 4);
        writeln!(self.out, "{}", fill.end())
    }

    fn value(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = match self.format {
            Format::Yaml => value::yaml(value)?,
            Format::Json | Format::Table => value::json(value)?,
        };
        self.out.write_all(text.as_bytes())
    }
}

/// Columns that lines must fit into; none in a pipe.
#[must_use]
pub fn columns() -> Option<usize> {
    let width = Table::new().width().filter(|columns| io::stdout().is_terminal() && *columns > 0);
    width.map(|columns| columns.max(COLUMNS_MIN).into())
}

/// Who sees that nothing happens must see why.
fn standing_still(stopped: &Stopped) -> io::Result<()> {
    if !stopped.fleet_stopped_for.is_empty() {
        hint(&format!("the fleet is stopped: {}; gpuhealctl resume --reason WHY lets it go on", stopped.fleet_stopped_for))?;
    }
    for cluster in &stopped.clusters_stopped {
        hint(&format!("cluster {cluster} is stopped by its own ConfigMap (ceiling.stop)"))?;
    }
    Ok(())
}

/// What people should know and scripts need not.
fn hint(line: &str) -> io::Result<()> {
    writeln!(io::stderr(), "{}", visible::clean(line))
}

/// Faults that differ in nothing but their GPU as one row each; JSON and YAML have every one.
fn told_once(faults: &[FaultSummary]) -> Vec<FaultSummary> {
    let alike = |a: &FaultSummary, b: &FaultSummary| {
        let kind =
            |one: &FaultSummary| (one.class.clone(), one.code.clone(), one.level.clone(), one.onset.clone(), one.source.clone());
        kind(a) == kind(b) && a.witnesses == b.witnesses && !a.gpu_slot.is_empty() && !b.gpu_slot.is_empty()
    };
    let mut groups: Vec<Vec<&FaultSummary>> = Vec::new();
    for fault in faults {
        match groups.iter_mut().find(|group| alike(group[0], fault)) {
            Some(group) => group.push(fault),
            None => groups.push(vec![fault]),
        }
    }
    let row = |group: Vec<&FaultSummary>| FaultSummary {
        gpu_slot: rows::gpus(&group).unwrap_or_else(|| group[0].gpu_slot.clone()),
        count: group.iter().map(|fault| fault.count).sum(),
        last_unix_ms: group.iter().map(|fault| fault.last_unix_ms).max().unwrap_or_default(),
        ..group[0].clone()
    };
    groups.into_iter().map(row).collect()
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

#[cfg(test)]
mod tests;
