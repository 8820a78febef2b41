//! The elector against the API server's Leases.

use std::time::Duration;

use gpuheal_spoke::{
    elector::{self, Elector, ElectorHandle},
    ports::Leadership,
};
use testkube::settled;
use tokio::sync::watch;

use crate::{replica::election, world::World};

testkube::claims![
    one_leads_and_a_released_lease_is_taken_at_once_under_a_higher_number,
    a_lease_that_somebody_else_took_ends_the_reign,
    an_api_server_whose_clock_is_an_hour_off_changes_nothing,
];

/// Elects until it is dropped.
struct Elects(ElectorHandle);

impl Drop for Elects {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

async fn elect(w: &World, config: elector::Config) -> (watch::Receiver<Leadership>, Elects) {
    let (leadership, handle) = Elector::spawn(w.client(&config.identity).await, config).unwrap();
    (leadership, Elects(handle))
}

async fn leads(leadership: &watch::Receiver<Leadership>) {
    settled::is_true("it leads", || async { *leadership.borrow() != Leadership::Standby }).await;
}

async fn one_leads_and_a_released_lease_is_taken_at_once_under_a_higher_number(w: World) {
    // Longer than this claim waits for anything: who leads has not waited for the Lease to run out.
    let long =
        |identity| elector::Config { duration: settled::BOUND * 3, renew_deadline: settled::BOUND * 2, ..election(&w, identity) };
    let (first, held) = elect(&w, long("a")).await;
    leads(&first).await;
    let (second, _other) = elect(&w, long("b")).await;
    w.lease_looked_at("b").await;
    assert_eq!(*second.borrow(), Leadership::Standby);
    let before = first.borrow().transitions().unwrap();
    held.0.release().await;
    assert_eq!(*first.borrow(), Leadership::Standby);
    assert_eq!(held.0.margin(), None);
    leads(&second).await;
    assert!(second.borrow().transitions().unwrap() > before);
}

async fn a_lease_that_somebody_else_took_ends_the_reign(w: World) {
    let (leadership, held) = elect(&w, election(&w, "a")).await;
    leads(&leadership).await;
    w.give_lease_to("b").await;
    let why = tokio::time::timeout(settled::BOUND, held.0.ended()).await.unwrap();
    assert!(why.contains("\"b\""), "{why}");
    assert_eq!(*leadership.borrow(), Leadership::Standby);
}

async fn an_api_server_whose_clock_is_an_hour_off_changes_nothing(w: World) {
    let (first, _held) = elect(&w, election(&w, "a")).await;
    leads(&first).await;
    w.skew_clock(Duration::from_secs(3600));
    let (second, _other) = elect(&w, election(&w, "b")).await;
    w.lease_looked_at("b").await;
    assert_eq!(*second.borrow(), Leadership::Standby);
    assert_ne!(*first.borrow(), Leadership::Standby);
}
