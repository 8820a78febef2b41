//! Taken, judged and signed in one transaction; and when that fails, taken all the same.

use std::sync::Arc;

use gpuheal_hub::{
    ingest::Ingest,
    store::{
        self,
        incident::{Decided, incident_move, incident_open},
        moment,
    },
};
use gpuheal_hub_core::{
    decide::{Decision, IncidentChange},
    incident::IncidentState,
};
use gpuheal_proto::{
    command::Command,
    envelope,
    ids::{ClusterId, IncidentId},
    link::v1,
    words::Level,
};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::world::{HEAL, World, batch, cluster, node, signer, xid79};

/// A stage that judges at once, over the world's database.
fn judging(world: &World) -> Ingest {
    Ingest::start_judging(world.pool.clone(), world.wake.clone(), Some(Arc::new(signer())), CancellationToken::new()).0
}

async fn take(ingest: &Ingest, cluster: &ClusterId, stream: &str, n: u32) -> v1::FaultAck {
    ingest.submit(cluster.clone(), batch(stream, 1, &[xid79(cluster, n)])).await.unwrap()
}

#[tokio::test]
async fn a_fault_and_its_signed_command_are_one_commit() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    let ack = take(&judging(&world), &c1, "s1", 1).await;
    assert_eq!(ack.persisted_upto, 1);
    assert_eq!(world.lines("SELECT state || ' ' || cmd_seq || ' ' || key_epoch FROM commands").await, ["SIGNED 1 1"]);
    assert_eq!((world.count("incidents").await, world.count("holds").await, world.count("cooldowns").await), (1, 1, 1));
    let kinds = "SELECT kind FROM audit_entries WHERE chain = 'c1' ORDER BY seq DESC LIMIT 3";
    assert_eq!(world.lines(kinds).await, ["command_signed", "decision", "faults_ingested"]);
    assert_eq!(world.lines("SELECT count(DISTINCT xmin::text)::text FROM (SELECT xmin FROM commands UNION ALL SELECT xmin FROM faults UNION ALL SELECT xmin FROM incidents) t").await, ["1"]);
    assert_eq!(world.decide().await, 0, "nothing is left to be judged");
}

#[tokio::test]
async fn what_is_signed_at_once_says_what_its_row_says() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    take(&judging(&world), &c1, "s1", 1).await;
    let bytes: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&world.pool).await.unwrap();
    let sealed = v1::Envelope::decode(bytes.as_slice()).unwrap();
    assert_eq!(sealed.payload_type, envelope::COMMAND_TYPE);
    let said = Command::try_from(v1::CommandBody::decode(sealed.payload).unwrap()).unwrap();
    world.run("UPDATE commands SET state = 'PROPOSED', envelope = NULL, envelope_sha256 = NULL, key_id = NULL, key_epoch = NULL, signed_at = NULL").await;
    let mut conn = world.pool.acquire().await.unwrap();
    let row = gpuheal_hub::store::outbox::proposed_claim(&mut conn, 1).await.unwrap().remove(0).command.unwrap();
    assert_eq!(Command { key_epoch: 0, ..said }, row);
}

#[tokio::test]
async fn a_judgement_that_fails_keeps_no_fault_from_being_taken() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.run("ALTER TABLE audit_entries ADD CONSTRAINT audit_entries_test CHECK (kind <> 'decision')").await;
    let ack = take(&judging(&world), &c1, "s1", 1).await;
    assert_eq!((ack.persisted_upto, world.count("faults").await), (1, 1));
    assert_eq!((world.count("incidents").await, world.count("commands").await), (0, 0), "no audit, no action");
    assert_eq!(world.count("judgements WHERE due_at <= clock_timestamp()").await, 1, "the workers' turn");
    world.run("ALTER TABLE audit_entries DROP CONSTRAINT audit_entries_test").await;
    world.decide().await;
    assert_eq!(world.lines("SELECT state FROM commands").await, ["PROPOSED"]);
}

