//! Rows of the audit: heads, whose locks give chains their order, and entries, which are only ever added.

use chrono::{DateTime, Utc};
use gpuheal_hub_core::audit::{Entry, Fact, GENESIS, Hash, Head};
use gpuheal_proto::ids::IncidentId;
use sqlx::PgConnection;

use super::{
    Error, Labelled as _,
    moment::{from_db, to_db},
    natural, signed,
};

/// Locks a chain's head until commit, and makes it when the chain is new.
///
/// # Errors
/// When the database fails.
pub async fn head_lock(conn: &mut PgConnection, chain: &str) -> Result<Head, Error> {
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
    Ok(Head { seq: natural(seq), hash: hash_of(&hash)? })
}

/// Where a chain stands now.
///
/// # Errors
/// When the database fails.
pub async fn head(conn: &mut PgConnection, chain: &str) -> Result<Head, Error> {
    let head: Option<(i64, Vec<u8>)> = sqlx::query_as("SELECT seq, hash FROM audit_heads WHERE chain = $1")
        .bind(chain)
        .fetch_optional(conn)
        .await
        .label("audit.head")?;
    head.map_or(Ok(Head::default()), |(seq, hash)| Ok(Head { seq: natural(seq), hash: hash_of(&hash)? }))
}

/// Stores entries at the end of a chain and moves its locked head on, in one statement: the lock is held for one less.
///
/// # Errors
/// When the database fails, or the head is not where it was.
pub async fn chain_extend(conn: &mut PgConnection, chain: &str, from: Head, to: Head, stored: &[Entry]) -> Result<(), Error> {
    let added: Option<i64> = sqlx::query_scalar(
        "WITH e AS (INSERT INTO audit_entries (chain, seq, at, kind, actor, subject, incident_id, body, prev_hash, hash) \
         SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::bytea[], $10::bytea[]) \
         RETURNING 1) \
         UPDATE audit_heads SET seq = $11, hash = $12 WHERE chain = $1 AND seq = $13 RETURNING (SELECT count(*) FROM e)",
    )
    .bind(chain)
    .bind(stored.iter().map(|entry| signed(entry.seq)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| to_db(entry.fact.at)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.kind.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.actor.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.subject.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.incident.map(IncidentId::uuid)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.body.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.prev_hash.as_slice()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.hash.as_slice()).collect::<Vec<_>>())
    .bind(signed(to.seq))
    .bind(to.hash.as_slice())
    .bind(signed(from.seq))
    .fetch_optional(conn)
    .await
    .label("audit.extend")?;
    let (want, got) = (stored.len() as u64, added.map_or(0, natural));
    if got == want { Ok(()) } else { Err(Error::Rows { what: "audit.extend", want, got }) }
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
) -> Result<Vec<Entry>, Error> {
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

fn stored_from(chain: &str, row: Row) -> Result<Entry, Error> {
    let fact = Fact {
        at: from_db(row.at),
        kind: row.kind,
        actor: row.actor,
        subject: row.subject,
        incident: row.incident_id.map(IncidentId::from_uuid),
        body: row.body,
    };
    let (prev_hash, hash) = (hash_of(&row.prev_hash)?, hash_of(&row.hash)?);
    Ok(Entry { chain: chain.to_owned(), seq: natural(row.seq), fact, prev_hash, hash })
}

fn hash_of(bytes: &[u8]) -> Result<Hash, Error> {
    bytes.try_into().map_err(|_| Error::Unreadable { what: "audit hash", value: hex::encode(bytes) })
}
