//! What people and tools ask for, read page by page in an order that does not move under the reader's feet.

use chrono::{DateTime, Utc};
use gpuheal_proto::ids::{ClusterId, IncidentId, NodeUid};
use sqlx::{FromRow, PgConnection, types::Json};
use uuid::Uuid;

use super::{Error, Labelled as _};
use crate::link::skew::CLOCK_SKEW_MAX;

/// A cluster and what stands in it.
#[derive(Clone, Debug, FromRow)]
pub struct Cluster {
    /// Its id.
    pub cluster_id: String,
    /// For people.
    pub name: String,
    /// A session that proves leadership is open.
    pub connected: bool,
    /// Open sessions.
    pub replicas: i64,
    /// The replica that leads; empty when none does.
    pub leader: String,
    /// Nodes with GPUs.
    pub gpu_nodes: i64,
    /// Nodes that count as out.
    pub nodes_out: i64,
    /// How many may be.
    pub allowed: i64,
    /// Incidents that are not closed.
    pub open_incidents: i64,
    /// The moment that the last state describes.
    pub state_as_of: Option<DateTime<Utc>>,
    /// Of the spoke that attached last.
    pub spoke_version: String,
    /// Detection settings in force there.
    pub settings_version: i64,
    /// What is wrong with the cluster's own settings, as a JSON list of texts.
    pub config_errors: serde_json::Value,
    /// The cluster owner's own settings.
    pub config_yaml: String,
    /// Why nobody attaches under this identity; none: it may.
    pub quarantine: Option<String>,
    /// Replicas that are attached and whose wall clocks are far off.
    pub apart: Vec<String>,
    /// How far each of them is ahead.
    pub apart_ms: Vec<i64>,
    /// The epoch of the database under which it is still to be taken over.
    pub to_take_over: Option<i64>,
    /// What its spoke watches.
    pub sources: i64,
    /// How many of these are fresh.
    pub sources_fresh: i64,
}

/// Clusters after `after`, by id.
///
/// # Errors
/// When the database fails.
pub async fn clusters(conn: &mut PgConnection, after: &str, most: i64) -> Result<Vec<Cluster>, Error> {
    // Sessions whose hub died are no longer written; a minute is six missed writes.
    sqlx::query_as(
        "SELECT c.cluster_id, c.name, COALESCE(s.leads, false) AS connected, COALESCE(s.replicas, 0) AS replicas,
                COALESCE(s.leader, '') AS leader,
                (SELECT count(*) FROM nodes n WHERE n.cluster_id = c.cluster_id AND n.gone_at IS NULL) AS gpu_nodes,
                COALESCE(b.out, 0)::bigint AS nodes_out, COALESCE(b.allowed, 0)::bigint AS allowed,
                (SELECT count(*) FROM incidents i WHERE i.cluster_id = c.cluster_id AND i.closed_at IS NULL) AS open_incidents,
                c.state_as_of, c.spoke_version, c.settings_version, c.config_errors, c.config_yaml, q.cause AS quarantine,
                s.apart, s.apart_ms, f.sources, f.sources_fresh,
                CASE WHEN c.taken_over_term = hub_term() OR q.cause = 'decommissioned' THEN NULL ELSE hub_term() END AS to_take_over
         FROM (SELECT * FROM clusters WHERE cluster_id > $1 ORDER BY cluster_id LIMIT $2) c
         LEFT JOIN budgets b ON b.cluster_id = c.cluster_id AND b.kind = 'cluster'
         LEFT JOIN quarantines q ON q.cluster_id = c.cluster_id
         LEFT JOIN LATERAL (
             SELECT count(*) AS replicas, bool_or(lease_transitions IS NOT NULL) AS leads,
                    (array_agg(replica_id ORDER BY lease_transitions DESC) FILTER (WHERE lease_transitions IS NOT NULL))[1] AS leader,
                    COALESCE(array_agg(replica_id ORDER BY replica_id) FILTER (WHERE abs(clock_skew_ms) > $3), '{}') AS apart,
                    COALESCE(array_agg(clock_skew_ms ORDER BY replica_id) FILTER (WHERE abs(clock_skew_ms) > $3), '{}') AS apart_ms
             FROM sessions WHERE cluster_id = c.cluster_id AND detached_at IS NULL AND seen_at > clock_timestamp() - interval '1 minute') s ON true
         CROSS JOIN LATERAL (
             SELECT count(*) AS sources, count(*) FILTER (WHERE value->>'state' = 'fresh') AS sources_fresh FROM jsonb_each(c.sources)) f
         ORDER BY c.cluster_id",
    )
    .bind(after)
    .bind(most)
    .bind(i64::try_from(CLOCK_SKEW_MAX.as_millis()).unwrap_or(i64::MAX))
    .fetch_all(conn)
    .await
    .label("fleet.clusters")
}

