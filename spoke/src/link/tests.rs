//! The link against a small hub in the same process, over real TCP and mutual TLS.

mod hub;

use std::time::Duration;

use gpuheal_proto::{
    fault::{Fault, FaultClass, NodeRef, Onset, Witness},
    ids::{ClusterId, FaultKey, NodeName, NodeUid},
    time::Timestamp,
};
use hub::{Pki, Session, TestHub};
use v1::{attach_request::Message as Up, attach_response::Message as Answer};

use super::*;

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(120);

fn fault(code: &str) -> Fault {
    let uid = NodeUid::parse("u1").unwrap();
    Fault {
        key: FaultKey::derive(&ClusterId::parse("c1").unwrap(), &uid, None, "xid", code),
        node: NodeRef { name: NodeName::parse("n1").unwrap(), uid, boot_id: String::new() },
        gpu: None,
        class: FaultClass::Xid,
        code: code.to_owned(),
        onset: Onset::Edge,
        witness: Witness::ExporterGauge,
        observed_at: Timestamp::from_unix_ms(1),
        value: 79.0,
        threshold: 0.0,
        count: 1,
        source: String::new(),
        detail: String::new(),
        workload: String::new(),
    }
}

/// A spoke's link at work, and the ends that its other parts hold.
struct Spoke {
    journal: Journal,
    metrics: Arc<Metrics>,
    clock: Arc<HubClock>,
    leadership: watch::Sender<Leadership>,
    down: mpsc::Receiver<Down>,
    asked: mpsc::Receiver<Vec<v1::FaultAsked>>,
    attachment: watch::Receiver<Attachment>,
    statuses: mpsc::Sender<v1::CommandStatus>,
    states: mpsc::Sender<(u64, v1::ClusterState)>,
    asks: mpsc::Sender<Ask>,
    cancel: CancellationToken,
    _dir: tempfile::TempDir,
    seen: watch::Sender<Seen>,
    _evidence: mpsc::Sender<v1::EvidenceBatch>,
}

