//! A hub that dies at the last moment before a commit: Postgres itself ends its connection there, with all that the
//! transaction did already done.

use gpuheal_hub::{decide, settle::settle};
use gpuheal_proto::{ids::CommandId, link::v1};

use super::world::{World, batch, cluster, xid79};

/// From now on whoever commits a change of `table` dies of it.
async fn dies_writing(world: &World, table: &str) {
    let die = "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$";
    world.run(die).await;
    let at_commit = format!(
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()"
    );
    world.run(&at_commit).await;
}

async fn lives(world: &World) {
    world.run("DROP FUNCTION die CASCADE").await;
}

/// Failure table, row 3.
#[tokio::test]
async fn a_hub_that_dies_before_the_commit_of_faults_acks_none_and_takes_them_once_when_they_come_again() {
    let (world, c1) = (World::new().await, cluster("c1"));
    let faults = [xid79(&c1, 1), xid79(&c1, 2)];
    let entries = world.count("audit_entries").await;
    dies_writing(&world, "faults").await;
    world.ingest.submit(c1.clone(), batch("s1", 1, &faults)).await.unwrap_err();
    assert_eq!((world.count("faults").await, world.count("streams").await, world.count("audit_entries").await), (0, 0, entries));
    lives(&world).await;
    let next = World::over(world.pool.clone());
    let ack = next.ingest.submit(c1.clone(), batch("s1", 1, &faults)).await.unwrap();
    assert_eq!((ack.persisted_upto, next.count("faults").await), (2, 2));
}

/// Failure table, row 6.
#[tokio::test]
async fn a_hub_that_dies_before_the_commit_of_a_decision_leaves_nothing_of_it_and_another_decides() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    let entries = world.count("audit_entries").await;
    dies_writing(&world, "decisions").await;
    // What it makes of its own end does not matter: nothing may be left of what it was about.
    let _ = decide::step(&world.pool, &world.wake).await;
    for table in ["incidents", "decisions", "commands", "holds", "cooldowns", "budgets WHERE out <> 0"] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
    assert_eq!(world.count("audit_entries").await, entries);
    lives(&world).await;
    let next = World::over(world.pool.clone());
    next.run("UPDATE judgements SET due_at = clock_timestamp() WHERE due_at IS NOT NULL").await;
    next.decide().await;
    assert_eq!((next.count("incidents").await, next.count("commands").await, next.count("holds").await), (1, 1, 1));
}

/// Failure table, row 15.
#[tokio::test]
async fn a_hub_that_dies_before_the_commit_of_a_status_acks_none_and_takes_it_once_when_it_comes_again() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.dispatch().await;
    let command = CommandId::parse(&world.text("SELECT command_id FROM commands").await).unwrap();
    let started = v1::CommandStatus {
        command_id: command.to_string(),
        status_seq: 2,
        state: v1::CommandState::Started.into(),
        lease_transitions: 1,
        ..Default::default()
    };
    dies_writing(&world, "commands").await;
    settle(&world.pool, &c1, started.clone(), None).await.unwrap_err();
    assert_eq!((world.text("SELECT state FROM commands").await.as_str(), world.count("reports").await), ("DISPATCHED", 0));
    lives(&world).await;
    for _ in 0..2 {
        assert_eq!(settle(&world.pool, &c1, started.clone(), None).await.unwrap().unwrap().status_seq, 2);
    }
    assert_eq!(world.text("SELECT state FROM commands").await, "STARTED");
    assert_eq!(world.count("audit_entries WHERE kind = 'command_reported'").await, 1);
}
