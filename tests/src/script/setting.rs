//! Bringing a node into the state that a scene starts from: work on it and nowhere else, a GPU that breaks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::WITHIN;
use crate::{cluster::Cluster, wait};

/// Creates workloads so that all their pods land on one node: the other GPU nodes are cordoned meanwhile.
pub(crate) async fn placed(cluster: &Cluster, node: &str, objects: Vec<Value>, apps: &[(&str, usize)]) -> Result<()> {
    let others: Vec<String> = cluster.gpu_nodes().into_iter().filter(|other| other != node).collect();
    let mut cordoned = vec![];
    for other in others {
        let already = cluster.node(&other).await?.spec.and_then(|spec| spec.unschedulable).unwrap_or(false);
        if !already {
            cluster.set_cordon(&other, true).await?;
            cordoned.push(other);
        }
    }
    for object in objects {
        cluster.create(object).await?;
    }
    for (app, count) in apps {
        cluster.app_ready(app, *count).await?;
    }
    for other in cordoned {
        cluster.set_cordon(&other, false).await?;
    }
    Ok(())
}

/// Xid 79 as it comes: the exporter's gauge changes, and the device plugin takes the GPU out of allocatable. Gives the
/// moment when the exporter first showed it.
pub(crate) async fn gpu_falls_off_the_bus(cluster: &Cluster, node: &str, gpu: usize) -> Result<Instant> {
    let exporter = cluster.exporter(node);
    let gpus = u32::try_from(exporter.gpus().len())?;
    cluster.set_allocatable(node, gpus - 1).await?;
    let version = exporter.change(|gpus| gpus[gpu].xid = 79);
    first_served(cluster, node, version).await
}

/// When a version of a node's page was first served.
pub(crate) async fn first_served(cluster: &Cluster, node: &str, version: u64) -> Result<Instant> {
    let exporter = cluster.exporter(node);
    wait::until(&format!("the exporter of {node} to be scraped"), WITHIN, || async { Ok(exporter.visible_at(version)) })
        .await
        .context("no spoke scrapes this exporter")
}

/// When the last of the pods that were told to leave a node after `since` was gone; nothing when none was told to.
pub(crate) async fn last_gone(cluster: &Cluster, node: &str, since: Instant) -> Result<Option<Instant>> {
    wait::until(&format!("the pods that were told to leave {node} to be gone"), WITHIN, || async {
        let pods = cluster.observer.pods_of(node);
        let leaving = pods.values().filter(|pod| pod.ending_at.is_some_and(|at| at >= since));
        let gone: Option<Vec<Instant>> = leaving.map(|pod| pod.gone_at).collect();
        Ok(gone.map(|gone| gone.into_iter().max()))
    })
    .await
}

/// The fewest ready pods of an app that are seen until `done` ends.
pub(crate) async fn fewest_ready<T>(cluster: &Cluster, app: &str, done: impl Future<Output = Result<T>>) -> Result<(T, usize)> {
    let mut fewest = usize::MAX;
    let mut done = std::pin::pin!(done);
    loop {
        tokio::select! {
            result = &mut done => return Ok((result?, fewest)),
            ready = cluster.ready_count(app) => {
                fewest = fewest.min(ready?);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
