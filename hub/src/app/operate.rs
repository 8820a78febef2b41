//! What an operator does past the fleet API, on the database itself: it works while no hub answers.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use sqlx::PgPool;

use crate::{
    args::{ClearQuarantine, Decommission, Revoke},
    identity::denied::Serial,
    store::{
        decommission::{self, Outcome},
        fleet::cluster_known,
        pool, quarantine, revocation,
    },
    wake,
};

/// Refuses certificates of a cluster and ends the streams that they opened.
pub(super) async fn revoke(args: &Revoke) -> anyhow::Result<()> {
    let serial = |text: &String| Serial::parse(text).with_context(|| format!("{text:?} is no serial number in hex"));
    let serials = args.serial.iter().map(serial).collect::<anyhow::Result<BTreeSet<_>>>()?;
    let what = if serials.is_empty() { revocation::Revoke::AllUntilNow } else { revocation::Revoke::Serials(serials) };
    let pool = pool(&args.who.database.url_past_poolers()?).await?;
    let ended = revocation::revoke(&pool, &args.who.cluster, &what, &args.who.actor(), &args.who.reason).await?;
    ring(&pool).await;
    if !cluster_known(&mut *pool.acquire().await?, &args.who.cluster).await? {
        tracing::warn!(cluster.id = %args.who.cluster, "no cluster of this id has ever attached: is it spelled right? It is refused when it comes");
    }
    tracing::info!(cluster.id = %args.who.cluster, sessions = ended, "revoked: hubs cut what is open within a second");
    Ok(())
}

/// Lets a cluster in again.
pub(super) async fn clear_quarantine(args: &ClearQuarantine) -> anyhow::Result<()> {
    let pool = pool(&args.who.database.url_past_poolers()?).await?;
    if !quarantine::quarantine_clear(&pool, &args.who.cluster, &args.who.actor(), &args.who.reason).await? {
        bail!("cluster {} is not quarantined; one that is decommissioned stays out for ever", args.who.cluster);
    }
    ring(&pool).await;
    tracing::info!(cluster.id = %args.who.cluster, "cleared: its spokes are let in when they come again");
    Ok(())
}

/// Takes a cluster that is gone for good out of the fleet.
pub(super) async fn decommission(args: &Decommission) -> anyhow::Result<()> {
    let (pool, cluster) = (pool(&args.who.database.url_past_poolers()?).await?, &args.who.cluster);
    let outcome = decommission::decommission(&pool, cluster, &args.who.actor(), &args.who.reason, args.force).await?;
    let Outcome::Done { sessions, commands, nodes } = outcome else {
        match outcome {
            Outcome::Unknown => bail!("no cluster {cluster} has ever attached"),
            Outcome::Before => bail!("cluster {cluster} is decommissioned already"),
            _ => bail!("spokes of cluster {cluster} are attached: end them first, or say --force"),
        }
    };
    ring(&pool).await;
    tracing::info!(cluster.id = %cluster, sessions, commands, nodes, "decommissioned: hubs close its incidents within a second or two");
    Ok(())
}

async fn pool(url: &str) -> anyhow::Result<PgPool> {
    let pool = pool::connect(url, 1).await?;
    pool::schema_check(&pool).await?;
    Ok(pool)
}

/// Haste alone: hubs look twice a second.
async fn ring(pool: &PgPool) {
    let rung = async { wake::ring_guarded(&mut *pool.acquire().await?).await };
    if let Err(error) = rung.await {
        tracing::debug!(%error, "hubs were not woken");
    }
}
