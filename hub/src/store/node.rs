//! The inventory: clusters and their GPU nodes as the cluster's leader last showed them.

use gpuheal_proto::{
    ids::{ClusterId, NodeName, NodeUid},
    link::v1,
    state_digest::{self, NodeWord},
    time::Timestamp,
};
use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::{PgConnection, types::Json};

use super::{Error, Labelled as _, moment::to_db, read, signed, touched};

/// Makes a cluster's row when there is none.
///
/// # Errors
/// When the database fails.
pub async fn cluster_ensure(conn: &mut PgConnection, cluster: &ClusterId) -> Result<(), Error> {
    sqlx::query("INSERT INTO clusters (cluster_id, name) VALUES ($1, $1) ON CONFLICT DO NOTHING")
        .bind(cluster.as_str())
        .execute(conn)
        .await
        .label("cluster.ensure")?;
    Ok(())
}

/// How far a cluster's state has been taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHead {
    /// Leadership under which it was reported.
    pub lease_transitions: u64,
    /// Number under that leadership.
    pub seq: u64,
    /// The epoch of the database was raised since all that the cluster has was last known here, or, when it never was, since
    /// the cluster was first seen: what it shows now is still to be taken over.
    pub adopting: bool,
    /// All that it has is known here, under the epoch of the database.
    pub taken_over: bool,
    /// That epoch.
    pub hub_term: u64,
}

/// Reads and locks how far a cluster's state has been taken.
///
/// # Errors
/// When the database fails.
pub async fn state_head_lock(conn: &mut PgConnection, cluster: &ClusterId) -> Result<StateHead, Error> {
    let (lease, seq, adopting, taken_over, hub_term): (i64, i64, bool, bool, i64) = sqlx::query_as(
        "SELECT c.state_lease_transitions, c.state_seq, COALESCE(c.taken_over_term, c.first_term) < h.hub_term, \
         COALESCE(c.taken_over_term = h.hub_term, false), h.hub_term FROM clusters c, hub_state h WHERE c.cluster_id = $1 FOR UPDATE OF c",
    )
    .bind(cluster.as_str())
    .fetch_one(conn)
    .await
    .label("cluster.state_head")?;
    let (lease_transitions, seq, hub_term) = (super::natural(lease), super::natural(seq), super::natural(hub_term));
    Ok(StateHead { lease_transitions, seq, adopting, taken_over, hub_term })
}

/// What a state message says of the cluster itself.
#[derive(Clone, Debug)]
pub struct StateMove {
    /// Leadership that reports.
    pub lease_transitions: u64,
    /// Its number.
    pub seq: u64,
    /// The moment that it describes, never later than its receipt.
    pub as_of: Timestamp,
    /// Up to which moment the hub knows all that the cluster's sources showed, where the spoke can say.
    pub told_upto: Option<Timestamp>,
    /// The epoch under which all that the hub asks for beside the snapshot was told and is committed; 0: none.
    pub all_told_term: u64,
    /// It completes a snapshot.
    pub whole: bool,
    /// The cluster owner's ConfigMap, when told.
    pub config: Option<Config>,
    /// Sources by name and node.
    pub sources: Map<String, Value>,
}

/// The cluster owner's ConfigMap.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its version.
    pub resource_version: String,
    /// Its text.
    pub yaml: String,
    /// What the spoke found wrong in it.
    pub errors: Vec<String>,
}

/// Moves a cluster's state forward; its row is locked by [`state_head_lock`]. Returns whether all that it has is known here now.
///
/// # Errors
/// When the row is not there.
pub async fn state_advance(conn: &mut PgConnection, cluster: &ClusterId, state: &StateMove, now: Timestamp) -> Result<bool, Error> {
    let config = state.config.as_ref();
    sqlx::query_scalar(
        "UPDATE clusters SET state_lease_transitions = $2, state_seq = $3, state_as_of = $4, state_received_at = $5, \
         snapshot_term = CASE WHEN $6 THEN h.hub_term ELSE snapshot_term END, sources = CASE WHEN $6 THEN $7 ELSE sources || $7 END, \
         config_resource_version = COALESCE($8, config_resource_version), config_yaml = COALESCE($9, config_yaml), \
         config_errors = COALESCE($10, config_errors), told_upto = GREATEST(CASE WHEN told_upto <= $5 THEN told_upto END, $11), \
         taken_over_term = CASE WHEN $12 = h.hub_term AND ($6 OR snapshot_term = h.hub_term) THEN h.hub_term ELSE taken_over_term END \
         FROM hub_state h WHERE cluster_id = $1 RETURNING COALESCE(taken_over_term = h.hub_term, false)",
    )
    .bind(cluster.as_str())
    .bind(signed(state.lease_transitions))
    .bind(signed(state.seq))
    .bind(to_db(state.as_of))
    .bind(to_db(now))
    .bind(state.whole)
    .bind(Json(&state.sources))
    .bind(config.map(|config| config.resource_version.as_str()))
    .bind(config.map(|config| config.yaml.as_str()))
    .bind(config.map(|config| Json(&config.errors)))
    .bind(state.told_upto.map(to_db))
    .bind(signed(state.all_told_term))
    .fetch_one(conn)
    .await
    .label("cluster.state_advance")
}

