//! What spokes report: taken once, corrected when late, ended when nothing comes.

use gpuheal_hub::{
    decide::{ManualRequest, Outcome, process},
    settle::{settle, sweep},
    store::{
        report::Report,
        settle::{command_hold, command_lapse, command_settle, commands_lapsed},
    },
};
use gpuheal_proto::{command::CommandState, ids::CommandId, link::v1, words::Action};

use super::world::{HEAL, World, cluster, marked, node, request, xid79};

struct Case {
    world: World,
    command: CommandId,
}

impl Case {
    /// A node with a command that is on its way.
    async fn dispatched() -> Self {
        let (world, c1) = (World::healing(10).await, cluster("c1"));
        world.faults(&c1, &[xid79(&c1, 1)]).await;
        world.decide().await;
        world.dispatch().await;
        let command = CommandId::parse(&world.text("SELECT command_id FROM commands").await).unwrap();
        Self { world, command }
    }

    fn status(&self, seq: u64, state: v1::CommandState) -> v1::CommandStatus {
        v1::CommandStatus {
            command_id: self.command.to_string(),
            status_seq: seq,
            state: state.into(),
            lease_transitions: 1,
            ..Default::default()
        }
    }

    async fn report(&self, status: v1::CommandStatus) -> v1::StatusAck {
        settle(&self.world.pool, &cluster("c1"), status, None).await.unwrap().unwrap()
    }

    async fn state(&self) -> String {
        self.world.text("SELECT state FROM commands ORDER BY cmd_seq LIMIT 1").await
    }

    /// Moves the command's `start_by`, and its other times around it.
    async fn starts_by(&self, moment: &str) {
        let times = format!(
            "UPDATE commands SET created_at = clock_timestamp() - interval '2 hours', deliver_by = {moment}, start_by = {moment}, \
             finish_by = clock_timestamp() + interval '2 hours', expires_at = clock_timestamp() + interval '3 hours'"
        );
        self.world.run(&times).await;
    }

    /// The cluster shows its nodes without any mark of ours, and is judged by that.
    async fn shown_unmarked(&self) {
        self.world.snapshot(&cluster("c1"), (0..10).map(node).collect()).await;
        self.world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
        self.world.decide().await;
    }

    /// Nodes that count as out, and how the cooldown stands.
    async fn counted(&self) -> (i64, String) {
        (self.world.count("holds").await, self.world.text("SELECT state FROM cooldowns").await)
    }
}

fn done(name: &str) -> v1::StepStatus {
    v1::StepStatus { name: name.into(), state: v1::StepState::Done.into(), ..Default::default() }
}

fn undo() -> v1::UndoRecord {
    let field = v1::UndoField {
        kind: v1::UndoKind::Label.into(),
        key: "gpu-selfhealing.io/status".into(),
        before: String::new(),
        after: "\"faulty\"".into(),
        resource_version: "1".into(),
    };
    v1::UndoRecord { fields: vec![field] }
}

/// Failure table, row 15.
#[tokio::test]
async fn a_status_is_taken_once_and_its_repeat_only_counted() {
    let case = Case::dispatched().await;
    case.report(case.status(1, v1::CommandState::Received)).await;
    let started = v1::CommandStatus { undo: Some(undo()), steps: vec![done("mark")], ..case.status(2, v1::CommandState::Started) };
    assert!(case.report(started.clone()).await.undo_kept);
    assert_eq!(case.state().await, "STARTED");
    let audited = case.world.count("audit_entries").await;
    let ack = case.report(started).await;
    assert_eq!((ack.status_seq, ack.undo_kept), (2, true));
    assert_eq!((case.state().await.as_str(), case.world.count("audit_entries").await), ("STARTED", audited));
    assert_eq!(case.world.text("SELECT times FROM reports WHERE status_seq = 2").await, "2");
}

