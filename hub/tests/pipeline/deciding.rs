//! Due nodes to incidents and commands: once, in one transaction, or not at all.

use std::sync::Arc;

use gpuheal_hub::{
    decide::{self, Outcome},
    ingest::Ingest,
    store::judgement::{asks_take, judgements_claim, judgements_done},
};
use gpuheal_proto::{
    fault::{FaultClass, Onset, Witness},
    words::Action,
};

use tokio_util::sync::CancellationToken;

use super::world::{HEAL, World, batch, cluster, fault, node, request, signer, xid79};

#[tokio::test]
async fn a_standalone_p0_becomes_one_incident_and_one_command_with_all_that_belongs_to_it() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(world.lines("SELECT state || ' ' || level FROM incidents").await.len(), 1);
    assert_eq!(
        world.lines("SELECT action || ' ' || state || ' ' || cmd_seq || ' ' || plan_rev FROM commands").await,
        ["evict PROPOSED 1 1"]
    );
    assert_eq!(
        world.text("SELECT string_agg(s ->> 'step', ' ') FROM commands, jsonb_array_elements(steps_asked) s").await,
        "notify mark drain"
    );
    assert_eq!((world.count("holds").await, world.count("cooldowns").await, world.count("decisions").await), (1, 1, 1));
    assert_eq!(world.lines("SELECT kind || ' ' || out FROM budgets ORDER BY kind").await, ["cluster 1", "fleet 1"]);
    assert_eq!(world.text("SELECT plan_rev_issued FROM nodes WHERE node_uid = 'uid-1'").await, "1");
    assert_eq!(world.count("commands WHERE policy_revision = 1 AND reason <> ''").await, 1);
}

#[tokio::test]
async fn judging_again_and_again_commands_nothing_more() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    for _ in 0..5 {
        world.faults(&c1, &[xid79(&c1, 1)]).await;
        world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
        world.decide().await;
    }
    assert_eq!((world.count("incidents").await, world.count("commands").await), (1, 1));
}

/// Failure table, row 5.
#[tokio::test]
async fn a_crash_between_ack_and_decision_decides_once() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let pool = world.pool.clone();
    // A hub claims, judges, and dies before its commit.
    let mut tx = pool.begin().await.unwrap();
    let claimed = judgements_claim(&mut tx, 8).await.unwrap();
    assert!(claimed.is_some());
    assert_eq!(decide::step(&pool, &world.wake).await.unwrap(), 0, "another hub passes over what is claimed");
    tx.rollback().await.unwrap();
    let successor = World::over(pool);
    assert_eq!(successor.decide().await, 1);
    assert_eq!((successor.count("incidents").await, successor.count("commands").await), (1, 1));
}

/// What an ask that waits for nobody must not cost: the judge has read the node before the fault came, and then says that
/// there is nothing more to judge.
#[tokio::test]
async fn a_fault_that_comes_while_its_node_is_judged_waits_for_nobody_and_is_judged_after() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let mut judging = world.pool.begin().await.unwrap();
    let (_, nodes) = judgements_claim(&mut judging, 8).await.unwrap().unwrap();
    // The judge's row is held until long after: waiting for it would never end.
    let other = fault(&c1, 1, FaultClass::Ecc, "dbe", Onset::Edge, Witness::ExporterGauge);
    assert_eq!(world.faults(&c1, &[other, xid79(&c1, 2)]).await.persisted_upto, 2);
    assert_eq!(world.lines("SELECT node_uid FROM asks").await, ["uid-1"], "only what is held is asked for beside its row");
    assert_eq!(world.decide().await, 1, "the node that is free");
    assert_eq!(world.count("asks").await, 1, "an ask stays for as long as its node is held");
    assert!(asks_take(&mut world.pool.acquire().await.unwrap()).await.unwrap(), "and whoever looks is told so");
    let judged: Vec<_> = nodes.into_iter().map(|node| (node, None)).collect();
    judgements_done(&mut judging, &c1, &judged).await.unwrap();
    judging.commit().await.unwrap();
    assert_eq!(world.decide().await, 1, "what the judge did not see is judged");
    assert_eq!(world.count("incident_faults WHERE node_uid = 'uid-1'").await, 2);
    assert_eq!((world.count("asks").await, world.decide().await), (0, 0));
}

/// The same race many times over, as it comes: hubs take faults of few nodes while others judge them.
#[tokio::test]
async fn whatever_is_taken_while_hubs_judge_is_judged() {
    let (world, c1) = (World::healing(4).await, cluster("c1"));
    let hubs: Vec<World> = (0..4).map(|_| World::over(world.pool.clone())).collect();
    let codes: Vec<String> = (0..30).map(|code| code.to_string()).collect();
    let taken = codes.iter().enumerate().map(|(n, code)| {
        let (hub, c1) = (&hubs[n % 4], &c1);
        let faults: Vec<_> =
            (0..4).map(|node| fault(c1, node, FaultClass::Xid, code, Onset::Edge, Witness::ExporterGauge)).collect();
        async move {
            hub.faults(c1, &faults).await;
            hub.decide().await
        }
    });
    futures::future::join_all(taken).await;
    world.decide().await;
    assert_eq!(world.count("faults").await, 120);
    assert_eq!(
        world
            .lines("SELECT f.code FROM faults f WHERE NOT EXISTS (SELECT FROM incident_faults i WHERE i.fault_key = f.fault_key)")
            .await,
        Vec::<String>::new()
    );
    assert_eq!(world.count("asks").await, 0);
}