/// Counts a cluster's GPU nodes once some of them were written, so that no judgement has to: a fleet has many more judgements than
/// nodes that come and go.
///
/// # Errors
/// When the database fails.
pub async fn size_count(conn: &mut PgConnection, cluster: &ClusterId) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO cluster_sizes AS z (cluster_id, gpu_nodes) \
         SELECT $1, count(*) FROM nodes WHERE cluster_id = $1 AND gone_at IS NULL AND gpus_capacity > 0 \
         ON CONFLICT (cluster_id) DO UPDATE SET gpu_nodes = excluded.gpu_nodes WHERE z.gpu_nodes <> excluded.gpu_nodes",
    )
    .bind(cluster.as_str())
    .execute(conn)
    .await
    .label("cluster.size_count")?;
    Ok(())
}

/// A node as it is stored; field names are the columns'.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Identity.
    pub node_uid: NodeUid,
    /// For people.
    pub node_name: NodeName,
    /// Of its running system.
    pub boot_id: String,
    /// When Kubernetes made it, in ms.
    pub created_ms: i64,
    /// Those that policy may use.
    pub labels: Value,
    /// Slot, UUID and model of each.
    pub gpus: Value,
    /// What it should offer.
    pub gpus_capacity: u32,
    /// What it does offer.
    pub gpus_allocatable: u32,
    /// ready, not_ready or unknown.
    pub ready: &'static str,
    /// Cordoned.
    pub unschedulable: bool,
    /// By whom.
    pub unschedulable_by: String,
    /// Our label.
    pub labelled: bool,
    /// Our taint.
    pub tainted: bool,
    /// Our cordon.
    pub cordoned_by_us: bool,
    /// Incident in its annotations.
    pub mark_incident_id: String,
    /// Time in its annotations, in ms.
    pub last_process_ms: Option<i64>,
    /// Revision in its annotations.
    pub plan_revision: u64,
    /// Its owner keeps us off.
    pub opted_out: bool,
    /// Who else is at work on it.
    pub foreign_markers: Vec<String>,
    /// Its GPU pods.
    pub gpu_pods: Value,
}

/// Locks the judgement rows of these nodes, so that none is being judged while they change. Rows that are not there yet
/// cannot be judged.
///
/// # Errors
/// When the database fails.
pub async fn nodes_lock(conn: &mut PgConnection, cluster: &ClusterId, uids: &[&str]) -> Result<(), Error> {
    sqlx::query("SELECT FROM judgements WHERE cluster_id = $1 AND node_uid = ANY ($2) ORDER BY node_uid FOR UPDATE")
        .bind(cluster.as_str())
        .bind(uids)
        .execute(conn)
        .await
        .label("nodes.lock")?;
    Ok(())
}

