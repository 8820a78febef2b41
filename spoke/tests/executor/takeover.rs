//! The elector against the API server's Leases.

use std::time::Duration;

use gpuheal_spoke::{
    elector::{self, Elector, ElectorHandle},
    ports::Leadership,
};
use k8s_openapi::jiff::SignedDuration;
use testkube::settled;
use tokio::{sync::watch, time::Instant};

use crate::{program::Program, replica::election, world::World};

testkube::claims![
    one_leads_and_a_released_lease_is_taken_at_once_under_a_higher_number,
    a_lease_that_somebody_else_took_ends_the_reign,
    who_follows_a_killed_leader_waits_until_its_lease_has_run_out,
    a_leader_that_hears_nothing_of_its_renewals_gives_up_and_one_that_lands_late_takes_nothing_back,
    a_program_that_stood_still_for_longer_than_its_lease_takes_nothing_back_and_ends,
    an_elector_that_dies_is_the_end_of_its_reign,
    whose_clock_is_an_hour_off_is_believed_while_it_renews_and_followed_once_it_does_not,
    a_lease_that_was_made_anew_begins_above_every_reign_that_is_known,
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

/// Spans as they ship, a third as long: two claims wait for a Lease to run out.
fn short(w: &World, identity: &str) -> elector::Config {
    elector::Config { duration: Duration::from_secs(6), renew_deadline: Duration::from_secs(3), ..election(w, identity) }
}

async fn who_follows_a_killed_leader_waits_until_its_lease_has_run_out(w: World) {
    let (first, killed) = elect(&w, short(&w, "a")).await;
    leads(&first).await;
    let (second, _other) = elect(&w, short(&w, "b")).await;
    w.lease_looked_at("b").await;
    killed.0.abandon();
    leads(&second).await;
    assert_eq!(killed.0.margin(), Some(Duration::ZERO), "until then the one before might have acted");
}

/// What is on its way is answered neither in time nor never: the API server may be slow, the network may be cut.
async fn a_leader_that_hears_nothing_of_its_renewals_gives_up_and_one_that_lands_late_takes_nothing_back(w: World) {
    let (first, held) = elect(&w, short(&w, "a")).await;
    leads(&first).await;
    let (second, _other) = elect(&w, short(&w, "b")).await;
    w.wire.hold_leases("a");
    leads(&second).await;
    assert!(held.0.margin().is_none_or(|margin| margin.is_zero()), "never two that may act: {:?}", held.0.margin());
    let why = tokio::time::timeout(settled::BOUND, held.0.ended()).await.unwrap();
    assert!(why.contains("was not renewed within 3s"), "{why}");
    assert_eq!(*first.borrow(), Leadership::Standby);
    let reign = second.borrow().transitions().unwrap();
    assert!(w.wire.holding() > 0);
    w.wire.let_go();
    w.lease_looked_at("b").await;
    assert_eq!(second.borrow().transitions(), Some(reign), "the late renewal was of a version that is gone");
}

/// The shipping program, stopped by SIGSTOP. What it does in the middle of a drain then is in `tests/tests/reign.rs`.
async fn a_program_that_stood_still_for_longer_than_its_lease_takes_nothing_back_and_ends(w: World) {
    let spans = ["--lease-duration=9s", "--lease-renew-deadline=6s", "--lease-retry=500ms"];
    let same = elector::Config { duration: Duration::from_secs(9), renew_deadline: Duration::from_secs(6), ..election(&w, "b") };
    let mut program = Program::start_with(&w, &spans).await;
    program.leads().await;
    let (second, _other) = elect(&w, same).await;
    w.lease_looked_at("b").await;
    assert_eq!(*second.borrow(), Leadership::Standby);
    program.pause();
    leads(&second).await;
    let reign = second.borrow().transitions();
    let mark = w.mark().await;
    program.goes_on();
    assert_eq!(program.ended().await, Some(1), "losing the Lease is a failure");
    w.lease_looked_at("b").await;
    assert_eq!(second.borrow().transitions(), reign);
    let all = w.cluster.requests_since(mark).await;
    let done: Vec<_> = all.iter().filter(|asked| asked.user_agent.starts_with("gpuheal-spoke") && asked.is_write()).collect();
    let own = |asked: &&&testkube::AuditEntry| asked.namespace == w.home && asked.code < 300;
    assert!(!done.iter().any(|asked| own(&asked)), "{done:?}");
}

async fn an_elector_that_dies_is_the_end_of_its_reign(w: World) {
    let (leadership, held) = elect(&w, election(&w, "a")).await;
    leads(&leadership).await;
    held.0.abandon();
    let why = tokio::time::timeout(settled::BOUND, held.0.ended()).await.unwrap();
    assert!(why.contains("the elector died"), "{why}");
}

/// Two holders whose clocks are an hour apart from ours, either way, as is the API server's: what is written in the Lease says nothing.
async fn whose_clock_is_an_hour_off_is_believed_while_it_renews_and_followed_once_it_does_not(w: World) {
    let hour = SignedDuration::from_hours(1);
    let spans = short(&w, "b");
    w.skew_clock(Duration::from_secs(3600));
    for off in [hour, -hour] {
        w.renew_lease_of("other", off, spans.duration).await;
        let (leadership, _held) = elect(&w, spans.clone()).await;
        // Renewed for twice as long as a silent one is waited for.
        let began = Instant::now();
        let mut silent = began;
        while began.elapsed() < spans.duration * 2 {
            tokio::time::sleep(Duration::from_millis(500)).await;
            silent = Instant::now();
            w.renew_lease_of("other", off, spans.duration).await;
            assert_eq!(*leadership.borrow(), Leadership::Standby, "{off}: it is renewed");
        }
        leads(&leadership).await;
        let waited = silent.elapsed();
        assert!(waited >= spans.duration, "{off}: after {waited:?}");
        // Its own clock alone: a look or two late at most, and no hour.
        assert!(waited < spans.duration * 3, "{off}: after {waited:?}");
    }
}

/// Failure table, row 25: the Lease is lost with the namespace, and what its next leader says must not count as an older one's.
async fn a_lease_that_was_made_anew_begins_above_every_reign_that_is_known(w: World) {
    let (first, held) = elect(&w, election(&w, "a")).await;
    leads(&first).await;
    let reign = first.borrow().transitions().unwrap();
    held.0.outranks([u64::MAX]);
    held.0.outranks([reign]);
    w.lease_looked_at("a").await;
    assert_eq!(
        first.borrow().transitions(),
        Some(reign),
        "its own number, and one that no Lease can have, are nothing to rise above"
    );
    // One record with a number of somebody's making among them.
    held.0.outranks([u64::MAX, 700, reign]);
    settled::is_true("it leads anew", || async { first.borrow().transitions() == Some(701) }).await;
    let (second, next) = elect(&w, election(&w, "b")).await;
    next.0.outranks([900]);
    held.0.release().await;
    // A look that was under way when it heard of that reign may have taken the Lease as it was: the next renewal rises above.
    settled::is_true("it leads above all", || async { second.borrow().transitions() == Some(901) }).await;
}
