//! Faults by episode: what is known of a key, new episodes, what more was seen of one, how it stands.

use chrono::{DateTime, Utc};
use gpuheal_hub_core::{
    admit::{Known, Witnesses},
    snapshot::EvidenceState,
};
use gpuheal_proto::{
    fault::{Fault, GpuRef, NodeRef, Onset},
    ids::{ClusterId, FaultKey, GpuSlot, GpuUuid, NodeName, NodeUid},
    time::Timestamp,
    words::Level,
};
use serde_json::Value;
use sqlx::{PgConnection, types::Json};

use super::{
    Error, Labelled as _,
    judgement::NodeKey,
    moment::{from_db, to_db},
    read, touched,
};

/// Evidence as the word stored.
#[must_use]
pub const fn evidence_word(state: EvidenceState) -> &'static str {
    match state {
        EvidenceState::Seen => "seen",
        EvidenceState::Clear => "clear",
        EvidenceState::Stale => "stale",
    }
}

/// The stored word as evidence.
#[must_use]
pub fn evidence_of(word: &str) -> Option<EvidenceState> {
    [EvidenceState::Seen, EvidenceState::Clear, EvidenceState::Stale].into_iter().find(|state| evidence_word(*state) == word)
}

/// A stored fault's GPU; nothing where nobody said which.
pub(super) fn gpu_of(slot: &str, uuid: &str, model: String) -> Result<Option<GpuRef>, Error> {
    let some = |text| Some(text).filter(|text: &&str| !text.is_empty());
    let slot = some(slot).map(|text| read("faults.gpu_slot", text, |text| GpuSlot::parse(text).ok())).transpose()?;
    let uuid = some(uuid).map(|text| read("faults.gpu_uuid", text, |text| GpuUuid::parse(text).ok())).transpose()?;
    let told = slot.is_some() || uuid.is_some() || !model.is_empty();
    Ok(told.then_some(GpuRef { slot, uuid, model }))
}

/// A stored fault's node.
pub(super) fn node_of(uid: NodeUid, name: &str, boot_id: String) -> Result<NodeRef, Error> {
    let name = read("faults.node_name", name, |text| NodeName::parse(text).ok())?;
    Ok(NodeRef { name, uid, boot_id })
}

#[derive(sqlx::FromRow)]
struct KnownRow {
    cluster_id: String,
    fault_key: Vec<u8>,
    episode: i32,
    onset: String,
    value: f64,
    count: i64,
    gpu_uuid: String,
    witnesses: Json<Witnesses>,
    last_at: DateTime<Utc>,
    observed_at: DateTime<Utc>,
    evidence: String,
    settled: bool,
}

/// The latest episode of each key that is known.
///
/// # Errors
/// When the database fails, or a row cannot be read.
pub async fn faults_known(
    conn: &mut PgConnection,
    keys: &[(ClusterId, FaultKey)],
) -> Result<Vec<((ClusterId, FaultKey), Known)>, Error> {
    let clusters: Vec<&str> = keys.iter().map(|(cluster, _)| cluster.as_str()).collect();
    let bytes: Vec<&[u8]> = keys.iter().map(|(_, key)| key.as_bytes().as_slice()).collect();
    let rows: Vec<KnownRow> = sqlx::query_as(
        "SELECT f.cluster_id, f.fault_key, f.episode, f.onset, f.value, f.count, f.gpu_uuid, f.witnesses, f.last_at, f.observed_at, f.evidence, \
         f.settled_at IS NOT NULL AS settled FROM unnest($1::text[], $2::bytea[]) AS k (cluster_id, fault_key) \
         CROSS JOIN LATERAL (SELECT * FROM faults f WHERE f.cluster_id = k.cluster_id AND f.fault_key = k.fault_key ORDER BY episode DESC LIMIT 1) f",
    )
    .bind(clusters)
    .bind(bytes)
    .fetch_all(conn)
    .await
    .label("faults.known")?;
    rows.into_iter().map(known_from).collect()
}

fn known_from(row: KnownRow) -> Result<((ClusterId, FaultKey), Known), Error> {
    let cluster = read("faults.cluster_id", &row.cluster_id, |text| ClusterId::parse(text).ok())?;
    let key = read("faults.fault_key", &hex::encode(&row.fault_key), |text| FaultKey::parse(text).ok())?;
    let known = Known {
        episode: u32::try_from(row.episode).unwrap_or(0),
        settled: row.settled,
        onset: read("faults.onset", &row.onset, Onset::parse)?,
        value: row.value,
        count: u32::try_from(row.count).unwrap_or(u32::MAX),
        gpu_uuid: row.gpu_uuid,
        witnesses: row.witnesses.0,
        last_at: from_db(row.last_at),
        observed_at: from_db(row.observed_at),
        evidence: read("faults.evidence", &row.evidence, evidence_of)?,
    };
    Ok(((cluster, key), known))
}

