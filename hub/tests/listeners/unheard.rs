//! What a leader is asked about commands whose end nobody has told, and what its proof of leadership tells by itself.

use gpuheal_hub::link::Unheard;
use gpuheal_proto::{
    fault::{Asked, Fault},
    link::v1::{self, attach_request, attach_response::Message},
};

use crate::{
    delivery::{propose, stages},
    hub::Hub,
    replica::{PATIENCE, Replica, hello, xid79},
};

async fn attached(hub: &Hub, lease: Option<u64>) -> Replica {
    Replica::attach(hub, hello("alpha", "r0", lease)).await.unwrap_or_else(|r| panic!("{r:?}")).0
}

/// Failure table, row 18.
#[tokio::test]
async fn a_leader_is_asked_by_name_for_what_nobody_has_told_the_end_of_once_in_a_session() {
    let hub = Hub::start_with_database().await;
    let mut first = attached(&hub, Some(2)).await;
    let command = propose(&hub, "alpha", 1).await;
    let (signing, delivery) = stages(&hub);
    signing.round(&mut std::collections::BTreeSet::new()).await.unwrap();
    delivery.round().await.unwrap();
    first.command().await;
    let unheard = Unheard::new(hub.pool.clone(), hub.registry.clone());
    assert_eq!(unheard.round().await.unwrap().commands, 0, "it is on its way");
    let mut second = attached(&hub, Some(2)).await;
    assert_eq!((unheard.round().await.unwrap().commands, unheard.round().await.unwrap().commands), (1, 0));
    // It is asked for all that it has as it attaches, since its state was never seen.
    let asked = second.next_of(|message| match message {
        Message::Resync(resync) if !resync.command_ids.is_empty() => Some(resync),
        _ => None,
    });
    assert_eq!(asked.await.unwrap(), v1::Resync { command_ids: vec![command.to_string()], ..v1::Resync::default() });
}

/// What another replica found and told, who leads now may never have seen, and would see no end of it.
#[tokio::test]
async fn a_leader_is_asked_how_a_fault_stands_that_another_replica_told() {
    let hub = Hub::start_with_database().await;
    let mut first = attached(&hub, Some(2)).await;
    let fault = xid79(None);
    let batch = v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault.clone()] };
    first.send(attach_request::Message::FaultBatch(batch)).await;
    first.next_of(|message| matches!(message, Message::FaultAck(_)).then_some(())).await.unwrap();
    let mut second = Replica::attach(&hub, hello("alpha", "r1", Some(3))).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    let unheard = Unheard::new(hub.pool.clone(), hub.registry.clone());
    assert_eq!(unheard.round().await.unwrap().faults, 0, "it has just begun to lead");
    for aged in [
        "UPDATE sessions SET attached_at = attached_at - interval '2 minutes', leads_since = leads_since - interval '2 minutes'",
        "UPDATE faults SET evidence_at = evidence_at - interval '10 minutes'",
    ] {
        sqlx::query(aged).execute(&hub.pool).await.unwrap();
    }
    assert_eq!((unheard.round().await.unwrap().faults, unheard.round().await.unwrap().faults), (1, 0));
    let asked = second.next_of(|message| match message {
        Message::Resync(resync) if !resync.faults.is_empty() => Some(resync.faults),
        _ => None,
    });
    let asked = Asked::try_from(asked.await.unwrap().pop().unwrap()).unwrap();
    let told = Fault::try_from(fault).unwrap();
    assert_eq!((asked.fault.key, &asked.fault.node, &asked.fault.gpu), (told.key, &told.node, &told.gpu));
    assert_eq!(asked.witnesses, [told.witness].into());
}

/// Failure table, row 18.
#[tokio::test]
async fn a_proof_of_leadership_that_knows_more_than_the_database_raises_the_epoch_and_an_absurd_one_ends_its_session() {
    let hub = Hub::start_with_database().await;
    let mut replica = attached(&hub, None).await;
    let beat = |lease_transitions, cmd_seq_seen| {
        attach_request::Message::Heartbeat(v1::Heartbeat {
            lease_transitions: Some(lease_transitions),
            hub_term_seen: 1,
            cmd_seq_seen,
            ..v1::Heartbeat::default()
        })
    };
    replica.send(beat(3, 40)).await;
    let raised = async {
        while sqlx::query_scalar::<_, i64>("SELECT hub_term FROM hub_state").fetch_one(&hub.pool).await.unwrap() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, raised).await.expect("the epoch rises");
    replica.send(beat(4, u64::MAX)).await;
    let goaway = replica.next_of(|message| if let Message::Goaway(goaway) = message { Some(goaway.reason) } else { None });
    assert!(goaway.await.unwrap().contains("numbers that no hub can have given out"));
    let kept: i64 = sqlx::query_scalar("SELECT max(cmd_seq) FROM command_counters").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(kept, 40, "nothing of it is believed");
}