impl Drop for Spoke {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn spoke(url: &str, identity: &std::path::Path) -> Spoke {
    spoke_in(url, identity, tempfile::tempdir().unwrap())
}

fn spoke_in(url: &str, identity: &std::path::Path, dir: tempfile::TempDir) -> Spoke {
    let (journal, _) = Journal::open(dir.path(), journal::Limits::default()).unwrap();
    spoke_with(url, identity, dir, journal)
}

/// A spoke over a journal that is there already, once the one before has let go of it.
async fn spoke_over(url: &str, identity: &std::path::Path, dir: tempfile::TempDir, limits: journal::Limits) -> Spoke {
    let journal = loop {
        match Journal::open(dir.path(), limits) {
            Err(journal::Error::InUse) => tokio::time::sleep(Duration::from_millis(2)).await,
            opened => break opened.unwrap().0,
        }
    };
    spoke_with(url, identity, dir, journal)
}

fn spoke_with(url: &str, identity: &std::path::Path, dir: tempfile::TempDir, journal: Journal) -> Spoke {
    spoke_patient(url, identity, dir, journal, limits::DEAD_AFTER)
}

/// One that takes a silent hub for dead after so long.
fn spoke_patient(url: &str, identity: &std::path::Path, dir: tempfile::TempDir, journal: Journal, dead_after: Duration) -> Spoke {
    spoke_saying(url, identity, (dir, journal), dead_after, Vec::new())
}

/// One that has all of this to report from its beginning.
fn spoke_saying(
    url: &str,
    identity: &std::path::Path,
    (dir, journal): (tempfile::TempDir, Journal),
    dead_after: Duration,
    reports: Vec<v1::CommandStatus>,
) -> Spoke {
    let (leadership, leading) = watch::channel(Leadership::Standby);
    let (seen_tx, seen) = watch::channel(Seen::default());
    let (down_tx, down) = mpsc::channel(1);
    let (attachment_tx, attachment) = watch::channel(Attachment::default());
    let (statuses_tx, statuses) = mpsc::channel(reports.len().max(4));
    reports.into_iter().for_each(|report| statuses_tx.try_send(report).unwrap());
    let (states_tx, states) = mpsc::channel(4);
    let (evidence_tx, evidence) = mpsc::channel(4);
    let (asks_tx, asks) = mpsc::channel(4);
    let (asked_tx, asked) = mpsc::channel(1);
    let (metrics, clock, cancel) = (Metrics::new(), HubClock::new(), CancellationToken::new());
    let config = Config {
        hub: Hub::parse(url).unwrap(),
        identity: Keeper::open(identity, Arc::clone(&metrics)).unwrap(),
        replica: ReplicaId::parse("r1").unwrap(),
        kube_system_uid: "ks".into(),
        dead_after,
    };
    let deps = Deps {
        config,
        journal: journal.clone(),
        settings: Settings::new(),
        clock: Arc::clone(&clock),
        metrics: Arc::clone(&metrics),
        leadership: leading,
        seen,
        down: down_tx,
        asked: asked_tx,
        attachment: attachment_tx,
    };
    tokio::spawn(run(deps, Lanes { statuses, states, evidence, asks }, cancel.clone()));
    Spoke {
        journal,
        metrics,
        clock,
        leadership,
        down,
        asked,
        attachment,
        statuses: statuses_tx,
        states: states_tx,
        asks: asks_tx,
        cancel,
        _dir: dir,
        seen: seen_tx,
        _evidence: evidence_tx,
    }
}

async fn attached() -> (TestHub, Spoke, Session) {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    (hub, spoke, session)
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("it comes soon")
}

fn codes(batch: &v1::FaultBatch) -> Vec<&str> {
    batch.faults.iter().map(|fault| fault.code.as_str()).collect()
}

#[tokio::test]
async fn hello_names_the_cluster_of_the_certificate_and_welcome_sets_the_clock() {
    let (_hub, mut spoke, session) = attached().await;
    assert_eq!(session.hello.cluster_id, "c1");
    assert_eq!(session.hello.replica_id, "r1");
    assert_eq!(session.hello.journals.len(), 1);
    assert_eq!(session.hello.lease_transitions, None);
    soon(spoke.attachment.wait_for(|attachment| attachment.generation == Some(7))).await.unwrap();
    let (now, uncertainty) = spoke.clock.now().unwrap();
    assert!(now >= Timestamp::from_unix_ms(hub::SERVER_TIME), "{now}");
    assert!(uncertainty < SOON);
    let ahead = spoke.metrics.get(metrics::CLOCK_AHEAD, &[]).unwrap();
    let years = (clock::wall().unix_ms() - hub::SERVER_TIME) as f64 / 1000.0;
    assert!((ahead - years).abs() < SOON.as_secs_f64(), "this hub's clock is {years} s behind, told are {ahead}");
}

#[tokio::test]
async fn who_has_lost_the_hubs_time_attaches_anew_and_is_told_it() {
    let (mut hub, mut spoke, _first) = attached().await;
    soon(spoke.attachment.wait_for(|attachment| attachment.generation == Some(7))).await.unwrap();
    spoke.clock.lose();
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    soon(async {
        while spoke.clock.now().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_hub_with_a_certificate_for_something_else_is_told_nothing() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/user/mallory").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    soon(async {
        while spoke.metrics.get(metrics::ATTACHES, &[("outcome", "failed")]).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(hub.sessions.try_recv().is_err(), "no Hello came");
}

#[tokio::test]
async fn a_hub_of_another_ca_is_told_nothing() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let ours = Pki::new().identity("spiffe://dev.gpuheal/cluster/c1/spoke");
    let spoke = spoke(&hub.url, ours.path());
    soon(async {
        while spoke.metrics.get(metrics::ATTACHES, &[("outcome", "failed")]).is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(hub.sessions.try_recv().is_err(), "no Hello came");
}

/// Failure table, row 4.
#[tokio::test]
async fn faults_go_on_where_the_hub_said_and_an_ack_is_final() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    let faults: Vec<_> = ["1", "2", "3", "4", "5"].map(fault).into();
    spoke.journal.append(&faults, vec![]).await.unwrap();
    let mut session = hub.session().await;
    let stream = session.hello.journals[0].stream_id.clone();
    session.welcome(&[(&stream, 3)], 1024).await;
    let batch = session.batch().await;
    assert_eq!((batch.first_seq, codes(&batch)), (3, vec!["3", "4", "5"]));
    session.ack(&stream, 4, 1024).await;
    // The ack for 5 is lost with the session: the next one starts behind what the hub says it has.
    drop(session);
    let mut session = hub.session().await;
    session.welcome(&[(&stream, 5)], 1024).await;
    let batch = session.batch().await;
    assert_eq!((batch.first_seq, codes(&batch)), (5, vec!["5"]));
    session.ack(&stream, 5, 1024).await;
    spoke.journal.append(&[fault("6")], vec![]).await.unwrap();
    assert_eq!(codes(&session.batch().await), ["6"], "nothing is sent twice in a session");
}

#[tokio::test]
async fn what_the_hub_had_acked_before_a_crash_leaves_the_queue() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let dir = tempfile::tempdir().unwrap();
    {
        // No clean end: the next process goes on under another stream, and knows of no ack.
        let (journal, _) = Journal::open(dir.path(), journal::Limits::default()).unwrap();
        journal.append(&["1", "2"].map(fault), vec![]).await.unwrap();
    }
    soon(async {
        while std::fs::File::open(dir.path().join("lock")).unwrap().try_lock().is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let spoke = spoke_in(&hub.url, hub.identity.path(), dir);
    let mut depth = spoke.journal.depth();
    soon(depth.wait_for(|depth| depth.unacked == 2)).await.unwrap();
    let mut session = hub.session().await;
    let stream = session.hello.journals[0].stream_id.clone();
    session.welcome(&[(&stream, 3)], 1024).await;
    soon(depth.wait_for(|depth| depth.unacked == 0)).await.unwrap();
}

#[tokio::test]
async fn that_a_last_word_was_heard_waits_for_the_hand_and_is_never_dropped() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let mut spoke = spoke(&hub.url, hub.identity.path());
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    // The hand has room for one.
    for status_seq in 1..=5 {
        session.send(Answer::StatusAck(v1::StatusAck { command_id: "c".into(), status_seq, undo_kept: true, hub_term: 1 })).await;
    }
    session.send(Answer::Cancel(v1::Cancel { envelope: vec![9].into() })).await;
    let mut heard = Vec::new();
    while let Down::StatusAck(ack) = soon(spoke.down.recv()).await.unwrap() {
        heard.push(ack.status_seq);
    }
    assert_eq!(heard, [1, 2, 3, 4, 5]);
}

/// Failure table, row 33.
#[tokio::test]
async fn no_more_faults_are_in_flight_than_the_credit_allows() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    spoke.journal.append(&["1", "2", "3", "4", "5"].map(fault), vec![]).await.unwrap();
    let mut session = hub.session().await;
    let stream = session.hello.journals[0].stream_id.clone();
    session.welcome(&[], 2).await;
    assert_eq!(codes(&session.batch().await), ["1", "2"]);
    // Statuses pass while bulk has no credit.
    spoke.statuses.send(v1::CommandStatus { command_id: "k".into(), ..Default::default() }).await.unwrap();
    let next = session.next().await;
    assert!(matches!(&next, Up::CommandStatus(status) if status.command_id == "k"), "{next:?}");
    session.ack(&stream, 2, 2).await;
    assert_eq!(codes(&session.batch().await), ["3", "4"]);
    session.send(Answer::Throttle(v1::Throttle { credit: 3 })).await;
    assert_eq!(codes(&session.batch().await), ["5"]);
}

#[tokio::test]
async fn commands_reach_the_hand_as_they_came_and_one_too_many_is_asked_to_come_again() {
    let (_hub, mut spoke, mut session) = attached().await;
    for n in [1_u8, 2] {
        session.send(Answer::Command(v1::Command { envelope: vec![n; 3].into() })).await;
    }
    let next = session.next().await;
    let Up::CommandStatus(status) = &next else { panic!("{next:?}") };
    assert_eq!((status.state(), status.refusal()), (v1::CommandState::NotNow, v1::RefusalCode::Busy));
    assert_eq!(status.command_id, "", "bytes that were not verified have no id");
    assert_eq!(status.envelope_sha256.len(), 64);
    let first = soon(spoke.down.recv()).await.unwrap();
    assert!(matches!(&first, Down::Command(bytes) if bytes[..] == [1, 1, 1]), "{first:?}");
}

/// Failure table, row 9.
#[tokio::test]
async fn a_hub_of_which_nothing_is_heard_is_dead_and_attached_to_anew() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(dir.path(), journal::Limits::default()).unwrap();
    let spoke = spoke_patient(&hub.url, hub.identity.path(), dir, journal, Duration::from_millis(300));
    let mut silent = hub.session().await;
    silent.welcome(&[], 8).await;
    // Its stream stays open: only time tells.
    let again = hub.session().await;
    assert_eq!(again.hello.replica_id, "r1");
    drop((silent, spoke));
}

#[tokio::test]
async fn becoming_leader_is_told_at_once() {
    let (_hub, spoke, mut session) = attached().await;
    spoke.seen.send_replace(Seen { whole_in: Some(4), ..Seen::default() });
    spoke.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
    assert_eq!(session.beat_with(Some(4)).await.lease_transitions, Some(4));
    spoke.leadership.send_replace(Leadership::Standby);
    assert_eq!(session.beat_with(None).await.lease_transitions, None);
}

#[tokio::test]
async fn no_traffic_holds_up_a_heartbeat_nor_the_word_of_who_leads() {
    const REPORTS: usize = 4000;
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(dir.path(), journal::Limits::default()).unwrap();
    // More than any buffer between the two holds: 4 MB.
    let report = v1::CommandStatus { reason: "x".repeat(1000), ..v1::CommandStatus::default() };
    let reports = vec![report; REPORTS];
    let spoke = spoke_saying(&hub.url, hub.identity.path(), (dir, journal), limits::DEAD_AFTER, reports);
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    let (mut heard, mut first_beat, mut told) = (0, None, None);
    while heard < REPORTS {
        match session.any().await {
            Up::Heartbeat(beat) => {
                first_beat.get_or_insert(heard);
                told = told.or(beat.lease_transitions.map(|_| heard));
            }
            Up::CommandStatus(_) => heard += 1,
            other => panic!("neither: {other:?}"),
        }
        if heard == 100 {
            spoke.seen.send_replace(Seen { whole_in: Some(4), ..Seen::default() });
            spoke.leadership.send_replace(Leadership::Leading { lease_transitions: 4 });
        }
    }
    assert!(first_beat.is_some_and(|after| after < REPORTS / 2), "a sign of life comes between the reports: {first_beat:?}");
    assert!(told.is_some_and(|after| after < REPORTS / 2), "and so does the word of who leads: {told:?}");
}

/// Failure table, row 18.
#[tokio::test]
async fn a_leader_proves_itself_only_once_it_knows_all_that_its_cluster_has_seen() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    spoke.leadership.send_replace(Leadership::Leading { lease_transitions: 5 });
    // What was read in an earlier reign says nothing of this one.
    spoke.seen.send_replace(Seen { whole_in: Some(4), hub_term: 2, cmd_seq: 8, ..Seen::default() });
    let mut session = hub.session().await;
    assert_eq!(session.hello.lease_transitions, None);
    session.welcome(&[], 1024).await;
    assert_eq!(session.beat_with(None).await.lease_transitions, None);
    spoke.seen.send_replace(Seen { whole_in: Some(5), hub_term: 3, cmd_seq: 9, ..Seen::default() });
    let beat = session.beat_with(Some(5)).await;
    assert_eq!((beat.hub_term_seen, beat.cmd_seq_seen), (3, 9));
    spoke.cancel.cancel();
}