/// Why the whole fleet is stopped, if it is.
///
/// # Errors
/// When the database fails.
pub async fn stopped_for(conn: &mut PgConnection) -> Result<Option<String>, Error> {
    sqlx::query_scalar("SELECT stop_reason FROM hub_state").fetch_one(conn).await.label("fleet.stopped_for")
}

/// The own settings of these clusters, where they have any.
///
/// # Errors
/// When the database fails.
pub async fn own_settings(conn: &mut PgConnection, clusters: &[&str]) -> Result<Vec<(String, String)>, Error> {
    sqlx::query_as("SELECT cluster_id, config_yaml FROM clusters WHERE cluster_id = ANY ($1) AND config_yaml <> '' ORDER BY 1")
        .bind(clusters)
        .fetch_all(conn)
        .await
        .label("fleet.own_settings")
}

/// Whether a cluster has ever attached.
///
/// # Errors
/// When the database fails.
pub async fn cluster_known(conn: &mut PgConnection, cluster: &ClusterId) -> Result<bool, Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM clusters WHERE cluster_id = $1)")
        .bind(cluster.as_str())
        .fetch_one(conn)
        .await
        .label("fleet.cluster_known")
}

/// Something that a cluster's spoke watches.
#[derive(Clone, Debug, FromRow)]
pub struct Source {
    /// Its cluster.
    pub cluster_id: String,
    /// Its name and its node's.
    pub key: String,
    /// fresh, stale or broken.
    pub state: String,
    /// When it was last seen, by the spoke's clock; 0: never.
    pub last_seen_unix_ms: i64,
    /// Why it is not fresh.
    pub reason: String,
}

/// Sources after (`cluster`, `key`), by cluster and key; of one cluster when `only` names it.
///
/// # Errors
/// When the database fails.
pub async fn sources(
    conn: &mut PgConnection,
    only: Option<&ClusterId>,
    stale_only: bool,
    after: (&str, &str),
    most: i64,
) -> Result<Vec<Source>, Error> {
    sqlx::query_as(
        "SELECT c.cluster_id, s.key, COALESCE(s.value->>'state', '') AS state,
                COALESCE((s.value->>'last_seen_unix_ms')::bigint, 0) AS last_seen_unix_ms, COALESCE(s.value->>'reason', '') AS reason
         FROM clusters c CROSS JOIN LATERAL jsonb_each(c.sources) s
         WHERE ($1::text IS NULL OR c.cluster_id = $1) AND (NOT $2 OR s.value->>'state' IS DISTINCT FROM 'fresh')
           AND (c.cluster_id, s.key) > ($3, $4)
         ORDER BY c.cluster_id, s.key LIMIT $5",
    )
    .bind(only.map(ClusterId::as_str))
    .bind(stale_only)
    .bind(after.0)
    .bind(after.1)
    .bind(most)
    .fetch_all(conn)
    .await
    .label("fleet.sources")
}

/// A node and what is done about it.
#[derive(Clone, Debug, FromRow)]
pub struct Node {
    /// Its cluster.
    pub cluster_id: String,
    /// Its name.
    pub node_name: String,
    /// Its UID.
    pub node_uid: String,
    /// GPUs that it should offer.
    pub gpus_capacity: i32,
    /// GPUs that it does.
    pub gpus_allocatable: i32,
    /// Model of its first GPU.
    pub model: Option<String>,
    /// Ready, by its condition.
    pub ready: bool,
    /// Our label or taint is on it.
    pub marked: bool,
    /// Cordoned, by whomever.
    pub unschedulable: bool,
    /// Its owner keeps us off.
    pub opted_out: bool,
    /// Its open incident.
    pub incident_id: Option<Uuid>,
    /// Where that stands.
    pub incident_state: Option<String>,
    /// Until when it is left alone.
    pub cooldown_until: Option<DateTime<Utc>>,
    /// Highest plan that wrote to it.
    pub plan_revision: i64,
}

