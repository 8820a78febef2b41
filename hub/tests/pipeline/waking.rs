//! Wake-ups between hubs over PostgreSQL: haste, not truth.

use std::time::Duration;

use gpuheal_hub::{store::pool, wake::Wake};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn what_one_hub_rings_is_heard_by_another_and_not_by_itself() {
    let options = pool::options(&testpg::database().await).unwrap();
    let (one, other, stop) = (Wake::new(), Wake::new(), CancellationToken::new());
    for (wake, id) in [(&one, "hub-1"), (&other, "hub-2")] {
        tokio::spawn(wake.clone().relay(options.clone(), id.to_owned(), stop.clone()));
    }
    // Listening takes a moment to begin: ring until it is heard, within a bound.
    let heard = async {
        loop {
            one.signed.notify_one();
            one.signed.notified().await;
            if tokio::time::timeout(Duration::from_millis(200), other.signed.notified()).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), heard).await.unwrap();
    let echo = tokio::time::timeout(Duration::from_millis(300), one.signed.notified()).await;
    assert!(echo.is_err(), "a hub does not wake itself");
    stop.cancel();
}
