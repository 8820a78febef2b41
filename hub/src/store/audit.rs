//! The audit chain of each cluster: one locked head row gives it its order, entries are only ever added. An append that
//! fails fails the transaction that it belongs to: no audit, no action.

mod chain;

use chrono::{DateTime, Utc};
use gpuheal_proto::{
    ids::{ClusterId, IncidentId},
    time::Timestamp,
};
use serde_json::Value;
use sqlx::{PgConnection, PgPool};

use super::{
    Error, Labelled as _,
    moment::{from_db, to_db},
    natural, signed, touched,
};
pub use chain::{Break, GENESIS, Hash, Link, Verdict};

/// The chain of what belongs to no one cluster: policies, stops, terms. Not a cluster id: those have no `_`.
pub const FLEET_CHAIN: &str = "_fleet";

/// Entries read at once when a chain is verified: at about 1 KiB each, 1 MiB.
const PAGE: i64 = 1000;

/// Something that was done, before it has a place in its chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What happened, in a word.
    pub kind: &'static str,
    /// Who did it.
    pub actor: String,
    /// What it was done to.
    pub subject: String,
    /// Incident that it belongs to.
    pub incident: Option<IncidentId>,
    /// The facts.
    pub body: Value,
}

/// An entry as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What the hash covers.
    pub link: Link,
    /// Hash of the entry before.
    pub prev_hash: Hash,
    /// Its own hash.
    pub hash: Hash,
}

/// The chain of a cluster.
#[must_use]
pub fn chain_of(cluster: &ClusterId) -> &str {
    cluster.as_str()
}

/// Adds entries at the end of a chain, in order, and holds its head until commit. The last lock of any transaction.
///
/// # Errors
/// When the database fails; the caller's transaction must then fail too.
pub async fn audit_append(conn: &mut PgConnection, chain: &str, entries: &[Entry], now: Timestamp) -> Result<(), Error> {
    if entries.is_empty() {
        return Ok(());
    }
    let (head_seq, head_hash) = head_lock(conn, chain).await?;
    let mut prev = head_hash;
    let mut stored = Vec::with_capacity(entries.len());
    for (seq, entry) in (head_seq + 1..).zip(entries) {
        let link = Link {
            chain: chain.to_owned(),
            seq,
            at: now,
            kind: entry.kind.to_owned(),
            actor: entry.actor.clone(),
            subject: entry.subject.clone(),
            incident: entry.incident,
            body: entry.body.to_string(),
        };
        let hash = link.hash(&prev);
        stored.push(Stored { link, prev_hash: prev, hash });
        prev = hash;
    }
    entries_insert(conn, chain, &stored).await?;
    let result = sqlx::query("UPDATE audit_heads SET seq = $2, hash = $3 WHERE chain = $1 AND seq = $4")
        .bind(chain)
        .bind(signed(head_seq + stored.len() as u64))
        .bind(prev.as_slice())
        .bind(signed(head_seq))
        .execute(conn)
        .await
        .label("audit.head_move")?;
    touched("audit.head_move", 1, &result)
}

async fn head_lock(conn: &mut PgConnection, chain: &str) -> Result<(u64, Hash), Error> {
    let lock = "SELECT seq, hash FROM audit_heads WHERE chain = $1 FOR UPDATE";
    let head: Option<(i64, Vec<u8>)> =
        sqlx::query_as(lock).bind(chain).fetch_optional(&mut *conn).await.label("audit.head_lock")?;
    let (seq, hash) = match head {
        Some(head) => head,
        None => {
            sqlx::query("INSERT INTO audit_heads (chain, seq, hash) VALUES ($1, 0, $2) ON CONFLICT DO NOTHING")
                .bind(chain)
                .bind(GENESIS.as_slice())
                .execute(&mut *conn)
                .await
                .label("audit.head_insert")?;
            sqlx::query_as(lock).bind(chain).fetch_one(conn).await.label("audit.head_lock")?
        }
    };
    Ok((natural(seq), hash_of(&hash)?))
}

