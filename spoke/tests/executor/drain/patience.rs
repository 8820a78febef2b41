//! An API server that asks for patience in the middle of a drain, and what comes in between while it is given its time.

use std::time::Duration;

use gpuheal_proto::{
    command::Command,
    link::v1::{CommandState, RefusalCode},
};
use gpuheal_spoke::ports::{LocalConfig, Standing};
use serde_json::json;
use testkube::settled;
use tokio::time::Instant;

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    what_an_overloaded_api_server_holds_up_is_not_evicted_after_a_stop,
    what_an_overloaded_api_server_holds_up_is_not_evicted_after_the_fault_is_gone,
    what_an_overloaded_api_server_holds_up_is_not_evicted_after_the_lease_is_lost,
    what_an_overloaded_api_server_holds_up_goes_once_it_has_had_its_time,
];

/// What the API server asks for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A drain of `n1` under way: the API server has asked for patience when `web-1` was asked for, and the turn of `guarded-1`, which
/// its budget would let go by now, has come since. Gives the moment until which it is to be left alone.
async fn held_up(w: &World, spoke: &Spoke) -> (Command, Instant) {
    w.guarded_pod().await;
    w.gpu_pod("web-1", "n1", json!({})).await;
    w.wire.answer(
        "/web-1/eviction",
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429,
            "message": "too many requests, please try again later", "details": {"retryAfterSeconds": PATIENCE.as_secs()}}),
    );
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    let began = Instant::now();
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    w.free_budget().await;
    // The first pause after a budget's no is a second at most.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(w.wire.evictions().len(), 1, "the API server is left alone");
    (command, began + PATIENCE)
}

/// Long past the moment at which it might be asked again, nobody was.
async fn nobody_was_asked_for(w: &World, until: Instant) {
    tokio::time::sleep_until(until + Duration::from_secs(3)).await;
    assert_eq!(w.wire.evictions().len(), 1);
    for stays in ["guarded-1", "web-1"] {
        assert!(w.pod(stays).await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()), "{stays}");
    }
}

async fn what_an_overloaded_api_server_holds_up_is_not_evicted_after_a_stop(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, until) = held_up(&w, &spoke).await;
    spoke.config.send_replace(LocalConfig { resource_version: "2".into(), yaml: "ceiling: {stop: true}".into() });
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::Stopped), "{}", end.reason);
    nobody_was_asked_for(&w, until).await;
}

async fn what_an_overloaded_api_server_holds_up_is_not_evicted_after_the_fault_is_gone(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, until) = held_up(&w, &spoke).await;
    *spoke.faults.0.lock().unwrap() = Standing::Cleared;
    let end = spoke.ended(command.id).await;
    assert_eq!((end.state(), end.refusal()), (CommandState::Cancelled, RefusalCode::FaultCleared), "{}", end.reason);
    nobody_was_asked_for(&w, until).await;
}

async fn what_an_overloaded_api_server_holds_up_is_not_evicted_after_the_lease_is_lost(w: World) {
    let spoke = Spoke::leading(&w, "a", "").await;
    let (_, until) = held_up(&w, &spoke).await;
    w.give_lease_to("b").await;
    nobody_was_asked_for(&w, until).await;
}

async fn what_an_overloaded_api_server_holds_up_goes_once_it_has_had_its_time(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, until) = held_up(&w, &spoke).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    assert!(Instant::now() >= until);
    for gone in ["guarded-1", "web-1"] {
        w.gone(gone).await;
    }
}
