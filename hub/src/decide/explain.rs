//! `explain`: the same decision on what is known now, and nothing written.

use gpuheal_hub_core::{
    decide::{Explanation, explain},
    snapshot::Snapshot,
};
use gpuheal_proto::ids::{ClusterId, FaultKey, IncidentId, NodeUid};
use sqlx::PgPool;

use super::{Error, judge::Bench};
use crate::store::{
    Labelled as _,
    incident::{fault_place, incident_place},
    node::node_by_name,
};

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A node by its name.
    Node(ClusterId, String),
    /// An incident.
    Incident(IncidentId),
    /// A fault.
    Fault(FaultKey),
}

/// A decision as it would be taken now.
#[derive(Clone, Debug)]
pub struct Explained {
    /// What it looks at.
    pub snapshot: Snapshot,
    /// What it says.
    pub explanation: Explanation,
}

/// Decides about the subject's node as of now, in a transaction that cannot write.
///
/// # Errors
/// When the subject is not known, or the database fails.
pub async fn explain_subject(pool: &PgPool, subject: &Subject) -> Result<Explained, Error> {
    let mut tx = pool.begin().await.label("explain.begin")?;
    sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY").execute(&mut *tx).await.label("explain.read_only")?;
    let place: Option<(ClusterId, NodeUid)> = match subject {
        Subject::Node(cluster, name) => node_by_name(&mut tx, cluster, name).await?.map(|uid| (cluster.clone(), uid)),
        Subject::Incident(id) => incident_place(&mut tx, *id).await?,
        Subject::Fault(key) => fault_place(&mut tx, key).await?,
    };
    let unknown = || Error::Unknown {
        what: match subject {
            Subject::Node(cluster, name) => format!("node {name} of cluster {cluster}"),
            Subject::Incident(id) => format!("incident {id}"),
            Subject::Fault(key) => format!("fault {key}"),
        },
    };
    let (cluster, node) = place.ok_or_else(unknown)?;
    let mut bench = Bench::open(&mut tx, &cluster).await?;
    let snapshot = bench.snapshot(&mut tx, &node, None).await?.ok_or_else(unknown)?;
    let explanation = explain(&snapshot, bench.policy(), bench.now());
    Ok(Explained { snapshot, explanation })
}
