//! The live timeline: one line for each stage that something passes, from two witnesses: the hub's audit (ingest, decide,
//! sign, deliver, verify, settle) and the clusters' own API servers (execute). Reads only.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use sqlx::PgPool;
use tokio::task::JoinHandle;

use crate::{
    cluster::Cluster,
    facts::{self, Entry},
    observe::{NodeChange, View},
    show::Screen,
};

/// How often both witnesses are asked: below what an eye tells apart.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// Longest text of a line: a terminal of 200 columns less what stands before it.
const TEXT_CHARS_MAX: usize = 160;

/// Prints what happens as it happens, until dropped.
pub struct Timeline(JoinHandle<()>);

impl Timeline {
    /// Starts asking.
    #[must_use]
    pub fn start(screen: Screen, pool: PgPool, clusters: &[Cluster]) -> Self {
        let views = clusters.iter().map(|cluster| (cluster.id.clone(), cluster.observer.view(), 0)).collect();
        Self(tokio::spawn(Teller { screen, pool, seen: BTreeMap::new(), commands: BTreeMap::new(), views }.run()))
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Teller {
    screen: Screen,
    pool: PgPool,
    seen: BTreeMap<String, i64>,
    /// Node and action by command, as the decision named them.
    commands: BTreeMap<String, (String, String)>,
    views: Vec<(String, View, usize)>,
}

impl Teller {
    async fn run(mut self) {
        loop {
            // A hub that is being killed takes connections with it: the next look sees what this one missed.
            if let Ok(entries) = facts::entries_after(&self.pool, &mut self.seen).await {
                for entry in entries {
                    self.entry(&entry).await;
                }
            }
            self.marks();
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    async fn entry(&mut self, entry: &Entry) {
        let body: Value = serde_json::from_str(&entry.body).unwrap_or_default();
        let subject = entry.subject.split_once('/').map_or(entry.subject.as_str(), |(_, subject)| subject);
        let told = match entry.kind.as_str() {
            "faults_ingested" => Some(("ingest", self.faults(&entry.chain, &body).await)),
            "inventory_snapshot" => Some(("ingest", format!("inventory of {} nodes", body["nodes"]))),
            "nodes_gone" => Some(("ingest", "nodes are gone".to_owned())),
            "decision" => self.decision(subject, &body),
            "command_signed" => Some(("sign", format!("{} with key {}", self.command(subject), text(&body["key_id"])))),
            "command_sent" => Some(("deliver", format!("{} to the leading spoke", self.command(subject)))),
            "command_reported" | "command_corrected" => Some(self.report(subject, &body)),
            "envelope_refused" => Some(("refuse", format!("{}: {}", text(&body["refusal"]), text(&body["reason"])))),
            "command_lapsed" => Some(("settle", format!("{} ran out of its time", self.command(subject)))),
            "policy_applied" => Some(("policy", format!("revision {} is in force", body["revision"]))),
            "request_unmet" => Some(("decide", format!("request for {subject}: {}", text(&body["answer"])))),
            _ => None,
        };
        if let Some((stage, what)) = told {
            self.screen.line(&entry.chain, stage, &clip(&what));
        }
    }

    /// What a batch brought, in words: the faults that it opened.
    async fn faults(&self, cluster: &str, body: &Value) -> String {
        let keys: Vec<&str> = list(&body["opened"]).filter_map(|key| key.split('#').next()).collect();
        let sql = "SELECT class || ' ' || code || ' on ' || node_name FROM faults WHERE cluster_id = $1 AND encode(fault_key, 'hex') = ANY ($2)";
        let named: Vec<String> = sqlx::query_scalar(sql).bind(cluster).bind(&keys).fetch_all(&self.pool).await.unwrap_or_default();
        let mut counted: BTreeMap<String, u32> = BTreeMap::new();
        for name in named {
            *counted.entry(name).or_default() += 1;
        }
        let mut parts: Vec<String> =
            counted.into_iter().map(|(name, count)| if count == 1 { name } else { format!("{name} ({count} GPUs)") }).collect();
        let gained = list(&body["gained"]).count();
        if gained > 0 {
            parts.push(format!("{gained} known with another witness"));
        }
        if let Some(repeats @ 1..) = body["repeats"].as_u64() {
            parts.push(format!("{repeats} repeated"));
        }
        if parts.is_empty() { format!("{} records", body["records"]) } else { parts.join(", ") }
    }

    fn decision(&mut self, node: &str, body: &Value) -> Option<(&'static str, String)> {
        for command in body["commands"].as_array().into_iter().flatten() {
            self.commands.insert(text(&command["id"]).to_owned(), (node.to_owned(), text(&command["action"]).to_owned()));
        }
        let reason = list(&body["reasons"]).next().unwrap_or_default();
        Some(("decide", format!("{node}: {} {}: {reason}", text(&body["level"]), text(&body["to"]))))
    }

    fn report(&self, id: &str, body: &Value) -> (&'static str, String) {
        let (command, reason) = (self.command(id), text(&body["reason"]));
        let refusal = text(&body["refusal"]);
        match text(&body["to"]) {
            _ if !refusal.is_empty() => ("refuse", format!("{command}: {refusal}: {reason}")),
            "RECEIVED" => ("verify", format!("{command} is genuine, in time and allowed: the intent is in the cluster")),
            "STARTED" => ("execute", format!("{command} is under way")),
            state => ("settle", format!("{command} {state}: {reason}")),
        }
    }

    fn command(&self, id: &str) -> String {
        match self.commands.get(id) {
            Some((node, action)) => format!("{action} {node}"),
            None => format!("command {id}"),
        }
    }

    fn marks(&mut self) {
        for (cluster, view, told) in &mut self.views {
            let changes = view.node_changes_from(*told);
            *told += changes.len();
            for change in changes.iter().filter(|change| change.tainted || change.labelled) {
                self.screen.line(cluster, "execute", &marked(change));
            }
        }
    }
}

fn marked(change: &NodeChange) -> String {
    let marks: Vec<&str> = [(change.labelled, "label"), (change.tainted, "taint"), (change.cordoned, "cordon")]
        .into_iter()
        .filter_map(|(there, name)| there.then_some(name))
        .collect();
    format!("{} carries {}", change.node, marks.join(", "))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn clip(text: &str) -> String {
    if text.chars().count() <= TEXT_CHARS_MAX {
        text.to_owned()
    } else {
        format!("{}…", text.chars().take(TEXT_CHARS_MAX - 1).collect::<String>())
    }
}
