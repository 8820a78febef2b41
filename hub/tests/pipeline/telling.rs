//! What the log and the metrics say of what was done: one line for each step of an incident and each command that ended,
//! after the commit and never without one.

use std::{
    io::Write,
    sync::{Arc, LazyLock, Mutex},
};

use gpuheal_hub::{
    decide, metrics,
    settle::{settle, sweep},
};
use gpuheal_proto::{link::v1, words::Action};
use serde_json::Value;
use tracing::{Dispatch, subscriber::DefaultGuard};

use super::world::{World, cluster, marked, node, request, xid79};

/// The log of this test's thread, on which all of its hub runs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A second subscriber, that lives as long as the process. While there is but one, tracing asks the thread that comes to a
/// call site first whether anybody listens: a test of another thread would silence that call site for this one.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

impl Log {
    fn listen() -> (Self, DefaultGuard) {
        LazyLock::force(&SECOND);
        let log = Self::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().json().with_max_level(tracing::Level::INFO).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines about incidents and commands since the last call, as level and fields.
    fn lines(&self) -> Vec<(String, Value)> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let about = |line: &Value| {
            line["fields"]["message"].as_str().is_some_and(|says| says.starts_with("incident") || says.starts_with("command"))
        };
        lines.filter(about).map(|line| (line["level"].as_str().unwrap().to_owned(), line["fields"].clone())).collect()
    }

    /// The only line since the last call.
    fn line(&self) -> (String, Value) {
        let mut lines = self.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.remove(0)
    }
}

fn assert_names(fields: &Value, named: &[(&str, &str)]) {
    for (field, value) in named {
        assert_eq!(fields[*field], *value, "{field} of {fields}");
    }
}

fn status(command: &str, seq: u64, state: v1::CommandState) -> v1::CommandStatus {
    v1::CommandStatus {
        command_id: command.to_owned(),
        status_seq: seq,
        state: state.into(),
        lease_transitions: 1,
        ..Default::default()
    }
}

#[tokio::test]
async fn each_step_of_an_incident_and_the_end_of_its_command_is_one_line_with_every_id() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let (log, _guard) = Log::listen();
    let fault = xid79(&c1, 1);
    world.faults(&c1, std::slice::from_ref(&fault)).await;
    world.decide().await;
    let key = fault.key.to_string();
    let incident = world.text("SELECT incident_id FROM incidents").await;
    let named = [("cluster.id", "c1"), ("node.name", "n1"), ("incident.id", incident.as_str()), ("fault.id", key.as_str())];
    let (level, opened) = log.line();
    assert_names(&opened, &named);
    assert_names(&opened, &[("message", "incident opened"), ("incident.level", "P0")]);
    assert_eq!(level, "INFO");
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    assert!(world.decide().await > 0);
    assert_eq!(log.lines(), [], "a judgement that changes nothing is no news");

    world.dispatch().await;
    let command = world.text("SELECT command_id FROM commands").await;
    for (seq, state) in [(1, v1::CommandState::Received), (2, v1::CommandState::Started)] {
        settle(&world.pool, &c1, status(&command, seq, state), None).await.unwrap();
    }
    assert_eq!(log.lines(), []);
    let done = status(&command, 3, v1::CommandState::Succeeded);
    settle(&world.pool, &c1, done.clone(), None).await.unwrap();
    let (level, ended) = log.line();
    assert_names(&ended, &named);
    assert_names(&ended, &[("message", "command ended"), ("command.id", command.as_str()), ("command.state", "SUCCEEDED")]);
    assert_eq!(level, "INFO");
    settle(&world.pool, &c1, done, None).await.unwrap();
    assert_eq!(log.lines(), [], "a status that was taken before is no news");

    let mut nodes: Vec<v1::NodeState> = (0..10).filter(|n| *n != 1).map(node).collect();
    nodes.push(marked(1, &incident, 1));
    world.snapshot(&c1, nodes).await;
    world.decide().await;
    let (_, moved) = log.line();
    assert_names(&moved, &named);
    assert_names(&moved, &[("message", "incident state changed"), ("incident.state", "validating")]);
    decide::process(&world.pool, &request("r1", 1, Action::Release)).await.unwrap();
    let (_, moved) = log.line();
    assert_names(&moved, &[("before.state", "validating"), ("incident.state", "releasing")]);
}

#[tokio::test]
async fn a_command_that_was_refused_or_ran_out_of_time_is_a_warning() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.faults(&c1, &[xid79(&c1, 2)]).await;
    world.decide().await;
    world.dispatch().await;
    let (log, _guard) = Log::listen();
    let commands = world.lines("SELECT command_id::text FROM commands ORDER BY node_name").await;
    let refused = v1::CommandStatus {
        refusal: v1::RefusalCode::OverCeiling.into(),
        reason: "3 of 3 out".into(),
        ..status(&commands[0], 1, v1::CommandState::Refused)
    };
    settle(&world.pool, &c1, refused, None).await.unwrap();
    let (level, line) = log.line();
    assert_names(
        &line,
        &[("command.state", "REFUSED"), ("refusal", "OVER_CEILING"), ("reason", "3 of 3 out"), ("node.name", "n1")],
    );
    assert_eq!(level, "WARN");
    let past = "UPDATE commands SET created_at = created_at - interval '10 min', deliver_by = deliver_by - interval '10 min', start_by = start_by - interval '10 min'";
    world.run(past).await;
    assert_eq!(sweep(&world.pool).await.unwrap(), 1);
    let (level, line) = log.line();
    assert_names(&line, &[("command.state", "EXPIRED"), ("command.id", commands[1].as_str()), ("node.name", "n2")]);
    assert_eq!(level, "WARN");
    settle(&world.pool, &c1, status(&commands[1], 3, v1::CommandState::Succeeded), None).await.unwrap();
    let (_, line) = log.line();
    assert_names(&line, &[("message", "command's end was corrected"), ("before.state", "EXPIRED")]);
}

#[tokio::test]
async fn what_was_not_committed_is_not_told() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let (log, _guard) = Log::listen();
    world.run("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$").await;
    world.run("CREATE TRIGGER refuse BEFORE INSERT ON audit_entries FOR EACH ROW EXECUTE FUNCTION refuse()").await;
    decide::step(&world.pool, &world.wake).await.unwrap();
    assert_eq!(log.lines(), [], "the audit refused the decision");
    world.run("DROP TRIGGER refuse ON audit_entries").await;
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    world.decide().await;
    assert_eq!(log.line().1["message"], "incident opened");
}

#[tokio::test]
async fn deciding_settling_and_auditing_are_counted_and_timed() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.dispatch().await;
    let command = world.text("SELECT command_id FROM commands").await;
    settle(&world.pool, &c1, status(&command, 1, v1::CommandState::Failed), None).await.unwrap();
    gpuheal_hub::audit::verify(&world.pool, "c1").await.unwrap();
    let text = metrics::text();
    let state = world.text("SELECT state FROM incidents").await;
    for counted in [
        format!("decisions_total{{outcome=\"{state}\"}}"),
        "decide_duration_seconds_count".to_owned(),
        "settle_duration_seconds_count".to_owned(),
        "commands_ended_total{state=\"FAILED\"}".to_owned(),
        "audit_append_duration_seconds_count".to_owned(),
        "audit_appends_total{outcome=\"ok\"}".to_owned(),
        "audit_verified_total{outcome=\"intact\"}".to_owned(),
    ] {
        let name = format!("gpu_selfhealing_hub_{counted} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        assert_ne!(value, "0", "{name}");
    }
}
