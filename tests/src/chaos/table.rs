//! The end of a run in tables: what was injected, what was seen of it, what holds.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{
    act::Actor,
    checks::Finding,
    effects,
    ledger::{Alert, Touched},
    schedule::Break,
    watcher::Watcher,
};
use crate::show::{Screen, table};

/// Prints all of it.
pub async fn print(screen: &Screen, actor: &Actor<'_>, watcher: &Watcher, found: &[Finding]) -> Result<()> {
    let injected = actor.ledger.injected();
    let mut troubles = table(&["trouble", "times"]);
    for (kind, times) in actor.ledger.troubles() {
        troubles.add_row([kind, times.to_string()]);
    }
    for (name, times) in &actor.field.ended {
        troubles.add_row([format!("{name} ended by itself and was started again"), times.to_string()]);
    }
    screen.print(&format!("\nWhat went wrong on purpose\n{troubles}"));

    let mut faults = table(&["fault", "injected", "in Postgres", "acknowledged", "nodes out now", "waiting", "seen to by people"]);
    for (how, told) in [
        (Break::Page, "Xid 79 on the page"),
        (Break::PageAndAlert, "Xid 79 on the page and by webhook"),
        (Break::AlertAlone, "Xid 48 by webhook alone"),
        (Break::Recorded, "Xid 31 on the page"),
    ] {
        let of: Vec<_> = injected.iter().filter(|injected| injected.how == how).collect();
        let mut kept = 0;
        for one in &of {
            let cluster = &actor.field.clusters[one.cluster].id;
            let episodes = crate::facts::faults(&actor.field.pool, cluster, &one.node).await?;
            kept += usize::from(episodes.iter().any(|fault| fault.class == "xid" && fault.code == one.xid.to_string()));
        }
        let out = of.iter().filter(|one| actor.field.clusters[one.cluster].observer.marked_now(&one.node)).count();
        let mut waiting = 0;
        for one in of.iter().filter(|one| one.stands()) {
            let cluster = &actor.field.clusters[one.cluster];
            waiting += usize::from(!cluster.observer.marked_now(&one.node));
        }
        let acked = match how {
            Break::Page | Break::Recorded => "-".to_owned(),
            Break::PageAndAlert | Break::AlertAlone => of.iter().filter(|one| one.alert == Alert::Acked).count().to_string(),
        };
        let touched = of.iter().filter(|one| one.touched != Touched::Not).count();
        faults.add_row([
            told.to_owned(),
            of.len().to_string(),
            kept.to_string(),
            acked,
            out.to_string(),
            waiting.to_string(),
            touched.to_string(),
        ]);
    }
    screen.print(&format!("\nWhat was injected, seen and held\n{faults}"));

    let sql = "SELECT cluster_id, action, state, count(*) FROM audit.commands GROUP BY 1, 2, 3 ORDER BY 1, 2, 3";
    let rows: Vec<(String, String, String, i64)> = sqlx::query_as(sql).fetch_all(&actor.field.pool).await?;
    let mut commands: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (cluster, action, state, count) in rows {
        commands.entry(cluster).or_default().push(format!("{count} {action} {state}"));
    }
    let mut clusters = table(&["cluster", "nodes out now", "most at once", "allowed", "evictions granted", "commands"]);
    for cluster in &actor.field.clusters {
        let writes = watcher.seen(&cluster.id).writes;
        let (_, allowed) = crate::facts::budget(&actor.field.pool, &cluster.id).await?;
        clusters.add_row([
            cluster.id.clone(),
            cluster.observer.tainted_now().len().to_string(),
            effects::most_marked(&writes).to_string(),
            allowed.to_string(),
            effects::evictions(&writes).to_string(),
            commands.remove(&cluster.id).unwrap_or_default().join(", "),
        ]);
    }
    screen.print(&format!("\nWhat the clusters and Postgres hold\n{clusters}"));

    let mut checks = table(&["", "must hold", ""]);
    for finding in found {
        let number = if finding.number == 0 { String::new() } else { finding.number.to_string() };
        let held = finding.held.as_ref().map_or_else(|error| format!("BROKEN: {error:#}"), |()| "holds".to_owned());
        checks.add_row([number, finding.name.to_owned(), held]);
    }
    screen.print(&format!("\nWhat must hold (numbers: docs/architecture.md)\n{checks}"));
    Ok(())
}