async fn entries_insert(conn: &mut PgConnection, chain: &str, stored: &[Stored]) -> Result<(), Error> {
    let result = sqlx::query(
        "INSERT INTO audit_entries (chain, seq, at, kind, actor, subject, incident_id, body, prev_hash, hash) \
         SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::bytea[], $10::bytea[])",
    )
    .bind(chain)
    .bind(stored.iter().map(|entry| signed(entry.link.seq)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| to_db(entry.link.at)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.link.kind.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.link.actor.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.link.subject.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.link.incident.map(IncidentId::uuid)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.link.body.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.prev_hash.as_slice()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.hash.as_slice()).collect::<Vec<_>>())
    .execute(conn)
    .await
    .label("audit.insert")?;
    touched("audit.insert", stored.len() as u64, &result)
}

#[derive(sqlx::FromRow)]
struct Row {
    seq: i64,
    at: DateTime<Utc>,
    kind: String,
    actor: String,
    subject: String,
    incident_id: Option<uuid::Uuid>,
    body: String,
    prev_hash: Vec<u8>,
    hash: Vec<u8>,
}

/// Entries of a chain after `after`, in order, at most `most`; of one incident only, when one is named.
///
/// # Errors
/// When the database fails.
pub async fn audit_page(
    conn: &mut PgConnection,
    chain: &str,
    after: u64,
    incident: Option<IncidentId>,
    most: i64,
) -> Result<Vec<Stored>, Error> {
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT seq, at, kind, actor, subject, incident_id, body, prev_hash, hash FROM audit_entries \
         WHERE chain = $1 AND seq > $2 AND ($3::uuid IS NULL OR incident_id = $3) ORDER BY seq LIMIT $4",
    )
    .bind(chain)
    .bind(signed(after))
    .bind(incident.map(IncidentId::uuid))
    .bind(most)
    .fetch_all(conn)
    .await
    .label("audit.page")?;
    rows.into_iter().map(|row| stored_from(chain, row)).collect()
}

fn stored_from(chain: &str, row: Row) -> Result<Stored, Error> {
    let link = Link {
        chain: chain.to_owned(),
        seq: natural(row.seq),
        at: from_db(row.at),
        kind: row.kind,
        actor: row.actor,
        subject: row.subject,
        incident: row.incident_id.map(IncidentId::from_uuid),
        body: row.body,
    };
    Ok(Stored { link, prev_hash: hash_of(&row.prev_hash)?, hash: hash_of(&row.hash)? })
}

fn hash_of(bytes: &[u8]) -> Result<Hash, Error> {
    bytes.try_into().map_err(|_| Error::Unreadable { what: "audit hash", value: hex::encode(bytes) })
}

/// Reads a chain from its first entry and says where it breaks, if it does. The head must be its last entry.
///
/// # Errors
/// When the database fails.
pub async fn audit_verify(pool: &PgPool, chain: &str) -> Result<Verdict, Error> {
    let mut conn = pool.acquire().await.label("pool.acquire")?;
    let head: Option<(i64, Vec<u8>)> = sqlx::query_as("SELECT seq, hash FROM audit_heads WHERE chain = $1")
        .bind(chain)
        .fetch_optional(&mut *conn)
        .await
        .label("audit.head")?;
    let (head_seq, head_hash) = head.unwrap_or((0, GENESIS.to_vec()));
    let mut walk = chain::Walk::default();
    while walk.seq() < natural(head_seq) {
        let page = audit_page(&mut conn, chain, walk.seq(), None, PAGE).await?;
        if page.is_empty() {
            return Ok(walk.cut_short(natural(head_seq)));
        }
        for entry in page.iter().filter(|entry| entry.link.seq <= natural(head_seq)) {
            if let Err(broken) = walk.step(entry) {
                return Ok(broken);
            }
        }
    }
    Ok(walk.end(&hash_of(&head_hash)?))
}