/// Nodes after (`cluster`, `name`), by cluster and name; of one cluster when `only` names it.
///
/// # Errors
/// When the database fails.
pub async fn nodes(
    conn: &mut PgConnection,
    only: Option<&ClusterId>,
    out_only: bool,
    after: (&str, &str),
    most: i64,
) -> Result<Vec<Node>, Error> {
    sqlx::query_as(
        "SELECT n.cluster_id, n.node_name, n.node_uid, n.gpus_capacity, n.gpus_allocatable, n.gpus->0->>'model' AS model,
                n.ready = 'ready' AS ready, n.labelled OR n.tainted AS marked, n.unschedulable, n.opted_out,
                i.incident_id, i.state AS incident_state, d.until_at AS cooldown_until, n.plan_revision
         FROM nodes n
         LEFT JOIN incidents i ON i.cluster_id = n.cluster_id AND i.node_uid = n.node_uid AND i.closed_at IS NULL
         LEFT JOIN cooldowns d ON d.cluster_id = n.cluster_id AND d.node_uid = n.node_uid AND d.state <> 'void'
         WHERE n.gone_at IS NULL AND ($1::text IS NULL OR n.cluster_id = $1) AND (n.cluster_id, n.node_name) > ($2, $3)
           AND (NOT $4 OR n.labelled OR n.tainted
                OR EXISTS (SELECT 1 FROM holds h WHERE h.cluster_id = n.cluster_id AND h.node_uid = n.node_uid))
         ORDER BY n.cluster_id, n.node_name LIMIT $5",
    )
    .bind(only.map(ClusterId::as_str))
    .bind(after.0)
    .bind(after.1)
    .bind(out_only)
    .bind(most)
    .fetch_all(conn)
    .await
    .label("fleet.nodes")
}

/// Which incidents or commands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// Of one cluster.
    pub cluster: Option<&'a ClusterId>,
    /// Of one node, by name.
    pub node: Option<&'a str>,
    /// Not finished.
    pub open_only: bool,
}

/// Where the page before ended: newest first, then by id.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Its moment.
    pub at: DateTime<Utc>,
    /// Its id.
    pub id: Uuid,
}

/// An incident.
#[derive(Clone, Debug, FromRow)]
pub struct Incident {
    /// Its cluster.
    pub cluster_id: String,
    /// Its id.
    pub incident_id: Uuid,
    /// The node.
    pub node_uid: String,
    /// The node's name.
    pub node_name: String,
    /// How bad.
    pub level: String,
    /// A person asked for it.
    pub manual: bool,
    /// Where it stands.
    pub state: String,
    /// Why.
    pub reason: String,
    /// Policy of its last decision.
    pub policy_revision: i64,
    /// When it opened.
    pub opened_at: DateTime<Utc>,
    /// When it is judged again.
    pub recheck_at: Option<DateTime<Utc>>,
    /// When it closed.
    pub closed_at: Option<DateTime<Utc>>,
}

/// Incidents, newest first.
///
/// # Errors
/// When the database fails.
pub async fn incidents(
    conn: &mut PgConnection,
    filter: Filter<'_>,
    before: Option<Before>,
    most: i64,
) -> Result<Vec<Incident>, Error> {
    sqlx::query_as(
        "SELECT cluster_id, incident_id, node_uid, node_name, level, manual, state, reason, policy_revision, opened_at, recheck_at, closed_at
         FROM incidents
         WHERE ($1::text IS NULL OR cluster_id = $1) AND ($2::text IS NULL OR node_name = $2) AND (NOT $3 OR closed_at IS NULL)
           AND ($4::timestamptz IS NULL OR (opened_at, incident_id) < ($4, $5::uuid))
         ORDER BY opened_at DESC, incident_id DESC LIMIT $6",
    )
    .bind(filter.cluster.map(ClusterId::as_str))
    .bind(filter.node)
    .bind(filter.open_only)
    .bind(before.map(|before| before.at))
    .bind(before.map(|before| before.id))
    .bind(most)
    .fetch_all(conn)
    .await
    .label("fleet.incidents")
}

