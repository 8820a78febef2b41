//! States that do not follow each other: what the hub keeps of them, and what it asks for.

use gpuheal_proto::link::v1::{self, attach_request::Message as Up, attach_response::Message, cluster_state::Body};

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello},
};

fn node(n: u32) -> v1::NodeState {
    v1::NodeState { name: format!("n{n}"), uid: format!("uid-{n}"), ready: v1::Readiness::Ready.into(), ..Default::default() }
}

fn state(lease_transitions: u64, seq: u64, body: Body) -> Up {
    let as_of_unix_ms = gpuheal_hub::clock::now().unix_ms();
    Up::ClusterState(v1::ClusterState { lease_transitions, seq, as_of_unix_ms, told_upto_unix_ms: as_of_unix_ms, body: Some(body) })
}

fn snapshot(nodes: Vec<v1::NodeState>) -> Body {
    Body::Snapshot(v1::SnapshotPart { part: 1, parts: 1, nodes, ..Default::default() })
}

fn gone(n: u32) -> Body {
    Body::Delta(v1::StateDelta { gone_uids: vec![format!("uid-{n}")], ..Default::default() })
}

/// Waits until these nodes are there, and no others.
async fn there(hub: &Hub, want: &str) {
    let names = "SELECT COALESCE(string_agg(node_name, ' ' ORDER BY node_name), '') FROM nodes WHERE gone_at IS NULL";
    let seen = async {
        while sqlx::query_scalar::<_, String>(names).fetch_one(&hub.pool).await.unwrap() != want {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "the nodes never were {want}");
}

/// Waits until it is asked for the snapshot alone, and not for all that a session may begin with.
async fn asked_for_a_snapshot(replica: &mut Replica) {
    let alone = v1::Resync { snapshot: true, ..Default::default() };
    let next = replica.next_of(|message| matches!(message, Message::Resync(asked) if asked == alone).then_some(()));
    next.await.expect("it is asked before the stream ends");
}

#[tokio::test]
async fn a_change_of_a_state_that_is_not_known_is_answered_by_asking_for_all_of_it_and_changes_nothing() {
    let hub = Hub::start_with_database().await;
    let (mut old, _) = Replica::attach(&hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}"));
    old.send(state(2, 1, snapshot((1..=4).map(node).collect()))).await;
    old.send(state(2, 2, gone(4))).await;
    there(&hub, "n1 n2 n3").await;
    // Number 3 was set aside on its way. It is asked once, however many come before the answer.
    old.send(state(2, 4, gone(1))).await;
    old.send(state(2, 5, gone(1))).await;
    asked_for_a_snapshot(&mut old).await;
    old.send(state(2, 6, snapshot((1..=2).map(node).collect()))).await;
    old.send(state(2, 7, gone(2))).await;
    there(&hub, "n1").await;
    // After a failover the next leader's numbers are others.
    let (mut next, _) = Replica::attach(&hub, hello("alpha", "r1", Some(3))).await.unwrap_or_else(|r| panic!("{r:?}"));
    next.send(state(3, 8, gone(1))).await;
    asked_for_a_snapshot(&mut next).await;
    there(&hub, "n1").await;
    next.send(state(3, 9, snapshot(vec![node(1), node(5)]))).await;
    there(&hub, "n1 n5").await;
    // The database goes back to what it was before, under a session that lives on.
    sqlx::query("UPDATE clusters SET state_seq = 2, state_lease_transitions = 3").execute(&hub.pool).await.unwrap();
    next.send(state(3, 10, gone(5))).await;
    asked_for_a_snapshot(&mut next).await;
    there(&hub, "n1 n5").await;
}
