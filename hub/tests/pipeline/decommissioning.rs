//! A cluster that is gone for good: whatever waited for it ends, and the rest of the fleet has its part of the budget again.

use gpuheal_hub::store::decommission::{Outcome, decommission};

use super::world::{HEAL, World, cluster, node, xid79};

/// Two clusters, of which the first has a node out and another commanded.
async fn world() -> World {
    let (world, c1, c2) = (World::healing(10).await, cluster("c1"), cluster("c2"));
    world.snapshot(&c2, (0..10).map(node).collect()).await;
    world.faults(&c1, &[xid79(&c1, 1), xid79(&c1, 2)]).await;
    world.decide().await;
    world.dispatch().await;
    world.run("UPDATE commands SET state = 'STARTED', received_at = now(), started_at = now() WHERE node_uid = 'uid-1'").await;
    world
}

async fn gone(world: &World) -> Outcome {
    decommission(&world.pool, &cluster("c1"), "user/operator", "the region is closed", false).await.unwrap()
}

/// Failure table, row 36.
#[tokio::test]
async fn a_cluster_that_is_gone_for_good_ends_what_waits_for_it_and_gives_back_its_part_of_the_budget() {
    let world = world().await;
    assert_eq!(world.text("SELECT out FROM budgets WHERE kind = 'fleet'").await, "2");
    assert_eq!(gone(&world).await, Outcome::Done { sessions: 0, commands: 2, nodes: 10 });
    let states = "SELECT node_name || ' ' || state || ': ' || result_reason FROM commands ORDER BY node_name";
    let why = "its cluster is decommissioned";
    assert_eq!(world.lines(states).await, [format!("n1 UNKNOWN: {why}"), format!("n2 CANCELLED: {why}")]);
    world.decide().await;
    assert_eq!(world.lines("SELECT DISTINCT state FROM incidents").await, ["gone"]);
    assert_eq!((world.count("holds").await, world.text("SELECT sum(out) FROM budgets").await.as_str()), (0, "0"));
    assert_eq!(world.text("SELECT sum(gpu_nodes) FROM cluster_sizes").await, "10", "shares are of the fleet that is left");
    assert_eq!(
        world
            .text("SELECT actor || ' ' || body FROM audit_entries WHERE kind = 'cluster_decommissioned'")
            .await
            .matches("the region is closed")
            .count(),
        1
    );
    assert_eq!(gone(&world).await, Outcome::Before);
    let nobody = decommission(&world.pool, &cluster("c3"), "user/operator", "a slip of the pen", false).await.unwrap();
    assert_eq!(nobody, Outcome::Unknown);
}

#[tokio::test]
async fn a_restored_database_waits_for_no_cluster_that_is_gone_for_good() {
    let (world, c2) = (World::healing(10).await, cluster("c2"));
    world.snapshot(&c2, (0..10).map(node).collect()).await;
    let half = HEAL.replace("fleet: {percent: 100}", "fleet: {percent: 50}");
    assert_ne!(half, HEAL);
    world.policy(&half).await;
    assert_eq!(gone(&world).await, Outcome::Done { sessions: 0, commands: 0, nodes: 10 });
    world.run("UPDATE hub_state SET hub_term = 2, raised_at = clock_timestamp()").await;
    world.snapshot(&c2, (0..10).map(node).collect()).await;
    world.faults(&c2, &[xid79(&c2, 1)]).await;
    world.decide().await;
    assert_eq!(
        world.lines("SELECT cluster_id || ' ' || action FROM commands").await,
        ["c2 evict"],
        "c1 counts as no node that may be out"
    );
}

#[tokio::test]
async fn a_state_that_a_hub_still_held_brings_no_node_of_a_gone_cluster_back() {
    let world = World::healing(10).await;
    gone(&world).await;
    world.snapshot(&cluster("c1"), (0..10).map(node).collect()).await;
    assert_eq!(world.count("nodes WHERE gone_at IS NULL").await, 0);
}
