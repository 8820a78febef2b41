//! Rows of what is long gone go, in batches, and nothing that may still be asked for goes with them.

use gpuheal_hub::link::prune::{BATCH, prune};

use super::world::World;

#[tokio::test]
async fn sessions_of_replicas_that_are_gone_for_a_month_are_forgotten_and_others_are_not() {
    let world = World::new().await;
    let sessions = [
        ("attached", "NULL", "0 days"),
        ("attached-long-ago-and-seen", "NULL", "29 days"),
        ("nobody-noted-its-end", "NULL", "31 days"),
        ("left-lately", "29 days", "90 days"),
        ("left-long-ago", "31 days", "90 days"),
    ];
    for (replica, detached, seen) in sessions {
        let detached = if detached == "NULL" { detached.to_owned() } else { format!("now() - interval '{detached}'") };
        world
            .run(&format!(
                "INSERT INTO sessions (cluster_id, replica_id, boot_id, hub_id, attached_at, seen_at, detached_at) \
                 VALUES ('c1', '{replica}', 'b', 'h', now() - interval '90 days', now() - interval '{seen}', {detached})"
            ))
            .await;
    }
    assert_eq!(prune(&world.pool).await.unwrap(), 2);
    let left = world.lines("SELECT replica_id FROM sessions ORDER BY 1").await;
    assert_eq!(left, ["attached", "attached-long-ago-and-seen", "left-lately"]);
    assert_eq!(prune(&world.pool).await.unwrap(), 0);
}

#[tokio::test]
async fn journals_are_forgotten_a_month_after_they_were_settled_and_their_streams_with_them() {
    let world = World::new().await;
    world.run("INSERT INTO quarantines (cluster_id, cause, detail) VALUES ('c2', 'decommissioned', 'gone'), ('c3', 'boot_ids', 'copied')").await;
    // Cluster, name, committed, told, at its end, last named, found gone.
    let journals = [
        ("c1", "whole", 5, 5, true, 31, None),
        ("c1", "whole-and-named-lately", 5, 5, true, 29, None),
        ("c1", "told-as-gone", 3, 5, true, 90, Some(31)),
        ("c1", "told-as-gone-lately", 3, 5, true, 90, Some(29)),
        ("c1", "not-all-here", 3, 5, true, 90, None),
        ("c1", "not-closed", 5, 5, false, 90, None),
        ("c2", "of-a-cluster-that-is-gone", 3, 5, false, 31, None),
        ("c3", "of-a-cluster-kept-out", 3, 5, false, 31, None),
    ];
    for (cluster, stream, acked, told, ended, named, vanished) in journals {
        let vanished = vanished.map_or("NULL".to_owned(), |days| format!("now() - interval '{days} days'"));
        world
            .run(&format!(
                "WITH j AS (INSERT INTO journals (cluster_id, stream_id, replica_id, told_upto, ended, named_at, vanished_at) \
                 VALUES ('{cluster}', '{stream}', 'r', {told}, {ended}, now() - interval '{named} days', {vanished})) \
                 INSERT INTO streams (cluster_id, stream_id, acked_upto, updated_at) \
                 VALUES ('{cluster}', '{stream}', {acked}, now() - interval '90 days')"
            ))
            .await;
    }
    world.run("INSERT INTO streams (cluster_id, stream_id, acked_upto) VALUES ('c1', 'never-named-and-moving', 1)").await;
    assert_eq!(prune(&world.pool).await.unwrap(), 6, "three, and their streams");
    let held = ["not-all-here", "not-closed", "of-a-cluster-kept-out", "told-as-gone-lately", "whole-and-named-lately"];
    assert_eq!(world.lines("SELECT stream_id FROM journals ORDER BY 1").await, held);
    let streams = ["never-named-and-moving", held[0], held[1], held[2], held[3], held[4]];
    assert_eq!(world.lines("SELECT stream_id FROM streams ORDER BY 1").await, streams);
}

#[tokio::test]
async fn one_look_takes_a_batch_and_the_next_the_rest() {
    let world = World::new().await;
    let many = format!(
        "INSERT INTO sessions (cluster_id, replica_id, boot_id, hub_id, seen_at) \
         SELECT 'c1', 'r' || n, 'b', 'h', now() - interval '31 days' FROM generate_series(0, {BATCH}) n"
    );
    world.run(&many).await;
    assert_eq!(prune(&world.pool).await.unwrap(), BATCH.unsigned_abs());
    assert_eq!(prune(&world.pool).await.unwrap(), 1);
}