#[tokio::test]
async fn what_the_hub_asks_for_by_name_reaches_the_hand() {
    let (_hub, mut spoke, session) = attached().await;
    let resync = v1::Resync { command_ids: vec!["k1".into(), "k2".into()], ..v1::Resync::default() };
    session.send(Answer::Resync(resync)).await;
    let told = soon(spoke.down.recv()).await.unwrap();
    assert!(matches!(&told, Down::Tell(ids) if *ids == ["k1", "k2"]), "{told:?}");
    assert_eq!(spoke.attachment.borrow().asked_term, 0, "it asks for these alone");
}

#[tokio::test]
async fn faults_that_the_hub_asks_for_reach_the_detectors_and_a_session_without_room_for_them_ends() {
    let (mut hub, mut spoke, session) = attached().await;
    let asked = |code: &str| {
        let fault = v1::Fault { code: code.to_owned(), ..v1::Fault::default() };
        vec![v1::FaultAsked { fault: Some(fault), witnesses: Vec::new() }]
    };
    let resync = |code: &str| Answer::Resync(v1::Resync { faults: asked(code), ..v1::Resync::default() });
    session.send(resync("79")).await;
    assert_eq!(soon(spoke.asked.recv()).await.unwrap(), asked("79"));
    // Nobody takes the next one, and nobody asks for the one after it again in this session.
    session.send(resync("48")).await;
    session.send(resync("63")).await;
    soon(hub.session()).await;
    assert_eq!(soon(spoke.asked.recv()).await.unwrap(), asked("48"));
}