/// Failure table, row 5.
#[tokio::test]
async fn eight_hubs_judging_at_once_command_each_node_once() {
    let (world, c1) = (World::healing(40).await, cluster("c1"));
    world.faults(&c1, &(0..40).map(|n| xid79(&c1, n)).collect::<Vec<_>>()).await;
    let hubs: Vec<World> = (0..8).map(|_| World::over(world.pool.clone())).collect();
    futures::future::join_all(hubs.iter().map(World::decide)).await;
    world.decide().await;
    assert_eq!(world.count("incidents").await, 40);
    assert_eq!(
        world.text("SELECT count(*) || ' ' || count(DISTINCT node_uid) || ' ' || max(cmd_seq) FROM commands").await,
        "40 40 40"
    );
}

/// Failure table, row 35.
#[tokio::test]
async fn no_audit_no_action() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.run("ALTER TABLE audit_entries ADD CONSTRAINT audit_entries_test CHECK (kind <> 'decision')").await;
    world.decide().await;
    assert_eq!((world.count("incidents").await, world.count("commands").await, world.count("holds").await), (0, 0, 0));
    assert_eq!(world.count("judgements WHERE attempts > 0 AND due_at IS NOT NULL").await, 1, "put off, not lost");
    world.run("ALTER TABLE audit_entries DROP CONSTRAINT audit_entries_test").await;
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 1);
}

#[tokio::test]
async fn a_node_that_cannot_be_judged_blocks_no_other() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &(0..10).map(|n| xid79(&c1, n)).collect::<Vec<_>>()).await;
    world.run("UPDATE faults SET class = 'of a later version' WHERE node_uid = 'uid-3'").await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 9);
    assert_eq!(world.lines("SELECT node_uid FROM judgements WHERE attempts > 0").await, ["uid-3"]);
}

#[tokio::test]
async fn in_observe_everything_is_recorded_and_nothing_is_commanded() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.snapshot(&c1, (0..10).map(node).collect()).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!((world.count("incidents").await, world.count("commands").await), (1, 0));
    world.policy(HEAL).await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 1, "a new policy judges again what is open");
}

#[tokio::test]
async fn a_fault_of_a_node_that_no_inventory_has_shown_waits_for_it() {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.policy(HEAL).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 0);
    world.snapshot(&c1, (0..10).map(node).collect()).await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 1);
}

#[tokio::test]
async fn one_number_alone_harms_nobody_until_a_second_kind_agrees() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[fault(&c1, 1, FaultClass::Xid, "79", Onset::Standing, Witness::ExporterGauge)]).await;
    world.decide().await;
    assert_eq!(world.count("commands WHERE action IN ('mark', 'evict')").await, 0);
    world.faults(&c1, &[fault(&c1, 1, FaultClass::Xid, "79", Onset::Edge, Witness::KernelLine)]).await;
    world.decide().await;
    assert_eq!(world.count("commands WHERE action = 'evict'").await, 1);
}

#[tokio::test]
async fn a_node_that_is_gone_closes_its_incident_and_frees_its_place() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.snapshot(&c1, (2..10).map(node).collect()).await;
    world.decide().await;
    assert_eq!(world.lines("SELECT state FROM incidents").await, ["gone"]);
    assert_eq!((world.count("holds").await, world.text("SELECT sum(out) FROM budgets").await.as_str()), (0, "0"));
}

#[tokio::test]
async fn the_same_request_twice_is_one_command_and_the_same_answer() {
    let world = World::healing(10).await;
    let first = decide::process(&world.pool, &request("r1", 2, Action::Mark)).await.unwrap();
    assert_eq!(first.outcome, Outcome::Accepted, "{}", first.reason);
    let again = decide::process(&world.pool, &request("r1", 2, Action::Mark)).await.unwrap();
    assert_eq!((again.outcome, again.command), (Outcome::Repeated, first.command));
    let other = decide::process(&world.pool, &request("r1", 3, Action::Mark)).await.unwrap();
    assert_eq!(other.outcome, Outcome::Invalid, "an id is for one request");
    assert_eq!(world.count("commands WHERE action = 'mark'").await, 1);
}

#[tokio::test]
async fn one_request_made_eight_times_at_once_is_one_command() {
    let world = World::healing(10).await;
    let asked = request("r1", 2, Action::Mark);
    let answers = futures::future::join_all((0..8).map(|_| decide::process(&world.pool, &asked))).await;
    let accepted = answers.iter().filter(|answer| answer.as_ref().unwrap().outcome == Outcome::Accepted).count();
    assert_eq!((accepted, world.count("commands WHERE action = 'mark'").await), (1, 1));
}

