//! What people see of a run: a line for each stage that something passes, and tables at the end. Colour only on a terminal.

use std::io::IsTerminal as _;

use anyhow::Result;
use chrono::{DateTime, Utc};
use comfy_table::{ContentArrangement, Table, presets};
use sqlx::PgPool;

use crate::{output, script::Outcome};

/// Width of tables when nobody's terminal says one.
const PIPE_WIDTH: u16 = 120;

/// Prints lines with the time since the start before them.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    started: DateTime<Utc>,
    colour: bool,
}

impl Screen {
    /// For standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { started: Utc::now(), colour }
    }

    /// One line of the timeline, of now.
    pub fn line(&self, place: &str, stage: &str, text: &str) {
        self.line_at(Utc::now(), place, stage, text);
    }

    /// One line of the timeline.
    pub fn line_at(&self, at: DateTime<Utc>, place: &str, stage: &str, text: &str) {
        let at = (at - self.started).as_seconds_f64();
        let paint = match (self.colour, stage) {
            (false, _) => "",
            (true, "refuse") => "\x1b[31m",
            (true, "ingest" | "decide") => "\x1b[36m",
            (true, "verify" | "execute" | "settle") => "\x1b[32m",
            (true, "scene" | "chaos") => "\x1b[1m",
            (true, _) => "\x1b[2m",
        };
        let reset = if self.colour { "\x1b[0m" } else { "" };
        self.print(&format!("{at:8.3}s  {place:<6} {paint}{stage:<8}{reset} {text}"));
    }

    /// Any text as it is.
    pub fn print(&self, text: &str) {
        output::print(&format!("{text}\n"));
    }

    /// The end's tables.
    pub fn tables(&self, outcomes: &[Outcome]) {
        let what = outcomes
            .iter()
            .map(|o| vec![o.scene.to_string(), o.node.clone(), o.fault.clone(), o.decided.clone(), o.done.clone(), o.why.clone()]);
        let what = shown(&["", "NODE", "FAULT", "DECIDED", "DONE", "WHY"], what.collect());
        self.print(&format!("\nWhat was decided and done\n\n{what}"));
        let ms = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
        let times =
            outcomes.iter().map(|o| vec![o.scene.to_string(), o.node.clone(), ms(o.taint_ms), ms(o.drained_ms), o.refused.clone()]);
        let times = shown(&["", "NODE", "TAINT", "DRAINED", "REFUSED"], times.collect());
        self.print(&format!("\nHow fast, and what was refused or skipped\n\n{times}\n\n{NOTES}"));
    }

    /// The same facts as Postgres has them.
    pub async fn postgres(&self, pool: &PgPool) -> Result<()> {
        let sql = "SELECT i.cluster_id, i.node_name, i.level, i.state, i.faults, i.commands,
                     coalesce(string_agg(c.action || ' ' || c.state, ', ' ORDER BY c.created_at), '-') AS what
                   FROM audit.incidents i LEFT JOIN audit.commands c USING (cluster_id, incident_id)
                   GROUP BY 1, 2, 3, 4, 5, 6, i.opened_at ORDER BY i.opened_at";
        type Row = (String, String, String, String, i64, i64, String);
        let rows: Vec<Row> = sqlx::query_as(sql).fetch_all(pool).await?;
        let rows = rows
            .into_iter()
            .map(|(cluster, node, level, state, faults, _, what)| vec![cluster, node, level, state, faults.to_string(), what]);
        let incidents = shown(&["CLUSTER", "NODE", "LEVEL", "STATE", "FAULTS", "COMMANDS"], rows.collect());
        self.print(&format!("\nThe same from Postgres: SELECT ... FROM audit.incidents JOIN audit.commands\n\n{incidents}"));
        let chains: Vec<(String, i64)> =
            sqlx::query_as("SELECT chain, seq FROM audit_heads ORDER BY chain").fetch_all(pool).await?;
        let chains: Vec<String> = chains.into_iter().map(|(chain, seq)| format!("{chain} {seq}")).collect();
        self.print(&format!("audit entries by chain: {}", chains.join(", ")));
        Ok(())
    }
}

/// What the numbers count.
const NOTES: &str = "\
TAINT and DRAINED count from the first page of the exporter that shows the fault to our taint, and to the last evicted pod
gone. Both hold what the scene makes us wait for: a second witness (a to c, f, g), the dwell time of a temperature (d), in f
the killed leader's Lease until it runs out, in g the hub's start. - : nothing was tainted, or no GPU pod was on the node.";

/// A table as gpuhealctl shows one: a line for each row in a pipe, paragraphs where the terminal is narrow, no name cut.
fn shown(head: &[&str], rows: Vec<Vec<String>>) -> String {
    gpuheal_ctl::output::grid(head, &["DONE", "WHY", "REFUSED", "COMMANDS", "FAULT"], rows, gpuheal_ctl::output::columns())
}

/// A table with these columns, as wide as the terminal.
pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header.iter().copied());
    if table.width().is_none() {
        table.set_width(PIPE_WIDTH);
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn in_a_pipe_no_name_is_cut_and_a_row_is_a_line() {
        let node = "alpha/alpha-h100-00-with-a-name-that-is-as-long-as-clouds-make-them-0123456789".to_owned();
        let rows = vec![vec!["a".to_owned(), node.clone(), "because of this ".repeat(20)]];
        let text = gpuheal_ctl::output::grid(&["", "NODE", "WHY"], &["WHY"], rows.clone(), None);
        assert!(text.lines().count() == 2 && text.contains(&node), "{text}");
        let narrow = gpuheal_ctl::output::grid(&["", "NODE", "WHY"], &["WHY"], rows, Some(60));
        assert!(narrow.contains(&node), "{narrow}");
    }
}