/// Adds and updates nodes; returns the UIDs of those that are new or changed. A node that bears another's name takes it:
/// the other is gone.
///
/// # Errors
/// When the database fails.
pub async fn nodes_upsert(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    nodes: &[NodeRow],
    as_of: Timestamp,
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    let rows = Json(nodes);
    let mut changed: Vec<String> = sqlx::query_scalar(
        "UPDATE nodes n SET gone_at = $3, changed_at = $3 FROM jsonb_to_recordset($2) AS r (node_uid text, node_name text) \
         WHERE n.cluster_id = $1 AND n.gone_at IS NULL AND n.node_name = r.node_name AND n.node_uid <> r.node_uid RETURNING n.node_uid",
    )
    .bind(cluster.as_str())
    .bind(rows)
    .bind(to_db(now))
    .fetch_all(&mut *conn)
    .await
    .label("nodes.renamed")?;
    let upserted: Vec<String> = sqlx::query_scalar(
        "INSERT INTO nodes AS n (cluster_id, node_uid, node_name, boot_id, created_at, labels, gpus, gpus_capacity, gpus_allocatable, ready, \
         unschedulable, unschedulable_by, labelled, tainted, cordoned_by_us, mark_incident_id, last_process_at, plan_revision, opted_out, \
         foreign_markers, gpu_pods, state_as_of, changed_at, gone_at) \
         SELECT $1, r.node_uid, r.node_name, r.boot_id, to_timestamp(r.created_ms / 1000.0), r.labels, r.gpus, r.gpus_capacity, r.gpus_allocatable, \
         r.ready, r.unschedulable, r.unschedulable_by, r.labelled, r.tainted, r.cordoned_by_us, r.mark_incident_id, \
         to_timestamp(r.last_process_ms / 1000.0), r.plan_revision, r.opted_out, \
         ARRAY (SELECT jsonb_array_elements_text(r.foreign_markers)), r.gpu_pods, $3, $4, NULL::timestamptz \
         FROM jsonb_to_recordset($2) AS r (node_uid text, node_name text, boot_id text, created_ms bigint, labels jsonb, gpus jsonb, \
         gpus_capacity int, gpus_allocatable int, ready text, unschedulable boolean, unschedulable_by text, labelled boolean, tainted boolean, \
         cordoned_by_us boolean, mark_incident_id text, last_process_ms bigint, plan_revision bigint, opted_out boolean, foreign_markers jsonb, \
         gpu_pods jsonb) ORDER BY r.node_uid \
         ON CONFLICT (cluster_id, node_uid) DO UPDATE SET node_name = excluded.node_name, boot_id = excluded.boot_id, labels = excluded.labels, \
         gpus = excluded.gpus, gpus_capacity = excluded.gpus_capacity, gpus_allocatable = excluded.gpus_allocatable, ready = excluded.ready, \
         unschedulable = excluded.unschedulable, unschedulable_by = excluded.unschedulable_by, labelled = excluded.labelled, \
         tainted = excluded.tainted, cordoned_by_us = excluded.cordoned_by_us, mark_incident_id = excluded.mark_incident_id, \
         last_process_at = excluded.last_process_at, plan_revision = excluded.plan_revision, opted_out = excluded.opted_out, \
         foreign_markers = excluded.foreign_markers, gpu_pods = excluded.gpu_pods, state_as_of = excluded.state_as_of, \
         changed_at = excluded.changed_at, gone_at = NULL \
         WHERE (n.node_name, n.boot_id, n.labels, n.gpus, n.gpus_capacity, n.gpus_allocatable, n.ready, n.unschedulable, n.unschedulable_by, \
         n.labelled, n.tainted, n.cordoned_by_us, n.mark_incident_id, n.last_process_at, n.plan_revision, n.opted_out, n.foreign_markers, \
         n.gpu_pods, n.gone_at) IS DISTINCT FROM (excluded.node_name, excluded.boot_id, excluded.labels, excluded.gpus, excluded.gpus_capacity, \
         excluded.gpus_allocatable, excluded.ready, excluded.unschedulable, excluded.unschedulable_by, excluded.labelled, excluded.tainted, \
         excluded.cordoned_by_us, excluded.mark_incident_id, excluded.last_process_at, excluded.plan_revision, excluded.opted_out, \
         excluded.foreign_markers, excluded.gpu_pods, NULL::timestamptz) RETURNING node_uid",
    )
    .bind(cluster.as_str())
    .bind(rows)
    .bind(to_db(as_of))
    .bind(to_db(now))
    .fetch_all(conn)
    .await
    .label("nodes.upsert")?;
    changed.extend(upserted);
    Ok(changed)
}

/// The digest of the nodes that are held for a cluster's, which its leader makes of those that it told.
///
/// # Errors
/// When the database fails.
pub async fn nodes_digest(conn: &mut PgConnection, cluster: &ClusterId) -> Result<v1::StateDigest, Error> {
    #[derive(sqlx::FromRow)]
    struct Held {
        node_uid: String,
        plan_revision: i64,
        ready: String,
        unschedulable: bool,
        labelled: bool,
        tainted: bool,
        cordoned_by_us: bool,
        opted_out: bool,
    }
    let held: Vec<Held> = sqlx::query_as(
        "SELECT node_uid, plan_revision, ready, unschedulable, labelled, tainted, cordoned_by_us, opted_out FROM nodes \
         WHERE cluster_id = $1 AND gone_at IS NULL",
    )
    .bind(cluster.as_str())
    .fetch_all(conn)
    .await
    .label("nodes.digest")?;
    Ok(state_digest::digest(held.iter().map(|node| {
        let word = NodeWord {
            uid: &node.node_uid,
            plan_revision: super::natural(node.plan_revision),
            ready: match node.ready.as_str() {
                "ready" => v1::Readiness::Ready,
                "not_ready" => v1::Readiness::NotReady,
                _ => v1::Readiness::Unknown,
            },
            unschedulable: node.unschedulable,
            labelled: node.labelled,
            tainted: node.tainted,
            cordoned_by_us: node.cordoned_by_us,
            opted_out: node.opted_out,
        };
        word.share()
    })))
}