/// One incident.
///
/// # Errors
/// When the database fails.
pub async fn incident(conn: &mut PgConnection, cluster: &ClusterId, id: IncidentId) -> Result<Option<Incident>, Error> {
    sqlx::query_as(
        "SELECT cluster_id, incident_id, node_uid, node_name, level, manual, state, reason, policy_revision, opened_at, recheck_at, closed_at
         FROM incidents WHERE cluster_id = $1 AND incident_id = $2",
    )
    .bind(cluster.as_str())
    .bind(id.uuid())
    .fetch_optional(conn)
    .await
    .label("fleet.incident")
}

/// The incident that a node had last, open or closed.
///
/// # Errors
/// When the database fails.
pub async fn incident_last(conn: &mut PgConnection, cluster: &ClusterId, node: &NodeUid) -> Result<Option<Incident>, Error> {
    sqlx::query_as(
        "SELECT cluster_id, incident_id, node_uid, node_name, level, manual, state, reason, policy_revision, opened_at, recheck_at, closed_at
         FROM incidents WHERE cluster_id = $1 AND node_uid = $2 ORDER BY opened_at DESC, incident_id DESC LIMIT 1",
    )
    .bind(cluster.as_str())
    .bind(node.as_str())
    .fetch_optional(conn)
    .await
    .label("fleet.incident_last")
}

/// Incidents by cluster and id.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    clusters: Vec<String>,
    ids: Vec<Uuid>,
}

impl Keys {
    /// Of these.
    #[must_use]
    pub fn of(incidents: &[Incident]) -> Self {
        incidents.iter().map(|incident| (incident.cluster_id.clone(), incident.incident_id)).collect()
    }
}

impl FromIterator<(String, Uuid)> for Keys {
    fn from_iter<I: IntoIterator<Item = (String, Uuid)>>(keys: I) -> Self {
        let (clusters, ids) = keys.into_iter().unzip();
        Self { clusters, ids }
    }
}

/// A fault that an incident holds.
#[derive(Clone, Debug, FromRow)]
pub struct Fault {
    /// The incident.
    pub incident_id: Uuid,
    /// Its key.
    pub fault_key: Vec<u8>,
    /// Kind.
    pub class: String,
    /// Code within it.
    pub code: String,
    /// Which slot.
    pub gpu_slot: String,
    /// Which GPU.
    pub gpu_uuid: String,
    /// Which episode.
    pub episode: i32,
    /// How bad.
    pub level: String,
    /// Kinds of witnesses.
    pub witnesses: Vec<String>,
    /// edge or standing.
    pub onset: String,
    /// First receipt.
    pub first_at: DateTime<Utc>,
    /// Last receipt.
    pub last_at: DateTime<Utc>,
    /// How often.
    pub count: i64,
    /// Who reported last.
    pub source: String,
    /// What the last decision made of it.
    pub verdict: String,
}

/// The faults of incidents.
///
/// # Errors
/// When the database fails.
pub async fn faults(conn: &mut PgConnection, incidents: &Keys) -> Result<Vec<Fault>, Error> {
    sqlx::query_as(
        "SELECT m.incident_id, f.fault_key, f.class, f.code, f.gpu_slot, f.gpu_uuid, f.episode, m.level,
                ARRAY(SELECT jsonb_object_keys(f.witnesses) ORDER BY 1) AS witnesses, f.onset, f.first_at, f.last_at, f.count, f.source, m.verdict
         FROM incident_faults m JOIN faults f USING (cluster_id, fault_key, episode)
         WHERE (m.cluster_id, m.incident_id) IN (SELECT * FROM unnest($1::text[], $2::uuid[]))
         ORDER BY m.incident_id, f.first_at, f.fault_key",
    )
    .bind(&incidents.clusters)
    .bind(&incidents.ids)
    .fetch_all(conn)
    .await
    .label("fleet.faults")
}

