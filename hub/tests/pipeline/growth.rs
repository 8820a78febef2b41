//! Statements of every fault read as much in a large and old fleet as in a small and new one.

use gpuheal_hub::store::{leading::Leading, outbox::waiting, snapshot::surroundings_load};
use sqlx::PgConnection;

use super::world::{World, cluster, xid79};

/// Rows of a table that this connection has looked at, one after another or by an index, since it last told the
/// server its counts. It tells them at most once a second, so what an earlier transaction of the same pooled
/// connection read may still be among them: only the difference of two readings says what lies between them.
async fn looked_at(conn: &mut PgConnection, table: &str) -> i64 {
    sqlx::query_scalar(
        "SELECT (COALESCE(seq_tup_read, 0) + COALESCE(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables WHERE relname = $1",
    )
    .bind(table)
    .fetch_one(conn)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_judgement_adds_up_the_fleet_and_counts_no_nodes() {
    let world = World::healing(3).await;
    let like = "INSERT INTO nodes SELECT (jsonb_populate_record(n, jsonb_build_object('cluster_id', 'c2', 'node_uid', g::text, 'node_name', g::text))).* \
                FROM nodes n, generate_series(1, 3000) g WHERE n.node_uid = 'uid-0'";
    world.run("INSERT INTO clusters (cluster_id, snapshot_term) VALUES ('c2', 1)").await;
    assert_eq!(world.run(like).await, 3000);
    world.run("INSERT INTO cluster_sizes VALUES ('c2', 3000)").await;
    world.run("ANALYZE").await;
    let mut tx = world.pool.begin().await.unwrap();
    let before = looked_at(&mut tx, "nodes").await;
    let told = surroundings_load(&mut tx, &cluster("c1")).await.unwrap();
    assert_eq!(looked_at(&mut tx, "nodes").await - before, 0);
    assert_eq!(told.gpu_nodes(), (3, 3003));
}

#[tokio::test]
async fn nodes_that_come_go_or_lose_their_gpus_are_counted_as_their_state_is_taken() {
    use gpuheal_proto::link::v1::{StateDelta, cluster_state::Body};
    let (world, c1) = (World::healing(4).await, cluster("c1"));
    let sizes = async || world.text("SELECT gpu_nodes FROM cluster_sizes WHERE cluster_id = 'c1'").await;
    assert_eq!(sizes().await, "4");
    let bare = gpuheal_proto::link::v1::NodeState { capacity_gpus: 0, gpus: vec![], ..super::world::node(2) };
    let delta = StateDelta {
        changed: vec![bare, super::world::node(9), super::world::node(10)],
        gone_uids: vec!["uid-0".into()],
        ..Default::default()
    };
    world.state(&c1, Body::Delta(delta)).await;
    assert_eq!(sizes().await, "4", "two came, one went, one offers no GPU any more");
    world.snapshot(&c1, vec![super::world::node(1)]).await;
    assert_eq!(sizes().await, "1", "absent from a whole snapshot is gone");
}

#[tokio::test]
async fn what_is_over_is_not_looked_at_when_commands_are_sent() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    world.dispatch().await;
    let old = "INSERT INTO commands SELECT (jsonb_populate_record(c, jsonb_build_object('command_id', gen_random_uuid(), 'cmd_seq', g, 'plan_rev', g, \
               'idempotency_key', g::text, 'state', 'SUCCEEDED'))).* FROM commands c, generate_series(100, 4000) g";
    assert_eq!(world.run(old).await, 3901);
    world.run("UPDATE commands SET state = 'SIGNED', sent_at = NULL WHERE cmd_seq = 1").await;
    let session =
        "INSERT INTO sessions (cluster_id, replica_id, boot_id, hub_id, lease_transitions) VALUES ('c1', 'r1', 'b1', 'h1', 1)";
    world.run(session).await;
    world.run("ANALYZE").await;
    let leading = Leading { cluster: c1, replica: "r1".into(), generation: 1, lease_transitions: 1 };
    let mut tx = world.pool.begin().await.unwrap();
    let before = looked_at(&mut tx, "commands").await;
    let due = waiting(&mut tx, &[leading], 100).await.unwrap();
    assert_eq!(due.len(), 1);
    let read = looked_at(&mut tx, "commands").await - before;
    assert!(read <= 10, "{read} rows of 3,902 commands were looked at to find one");
}
