//! An API server that asks for patience in the middle of a drain, and what comes in between while it is given its time.

use std::time::Duration;

use gpuheal_proto::{
    command::Command,
    link::v1::{CommandState, RefusalCode},
};
use gpuheal_spoke::ports::Standing;
use serde_json::{Value, json};
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
    let busy = |message: &str, details: Value| {
        json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "TooManyRequests", "code": 429,
            "message": message, "details": details})
    };
    for pod in ["guarded-1", "web-1"] {
        w.gpu_pod(pod, "n1", json!({})).await;
    }
    let budget =
        json!({"causes": [{"reason": "DisruptionBudget", "message": "the budget guarded needs 1 healthy pods and has 1"}]});
    w.wire.answer("/guarded-1/eviction", busy("Cannot evict pod as it would violate the pod's disruption budget.", budget));
    let patience = json!({"retryAfterSeconds": PATIENCE.as_secs()});
    w.wire.answer("/web-1/eviction", busy("too many requests, please try again later", patience));
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("both are answered", || async { w.wire.answered() }).await;
    let until = Instant::now() + PATIENCE;
    // The first pause after a budget's no is a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(w.wire.evictions().is_empty(), "the API server is left alone");
    (command, until)
}

/// Long past the moment at which it might be asked again, nobody was.
async fn nobody_was_asked_for(w: &World, until: Instant) {
    tokio::time::sleep_until(until + Duration::from_secs(3)).await;
    assert!(w.wire.evictions().is_empty());
    for stays in ["guarded-1", "web-1"] {
        assert!(w.pod(stays).await.is_some_and(|pod| pod["metadata"]["deletionTimestamp"].is_null()), "{stays}");
    }
}

async fn what_an_overloaded_api_server_holds_up_is_not_evicted_after_a_stop(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let (command, until) = held_up(&w, &spoke).await;
    spoke.configured(&w, "ceiling: {stop: true}").await;
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
    let (command, _) = held_up(&w, &spoke).await;
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    for gone in ["guarded-1", "web-1"] {
        w.gone(gone).await;
    }
}