/// A decision about an incident.
#[derive(Clone, Debug, FromRow)]
pub struct Decision {
    /// The incident.
    pub incident_id: Uuid,
    /// Its number.
    pub decision_no: i32,
    /// In a word.
    pub outcome: String,
    /// Why.
    pub reason: String,
    /// Every reason, in the order in which it was met.
    pub reasons: Json<Vec<String>>,
    /// Under which policy.
    pub policy_revision: i64,
    /// When.
    pub decided_at: DateTime<Utc>,
}

/// The decisions about incidents.
///
/// # Errors
/// When the database fails.
pub async fn decisions(conn: &mut PgConnection, incidents: &Keys) -> Result<Vec<Decision>, Error> {
    sqlx::query_as(
        "SELECT incident_id, decision_no, outcome, reason, reasons, policy_revision, decided_at FROM decisions
         WHERE (cluster_id, incident_id) IN (SELECT * FROM unnest($1::text[], $2::uuid[])) ORDER BY incident_id, decision_no",
    )
    .bind(&incidents.clusters)
    .bind(&incidents.ids)
    .fetch_all(conn)
    .await
    .label("fleet.decisions")
}

/// A command and how it went.
#[derive(Clone, Debug, FromRow)]
pub struct Command {
    /// Its cluster.
    pub cluster_id: String,
    /// Its id.
    pub command_id: Uuid,
    /// The node's name.
    pub node_name: String,
    /// Its incident.
    pub incident_id: Uuid,
    /// What it is for.
    pub action: String,
    /// Where it stands.
    pub state: String,
    /// Why it was issued.
    pub reason: String,
    /// Why it was refused, in a word.
    pub refusal: Option<String>,
    /// Why it ended as it did.
    pub result_reason: String,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it was sent.
    pub sent_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// Number within the node.
    pub plan_rev: i64,
    /// Under which policy.
    pub policy_revision: i64,
    /// What was asked, as JSON.
    pub steps_asked: serde_json::Value,
    /// How each step went, as JSON.
    pub steps: serde_json::Value,
}

/// Commands, newest first.
///
/// # Errors
/// When the database fails.
pub async fn commands(
    conn: &mut PgConnection,
    filter: Filter<'_>,
    before: Option<Before>,
    most: i64,
) -> Result<Vec<Command>, Error> {
    sqlx::query_as(
        "SELECT cluster_id, command_id, node_name, incident_id, action, state, reason, refusal, result_reason, created_at, sent_at,
                finished_at, plan_rev, policy_revision, steps_asked, steps
         FROM commands
         WHERE ($1::text IS NULL OR cluster_id = $1) AND ($2::text IS NULL OR node_name = $2)
           AND (NOT $3 OR state IN ('PROPOSED', 'AWAITING_APPROVAL', 'SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED', 'UNKNOWN'))
           AND ($4::timestamptz IS NULL OR (created_at, command_id) < ($4, $5::uuid))
         ORDER BY created_at DESC, command_id DESC LIMIT $6",
    )
    .bind(filter.cluster.map(ClusterId::as_str))
    .bind(filter.node)
    .bind(filter.open_only)
    .bind(before.map(|before| before.at))
    .bind(before.map(|before| before.id))
    .bind(most)
    .fetch_all(conn)
    .await
    .label("fleet.commands")
}

/// The commands of incidents, in the order in which they were made.
///
/// # Errors
/// When the database fails.
pub async fn commands_of(conn: &mut PgConnection, incidents: &Keys) -> Result<Vec<Command>, Error> {
    sqlx::query_as(
        "SELECT cluster_id, command_id, node_name, incident_id, action, state, reason, refusal, result_reason, created_at, sent_at,
                finished_at, plan_rev, policy_revision, steps_asked, steps
         FROM commands WHERE (cluster_id, incident_id) IN (SELECT * FROM unnest($1::text[], $2::uuid[])) ORDER BY incident_id, cmd_seq",
    )
    .bind(&incidents.clusters)
    .bind(&incidents.ids)
    .fetch_all(conn)
    .await
    .label("fleet.commands_of")
}
