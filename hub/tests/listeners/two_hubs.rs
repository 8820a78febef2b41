//! Two hubs on one database: who decided is not who holds the session.

use std::{collections::BTreeSet, time::Duration};

use gpuheal_proto::link::v1::{self, attach_request::Message as Up, attach_response::Message};
use tokio_util::sync::CancellationToken;

use crate::{
    delivery::{propose, stages},
    hub::Hub,
    replica::{PATIENCE, Replica, hello},
    sessions::fault,
};

async fn leader(hub: &Hub) -> Replica {
    Replica::attach(hub, hello("alpha", "r0", Some(2))).await.unwrap_or_else(|r| panic!("{r:?}")).0
}

#[tokio::test]
async fn a_command_that_another_hub_signed_reaches_its_spoke_with_every_wake_up_lost() {
    let deciding = Hub::start_with_database().await;
    let holding = deciding.start_beside().await;
    let mut leader = leader(&holding).await;
    let stop = CancellationToken::new();
    // Nothing carries wake-ups between the two: the poll alone finds it.
    let running = tokio::spawn(stages(&holding).1.run(stop.clone()));
    propose(&deciding, "alpha", 1).await;
    assert_eq!(stages(&deciding).0.round(&mut BTreeSet::new()).await.unwrap(), 1);
    let sent = leader.command().await;
    let stored: Vec<u8> = sqlx::query_scalar("SELECT envelope FROM commands").fetch_one(&deciding.pool).await.unwrap();
    assert_eq!(sent, stored);
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn what_one_hub_signs_wakes_the_hub_that_holds_the_session() {
    let deciding = Hub::start_with_database().await;
    let holding = deciding.start_beside().await;
    let mut leader = leader(&holding).await;
    let stop = CancellationToken::new();
    for (hub, id) in [(&deciding, "one"), (&holding, "other")] {
        let options = (*hub.pool.connect_options()).clone();
        tokio::spawn(hub.wake.clone().relay(options, id.to_owned(), stop.clone()));
    }
    let signing = tokio::spawn(stages(&deciding).0.run(stop.clone()));
    // Listening takes a moment to begin: commands are issued until one is heard of.
    let heard = async {
        for number in 1.. {
            propose(&deciding, "alpha", number).await;
            if tokio::time::timeout(Duration::from_secs(3), holding.wake.signed.notified()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("the ring crosses");
    assert!(stages(&holding).1.round().await.unwrap() >= 1, "and what it rang for is there");
    leader.command().await;
    stop.cancel();
    signing.await.unwrap();
}

#[tokio::test]
async fn a_hub_whose_session_was_taken_over_commits_nothing_of_it_and_closes_it() {
    let old = Hub::start_with_database().await;
    let new = old.start_beside().await;
    let (mut stale, _) = Replica::attach(&old, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    let (mut fresh, welcome) = Replica::attach(&new, hello("alpha", "r0", None)).await.unwrap_or_else(|r| panic!("{r:?}"));
    assert_eq!(welcome.session_generation, 2);
    let batch = || v1::FaultBatch { stream_id: "stream-of-r0".into(), first_seq: 1, faults: vec![fault("alpha")] };
    stale.send(Up::FaultBatch(batch())).await;
    let goaway = stale.next_of(|message| match message {
        Message::Goaway(goaway) => Some(goaway.reason),
        Message::FaultAck(ack) => panic!("acked by the hub that had lost the session: {ack:?}"),
        _ => None,
    });
    goaway.await.expect("it is sent away");
    assert!(stale.next().await.is_none(), "and its stream ends");
    let faults: i64 = sqlx::query_scalar("SELECT count(*) FROM faults").fetch_one(&old.pool).await.unwrap();
    assert_eq!(faults, 0);
    fresh.send(Up::FaultBatch(batch())).await;
    let ack = fresh.next_of(|message| if let Message::FaultAck(ack) = message { Some(ack) } else { None }).await.unwrap();
    assert_eq!(ack.persisted_upto, 1);
}

/// Failure table, row 18.
#[tokio::test]
async fn an_epoch_that_rose_at_one_hub_has_the_other_ask_its_clusters_for_all_that_they_have() {
    let one = Hub::start_with_database().await;
    let other = one.start_beside().await;
    // Its first word is over before: it was asked for everything as it attached.
    let mut quiet = Replica::attach(&other, hello("beta", "r0", Some(1))).await.unwrap_or_else(|r| panic!("{r:?}")).0;
    let term = |message| if let Message::Resync(resync) = message { Some(resync.all_under_term) } else { None };
    assert_eq!(quiet.next_of(term).await, Some(1), "its state was never seen");
    // Whether the other's guard has looked before or looks for the first time now: its session is of before.
    let seen = v1::Hello { hub_term_seen: 7, ..hello("alpha", "r0", None) };
    Replica::attach(&one, seen).await.unwrap_or_else(|r| panic!("{r:?}"));
    let asked = tokio::time::timeout(PATIENCE, quiet.next_of(term)).await.unwrap();
    assert_eq!(asked, Some(8), "asked before its stream ends");
}

#[tokio::test]
async fn a_crowd_is_told_to_come_again_at_many_moments_and_reaches_no_database() {
    let hub = Hub::start_admitting(gpuheal_hub::link::Admission::new(0)).await;
    let mut waits = BTreeSet::new();
    for n in 0..8 {
        let reject = Replica::attach(&hub, hello("alpha", &format!("r{n}"), None)).await.err().expect("a reject");
        assert_eq!(reject.code(), v1::RejectCode::Busy);
        assert!((1_000..=16_000).contains(&reject.retry_after_ms), "{}", reject.retry_after_ms);
        waits.insert(reject.retry_after_ms);
    }
    assert!(waits.len() > 4, "{waits:?}");
    let known: i64 = sqlx::query_scalar("SELECT count(*) FROM clusters").fetch_one(&hub.pool).await.unwrap();
    assert_eq!(known, 0);
}
