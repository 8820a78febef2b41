//! The fleet-wide stop: nothing harmful begins, what is under way is called off, and both ways are on record.

use gpuheal_hub::store::stop::fleet_stop;

use super::world::{World, cluster, xid79};

#[tokio::test]
async fn a_stopped_fleet_commands_nothing_and_goes_on_where_it_was() {
    let (world, c1) = (World::healing(10).await, cluster("c1"));
    world.faults(&c1, &[xid79(&c1, 1)]).await;
    world.decide().await;
    assert_eq!(world.count("commands").await, 1);
    assert_eq!(fleet_stop(&world.pool, Some("bad driver"), "bad driver", "user/operator").await.unwrap(), None);
    let again = fleet_stop(&world.pool, Some("another"), "another", "user/operator").await.unwrap();
    assert_eq!(again.as_deref(), Some("bad driver"), "the first reason stays");
    world.faults(&c1, &[xid79(&c1, 2)]).await;
    world.decide().await;
    assert_eq!(world.count("commands WHERE node_uid = 'uid-1' AND state = 'CANCELLED'").await, 1, "what was under way");
    assert_eq!(world.count("commands WHERE node_uid = 'uid-2' AND action <> 'notify'").await, 0, "words are no harm");
    assert!(world.text("SELECT reason FROM incidents WHERE node_uid = 'uid-2'").await.contains("bad driver"));
    assert_eq!(fleet_stop(&world.pool, None, "mended", "user/operator").await.unwrap().as_deref(), Some("bad driver"));
    assert_eq!(fleet_stop(&world.pool, None, "mended", "user/operator").await.unwrap(), None);
    world.decide().await;
    assert_eq!(world.count("commands WHERE node_uid = 'uid-2' AND action <> 'notify'").await, 1);
    let told = "SELECT actor || ' ' || kind || ' ' || (body::jsonb ->> 'reason') FROM audit_entries \
                WHERE chain = '_fleet' AND kind IN ('fleet_stop', 'fleet_resume') ORDER BY seq";
    assert_eq!(world.lines(told).await, ["user/operator fleet_stop bad driver", "user/operator fleet_resume mended"]);
}
