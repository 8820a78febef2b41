//! What people are told of decisions: as of now, and of what is over.

use gpuheal_hub::decide::{self, Explained, Now, Outcome, Subject, explain, explain_subject};
use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    fleet::v1::{ExplainRequest, ExplainResponse},
    ids::IncidentId,
    words::Action,
};

use super::world::{HEAL, World, cluster, fault, marked, node, request, xid79};

async fn now(world: &World, subject: Subject) -> Now {
    match explain_subject(&world.pool, &subject).await.unwrap() {
        Explained::Now(now) => *now,
        Explained::Closed(closed) => panic!("{closed:?}"),
    }
}

async fn of_node(world: &World, n: u32) -> ExplainResponse {
    let request = ExplainRequest { cluster_id: "c1".into(), node: format!("n{n}"), ..Default::default() };
    explain(&world.pool, request).await.unwrap()
}

async fn of_incident(world: &World, id: &str) -> ExplainResponse {
    let request = ExplainRequest { incident_id: id.to_owned(), ..Default::default() };
    explain(&world.pool, request).await.unwrap()
}

/// A node whose fault was released by a person, and whose exporter still shows it.
async fn released() -> (World, String) {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[fault(&c1, 1, FaultClass::Xid, "79", Onset::Standing, Witness::ExporterGauge)]).await;
    world.decide().await;
    let incident = world.text("SELECT incident_id FROM incidents").await;
    let answer = decide::process(&world.pool, &request("r1", 1, Action::Release)).await.unwrap();
    assert!(matches!(answer.outcome, Outcome::Accepted | Outcome::Repeated), "{answer:?}");
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["released"]);
    (world, incident)
}

#[tokio::test]
async fn explain_decides_and_writes_nothing() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let audited = world.count("audit_entries").await;
    let explained = now(&world, Subject::Node(c1.clone(), "n1".into())).await;
    assert_eq!(explained.decision.commands.len(), 1);
    assert_eq!((world.count("incidents").await, world.count("audit_entries").await), (0, audited));
    world.decide().await;
    let by_fault = now(&world, Subject::Fault(xid79(&c1, 1).key)).await;
    assert!(by_fault.snapshot.incident.is_some());
    assert!(explain_subject(&world.pool, &Subject::Node(c1, "n99".into())).await.is_err());
}

#[tokio::test]
async fn each_fault_shows_the_rule_that_spoke_and_the_mode_with_its_source() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&format!("{HEAL}  rules:\n    lab: {{mode: mark, level: P1, faults: [xid/79]}}\n")).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    let told = of_node(&world, 1).await;
    let fault = &told.faults[0];
    assert_eq!((fault.level.as_str(), fault.mode.as_str()), ("P1", "mark (rule lab)"));
    assert!(fault.rule.contains("lab") && !fault.reason.is_empty() && !fault.outcome.is_empty(), "{fault:?}");
}

#[tokio::test]
async fn the_history_holds_every_decision_of_the_incident() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[fault(&c1, 1, FaultClass::Xid, "79", Onset::Standing, Witness::ExporterGauge)]).await;
    world.decide().await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    let numbers: Vec<u32> = of_node(&world, 1).await.history.iter().map(|decision| decision.decision_no).collect();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
async fn a_closed_incident_is_answered_from_what_was_decided_and_not_from_what_is_now() {
    let (world, incident) = released().await;
    let c1 = cluster("c1");
    world.faults(&c1, &[fault(&c1, 1, FaultClass::Xid, "48", Onset::Edge, Witness::KernelLine)]).await;
    let told = of_incident(&world, &incident).await;
    assert_eq!((told.incident_id.as_str(), told.outcome.as_str()), (incident.as_str(), "released"));
    assert!(told.reasons[0].contains("user/tester asked for release: test"), "{:?}", told.reasons);
    assert_eq!(told.faults.iter().map(|fault| fault.code.as_str()).collect::<Vec<_>>(), ["79"]);
    assert!(told.history.len() >= 2 && told.would_change.is_empty(), "{told:?}");
    let unknown = Subject::Incident(IncidentId::parse("0194e000-0000-7000-8000-000000000000").unwrap());
    assert!(explain_subject(&world.pool, &unknown).await.is_err());
}

#[tokio::test]
async fn a_released_node_that_is_still_faulty_says_so_and_what_would_change_it() {
    let (world, incident) = released().await;
    let told = of_node(&world, 1).await;
    assert_eq!((told.incident_id.as_str(), told.outcome.as_str()), ("", "nothing"));
    assert!(told.reasons.iter().any(|reason| reason.contains(&incident) && reason.contains("released")), "{told:?}");
    assert!(told.would_change.iter().any(|line| line.contains("xid 79") && line.contains("anew")), "{told:?}");
    assert!(!told.history.is_empty());
}

#[tokio::test]
async fn under_approve_a_person_s_evict_is_the_yes_and_nothing_is_done_before_it() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&HEAL.replace("mode: heal", "mode: approve")).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["awaiting_approval"]);
    assert_eq!(world.count("commands WHERE action <> 'notify'").await, 0);
    let told = of_node(&world, 1).await;
    assert!(told.would_change.iter().any(|line| line.contains("process n1 --cluster c1 --action evict")), "{told:?}");
    let answer = decide::process(&world.pool, &request("yes", 1, Action::Evict)).await.unwrap();
    assert_eq!(answer.outcome, Outcome::Accepted, "{}", answer.reason);
    assert_eq!(world.lines("SELECT action || ' ' || level FROM commands WHERE action <> 'notify'").await, ["evict manual"]);
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["quarantining"]);
}

#[tokio::test]
async fn an_incident_that_a_person_asked_for_is_manual_and_keeps_their_words() {
    let world = World::healing(10).await;
    decide::process(&world.pool, &request("r1", 2, Action::Mark)).await.unwrap();
    let words = "user/tester asked for mark: test";
    assert_eq!(world.lines("SELECT reason FROM incidents").await, [words]);
    assert_eq!(world.lines("SELECT level FROM audit.incidents").await, ["manual"]);
    world.dispatch().await;
    world.run("UPDATE commands SET state = 'SUCCEEDED', finished_at = clock_timestamp(), steps = '[{\"name\":\"mark\",\"state\":\"done\",\"message\":\"\",\"started_unix_ms\":1,\"finished_unix_ms\":2}]'").await;
    let incident = world.text("SELECT incident_id FROM incidents").await;
    let mut nodes: Vec<_> = (0..10).filter(|n| *n != 2).map(node).collect();
    nodes.push(marked(2, &incident, 1));
    world.snapshot(&cluster("c1"), nodes).await;
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    world.decide().await;
    assert_eq!(world.lines("SELECT state || ' ' || reason FROM incidents").await, [format!("validating {words}")]);
}
