//! Commands must end: what no spoke received by `start_by` is EXPIRED 60 s later, what was received and not heard of again
//! by `finish_by` is UNKNOWN 60 s later, and its node stays counted as out. Nothing is retried from there.

use std::sync::Arc;

use serde_json::json;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;

use super::{Error, told::Ended};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    metrics,
    store::{
        Labelled as _,
        judgement::{judgement_lock, judgements_ask},
        moment,
        pool::answered,
        settle::{Lapsed, command_lapse, commands_lapsed},
    },
    wake::{POLL, Wake},
};

/// Commands ended at once; the next second takes the rest.
const BATCH: i64 = 200;

/// Sweeps each second until told to stop.
pub async fn run(pool: PgPool, wake: Arc<Wake>, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(POLL)).await.is_some() {
        match answered("settle.sweep", sweep(&pool)).await {
            Ok(0) => {}
            Ok(_) => wake.settled.notify_one(),
            Err(error) => {
                metrics::STAGE_FAILURES.inc(["settle"]);
                tracing::warn!(error = %crate::chain::chain(&error), "commands that ran out of time were not ended");
            }
        }
    }
}

/// Ends what has run out of time; returns how many.
///
/// # Errors
/// When the database fails.
pub async fn sweep(pool: &PgPool) -> Result<u64, Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let lapsed = commands_lapsed(&mut conn, BATCH).await?;
    drop(conn);
    let mut ended = 0;
    for command in lapsed {
        if end(pool, &command).await? {
            told(command).tell();
            ended += 1;
        }
    }
    Ok(ended)
}

fn told(command: Lapsed) -> Ended {
    let (to, reason) = (command.becomes(), command.reason().to_owned());
    Ended {
        cluster: command.cluster,
        node: command.node_name,
        command: command.id,
        incident: command.incident,
        faults: command.fault_keys,
        from: command.state,
        to,
        refusal: "",
        reason,
    }
}

/// One command in its own transaction: the node's lock first, then the command if it still is as it was seen.
async fn end(pool: &PgPool, command: &Lapsed) -> Result<bool, Error> {
    let mut tx = pool.begin().await.label("sweep.begin")?;
    judgement_lock(&mut tx, &command.cluster, &command.node, "sweep").await?;
    let now = moment::now(&mut tx).await?;
    if !command_lapse(&mut tx, command, now).await? {
        return Ok(false);
    }
    judgements_ask(&mut tx, &[(command.cluster.clone(), command.node.clone())], "a command ran out of time").await?;
    let entry = Entry {
        kind: Kind::CommandLapsed,
        actor: "hub".to_owned(),
        subject: format!("command/{}", command.id),
        incident: Some(command.incident),
        body: json!({"from": command.state.as_str(), "to": command.becomes().as_str(), "reason": command.reason()}),
    };
    audit::append(&mut tx, chain_of(&command.cluster), &[entry], now).await?;
    tx.commit().await.label("sweep.commit")?;
    Ok(true)
}