#[tokio::test]
async fn the_first_effect_starts_the_cooldown_and_success_leaves_the_node_validating() {
    let case = Case::dispatched().await;
    assert_eq!(case.world.text("SELECT state FROM cooldowns").await, "reserved");
    let started = v1::CommandStatus { undo: Some(undo()), steps: vec![done("mark")], ..case.status(1, v1::CommandState::Started) };
    case.report(started).await;
    case.world.decide().await;
    assert_eq!(case.world.text("SELECT state FROM cooldowns").await, "running");
    let steps = vec![done("notify"), done("mark"), done("drain")];
    case.report(v1::CommandStatus { undo: Some(undo()), steps, ..case.status(2, v1::CommandState::Succeeded) }).await;
    let incident = case.world.text("SELECT incident_id FROM incidents").await;
    let mut nodes: Vec<v1::NodeState> = (0..10).filter(|n| *n != 1).map(node).collect();
    nodes.push(marked(1, &incident, 1));
    case.world.snapshot(&cluster("c1"), nodes).await;
    case.world.decide().await;
    assert_eq!(case.world.lines("SELECT state FROM incidents").await, ["validating"]);
    assert_eq!(case.world.count("holds").await, 1, "it counts as out while it is marked");
}

/// Failure table, row 40.
#[tokio::test]
async fn a_refusal_gives_back_hold_and_cooldown_only_once_the_cluster_shows_no_mark_after_start_by() {
    let case = Case::dispatched().await;
    let refused = v1::CommandStatus {
        refusal: v1::RefusalCode::OverCeiling.into(),
        reason: "3 of 3 out".into(),
        ..case.status(1, v1::CommandState::Refused)
    };
    case.report(refused).await;
    case.world.decide().await;
    assert_eq!(case.state().await, "REFUSED");
    assert_eq!(case.world.text("SELECT refusal || ': ' || result_reason FROM commands").await, "OVER_CEILING: 3 of 3 out");
    // Hours and minutes, so that no two moments of the test can be the same one.
    case.starts_by("clock_timestamp() + interval '1 hour'").await;
    case.shown_unmarked().await;
    assert_eq!(case.counted().await, (1, "reserved".to_owned()), "a view from before start_by proves nothing");
    case.starts_by("clock_timestamp() - interval '1 minute'").await;
    case.shown_unmarked().await;
    assert_eq!(case.counted().await, (0, "void".to_owned()), "nothing was done, and nothing can be any more");
    assert_eq!(case.world.text("SELECT sum(out) FROM budgets").await, "0");
    assert_eq!(case.world.lines("SELECT state FROM commands").await, ["REFUSED"], "it is planned again later, not at once");
}

#[tokio::test]
async fn not_now_sends_the_same_bytes_again_soon() {
    let case = Case::dispatched().await;
    let busy = v1::CommandStatus { refusal: v1::RefusalCode::NotLeader.into(), ..case.status(0, v1::CommandState::NotNow) };
    for _ in 0..3 {
        case.report(busy.clone()).await;
    }
    assert_eq!(case.state().await, "DISPATCHED");
    assert_eq!(case.world.count("commands WHERE resend_at > heard_at").await, 1);
    assert_eq!(case.world.text("SELECT effect || ' ' || times FROM reports").await, "not_now 3");
}

#[tokio::test]
async fn what_the_spoke_had_no_room_to_read_is_sent_again_and_is_no_forgery() {
    let case = Case::dispatched().await;
    let hash = case.world.text("SELECT envelope_sha256 FROM commands").await;
    let busy = v1::CommandStatus {
        envelope_sha256: hash,
        state: v1::CommandState::NotNow.into(),
        refusal: v1::RefusalCode::Busy.into(),
        ..Default::default()
    };
    case.report(busy).await;
    assert_eq!(case.state().await, "DISPATCHED");
    assert_eq!(case.world.count("commands WHERE resend_at > heard_at").await, 1);
    assert_eq!(case.world.text("SELECT effect || ' ' || refusal FROM reports").await, "not_now BUSY");
    assert_eq!(case.world.count("audit_entries WHERE kind = 'envelope_refused'").await, 0);
}