/// Failure table, row 18.
#[tokio::test]
async fn what_a_hub_asks_for_under_an_epoch_is_asked_in_its_session_alone() {
    let (mut hub, mut spoke, session) = attached().await;
    for (term, asked) in [(4, 4), (6, 6), (5, 6)] {
        session.send(Answer::Resync(v1::Resync { all_under_term: term, ..v1::Resync::default() })).await;
        session.send(Answer::Resync(v1::Resync { snapshot: true, ..v1::Resync::default() })).await;
        soon(spoke.attachment.wait_for(|attachment| attachment.snapshots_asked > 0)).await.unwrap();
        let after = soon(spoke.attachment.wait_for(|attachment| attachment.asked_term == asked)).await.unwrap().hub_term;
        assert_eq!(after, asked, "an epoch that was in force once must not come again");
    }
    drop(session);
    hub.session().await.welcome(&[], 1024).await;
    let again = soon(spoke.attachment.wait_for(|attachment| attachment.asked_term == 0)).await.unwrap().hub_term;
    assert_eq!(again, 6);
}

#[tokio::test]
async fn a_persons_request_gets_the_hubs_answer_and_none_while_it_is_away() {
    let (mut hub, mut spoke, mut session) = attached().await;
    let ask = |id: &str| {
        let (reply, answer) = oneshot::channel();
        (Ask { process: v1::Process { request_id: id.into(), node: "n1".into(), ..Default::default() }, reply }, answer)
    };
    let (asked, answer) = ask("q1");
    spoke.asks.send(asked).await.unwrap();
    let next = session.next().await;
    assert!(matches!(&next, Up::Process(process) if process.request_id == "q1"), "{next:?}");
    let result = v1::ProcessResult { request_id: "q1".into(), command_id: "k1".into(), ..Default::default() };
    session.send(Answer::ProcessResult(result.clone())).await;
    assert_eq!(soon(answer).await.unwrap(), result);
    hub.refuse();
    drop(session);
    soon(spoke.attachment.wait_for(|attachment| attachment.generation.is_none())).await.unwrap();
    let (asked, answer) = ask("q2");
    spoke.asks.send(asked).await.unwrap();
    assert!(soon(answer).await.is_err(), "dropped, so that the caller hears that the hub is away");
}

