//! Waiting for a condition, with a bound and words for what was waited for. Nothing here sleeps blindly.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How often a condition is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Waits until `look` gives something, at most `within`. The error says what was waited for and what was seen last.
pub async fn until<T, F, Fut>(what: &str, within: Duration, mut look: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let since = Instant::now();
    let mut last = String::new();
    while since.elapsed() < within {
        match look().await {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(error) => last = format!("; last error: {error:#}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("waited {within:?} for {what}, in vain{last}")
}

/// Watches a condition that must keep holding for a while; the error tells when it broke.
pub async fn holds<F, Fut>(what: &str, span: Duration, mut look: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let since = Instant::now();
    while since.elapsed() < span {
        if !look().await? {
            bail!("{what} no longer held after {:?}", since.elapsed());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