/// A decision about node 1 of cluster c1 under this number of the incident, in a transaction of its own.
async fn decided(world: &World, id: IncidentId, decision_no: u32) -> Result<(), store::Error> {
    let (c1, opens) = (cluster("c1"), decision_no == 1);
    let change = IncidentChange {
        id,
        opens,
        changed: true,
        decision_no,
        state: IncidentState::Watching,
        level: Level::P1,
        manual: false,
        fault_keys: Vec::new(),
        asked_keys: Vec::new(),
        reason: "test".to_owned(),
    };
    let decision = Decision::nothing(1);
    let mut tx = world.pool.begin().await.unwrap();
    let now = moment::now(&mut tx).await?;
    let decided = Decided { change: &change, decision: &decision, policy: (1, "digest"), held: &[], now };
    let node = xid79(&c1, 1).node;
    if opens {
        incident_open(&mut tx, &c1, &node, decided).await?;
    } else {
        incident_move(&mut tx, &c1, &node, decided).await?;
    }
    tx.commit().await.unwrap();
    Ok(())
}

/// What holds when nothing kept two judges from reading the same: hubs that both believe they have claimed a node.
/// Failure table, row 5.
#[tokio::test]
async fn of_two_decisions_by_one_reading_of_a_node_the_second_is_refused() {
    let world = World::healing(3).await;
    let [first, second] = [0, 1].map(|_| IncidentId::from_uuid(uuid::Uuid::now_v7()));
    decided(&world, first, 1).await.unwrap();
    let opened = decided(&world, second, 1).await;
    assert!(opened.is_err(), "both saw a node without an incident");
    decided(&world, first, 2).await.unwrap();
    let moved = decided(&world, first, 2).await;
    assert!(moved.is_err(), "both saw an incident of one decision");
    assert_eq!((world.count("incidents").await, world.count("decisions").await), (1, 2));
}

#[tokio::test]
async fn eight_hubs_that_take_and_judge_at_once_command_each_node_once_and_count_each_once() {
    let (world, c1) = (World::healing(20).await, cluster("c1"));
    let hubs: Vec<Ingest> = (0..8).map(|_| judging(&world)).collect();
    let streams: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let taken = (0..40).map(|n| take(&hubs[n % 8], &c1, &streams[n], (n % 5) as u32));
    for ack in futures::future::join_all(taken).await {
        assert_eq!(ack.persisted_upto, 1);
    }
    world.decide().await;
    assert_eq!(world.count("incidents").await, 5);
    assert_eq!(
        world.lines("SELECT count(*)::text FROM commands GROUP BY node_uid HAVING count(*) > 1").await,
        Vec::<String>::new()
    );
    let (out, holds) = (world.text("SELECT out FROM budgets WHERE kind = 'cluster'").await, world.count("holds").await);
    assert_eq!(out, holds.to_string());
}

#[tokio::test]
async fn eight_hubs_that_judge_two_clusters_at_once_never_overspend_the_budget_of_either_or_of_the_fleet() {
    let (world, c1, c2) = (World::healing(20).await, cluster("c1"), cluster("c2"));
    world.snapshot(&c2, (0..20).map(node).collect()).await;
    // Of 40 nodes 4, of 20 each 3: the fleet's binds, and neither cluster may take all of it.
    let tight =
        HEAL.replace("fleet: {percent: 100}", "fleet: {percent: 10}").replace("cluster: {percent: 100}", "cluster: {percent: 15}");
    world.policy(&tight).await;
    let hubs: Vec<Ingest> = (0..8).map(|_| judging(&world)).collect();
    let streams: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let taken = (0..40).map(|n| take(&hubs[n % 8], if n % 2 == 0 { &c1 } else { &c2 }, &streams[n], (n / 2) as u32));
    for ack in futures::future::join_all(taken).await {
        assert_eq!(ack.persisted_upto, 1);
    }
    // What lost a race is judged again, by several at once.
    world.run("UPDATE judgements SET due_at = clock_timestamp()").await;
    let again = (0..8).map(|_| world.decide());
    futures::future::join_all(again).await;
    assert_eq!(world.count("holds").await, 4, "all of the fleet's budget, and no more");
    assert_eq!(world.text("SELECT out FROM budgets WHERE kind = 'fleet'").await, "4");
    let over = "SELECT cluster_id FROM budgets WHERE kind = 'cluster' AND out > 3 OR out < 0";
    assert_eq!(world.lines(over).await, Vec::<String>::new());
    let commanded = "SELECT count(DISTINCT (cluster_id, node_uid))::text FROM commands WHERE action <> 'notify'";
    assert_eq!(world.text(commanded).await, "4", "nobody was commanded without a hold");
}
