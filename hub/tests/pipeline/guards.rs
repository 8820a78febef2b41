//! Budgets and rates under concurrency: proven on PostgreSQL with at least eight connections.

use super::world::{World, cluster, node, xid79};

fn policy(budget: &str, rate: &str) -> String {
    super::world::HEAL
        .replace("cluster: {percent: 100}", &format!("cluster: {budget}"))
        .replace("cluster: {nodesPerSecond: 1000}", &format!("cluster: {{nodesPerSecond: {rate}}}"))
}

async fn storm(budget: &str, rate: &str) -> World {
    let (world, c1) = (World::new().await, cluster("c1"));
    world.policy(&policy(budget, rate)).await;
    world.snapshot(&c1, (0..40).map(node).collect()).await;
    // One batch each, so that nodes fall to different hubs.
    futures::future::join_all((0..40).map(|n| {
        let (world, c1) = (&world, &c1);
        async move { world.faults(c1, &[xid79(c1, n)]).await }
    }))
    .await;
    let hubs: Vec<World> = (0..10).map(|_| World::over(world.pool.clone())).collect();
    for _ in 0..3 {
        world.run("UPDATE judgements SET due_at = clock_timestamp() WHERE due_at IS NOT NULL").await;
        futures::future::join_all(hubs.iter().map(World::decide)).await;
    }
    world
}

#[tokio::test]
async fn ten_hubs_deciding_at_once_never_overspend_a_budget() {
    let world = storm("{percent: 10}", "1000").await;
    assert_eq!(world.count("commands WHERE action = 'evict'").await, 4);
    assert_eq!(world.lines("SELECT kind || ' ' || out FROM budgets ORDER BY kind").await, ["cluster 4", "fleet 4"]);
    assert_eq!(world.count("holds").await, 4);
    assert_eq!(world.count("incidents WHERE state = 'blocked' AND recheck_at IS NOT NULL").await, 36);
    let reason = world.text("SELECT reason FROM incidents WHERE state = 'blocked' LIMIT 1").await;
    assert!(reason.contains("4 of 40 GPU nodes of cluster c1 out, 10 % allows 4"), "{reason}");
}

#[tokio::test]
async fn a_place_that_comes_back_is_taken_by_one_that_waited() {
    let (world, c1) = (storm("{percent: 10}", "1000").await, cluster("c1"));
    let held = world.lines("SELECT node_uid FROM holds ORDER BY 1 LIMIT 1").await;
    let left = (0..40).map(node).filter(|node| node.uid != held[0]).collect();
    world.snapshot(&c1, left).await;
    world.decide().await;
    // 39 nodes are left and 10 % of them are 3: the place is not given away.
    assert_eq!(world.count("holds").await, 3);
    world.policy(&policy("{percent: 20}", "1000")).await;
    world.decide().await;
    assert_eq!(world.count("holds").await, 7);
}

#[tokio::test]
async fn the_rate_lets_two_a_second_pass_and_no_hub_more() {
    let world = storm("{percent: 100}", "2").await;
    let span: f64 = sqlx::query_scalar(
        "SELECT extract(epoch FROM max(created_at) - min(created_at))::float8 FROM commands WHERE action = 'evict'",
    )
    .fetch_one(&world.pool)
    .await
    .unwrap();
    let commands = world.count("commands WHERE action = 'evict'").await;
    assert!(commands >= 2, "the first two need not wait");
    assert!(commands as f64 <= 2.0 + 2.0 * span + 1.0, "{commands} in {span} s");
}

#[tokio::test]
async fn counters_always_equal_the_holds() {
    let world = storm("{percent: 30}", "1000").await;
    let (out, holds) = (world.text("SELECT out FROM budgets WHERE kind = 'cluster'").await, world.count("holds").await);
    assert_eq!(out, holds.to_string());
    assert_eq!(world.text("SELECT out FROM budgets WHERE kind = 'fleet'").await, out);
}

#[tokio::test]
async fn a_hold_that_finds_no_room_takes_nothing() {
    use gpuheal_hub::store::{
        budget::{Allowed, guards_lock, hold_insert},
        moment,
    };
    use gpuheal_proto::ids::{IncidentId, NodeUid};
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    let rates = gpuheal_hub_core::policy::Settings::default().rates;
    let take = async |n: u32| {
        let mut tx = world.pool.begin().await.unwrap();
        let now = moment::now(&mut tx).await.unwrap();
        guards_lock(&mut tx, &c1, &rates, now).await.unwrap();
        let node = NodeUid::parse(&format!("uid-{n}")).unwrap();
        let allowed = Some(Allowed { cluster: 2, fleet: 2 });
        hold_insert(&mut tx, &c1, &node, IncidentId::from_uuid(uuid::Uuid::now_v7()), allowed, now).await?;
        tx.commit().await.unwrap();
        Ok::<_, gpuheal_hub::store::Error>(())
    };
    let taken = futures::future::join_all((0..12).map(take)).await;
    assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 2);
    assert_eq!((world.count("holds").await, world.text("SELECT max(out) FROM budgets").await.as_str()), (2, "2"));
}
