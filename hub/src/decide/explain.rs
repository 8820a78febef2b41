//! `explain`: the same decision on what is known now, with all that was decided before; of a closed incident, what was
//! decided then. Nothing is written.

mod wire;

use gpuheal_hub_core::{
    decide::{Decision, decide},
    snapshot::Snapshot,
};
use gpuheal_proto::ids::{ClusterId, FaultKey, IncidentId, NodeUid};
use sqlx::{PgConnection, PgPool};

use super::{Error, judge::Bench};
use crate::store::{
    Labelled as _, fleet,
    incident::{fault_place, incident_place},
    node::node_by_name,
};
pub use wire::explain;

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

/// An explanation.
#[derive(Clone, Debug)]
pub enum Explained {
    /// The decision as it would be taken now.
    Now(Box<Now>),
    /// What was decided about an incident that is closed.
    Closed(Box<Closed>),
}

/// A decision as it would be taken now.
#[derive(Clone, Debug)]
pub struct Now {
    /// What it looks at.
    pub snapshot: Snapshot,
    /// What it says.
    pub decision: Decision,
    /// The node's last incident: the open one, when there is one.
    pub incident: Option<fleet::Incident>,
    /// All that was decided about that one, in order.
    pub history: Vec<fleet::Decision>,
}

/// A closed incident as it is stored.
#[derive(Clone, Debug)]
pub struct Closed {
    /// The incident.
    pub incident: fleet::Incident,
    /// The faults that it held.
    pub faults: Vec<fleet::Fault>,
    /// What was decided, in order.
    pub history: Vec<fleet::Decision>,
    /// What was commanded, in order.
    pub commands: Vec<fleet::Command>,
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
    if let Subject::Incident(id) = subject
        && let Some(incident) = fleet::incident(&mut tx, &cluster, *id).await?.filter(|incident| incident.closed_at.is_some())
    {
        return Ok(Explained::Closed(Box::new(closed(&mut tx, incident).await?)));
    }
    let mut bench = Bench::open(&mut tx, &cluster).await?;
    let snapshot = bench.snapshot(&mut tx, &node, None).await?.ok_or_else(unknown)?;
    let decision = decide(&snapshot, bench.policy(), bench.now());
    let incident = fleet::incident_last(&mut tx, &cluster, &node).await?;
    let history = fleet::decisions(&mut tx, &fleet::Keys::of(incident.as_slice())).await?;
    Ok(Explained::Now(Box::new(Now { snapshot, decision, incident, history })))
}

async fn closed(conn: &mut PgConnection, incident: fleet::Incident) -> Result<Closed, Error> {
    let keys = fleet::Keys::of(std::slice::from_ref(&incident));
    Ok(Closed {
        faults: fleet::faults(conn, &keys).await?,
        history: fleet::decisions(conn, &keys).await?,
        commands: fleet::commands_of(conn, &keys).await?,
        incident,
    })
}
