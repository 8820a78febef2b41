//! States that do not follow each other: what the hub keeps of them, and what it asks for.

use gpuheal_proto::{
    link::v1::{self, attach_request::Message as Up, attach_response::Message, cluster_state::Body},
    state_digest::{self, NodeWord},
};

use crate::{
    hub::Hub,
    replica::{PATIENCE, Replica, hello, xid79},
};

fn node(n: u32) -> v1::NodeState {
    v1::NodeState { name: format!("n{n}"), uid: format!("uid-{n}"), ready: v1::Readiness::Ready.into(), ..Default::default() }
}

fn state(lease_transitions: u64, seq: u64, body: Body) -> Up {
    let as_of_unix_ms = gpuheal_hub::clock::now().unix_ms();
    Up::ClusterState(v1::ClusterState {
        lease_transitions,
        seq,
        as_of_unix_ms,
        told_upto_unix_ms: as_of_unix_ms,
        all_told_term: 1,
        body: Some(body),
    })
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

/// That nothing changed, and what all nodes add up to.
fn adds_up_to(nodes: &[v1::NodeState]) -> Body {
    let digest = state_digest::digest(nodes.iter().map(|node| NodeWord::from(node).share()));
    Body::Delta(v1::StateDelta { digest: Some(digest), ..Default::default() })
}

#[tokio::test]
async fn a_cluster_whose_nodes_are_held_otherwise_than_it_told_them_is_asked_for_all_of_it_once_in_a_session() {
    let hub = Hub::start_with_database().await;
    let (mut spoke, _) = Replica::attach(&hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}"));
    let marked = v1::NodeState {
        mark: Some(v1::Mark { labelled: true, tainted: true, ..Default::default() }),
        plan_revision: 7,
        unschedulable: true,
        opted_out: true,
        ..node(1)
    };
    let nodes = vec![marked, v1::NodeState { ready: v1::Readiness::NotReady.into(), ..node(2) }, node(3)];
    spoke.send(state(2, 1, snapshot(nodes.clone()))).await;
    spoke.send(state(2, 2, adds_up_to(&nodes))).await;
    spoke.send(state(2, 3, gone(3))).await;
    there(&hub, "n1 n2").await;
    // By hand, by a defect: nobody's message says that this node is not marked any more.
    sqlx::query("UPDATE nodes SET labelled = false, tainted = false WHERE node_name = 'n1'").execute(&hub.pool).await.unwrap();
    spoke.send(state(2, 4, adds_up_to(&nodes[..2]))).await;
    asked_for_a_snapshot(&mut spoke).await;
    spoke.send(state(2, 5, snapshot(nodes[..2].to_vec()))).await;
    spoke.send(state(2, 6, adds_up_to(&nodes[..2]))).await;
    // A node of which the cluster says nothing is in no snapshot either: it is not asked for again and again.
    spoke.send(state(2, 7, adds_up_to(&nodes))).await;
    spoke.send(state(2, 8, gone(2))).await;
    there(&hub, "n1").await;
    spoke.send(Up::FaultBatch(v1::FaultBatch { stream_id: "s".into(), first_seq: 1, faults: vec![xid79(None)] })).await;
    let asked = spoke.next_of(|message| match message {
        Message::Resync(_) => Some(true),
        Message::FaultAck(_) => Some(false),
        _ => None,
    });
    assert_eq!(asked.await, Some(false), "the ack is put behind whatever was to be asked");
    let marked = "SELECT labelled AND tainted FROM nodes WHERE node_name = 'n1'";
    assert!(sqlx::query_scalar::<_, bool>(marked).fetch_one(&hub.pool).await.unwrap());
}
