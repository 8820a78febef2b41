//! Group commit: whatever waits is committed together; when that fails, each spoke's own batch is tried alone, so that
//! one that cannot be stored takes nobody with it. When it is the database that fails, none is.

use std::sync::Arc;

use gpuheal_proto::{ids::StreamId, link::v1};
use sqlx::PgPool;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Error, Origin, commit};
use crate::{metrics, sign::Signer, store::pool::answered, wake::Wake};

/// Faults of one commit: about 10 ms of inserting.
const FAULTS_MAX: usize = 1000;
/// A commit that met a deadlock or somebody else's row is repeated at once; the third time it is the spoke's turn.
const ATTEMPTS: u32 = 3;

/// A batch that waits for its commit.
pub(super) struct Submission {
    pub(super) from: Origin,
    pub(super) stream: StreamId,
    pub(super) first_seq: u64,
    pub(super) faults: Vec<v1::Fault>,
    pub(super) gap: Option<v1::Gap>,
    /// Up to where its stream is committed.
    pub(super) answer: oneshot::Sender<Result<u64, Error>>,
}

/// Commits until told to stop, then what still waits.
pub(super) async fn run(
    pool: PgPool,
    wake: Arc<Wake>,
    signer: Option<Arc<Signer>>,
    mut waiting: mpsc::Receiver<Submission>,
    stop: CancellationToken,
) {
    loop {
        if waiting.is_empty() {
            wake.crowd.set(false);
        }
        let first = tokio::select! {
            biased;
            first = waiting.recv() => first,
            () = stop.cancelled() => {
                waiting.close();
                waiting.recv().await
            }
        };
        let Some(first) = first else { return };
        let group = gather(first, &mut waiting);
        wake.crowd.set(group.len() > 1);
        if let Some(failed) = commit_all(&pool, &wake, signer.as_deref(), group).await {
            for submission in failed {
                commit_all(&pool, &wake, None, vec![submission]).await;
            }
        }
    }
}

fn gather(first: Submission, waiting: &mut mpsc::Receiver<Submission>) -> Vec<Submission> {
    let mut faults = first.faults.len();
    let mut group = vec![first];
    while faults < FAULTS_MAX
        && let Ok(next) = waiting.try_recv()
    {
        faults += next.faults.len();
        group.push(next);
    }
    group
}

/// Gives back a group of several that failed, for each to be tried alone; one alone is answered with its error, and all of
/// them where the database gives no answer.
async fn commit_all(pool: &PgPool, wake: &Wake, signer: Option<&Signer>, mut group: Vec<Submission>) -> Option<Vec<Submission>> {
    let mut outcome = answered("ingest.commit", commit::commit(pool, &group, signer)).await;
    if let Err(Error::Decide(error)) = &outcome {
        tracing::debug!(%error, "judging together with taking failed, the workers judge");
        outcome = answered("ingest.commit", commit::commit(pool, &group, None)).await;
    }
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if error.transient() => outcome = answered("ingest.commit", commit::commit(pool, &group, None)).await,
            Ok(_) | Err(_) => break,
        }
    }
    match outcome {
        Ok(done) => {
            done.issued.wake(wake);
            if done.asked {
                wake.ingested.notify_one();
            }
            for (submission, upto) in group.into_iter().zip(done.upto) {
                // A spoke that went away meanwhile resumes after what is committed.
                let _gone = submission.answer.send(Ok(upto));
            }
            None
        }
        Err(error) => {
            metrics::STAGE_FAILURES.inc(["ingest"]);
            tracing::warn!(error = %crate::chain::chain(&error), batches = group.len(), "batches were not committed");
            if error.unanswered() {
                // Alone they would each wait as long for the same answer.
                group.into_iter().for_each(|submission| _ = submission.answer.send(Err(Error::Away)));
                return None;
            }
            if group.len() > 1 {
                return Some(group);
            }
            if let Some(only) = group.pop() {
                let _gone = only.answer.send(Err(error));
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

    use super::*;

    #[tokio::test]
    async fn a_database_that_gives_no_answer_is_asked_for_all_that_wait_together_and_not_once_more_for_each() {
        // Whoever connects is left without a word.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let options = PgConnectOptions::new().host("127.0.0.1").port(silent.local_addr().unwrap().port());
        let pool = PgPoolOptions::new().acquire_timeout(Duration::from_millis(50)).connect_lazy_with(options);
        let stream = StreamId::parse("s-1").unwrap();
        let (group, answers): (Vec<_>, Vec<_>) = ["c1", "c2", "c3"]
            .map(|cluster| {
                let from = Origin::from(gpuheal_proto::ids::ClusterId::parse(cluster).unwrap());
                let (answer, answered) = oneshot::channel();
                (Submission { from, stream: stream.clone(), first_seq: 1, faults: Vec::new(), gap: None, answer }, answered)
            })
            .into_iter()
            .unzip();
        let again = commit_all(&pool, &Wake::new(), None, group).await;
        assert_eq!(again.map(|group| group.len()), None);
        for answered in answers {
            assert!(matches!(answered.await, Ok(Err(Error::Away))));
        }
    }
}