#[tokio::test]
async fn what_was_refused_unverified_is_on_record_by_its_hash() {
    let case = Case::dispatched().await;
    let forged = v1::CommandStatus {
        envelope_sha256: "ab".repeat(32),
        state: v1::CommandState::Refused.into(),
        refusal: v1::RefusalCode::BadSignature.into(),
        ..Default::default()
    };
    case.report(forged.clone()).await;
    case.report(forged).await;
    assert_eq!(case.world.text("SELECT effect || ' ' || refusal || ' ' || times FROM reports").await, "unverified BAD_SIGNATURE 2");
    assert_eq!(case.world.count("audit_entries WHERE kind = 'envelope_refused'").await, 1);
    assert_eq!(case.state().await, "DISPATCHED");
}

/// Failure table, row 17.
#[tokio::test]
async fn nothing_received_by_a_minute_after_start_by_is_expired_and_a_late_result_corrects_it() {
    let case = Case::dispatched().await;
    let past = "UPDATE commands SET created_at = created_at - interval '10 min', deliver_by = deliver_by - interval '10 min', start_by = start_by - interval '10 min'";
    case.world.run(past).await;
    assert_eq!(sweep(&case.world.pool).await.unwrap(), 1);
    assert_eq!(case.state().await, "EXPIRED");
    case.report(v1::CommandStatus { undo: Some(undo()), ..case.status(3, v1::CommandState::Succeeded) }).await;
    assert_eq!(case.world.text("SELECT state || ' ' || corrections FROM commands LIMIT 1").await, "SUCCEEDED 1");
    assert_eq!(case.world.count("audit_entries WHERE kind = 'command_corrected'").await, 1);
}

/// Failure table, row 25.
#[tokio::test]
async fn received_and_silent_past_finish_by_is_unknown_and_stays_counted_as_out() {
    let case = Case::dispatched().await;
    case.report(case.status(1, v1::CommandState::Started)).await;
    assert_eq!(sweep(&case.world.pool).await.unwrap(), 0, "not before its time");
    case.world
        .run("UPDATE commands SET created_at = created_at - interval '2 h', deliver_by = deliver_by - interval '2 h', start_by = start_by - interval '2 h', finish_by = finish_by - interval '2 h'")
        .await;
    assert_eq!(sweep(&case.world.pool).await.unwrap(), 1);
    case.world.decide().await;
    assert_eq!((case.state().await.as_str(), case.world.count("holds").await), ("UNKNOWN", 1));
    assert_eq!(case.world.count("incidents WHERE closed_at IS NULL").await, 1, "a person must look");
}

#[tokio::test]
async fn eight_reports_of_one_status_at_once_are_one_transition() {
    let case = Case::dispatched().await;
    let started = v1::CommandStatus { steps: vec![done("mark")], ..case.status(1, v1::CommandState::Started) };
    futures::future::join_all((0..8).map(|_| case.report(started.clone()))).await;
    assert_eq!(case.world.count("audit_entries WHERE kind = 'command_reported'").await, 1);
    assert_eq!(case.world.text("SELECT times FROM reports").await, "8");
}

