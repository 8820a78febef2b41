//! A machine that stood still: its own clock does not know, the API server's Date does.

use std::time::Duration;

use gpuheal_proto::link::v1::{CommandState, RefusalCode};
use testkube::settled;

use crate::{
    hub::{drain, mark, signed},
    replica::Spoke,
    world::World,
};

testkube::claims![
    who_stood_still_begins_nothing_until_the_hub_has_told_its_time_again,
    who_stood_still_goes_on_with_nothing_until_the_hub_has_told_its_time_again,
    an_api_server_whose_clock_was_always_an_hour_off_is_no_reason_to_wait,
];

/// For all others a minute goes by at once; the next answer of the API server, the Lease's at the latest, tells.
async fn stand_still(w: &World, spoke: &Spoke) {
    w.skew_clock(Duration::from_secs(60));
    tokio::time::timeout(settled::BOUND, spoke.clock.lost()).await.unwrap();
}

async fn who_stood_still_begins_nothing_until_the_hub_has_told_its_time_again(w: World) {
    let mut spoke = Spoke::leading(&w, "a", "").await;
    stand_still(&w, &spoke).await;
    let command = w.command("n1", 1, vec![mark()]).await;
    let told = spoke.carry_out(&command).await;
    assert_eq!((told.state(), told.refusal()), (CommandState::NotNow, RefusalCode::ClockUncertain), "{}", told.reason);
    assert!(w.action(command.id).await.is_none());
    assert_eq!(w.writes_to("nodes").await, []);
    spoke.welcome();
    let end = spoke.carry_out(&command).await;
    assert_eq!(end.state(), CommandState::Succeeded, "the clocks agree again, however far apart: {}", end.reason);
}

/// Failure table, row 16.
async fn who_stood_still_goes_on_with_nothing_until_the_hub_has_told_its_time_again(w: World) {
    w.guarded_pod().await;
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let command = w.command("n1", 1, vec![mark(), drain()]).await;
    spoke.send(signed(&command)).await;
    settled::is_true("the budget refuses", || async { !w.wire.evictions().is_empty() }).await;
    stand_still(&w, &spoke).await;
    let asked = w.wire.evictions().len();
    for _ in 0..3 {
        w.lease_looked_at("a").await;
    }
    // One may have been under way when the Date came.
    assert!(w.wire.evictions().len() <= asked + 1, "nothing more is asked for");
    w.free_budget().await;
    spoke.welcome();
    let end = spoke.ended(command.id).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.gone("guarded-1").await;
}

async fn an_api_server_whose_clock_was_always_an_hour_off_is_no_reason_to_wait(w: World) {
    w.skew_clock(Duration::from_secs(3600));
    let mut spoke = Spoke::leading(&w, "a", "").await;
    let end = spoke.carry_out(&w.command("n1", 1, vec![mark()]).await).await;
    assert_eq!(end.state(), CommandState::Succeeded, "{}", end.reason);
    w.lease_looked_at("a").await;
    assert!(spoke.clock.now().is_some());
}