#[tokio::test]
async fn fifty_callers_with_one_key_are_one_request_and_get_one_answer_also_after_a_reconnect() {
    let (mut hub, spoke, mut session) = attached().await;
    let mut answers = Vec::new();
    let mut ask = async |n: usize| {
        let (reply, answer) = oneshot::channel();
        let process = v1::Process { request_id: "k".into(), node: "n1".into(), caller: format!("{n}"), ..Default::default() };
        spoke.asks.send(Ask { process, reply }).await.unwrap();
        answers.push(answer);
    };
    for n in 0..50 {
        ask(n).await;
    }
    let asked = async |session: &mut Session| match session.next().await {
        Up::Process(process) => process.request_id,
        other => panic!("not a request: {other:?}"),
    };
    assert_eq!(asked(&mut session).await, "k");
    // All fifty have been taken: what is asked after them is there, and nothing between.
    let (reply, _other) = oneshot::channel();
    spoke.asks.send(Ask { process: v1::Process { request_id: "last".into(), ..Default::default() }, reply }).await.unwrap();
    assert_eq!(asked(&mut session).await, "last");
    drop(session);
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    let again = [asked(&mut session).await, asked(&mut session).await];
    assert!(again.contains(&"k".to_owned()) && again.contains(&"last".to_owned()), "{again:?}");
    let result = v1::ProcessResult { request_id: "k".into(), command_id: "c1".into(), ..Default::default() };
    session.send(Answer::ProcessResult(result.clone())).await;
    for answer in answers {
        assert_eq!(soon(answer).await.unwrap(), result);
    }
}