#[tokio::test]
async fn a_pod_that_went_past_its_budget_is_in_the_audit_once_with_who_asked_for_that() {
    let world = World::healing(10).await;
    world.policy(&format!("{HEAL}  response: {{drain: {{allowPdbBypass: true}}}}\n")).await;
    let by_hand = ManualRequest { past_budgets: true, reason: "it must go".into(), ..request("r1", 1, Action::Evict) };
    let command = process(&world.pool, &by_hand).await.unwrap().command.unwrap();
    let other = ManualRequest { past_budgets: false, ..by_hand };
    assert_eq!(process(&world.pool, &other).await.unwrap().outcome, Outcome::Invalid, "an id is good for what it first asked for");
    world.dispatch().await;
    let case = Case { world, command };
    let pod = |name: &str, past_budget| v1::PodStatus { name: name.into(), uid: name.into(), past_budget, ..Default::default() };
    let drain = |pods| v1::StepStatus { pods, ..done("drain") };
    let told = |seq, pods| v1::CommandStatus { steps: vec![drain(pods)], ..case.status(seq, v1::CommandState::Started) };
    case.report(told(1, vec![pod("a", false), pod("b", false)])).await;
    assert_eq!(case.world.count("audit_entries WHERE kind = 'budget_passed'").await, 0);
    case.report(told(2, vec![pod("a", true), pod("b", false)])).await;
    case.report(told(3, vec![pod("a", true), pod("b", true)])).await;
    case.report(told(3, vec![pod("a", true), pod("b", true)])).await;
    let passed = "SELECT jsonb_path_query_array(body::jsonb, '$.pods[*].name') || (body::jsonb->'allowed_by') || (body::jsonb->'reason') \
                  FROM audit_entries WHERE kind = 'budget_passed' ORDER BY seq";
    let passed: Vec<String> = case.world.lines(&passed.replace("SELECT ", "SELECT (").replace(" FROM", ")::text FROM")).await;
    assert_eq!(passed, [r#"["a", "user/tester", "it must go"]"#, r#"["b", "user/tester", "it must go"]"#], "each pod once");
}

#[tokio::test]
async fn a_status_of_a_command_nobody_knows_is_acked_and_kept() {
    let case = Case::dispatched().await;
    let stranger =
        v1::CommandStatus { command_id: uuid::Uuid::now_v7().to_string(), ..case.status(1, v1::CommandState::Succeeded) };
    assert!(!case.report(stranger).await.undo_kept);
    assert_eq!(case.world.text("SELECT effect FROM reports").await, "unknown_command");
}

#[tokio::test]
async fn a_command_whose_envelope_did_not_verify_is_refused_with_the_spokes_reason() {
    let case = Case::dispatched().await;
    let status = v1::CommandStatus {
        envelope_sha256: case.world.text("SELECT envelope_sha256 FROM commands").await,
        state: v1::CommandState::Refused.into(),
        refusal: v1::RefusalCode::BadSignature.into(),
        reason: "no trusted key has the id ab12".into(),
        ..Default::default()
    };
    case.report(status.clone()).await;
    assert_eq!(
        case.world.lines("SELECT state || ' ' || result_reason FROM commands").await,
        ["REFUSED no trusted key has the id ab12"]
    );
    assert_eq!(case.world.count("audit_entries WHERE kind = 'command_reported' AND incident_id IS NOT NULL").await, 1);
    case.report(status).await;
    assert_eq!(case.world.count("commands WHERE corrections > 0").await, 0, "told again, it changes nothing");
}

#[tokio::test]
async fn an_unverified_envelope_moves_no_command_that_was_received() {
    let case = Case::dispatched().await;
    case.report(case.status(1, v1::CommandState::Received)).await;
    let status = v1::CommandStatus {
        envelope_sha256: case.world.text("SELECT envelope_sha256 FROM commands").await,
        state: v1::CommandState::Refused.into(),
        ..Default::default()
    };
    case.report(status).await;
    assert_eq!(case.state().await, "RECEIVED");
}

/// Failure table, row 15.
#[tokio::test]
async fn a_command_that_moved_since_it_was_read_is_neither_settled_nor_ended_by_that_reading() {
    let case = Case::dispatched().await;
    let c1 = cluster("c1");
    let mut conn = case.world.pool.acquire().await.unwrap();
    let read = command_hold(&mut conn, &c1, case.command).await.unwrap();
    case.starts_by("clock_timestamp() - interval '61 seconds'").await;
    let lapsed = commands_lapsed(&mut conn, 10).await.unwrap();
    assert_eq!(lapsed.len(), 1);
    case.report(case.status(2, v1::CommandState::Started)).await;
    case.world
        .run("UPDATE commands SET start_by = created_at, deliver_by = created_at, finish_by = created_at + interval '1 minute'")
        .await;
    let report = Report::of(&case.status(1, v1::CommandState::Refused));
    let now = case.world.now().await;
    let settled = command_settle(&mut conn, &c1, case.command, &read, &report, CommandState::Refused, false, now).await;
    assert!(settled.is_err(), "{settled:?}");
    assert!(!command_lapse(&mut conn, &lapsed[0], now).await.unwrap(), "it was sent then, and is under way now");
    assert_eq!(case.state().await, "STARTED");
}
