//! The elector against a real Lease.

use std::time::{Duration, Instant};

use gpuheal_spoke::{elector::Elector, ports::Leadership};

use crate::harness::{Cluster, election, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_a_released_lease_is_taken_at_once_under_a_higher_number() {
    let cluster = Cluster::start().await;
    let (first, held) = Elector::spawn(cluster.client().await, election("a")).unwrap();
    eventually("a leads", || async { *first.borrow() != Leadership::Standby }).await;
    let (second, _other) = Elector::spawn(cluster.client().await, election("b")).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(*second.borrow(), Leadership::Standby);
    let before = first.borrow().transitions().unwrap();
    let from = Instant::now();
    held.release().await;
    assert_eq!(*first.borrow(), Leadership::Standby);
    assert_eq!(held.margin(), None);
    eventually("b leads", || async { *second.borrow() != Leadership::Standby }).await;
    assert!(from.elapsed() < Duration::from_secs(2), "nobody waits for a released Lease: {:?}", from.elapsed());
    assert!(second.borrow().transitions().unwrap() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_somebody_else_took_ends_the_reign() {
    let cluster = Cluster::start().await;
    let (leadership, held) = Elector::spawn(cluster.client().await, election("a")).unwrap();
    eventually("a leads", || async { *leadership.borrow() != Leadership::Standby }).await;
    cluster
        .sim
        .store()
        .edit("leases.coordination.k8s.io", "gpu-selfhealing", "gpu-selfhealing-leader", |lease| {
            lease["spec"]["holderIdentity"] = serde_json::json!("b");
        })
        .unwrap();
    let why = tokio::time::timeout(Duration::from_secs(10), held.ended()).await.unwrap();
    assert!(why.contains("\"b\""), "{why}");
    assert_eq!(*leadership.borrow(), Leadership::Standby);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_whose_clock_is_an_hour_off_changes_nothing() {
    let cluster = Cluster::start().await;
    let (first, _held) = Elector::spawn(cluster.client().await, election("a")).unwrap();
    eventually("a leads", || async { *first.borrow() != Leadership::Standby }).await;
    cluster.sim.faults().set_clock_skew(3600);
    let (second, _other) = Elector::spawn(cluster.client().await, election("b")).unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(*second.borrow(), Leadership::Standby);
    assert_ne!(*first.borrow(), Leadership::Standby);
}