#[tokio::test]
async fn state_made_for_an_earlier_session_is_not_sent() {
    let (_hub, spoke, mut session) = attached().await;
    let state = |seq| v1::ClusterState { seq, ..Default::default() };
    spoke.states.send((6, state(1))).await.unwrap();
    spoke.states.send((7, state(2))).await.unwrap();
    let next = session.next().await;
    assert!(matches!(&next, Up::ClusterState(state) if state.seq == 2), "{next:?}");
}

#[tokio::test]
async fn a_verdict_is_counted_as_skipped_by_its_outcome_unless_it_was_acted_on() {
    let (_hub, spoke, session) = attached().await;
    let verdict = |node: &str, outcome: &str| {
        let (node, outcome) = (node.to_owned(), outcome.to_owned());
        Answer::Verdict(v1::Verdict { node, fault_key: "k".into(), outcome, reason: "29 of 900 s have passed".into() })
    };
    for (node, outcome) in
        [("n1", "acted"), ("n1", "cooldown"), ("n1", "cooldown"), ("n2", "OVER_BUDGET"), ("n2", "two words"), ("", "x")]
    {
        session.send(verdict(node, outcome)).await;
    }
    let skipped = |node: &str, reason: &str| spoke.metrics.get(metrics::SKIPPED, &[("node", node), ("reason", reason)]);
    soon(async {
        while skipped("n2", "other").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!((skipped("n1", "acted"), skipped("n1", "cooldown")), (None, Some(2.0)));
    assert_eq!(skipped("n2", "over_budget"), Some(1.0), "one spelling");
    assert_eq!(skipped("n2", "two words"), None, "a sentence is no label");
    assert_eq!(skipped("", "x"), None, "what names no node has no series");
}

#[tokio::test]
async fn what_the_journal_has_lost_is_told_as_a_gap_and_its_ack_lets_the_stream_go_on() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let dir = tempfile::tempdir().unwrap();
    // Three records in segments of their own, closed cleanly; then the first one is lost from the disk.
    let small = journal::Limits { segment_bytes: 1, ..journal::Limits::default() };
    {
        let (journal, _) = Journal::open(dir.path(), small).unwrap();
        for code in ["1", "2", "3"] {
            journal.append(&[fault(code)], vec![]).await.unwrap();
        }
        journal.close().await.unwrap();
    }
    let mut segments: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    segments.sort();
    let damaged = segments.iter().find(|path| std::fs::read(path).unwrap().len() > 150).unwrap();
    let mut bytes = std::fs::read(damaged).unwrap();
    let last = bytes.len() - 20;
    bytes[last..].fill(0);
    std::fs::write(damaged, bytes).unwrap();
    let spoke = spoke_over(&hub.url, hub.identity.path(), dir, small).await;
    let mut session = hub.session().await;
    let stream = session.hello.journals[0].stream_id.clone();
    assert_eq!(session.hello.journals[0].next_seq, 4);
    session.welcome(&[], 1024).await;
    let next = session.next().await;
    let Up::Gap(gap) = &next else { panic!("{next:?}") };
    assert_eq!((gap.stream_id.as_str(), gap.from_seq, gap.to_seq), (stream.as_str(), 1, 1));
    let batch = session.batch().await;
    assert_eq!(batch.first_seq, 2);
    // The hub acks past the gap; the next session goes on behind it and does not tell it again.
    session.ack(&stream, 1, 1024).await;
    drop(session);
    let mut session = hub.session().await;
    session.welcome(&[(&stream, 2)], 1024).await;
    assert_eq!(session.batch().await.first_seq, 2);
    session.ack(&stream, 3, 1024).await;
    soon(spoke.journal.depth().wait_for(|depth| depth.unacked == 0)).await.unwrap();
}

#[tokio::test]
async fn of_more_journals_than_a_hello_has_room_for_all_are_sent() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let dir = tempfile::tempdir().unwrap();
    for n in 0..limits::JOURNALS_NAMED_MAX + 3 {
        let journal = loop {
            match Journal::open(dir.path(), journal::Limits::default()) {
                Err(journal::Error::InUse) => tokio::time::sleep(Duration::from_millis(2)).await,
                opened => break opened.unwrap().0,
            }
        };
        journal.append(&[fault(&n.to_string())], vec![]).await.unwrap();
    }
    let spoke = spoke_over(&hub.url, hub.identity.path(), dir, journal::Limits::default()).await;
    let mut session = hub.session().await;
    assert_eq!(session.hello.journals.len(), limits::JOURNALS_NAMED_MAX);
    let written = spoke.journal.head().borrow().stream.to_string();
    assert_eq!(session.hello.journals.last().unwrap().stream_id, written, "the last is written");
    session.welcome(&[], 1024).await;
    for n in 0..limits::JOURNALS_NAMED_MAX + 3 {
        let batch = session.batch().await;
        assert_eq!((batch.first_seq, batch.faults[0].code.as_str()), (1, n.to_string().as_str()));
        session.ack(&batch.stream_id, 1, 1024).await;
    }
    soon(spoke.journal.depth().wait_for(|depth| depth.unacked == 0)).await.unwrap();
}

