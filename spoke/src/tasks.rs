//! Tasks that a part begins and does not wait for. One that panics is missed: what it was for is done by nobody any more, and
//! what it left half done in memory may be ahead of what is on disk and in the cluster. So its part panics with it, which ends
//! the process; the next one begins with what was written down.

use std::convert::Infallible;

use tokio::task::{JoinError, JoinSet};

/// Lets go of tasks as they end, until one has panicked: then whoever waits here panics with it.
pub(crate) async fn watch_over(tasks: &mut JoinSet<()>) -> Infallible {
    loop {
        match tasks.join_next().await {
            Some(Ok(())) => {}
            Some(Err(error)) => panic_with(error),
            None => std::future::pending().await,
        }
    }
}

/// Goes on with a task's panic. One that was aborted has not panicked: whoever did that knows of it.
pub(crate) fn panic_with(error: JoinError) {
    if let Ok(panic) = error.try_into_panic() {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_missed_and_one_that_ends_or_is_aborted_is_not() {
        let (mut tasks, (go, going)) = (JoinSet::new(), tokio::sync::oneshot::channel::<()>());
        tasks.spawn(async {});
        tasks.spawn(std::future::pending()).abort();
        tasks.spawn(async {
            let _ = going.await;
            panic!("on purpose");
        });
        let waiting = tokio::spawn(async move { watch_over(&mut tasks).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        go.send(()).unwrap();
        let died = tokio::time::timeout(std::time::Duration::from_secs(120), waiting).await.unwrap().unwrap_err();
        assert_eq!(died.into_panic().downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