/// An episode as it is to be stored: the latest sight, and what all sights together show.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Where.
    pub cluster: ClusterId,
    /// Number within the key.
    pub number: u32,
    /// The latest sight.
    pub fault: Fault,
    /// Edge once any sight was.
    pub onset: Onset,
    /// Highest reading.
    pub value: f64,
    /// Highest count.
    pub count: u32,
    /// Everybody who saw it.
    pub witnesses: Witnesses,
}

/// Adds new episodes in one statement.
///
/// # Errors
/// When one is there already: somebody else was first.
pub async fn faults_insert(conn: &mut PgConnection, episodes: &[Episode], now: Timestamp) -> Result<(), Error> {
    if episodes.is_empty() {
        return Ok(());
    }
    let result = write(
        "INSERT INTO faults (cluster_id, fault_key, episode, node_uid, node_name, boot_id, gpu_slot, gpu_uuid, gpu_model, class, code, onset, value, \
         threshold, count, source, detail, workload, witnesses, observed_at, first_at, last_at, evidence_at, evidence_since) \
         SELECT e.*, $21, $21, $21, $21 FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], \
         $9::text[], $10::text[], $11::text[], $12::text[], $13::float8[], $14::float8[], $15::bigint[], $16::text[], $17::text[], $18::text[], \
         $19::jsonb[], $20::timestamptz[]) AS e",
        episodes,
        now,
        conn,
    )
    .await
    .label("faults.insert")?;
    touched("faults.insert", episodes.len() as u64, &result)
}

/// Stores what more was seen of known episodes. Seeing is evidence: what stood as clear or stale stands as seen again.
///
/// # Errors
/// When one is not there.
pub async fn faults_merge(conn: &mut PgConnection, episodes: &[Episode], now: Timestamp) -> Result<(), Error> {
    if episodes.is_empty() {
        return Ok(());
    }
    let result = write(
        "UPDATE faults f SET boot_id = COALESCE(NULLIF(e.boot_id, ''), f.boot_id), gpu_uuid = COALESCE(NULLIF(e.gpu_uuid, ''), f.gpu_uuid), \
         gpu_model = COALESCE(NULLIF(e.gpu_model, ''), f.gpu_model), onset = e.onset, value = e.value, threshold = e.threshold, count = e.count, \
         source = e.source, detail = e.detail, workload = COALESCE(NULLIF(e.workload, ''), f.workload), witnesses = e.witnesses, \
         observed_at = GREATEST(f.observed_at, e.observed_at), last_at = $21, evidence = 'seen', evidence_at = $21, \
         evidence_since = CASE WHEN f.evidence = 'seen' THEN f.evidence_since ELSE $21 END \
         FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], \
         $11::text[], $12::text[], $13::float8[], $14::float8[], $15::bigint[], $16::text[], $17::text[], $18::text[], $19::jsonb[], $20::timestamptz[]) \
         AS e (cluster_id, fault_key, episode, node_uid, node_name, boot_id, gpu_slot, gpu_uuid, gpu_model, class, code, onset, value, threshold, count, \
         source, detail, workload, witnesses, observed_at) \
         WHERE f.cluster_id = e.cluster_id AND f.fault_key = e.fault_key AND f.episode = e.episode",
        episodes,
        now,
        conn,
    )
    .await
    .label("faults.merge")?;
    touched("faults.merge", episodes.len() as u64, &result)
}

/// Both statements above take the same columns as arrays.
async fn write(
    statement: &'static str,
    episodes: &[Episode],
    now: Timestamp,
    conn: &mut PgConnection,
) -> Result<sqlx::postgres::PgQueryResult, sqlx::Error> {
    fn column<'a, T>(episodes: &'a [Episode], pick: impl Fn(&'a Episode) -> T) -> Vec<T> {
        episodes.iter().map(pick).collect()
    }
    let gpu = |episode: &Episode, pick: fn(&gpuheal_proto::fault::GpuRef) -> String| {
        episode.fault.gpu.as_ref().map(pick).unwrap_or_default()
    };
    sqlx::query(statement)
        .bind(column(episodes, |e| e.cluster.as_str()))
        .bind(column(episodes, |e| e.fault.key.as_bytes().as_slice()))
        .bind(column(episodes, |e| i32::try_from(e.number).unwrap_or(i32::MAX)))
        .bind(column(episodes, |e| e.fault.node.uid.as_str()))
        .bind(column(episodes, |e| e.fault.node.name.as_str()))
        .bind(column(episodes, |e| e.fault.node.boot_id.as_str()))
        .bind(column(episodes, |e| gpu(e, |gpu| gpu.slot.as_ref().map(ToString::to_string).unwrap_or_default())))
        .bind(column(episodes, |e| gpu(e, |gpu| gpu.uuid.as_ref().map(ToString::to_string).unwrap_or_default())))
        .bind(column(episodes, |e| gpu(e, |gpu| gpu.model.clone())))
        .bind(column(episodes, |e| e.fault.class.as_str()))
        .bind(column(episodes, |e| e.fault.code.as_str()))
        .bind(column(episodes, |e| e.onset.as_str()))
        .bind(column(episodes, |e| e.value))
        .bind(column(episodes, |e| e.fault.threshold))
        .bind(column(episodes, |e| i64::from(e.count)))
        .bind(column(episodes, |e| e.fault.source.as_str()))
        .bind(column(episodes, |e| e.fault.detail.as_str()))
        .bind(column(episodes, |e| e.fault.workload.as_str()))
        .bind(column(episodes, |e| serde_json::to_value(&e.witnesses).unwrap_or(Value::Null)))
        .bind(column(episodes, |e| to_db(e.fault.observed_at)))
        .bind(to_db(now))
        .execute(conn)
        .await
}