#[tokio::test]
async fn settings_that_do_not_verify_are_answered_with_the_reason() {
    let (_hub, _spoke, mut session) = attached().await;
    session.send(Answer::Settings(v1::Settings { version: 3, ..Default::default() })).await;
    let next = session.next().await;
    let Up::SettingsAck(ack) = &next else { panic!("{next:?}") };
    assert_eq!((ack.version, ack.errors.len()), (3, 1), "{ack:?}");
}

#[tokio::test]
async fn a_spoke_that_was_refused_comes_again_when_it_was_told_to() {
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let spoke = spoke(&hub.url, hub.identity.path());
    let session = hub.session().await;
    let reject = v1::Reject { code: v1::RejectCode::Busy.into(), reason: "later".into(), retry_after_ms: 10 };
    session.send(Answer::Reject(reject)).await;
    let mut session = hub.session().await;
    session.welcome(&[], 1).await;
    assert_eq!(spoke.metrics.get(metrics::ATTACHES, &[("outcome", "rejected")]), Some(1.0));
    session.send(Answer::Goaway(v1::Goaway { reconnect_after_ms: 10, reason: "restart".into() })).await;
    hub.session().await;
    assert_eq!(spoke.metrics.get(metrics::ATTACHES, &[("outcome", "goaway")]), Some(1.0));
}

