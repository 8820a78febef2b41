//! The workers: each claims due nodes of one cluster, judges them in one transaction, and comes back for more. A
//! transaction that fails is taken apart: each node alone, and one that fails alone is put off, so that it blocks no other.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpuheal_proto::ids::{ClusterId, NodeUid};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio_util::sync::CancellationToken;

use super::{Error, apply::Issued, judge::Bench};
use crate::{
    audit::Entry,
    metrics,
    sign::Signer,
    store::{
        Labelled as _,
        judgement::{asks_take, judgement_claim_one, judgement_defer, judgements_claim},
        pool::answered,
    },
    wake::{POLL, Wake},
};

/// Workers of one hub: while one waits for its commit, the other judges.
pub const WORKERS: usize = 2;
/// Nodes of one transaction: at about 2 ms each its locks keep nobody for more than a thirtieth of a second.
const BATCH: u32 = 16;
/// Until the first look again at a node that was asked for and is held, by a state or a report that is being taken: whoever holds it
/// need not ring when he is done. Doubled with each look in vain, up to the poll.
const SOON: Duration = Duration::from_millis(25);
/// Pause after the database failed.
const PAUSE: Duration = Duration::from_millis(500);
/// A transaction that met a deadlock is repeated at once; after that its node waits for its turn.
const ATTEMPTS: u32 = 3;

/// Judges until told to stop. With a signer, commands are signed in the transaction that issues them, which saves a
/// commit; what could not be signed there waits for stage `sign`.
pub async fn run(pool: PgPool, wake: Arc<Wake>, signer: Option<Arc<Signer>>, stop: CancellationToken) {
    let mut in_vain = 0;
    while !stop.is_cancelled() {
        match round(&pool, &wake, signer.as_deref()).await {
            Ok(Round { judged: 0, held }) => {
                in_vain = if held { in_vain + 1 } else { 0 };
                let woken = async {
                    tokio::select! {
                        () = wake.ingested.notified() => {}
                        () = wake.settled.notified() => {}
                        () = tokio::time::sleep(look_again(in_vain)) => {}
                    }
                };
                stop.run_until_cancelled(woken).await;
            }
            Ok(_) => in_vain = 0,
            Err(error) => {
                metrics::STAGE_FAILURES.inc(["decide"]);
                tracing::warn!(error = %crate::chain::chain(&error), "nothing could be judged");
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
            }
        }
    }
}

/// When to look again unasked, after so many looks that found nothing but nodes that are held.
fn look_again(in_vain: u32) -> Duration {
    match in_vain {
        0 => POLL,
        looks => SOON.saturating_mul(1 << (looks - 1).min(16)).min(POLL),
    }
}

/// What one round came to.
struct Round {
    /// Nodes.
    judged: usize,
    /// Others were asked for that somebody holds.
    held: bool,
}

/// Judges what is due of one cluster, at most one transaction's worth, and signs nothing; returns how many nodes that were.
///
/// # Errors
/// When the database fails. A node that cannot be judged is put off and is no error here.
pub async fn step(pool: &PgPool, wake: &Wake) -> Result<usize, Error> {
    Ok(round(pool, wake, None).await?.judged)
}

async fn round(pool: &PgPool, wake: &Wake, signer: Option<&Signer>) -> Result<Round, Error> {
    let _turn = wake.crowd.turn().await;
    let claimed = answered("decide.claim", async {
        let held = asks_take(&mut *pool.acquire().await.label("pool.acquire")?).await?;
        let mut tx = pool.begin().await.label("decide.begin")?;
        let claimed = judgements_claim(&mut tx, BATCH).await?;
        Ok::<_, Error>((tx, claimed, held))
    });
    let (tx, claimed, held) = claimed.await?;
    let Some((cluster, nodes)) = claimed else { return Ok(Round { judged: 0, held }) };
    dies_at!("decide.claimed");
    if nodes.len() as u32 == BATCH {
        // There is more: another worker need not wait for its poll.
        wake.ingested.notify_one();
    }
    match answered("decide.judge", judge(tx, &cluster, &nodes, signer)).await {
        Ok(issued) => issued.wake(wake),
        Err(error) => {
            tracing::debug!(%error, cluster.id = %cluster, nodes = nodes.len(), "judging together failed, each is tried alone");
            for node in &nodes {
                alone(pool, wake, signer, &cluster, node).await?;
            }
        }
    }
    Ok(Round { judged: nodes.len(), held })
}

/// Judges nodes whose locks this transaction holds, and writes all that follows, after the entries of what the
/// transaction did `before`.
#[tracing::instrument(name = "hub.decide", skip_all)]
pub(crate) async fn within(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    nodes: &[NodeUid],
    signer: Option<&Signer>,
    before: Vec<Entry>,
) -> Result<Issued, Error> {
    let began = Instant::now();
    let mut bench = Bench::open(conn, cluster).await?;
    for node in nodes {
        bench.judge(conn, node, None).await?;
    }
    let issued = bench.close(conn, signer, before).await?;
    metrics::DECIDE_SECONDS.observe(began.elapsed());
    Ok(issued)
}

async fn alone(pool: &PgPool, wake: &Wake, signer: Option<&Signer>, cluster: &ClusterId, node: &NodeUid) -> Result<(), Error> {
    let mut outcome = answered("decide.judge", judge_one(pool, signer, cluster, node)).await;
    for _ in 1..ATTEMPTS {
        match &outcome {
            Err(error) if error.transient() => outcome = answered("decide.judge", judge_one(pool, signer, cluster, node)).await,
            Ok(_) | Err(_) => break,
        }
    }
    match outcome {
        Ok(issued) => {
            issued.wake(wake);
            Ok(())
        }
        Err(error) => {
            let mut conn = pool.acquire().await.label("pool.acquire")?;
            metrics::STAGE_FAILURES.inc(["decide"]);
            let attempts = judgement_defer(&mut conn, cluster, node).await?;
            tracing::error!(error = %crate::chain::chain(&error), cluster.id = %cluster, node.uid = %node, attempts, "a node could not be judged and is put off");
            Ok(())
        }
    }
}

async fn judge_one(pool: &PgPool, signer: Option<&Signer>, cluster: &ClusterId, node: &NodeUid) -> Result<Issued, Error> {
    let mut tx = pool.begin().await.label("decide.begin")?;
    if !judgement_claim_one(&mut tx, cluster, node).await? {
        return Ok(Issued::default());
    }
    judge(tx, cluster, std::slice::from_ref(node), signer).await
}

/// Judges, and commits. What fails is rolled back before this returns: whoever tries again, or each node alone, passes over
/// one that is held.
async fn judge(
    mut tx: Transaction<'static, Postgres>,
    cluster: &ClusterId,
    nodes: &[NodeUid],
    signer: Option<&Signer>,
) -> Result<Issued, Error> {
    match within(&mut tx, cluster, nodes, signer, Vec::new()).await {
        Ok(issued) => {
            dies_at!("decide.before-commit");
            tx.commit().await.label("decide.commit")?;
            Ok(issued)
        }
        Err(error) => {
            if let Err(lost) = tx.rollback().await {
                // The connection is gone, and with it what it held.
                tracing::debug!(error = %lost, "a judgement that failed was not rolled back");
            }
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_held_is_looked_at_again_soon_and_ever_less_often() {
        let ms: Vec<u128> = [1, 2, 3, 6, 7, 40].map(|looks| look_again(looks).as_millis()).into();
        assert_eq!(ms, [25, 50, 100, 800, 1000, 1000]);
        assert_eq!(look_again(0), POLL);
    }
}