/// UIDs of nodes that are there and not among `present`: what a whole snapshot says is gone.
///
/// # Errors
/// When the database fails.
pub async fn nodes_absent(conn: &mut PgConnection, cluster: &ClusterId, present: &[&str]) -> Result<Vec<String>, Error> {
    sqlx::query_scalar(
        "SELECT node_uid FROM nodes WHERE cluster_id = $1 AND gone_at IS NULL AND node_uid <> ALL ($2) ORDER BY node_uid",
    )
    .bind(cluster.as_str())
    .bind(present)
    .fetch_all(conn)
    .await
    .label("nodes.absent")
}

/// Marks nodes as gone; returns those that were not before.
///
/// # Errors
/// When the database fails.
pub async fn nodes_gone(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    uids: &[String],
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    sqlx::query_scalar(
        "UPDATE nodes SET gone_at = $3, changed_at = $3 WHERE cluster_id = $1 AND gone_at IS NULL AND node_uid = ANY ($2) RETURNING node_uid",
    )
    .bind(cluster.as_str())
    .bind(uids)
    .bind(to_db(now))
    .fetch_all(conn)
    .await
    .label("nodes.gone")
}

/// Of these nodes, those about which there is anything to judge: an open incident, a fault, a mark of ours, a place in
/// the budgets.
///
/// # Errors
/// When the database fails.
pub async fn nodes_of_concern(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    uids: Option<&[String]>,
) -> Result<Vec<(ClusterId, NodeUid)>, Error> {
    let uids: Vec<String> = sqlx::query_scalar(
        "SELECT n.node_uid FROM nodes n WHERE n.cluster_id = $1 AND ($2::text[] IS NULL OR n.node_uid = ANY ($2)) AND (n.labelled OR n.tainted OR n.cordoned_by_us \
         OR EXISTS (SELECT FROM incidents i WHERE i.cluster_id = $1 AND i.node_uid = n.node_uid AND i.closed_at IS NULL) \
         OR EXISTS (SELECT FROM faults f WHERE f.cluster_id = $1 AND f.node_uid = n.node_uid AND f.settled_at IS NULL) \
         OR EXISTS (SELECT FROM holds h WHERE h.cluster_id = $1 AND h.node_uid = n.node_uid)) ORDER BY 1",
    )
    .bind(cluster.as_str())
    .bind(uids)
    .fetch_all(conn)
    .await
    .label("nodes.of_concern")?;
    uids.iter().map(|uid| Ok((cluster.clone(), read("nodes.node_uid", uid, |text| NodeUid::parse(text).ok())?))).collect()
}

/// The node that bears a name in a cluster now.
///
/// # Errors
/// When the database fails.
pub async fn node_by_name(conn: &mut PgConnection, cluster: &ClusterId, name: &str) -> Result<Option<NodeUid>, Error> {
    let uid: Option<String> =
        sqlx::query_scalar("SELECT node_uid FROM nodes WHERE cluster_id = $1 AND node_name = $2 AND gone_at IS NULL")
            .bind(cluster.as_str())
            .bind(name)
            .fetch_optional(conn)
            .await
            .label("node.by_name")?;
    uid.map(|uid| read("nodes.node_uid", &uid, |text| NodeUid::parse(text).ok())).transpose()
}

/// Keeps the highest plan revision given out for a node.
///
/// # Errors
/// When the node is not there, or has a higher one already.
pub async fn plan_rev_issue(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid, plan_rev: u64) -> Result<(), Error> {
    let result =
        sqlx::query("UPDATE nodes SET plan_rev_issued = $3 WHERE cluster_id = $1 AND node_uid = $2 AND plan_rev_issued < $3")
            .bind(cluster.as_str())
            .bind(node.as_str())
            .bind(signed(plan_rev))
            .execute(conn)
            .await
            .label("node.plan_rev_issue")?;
    touched("node.plan_rev_issue", 1, &result)
}

/// Takes over plan revisions that the cluster shows and this database never gave out; returns how many nodes show one.
/// They are the work of a later state of this database, which a restore or a failover lost.
///
/// # Errors
/// When the database fails.
pub async fn plan_revs_adopt(conn: &mut PgConnection, cluster: &ClusterId) -> Result<u64, Error> {
    let result =
        sqlx::query("UPDATE nodes SET plan_rev_issued = plan_revision WHERE cluster_id = $1 AND plan_revision > plan_rev_issued")
            .bind(cluster.as_str())
            .execute(conn)
            .await
            .label("nodes.plan_revs_adopt")?;
    Ok(result.rows_affected())
}