#[tokio::test]
async fn a_request_for_an_unknown_node_says_so_and_is_on_record() {
    let world = World::healing(1).await;
    let answer = decide::process(&world.pool, &request("r1", 77, Action::Evict)).await.unwrap();
    assert_eq!(answer.outcome, Outcome::NoSuchNode);
    assert_eq!((world.count("process_requests").await, world.count("audit_entries WHERE kind = 'request_unmet'").await), (1, 1));
}

/// Failure table, row 18.
#[tokio::test]
async fn a_mark_that_no_hold_counts_yet_gives_its_place_to_no_other_node() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&HEAL.replace("cluster: {percent: 100}", "cluster: {percent: 10}")).await;
    let mut nodes: Vec<_> = (1..10).map(node).collect();
    nodes.push(super::world::marked(0, &uuid::Uuid::now_v7().to_string(), 4));
    // The first proves that commits were lost, and raises the epoch; the second is taken under it.
    world.snapshot(&c1, nodes.clone()).await;
    world.snapshot(&c1, nodes).await;
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    // Whichever of the two is judged first: here it is the other.
    world.run("UPDATE judgements SET due_at = NULL WHERE node_uid = 'uid-0'").await;
    world.decide().await;
    let harmful = "commands WHERE action <> 'notify'";
    assert_eq!((world.count("holds").await, world.count(harmful).await), (0, 0), "one of ten is out already");
    let why = world.text("SELECT reason FROM incidents WHERE node_uid = 'uid-1'").await;
    assert!(why.contains("1 of"), "{why}");
    // A mark that was shown before its incident was closed is the one that the release took off.
    world.run("UPDATE judgements SET due_at = clock_timestamp() WHERE node_uid = 'uid-0'").await;
    world.decide().await;
    assert_eq!(world.lines("SELECT node_uid FROM holds").await, ["uid-0"]);
    world
        .run("UPDATE incidents SET closed_at = clock_timestamp(), state = 'released', recheck_at = NULL WHERE node_uid = 'uid-0'")
        .await;
    world.run("DELETE FROM holds").await;
    world.run("UPDATE budgets SET out = 0").await;
    world.run("UPDATE judgements SET due_at = CASE node_uid WHEN 'uid-1' THEN clock_timestamp() END").await;
    world.decide().await;
    assert_eq!((world.lines("SELECT node_uid FROM holds").await, world.count(harmful).await), (vec!["uid-1".to_owned()], 1));
}

/// Failure table, row 18: a judgement that waited for the budgets while the epoch rose took for known what may be lost.
#[tokio::test]
async fn a_judgement_of_an_older_epoch_commands_nothing() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let mut other = world.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE budgets IN EXCLUSIVE MODE").execute(&mut *other).await.unwrap();
    let (judged, ()) = tokio::join!(world.decide(), async {
        let waits = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%budgets%' AND datname = current_database()";
        while world.count(waits).await == 0 {}
        sqlx::query("UPDATE hub_state SET hub_term = hub_term + 1").execute(&mut *other).await.unwrap();
        other.commit().await.unwrap();
    });
    assert!(judged > 0);
    assert_eq!(world.count("commands").await, 0);
    assert!(world.text("SELECT reason FROM incidents").await.contains("not taken over yet"));
}

/// Failure table, row 18: nodes that one transaction judges one after the other.
#[tokio::test]
async fn a_mark_that_has_just_got_its_hold_is_not_counted_once_more_for_the_next_node() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.policy(&HEAL.replace("cluster: {percent: 100}", "cluster: {percent: 20}")).await;
    let mut nodes: Vec<_> = (1..10).map(node).collect();
    nodes.push(super::world::marked(0, &uuid::Uuid::now_v7().to_string(), 4));
    world.snapshot(&c1, nodes.clone()).await;
    world.snapshot(&c1, nodes).await;
    world.run("UPDATE judgements SET due_at = NULL").await;
    let (ingest, _stage) =
        Ingest::start_judging(world.pool.clone(), world.wake.clone(), Some(Arc::new(signer())), CancellationToken::new());
    ingest.submit(c1.clone(), batch("s1", 1, &[xid79(&c1, 0), xid79(&c1, 1)])).await.unwrap();
    assert_eq!(world.count("judgements WHERE due_at <= clock_timestamp()").await, 0, "both were judged with their faults");
    assert_eq!(world.lines("SELECT node_uid FROM holds ORDER BY 1").await, ["uid-0", "uid-1"], "two of ten may be out");
}

/// Failure table, row 18.
#[tokio::test]
async fn a_mark_that_no_incident_explains_is_taken_over_and_counted() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let lost = uuid::Uuid::now_v7().to_string();
    let mut nodes: Vec<_> = (1..10).map(node).collect();
    nodes.push(super::world::marked(0, &lost, 4));
    world.snapshot(&c1, nodes).await;
    world.decide().await;
    assert_eq!(world.count("incidents WHERE closed_at IS NULL").await, 1, "no mark without an open incident");
    assert_eq!(world.text("SELECT sum(out) FROM budgets WHERE kind = 'cluster'").await, "1");
}