/// How one fault stands now, by its own source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub key: FaultKey,
    /// How.
    pub state: EvidenceState,
    /// How often in the window.
    pub count: u32,
}

/// The nodes on which this evidence would change how a fault stands.
///
/// # Errors
/// When the database fails.
pub async fn evidence_nodes(conn: &mut PgConnection, cluster: &ClusterId, items: &[Standing]) -> Result<Vec<NodeKey>, Error> {
    let (keys, states, _) = columns(items);
    let uids: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT f.node_uid FROM unnest($2::bytea[], $3::text[]) AS e (fault_key, state) \
         CROSS JOIN LATERAL (SELECT * FROM faults f WHERE f.cluster_id = $1 AND f.fault_key = e.fault_key ORDER BY episode DESC LIMIT 1) f \
         WHERE f.evidence <> e.state ORDER BY 1",
    )
    .bind(cluster.as_str())
    .bind(keys)
    .bind(states)
    .fetch_all(conn)
    .await
    .label("evidence.nodes")?;
    uids.iter().map(|uid| Ok((cluster.clone(), read("faults.node_uid", uid, |text| NodeUid::parse(text).ok())?))).collect()
}

/// Writes evidence that says the same again at most this often.
const EVIDENCE_REPEAT_MS: f64 = 10_000.0;

/// Stores how faults stand; evidence for keys that nobody knows is passed over. Returns how many rows changed.
///
/// # Errors
/// When the database fails.
pub async fn evidence_update(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    items: &[Standing],
    now: Timestamp,
) -> Result<u64, Error> {
    let (keys, states, counts) = columns(items);
    let result = sqlx::query(
        "UPDATE faults f SET evidence = e.state, evidence_at = $5, count = GREATEST(f.count, e.count), \
         evidence_since = CASE WHEN f.evidence = e.state THEN f.evidence_since ELSE $5 END, \
         last_at = CASE WHEN e.state = 'seen' THEN $5 ELSE f.last_at END \
         FROM unnest($2::bytea[], $3::text[], $4::bigint[]) AS e (fault_key, state, count) \
         WHERE f.cluster_id = $1 AND f.fault_key = e.fault_key \
         AND f.episode = (SELECT max(episode) FROM faults l WHERE l.cluster_id = $1 AND l.fault_key = e.fault_key) \
         AND (f.evidence <> e.state OR f.evidence_at <= $5 - $6 * interval '1 millisecond' OR e.count > f.count)",
    )
    .bind(cluster.as_str())
    .bind(keys)
    .bind(states)
    .bind(counts)
    .bind(to_db(now))
    .bind(EVIDENCE_REPEAT_MS)
    .execute(conn)
    .await
    .label("evidence.update")?;
    Ok(result.rows_affected())
}

fn columns(items: &[Standing]) -> (Vec<&[u8]>, Vec<&'static str>, Vec<i64>) {
    (
        items.iter().map(|item| item.key.as_bytes().as_slice()).collect(),
        items.iter().map(|item| evidence_word(item.state)).collect(),
        items.iter().map(|item| i64::from(item.count)).collect(),
    )
}

/// Marks the latest episode of a fault as done with, up to a level.
///
/// # Errors
/// When the fault is not there.
pub async fn fault_settle(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    key: &FaultKey,
    level: Level,
    now: Timestamp,
) -> Result<(), Error> {
    let result = sqlx::query(
        "UPDATE faults SET settled_at = $4, settled_level = $3 WHERE cluster_id = $1 AND fault_key = $2 \
         AND episode = (SELECT max(episode) FROM faults WHERE cluster_id = $1 AND fault_key = $2)",
    )
    .bind(cluster.as_str())
    .bind(key.as_bytes().as_slice())
    .bind(level.as_str())
    .bind(to_db(now))
    .execute(conn)
    .await
    .label("fault.settle")?;
    touched("fault.settle", 1, &result)
}

/// The node of the latest episode of a fault.
///
/// # Errors
/// When the database fails.
pub async fn fault_node(conn: &mut PgConnection, cluster: &ClusterId, key: &FaultKey) -> Result<Option<NodeUid>, Error> {
    let uid: Option<String> =
        sqlx::query_scalar("SELECT node_uid FROM faults WHERE cluster_id = $1 AND fault_key = $2 ORDER BY episode DESC LIMIT 1")
            .bind(cluster.as_str())
            .bind(key.as_bytes().as_slice())
            .fetch_optional(conn)
            .await
            .label("fault.node")?;
    uid.map(|uid| read("faults.node_uid", &uid, |text| NodeUid::parse(text).ok())).transpose()
}
