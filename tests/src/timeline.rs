//! The live timeline: one line for each stage that something passes, from two witnesses: the hub's audit (ingest, decide,
//! sign, deliver, verify, settle) and the clusters' own API servers (execute). Lines are held back for half a second and put
//! into the order in which things happened. Reads only.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sqlx::PgPool;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

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

/// How long a line is held back, so that what happened before it and is heard of later stands before it: the slower
/// witness, a watch on a busy machine, needs a fifth of that.
const HOLD: Duration = Duration::from_millis(500);
/// Nothing new for so long: what was under way has been told.
const QUIET: Duration = Duration::from_millis(700);
/// A fleet in which something goes on for ever is not waited for.
const QUIET_WITHIN: Duration = Duration::from_secs(4);

/// Prints what happens as it happens, until dropped.
pub struct Timeline {
    task: JoinHandle<()>,
    ask: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl Timeline {
    /// Starts asking.
    #[must_use]
    pub fn start(screen: Screen, pool: PgPool, clusters: &[Cluster]) -> Self {
        let views = clusters.iter().map(|cluster| (cluster.id.clone(), cluster.observer.view(), 0)).collect();
        let (ask, asked) = mpsc::unbounded_channel();
        let teller =
            Teller { screen, pool, seen: BTreeMap::new(), commands: BTreeMap::new(), views, held: Held::default(), count: 0 };
        Self { task: tokio::spawn(teller.run(asked)), ask }
    }

    /// Waits until what has happened so far is on the screen: what is printed next belongs after it.
    pub async fn told(&self) {
        let (reply, told) = oneshot::channel();
        if self.ask.send(reply).is_ok() {
            // A teller that is gone has nothing more to tell.
            let _gone = told.await;
        }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Teller {
    screen: Screen,
    pool: PgPool,
    seen: BTreeMap<String, i64>,
    /// Node and action by command, as the decision named them.
    commands: BTreeMap<String, (String, String)>,
    views: Vec<(String, View, usize)>,
    held: Held,
    /// Lines so far.
    count: u64,
}

impl Teller {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<oneshot::Sender<()>>) {
        let (mut waiting, mut since, mut new_at) = (None, Instant::now(), Instant::now());
        loop {
            let before = self.count;
            // A hub that is being killed takes connections with it: the next look sees what this one missed.
            if let Ok(entries) = facts::entries_after(&self.pool, &mut self.seen).await {
                for entry in entries {
                    self.entry(&entry).await;
                }
            }
            self.marks();
            if self.count > before {
                new_at = Instant::now();
            }
            if waiting.is_none()
                && let Ok(reply) = asked.try_recv()
            {
                (waiting, since) = (Some(reply), Instant::now());
            }
            let all = waiting.is_some() && (new_at.elapsed() > QUIET || since.elapsed() > QUIET_WITHIN);
            let until = if all { Instant::now() } else { Instant::now().checked_sub(HOLD).unwrap_or(since) };
            for line in self.held.take(until) {
                self.screen.line_at(line.at, &line.place, line.stage, &line.text);
            }
            if all && let Some(reply) = waiting.take() {
                let _nobody_waits = reply.send(());
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    fn hold(&mut self, at: DateTime<Utc>, place: &str, node: &str, stage: &'static str, text: &str) {
        self.count += 1;
        let (place, node, text) = (place.to_owned(), node.to_owned(), clip(text));
        self.held.put(Line { at, heard: Instant::now(), number: self.count, place, node, stage, text });
    }

    async fn entry(&mut self, entry: &Entry) {
        let body: Value = serde_json::from_str(&entry.body).unwrap_or_default();
        let subject = entry.subject.split_once('/').map_or(entry.subject.as_str(), |(_, subject)| subject);
        let told = match entry.kind.as_str() {
            "faults_ingested" => Some(("ingest", self.faults(&entry.chain, &body).await)),
            "inventory_snapshot" => Some(("ingest", format!("inventory of {} GPU nodes", body["nodes"]))),
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
            let node = self.commands.get(subject).map_or(subject, |(node, _)| node).to_owned();
            self.hold(entry.at, &entry.chain, &node, stage, &what);
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
        let mut lines = vec![];
        for (cluster, view, told) in &mut self.views {
            let changes = view.node_changes_from(*told);
            *told += changes.len();
            for change in changes.iter().filter(|change| change.tainted || change.labelled) {
                lines.push((Utc::now() - change.at.elapsed(), cluster.clone(), change.node.clone(), marked(change)));
            }
        }
        for (at, cluster, node, text) in lines {
            self.hold(at, &cluster, &node, "execute", &text);
        }
    }
}

/// A line that is not on the screen yet.
struct Line {
    /// When it happened, as its witness says.
    at: DateTime<Utc>,
    /// When we heard of it.
    heard: Instant,
    /// In the order in which we did.
    number: u64,
    place: String,
    /// The node that it is about; anything else for what is about none.
    node: String,
    stage: &'static str,
    text: String,
}

/// Lines that are held back for a while.
#[derive(Default)]
struct Held(Vec<Line>);

impl Held {
    fn put(&mut self, line: Line) {
        self.0.push(line);
    }

    /// The first lines that were heard of before `until`, in the order in which they happened.
    fn take(&mut self, until: Instant) -> Vec<Line> {
        self.in_order();
        let ready = self.0.iter().take_while(|line| line.heard <= until).count();
        self.0.drain(..ready).collect()
    }

    /// By moment and stage. A node's own report of a stage comes to the hub after what it did was seen in its cluster:
    /// what was verified was so before anything carried a mark, and nothing is settled before.
    fn in_order(&mut self) {
        let marks: Vec<(String, String, DateTime<Utc>)> = self.0.iter().filter(|line| line.stage == "execute").map(about).collect();
        for line in &mut self.0 {
            for (place, node, at) in &marks {
                let near = (line.at - at).abs() < TimeDelta::seconds(2);
                if near && *place == line.place && *node == line.node {
                    match line.stage {
                        "verify" => line.at = line.at.min(*at),
                        "settle" => line.at = line.at.max(*at),
                        _ => {}
                    }
                }
            }
        }
        self.0.sort_by_key(|line| (line.at, rank(line.stage), line.number));
    }
}

fn about(line: &Line) -> (String, String, DateTime<Utc>) {
    (line.place.clone(), line.node.clone(), line.at)
}

/// Stages in their order.
fn rank(stage: &str) -> usize {
    ["policy", "ingest", "decide", "sign", "deliver", "verify", "refuse", "execute", "settle"]
        .iter()
        .position(|known| *known == stage)
        .unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at_ms: i64, number: u64, node: &str, stage: &'static str) -> Line {
        let at = DateTime::from_timestamp_millis(1_764_000_000_000 + at_ms).unwrap();
        Line { at, heard: Instant::now(), number, place: "alpha".into(), node: node.into(), stage, text: String::new() }
    }

    fn told(lines: impl IntoIterator<Item = Line>) -> Vec<(String, &'static str)> {
        let mut held = Held::default();
        lines.into_iter().for_each(|line| held.put(line));
        held.take(Instant::now()).into_iter().map(|line| (line.node, line.stage)).collect()
    }

    #[test]
    fn a_node_is_told_in_the_order_of_the_stages_whoever_told_us_first() {
        let lines = [
            line(100, 1, "n1", "execute"),
            line(180, 2, "n1", "verify"),
            line(90, 3, "n1", "settle"),
            line(60, 4, "n1", "deliver"),
            line(50, 5, "n1", "decide"),
            line(50, 6, "n1", "ingest"),
        ];
        let stages: Vec<&str> = told(lines).into_iter().map(|(_, stage)| stage).collect();
        assert_eq!(stages, ["ingest", "decide", "deliver", "verify", "execute", "settle"]);
    }

    #[test]
    fn another_node_and_another_time_are_left_where_they_are() {
        let lines = [line(100, 1, "n1", "execute"), line(150, 2, "n2", "verify"), line(9_000, 3, "n1", "verify")];
        let nodes: Vec<String> = told(lines).into_iter().map(|(node, _)| node).collect();
        assert_eq!(nodes, ["n1", "n2", "n1"]);
    }

    #[test]
    fn what_was_just_heard_of_is_held_back() {
        let mut held = Held::default();
        let before = Instant::now();
        held.put(line(0, 1, "n1", "execute"));
        if let Some(earlier) = before.checked_sub(HOLD) {
            assert!(held.take(earlier).is_empty());
        }
        assert_eq!(held.take(Instant::now()).len(), 1);
    }
}
