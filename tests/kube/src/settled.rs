//! Waiting for a condition, with a bound: the only way in which these tests wait.
//! Never a fixed sleep in a test; the pause between two looks is here and nowhere else.

use std::future::Future;
use std::time::{Duration, Instant};

/// Between two looks. Short against anything Kubernetes does, long against a request on loopback (2 ms).
const PAUSE: Duration = Duration::from_millis(20);

/// How long a cluster may take to do one thing: the slowest seen is a controller's back-off of 10 s, and a slow machine
/// that compiles beside the tests is given twelve times that. Only a test that fails waits so long.
pub const BOUND: Duration = Duration::from_secs(120);

/// Looks until `look` gives a value.
///
/// # Panics
/// After [`BOUND`], naming `what` was waited for.
pub async fn until<T, F, Fut>(what: &str, mut look: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let began = Instant::now();
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(began.elapsed() < BOUND, "waited {} s in vain: {what}", BOUND.as_secs());
        tokio::time::sleep(PAUSE).await;
    }
}

/// Looks until `look` says true.
///
/// # Panics
/// As [`until`].
pub async fn is_true<F, Fut>(what: &str, mut look: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    until(what, || {
        let holds = look();
        async move { holds.await.then_some(()) }
    })
    .await;
}
