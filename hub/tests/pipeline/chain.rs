//! The audit chain: whole from its first entry, and what breaks it is found.

use gpuheal_hub::audit::{Verdict, verify};

use super::world::{World, cluster, xid79};

#[tokio::test]
async fn the_chain_verifies_after_eight_hubs_wrote_it_at_once() {
    let (world, c1) = (World::healing(16).await, cluster("c1"));
    let hubs: Vec<World> = (0..8).map(|_| World::over(world.pool.clone())).collect();
    let work = hubs.iter().zip(0..).map(|(hub, n)| {
        let c1 = &c1;
        async move {
            hub.faults(c1, &[xid79(c1, n)]).await;
            hub.decide().await;
            hub.faults(c1, &[xid79(c1, n + 8)]).await;
            hub.decide().await;
        }
    });
    futures::future::join_all(work).await;
    let entries = u64::try_from(world.count("audit_entries WHERE chain = 'c1'").await).unwrap();
    assert!(entries >= 32, "{entries}");
    assert_eq!(verify(&world.pool, "c1").await.unwrap(), Verdict { entries, broken: None });
    assert_eq!(verify(&world.pool, "_fleet").await.unwrap().broken, None);
}

#[tokio::test]
async fn entries_cannot_be_changed_or_deleted_and_a_forger_who_could_is_found() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    for statement in ["UPDATE audit_entries SET actor = 'x'", "DELETE FROM audit_entries", "TRUNCATE audit_entries"] {
        let refused = sqlx::query(statement).execute(&world.pool).await.unwrap_err();
        assert_eq!(
            refused.as_database_error().and_then(|error| error.constraint()),
            Some("audit_entries_append_only"),
            "{statement}"
        );
    }
    world.run("ALTER TABLE audit_entries DISABLE TRIGGER audit_entries_append_only").await;
    world.run("UPDATE audit_entries SET actor = 'somebody else' WHERE chain = 'c1' AND seq = 2").await;
    assert_eq!(verify(&world.pool, "c1").await.unwrap().broken.unwrap().seq, 2);
}

#[tokio::test]
async fn cutting_off_the_newest_entries_is_found() {
    let (world, c1) = (World::healing(3).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.run("ALTER TABLE audit_entries DISABLE TRIGGER audit_entries_append_only").await;
    world
        .run("DELETE FROM audit_entries WHERE chain = 'c1' AND seq = (SELECT max(seq) FROM audit_entries WHERE chain = 'c1')")
        .await;
    assert!(verify(&world.pool, "c1").await.unwrap().broken.unwrap().reason.contains("missing"));
}