/// Failure table, row 23.
#[tokio::test]
async fn a_spoke_attaches_with_its_last_good_identity_while_its_files_cannot_be_used() {
    let (mut hub, spoke, session) = attached().await;
    std::fs::write(hub.identity.path().join("tls.key"), "-----BEGIN PRIVATE KEY-----\nhalf of").unwrap();
    std::fs::remove_file(hub.identity.path().join("trust.json")).unwrap();
    drop(session);
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    assert_eq!(session.hello.cluster_id, "c1");
    assert!(spoke.metrics.get(metrics::TLS_RELOADS, &[("outcome", "failed")]).is_some_and(|failed| failed >= 1.0));
}

/// Failure table, row 23.
#[tokio::test]
async fn a_spoke_whose_certificate_ran_out_attaches_once_a_new_one_is_there() {
    let pki = Pki::new();
    let mut hub = TestHub::start(&pki, "spiffe://dev.gpuheal/hub").await;
    let over = tempfile::tempdir().unwrap();
    pki.identity_into(over.path(), "spiffe://dev.gpuheal/cluster/c1/spoke", Some(2001));
    let spoke = spoke(&hub.url, over.path());
    let failed = || spoke.metrics.get(metrics::ATTACHES, &[("outcome", "failed")]).unwrap_or_default();
    soon(async {
        while failed() < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    pki.identity_into(over.path(), "spiffe://dev.gpuheal/cluster/c1/spoke", None);
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
}

#[tokio::test]
async fn who_ends_sends_what_waits_and_says_where_its_journal_ends_and_that_nothing_more_is_written() {
    let (_hub, spoke, mut session) = attached().await;
    assert!(session.hello.journal_new, "there was none before");
    spoke.journal.append(&[fault("79"), fault("48")], vec![]).await.unwrap();
    let batch = session.batch().await;
    spoke.cancel.cancel();
    soon(async {
        while spoke.journal.append(&[], vec![]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    session.ack(&batch.stream_id, 2, 1024).await;
    let last = session.farewell().await;
    let head = last.head.unwrap();
    assert_eq!((head.stream_id.as_str(), head.next_seq, last.queue_depth), (batch.stream_id.as_str(), 3, 0));
    session.send(Answer::Goaway(v1::Goaway { reconnect_after_ms: 0, reason: "closed".into() })).await;
    spoke.journal.close().await.unwrap();
}

#[tokio::test]
async fn a_spoke_that_found_its_journal_says_so_and_each_heartbeat_tells_where_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(dir.path(), journal::Limits::default()).unwrap();
    journal.append(&[fault("79")], vec![]).await.unwrap();
    drop(journal);
    let mut hub = TestHub::start(&Pki::new(), "spiffe://dev.gpuheal/hub").await;
    let (url, identity) = (hub.url.clone(), hub.identity.path().to_owned());
    let spoke = spoke_over(&url, &identity, dir, journal::Limits::default()).await;
    let mut session = hub.session().await;
    session.welcome(&[], 1024).await;
    assert!(!session.hello.journal_new);
    let ends: Vec<u64> = session.hello.journals.iter().map(|journal| journal.next_seq).collect();
    assert_eq!(ends, [2, 1], "the one that is written is the last");
    spoke.journal.append(&[fault("48")], vec![]).await.unwrap();
    loop {
        let head = session.beat_with(None).await.head.unwrap();
        assert_eq!(head.stream_id, session.hello.journals[1].stream_id);
        if head.next_seq == 2 {
            return;
        }
    }
}
