//! What people see of a run: a line for each stage that something passes, and tables at the end. Colour only on a terminal;
//! tables as wide as the terminal, or 120 columns in a pipe.

use std::{
    io::{IsTerminal as _, Write as _},
    time::Instant,
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use sqlx::PgPool;

use crate::script::Outcome;

/// Width of tables when nobody's terminal says one.
const PIPE_WIDTH: u16 = 120;

/// Prints lines with the time since the start before them.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    started: Instant,
    colour: bool,
}

impl Screen {
    /// For standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { started: Instant::now(), colour }
    }

    /// One line of the timeline.
    pub fn line(&self, place: &str, stage: &str, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
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
        let mut out = std::io::stdout().lock();
        let _closed_pipe = writeln!(out, "{text}");
    }

    /// The end's tables.
    pub fn tables(&self, outcomes: &[Outcome]) {
        let mut what = table(&["", "fault", "node", "decided", "why", "done"]);
        for o in outcomes {
            what.add_row([o.scene.to_string(), o.fault.clone(), o.node.clone(), o.decided.clone(), o.why.clone(), o.done.clone()]);
        }
        self.print(&format!("\nWhat was decided and done\n{what}"));
        let mut times = table(&["", "node", "visible to taint", "visible to drained", "refused or skipped, and why"]);
        let ms = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
        for o in outcomes {
            times.add_row([o.scene.to_string(), o.node.clone(), ms(o.taint_ms), ms(o.drained_ms), o.refused.clone()]);
        }
        self.print(&format!("\nHow fast, and what was refused\n{times}"));
    }

    /// The same facts as Postgres has them.
    pub async fn postgres(&self, pool: &PgPool) -> Result<()> {
        let sql = "SELECT i.cluster_id, i.node_name, i.level, i.state, i.faults, i.commands,
                     coalesce(string_agg(c.action || ' ' || c.state, ', ' ORDER BY c.created_at), '-') AS what
                   FROM audit.incidents i LEFT JOIN audit.commands c USING (cluster_id, incident_id)
                   GROUP BY 1, 2, 3, 4, 5, 6, i.opened_at ORDER BY i.opened_at";
        type Row = (String, String, String, String, i64, i64, String);
        let rows: Vec<Row> = sqlx::query_as(sql).fetch_all(pool).await?;
        let mut incidents = table(&["cluster", "node", "level", "state", "faults", "commands"]);
        for (cluster, node, level, state, faults, _, what) in rows {
            incidents.add_row([cluster, node, level, state, faults.to_string(), what]);
        }
        self.print(&format!("\nThe same from Postgres: SELECT ... FROM audit.incidents JOIN audit.commands\n{incidents}"));
        let chains: Vec<(String, i64)> =
            sqlx::query_as("SELECT chain, seq FROM audit_heads ORDER BY chain").fetch_all(pool).await?;
        let chains: Vec<String> = chains.into_iter().map(|(chain, seq)| format!("{chain} {seq}")).collect();
        self.print(&format!("audit entries by chain: {}", chains.join(", ")));
        Ok(())
    }
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
