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

/// Locks the heads of chains until commit, in the order of their names, and makes those that are new. Returns them in the
/// order asked; the caller passes them without repeats.
///
/// # Errors
/// When the database fails.
pub async fn heads_lock(conn: &mut PgConnection, chains: &[&str]) -> Result<Vec<Head>, Error> {
    let mut rows = heads_try(conn, chains).await?;
    if rows.len() < chains.len() {
        sqlx::query(
            "INSERT INTO audit_heads (chain, seq, hash) SELECT c, 0, $2 FROM unnest($1::text[]) AS c ORDER BY c COLLATE \"C\" ON CONFLICT DO NOTHING",
        )
        .bind(chains)
        .bind(GENESIS.as_slice())
        .execute(&mut *conn)
        .await
        .label("audit.heads_insert")?;
        rows = heads_try(conn, chains).await?;
    }
    let head = |chain: &&str| {
        let row = rows.iter().find(|row| row.0 == *chain);
        let (_, seq, hash) =
            row.ok_or(Error::Rows { what: "audit.heads_lock", want: chains.len() as u64, got: rows.len() as u64 })?;
        Ok(Head { seq: natural(*seq), hash: hash_of(hash)? })
    };
    chains.iter().map(head).collect()
}

async fn heads_try(conn: &mut PgConnection, chains: &[&str]) -> Result<Vec<(String, i64, Vec<u8>)>, Error> {
    sqlx::query_as("SELECT chain, seq, hash FROM audit_heads WHERE chain = ANY ($1) ORDER BY chain COLLATE \"C\" FOR UPDATE")
        .bind(chains)
        .fetch_all(conn)
        .await
        .label("audit.heads_lock")
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

/// A locked chain's head, and where it is moved to by what is added.
#[derive(Clone, Copy, Debug)]
pub struct Moved<'a> {
    /// Which.
    pub chain: &'a str,
    /// Where it was locked.
    pub from: Head,
    /// Where it is then.
    pub to: Head,
}

/// Stores entries at the ends of their chains and moves the locked heads on, in one statement: the locks are held for one
/// less.
///
/// # Errors
/// When the database fails, or a head is not where it was.
pub async fn chains_extend(conn: &mut PgConnection, heads: &[Moved<'_>], stored: &[Entry]) -> Result<(), Error> {
    let added: Vec<i64> = sqlx::query_scalar(
        "WITH e AS (INSERT INTO audit_entries (chain, seq, at, kind, actor, subject, incident_id, body, prev_hash, hash) \
         SELECT * FROM unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::uuid[], $8::text[], $9::bytea[], \
         $10::bytea[]) RETURNING 1) \
         UPDATE audit_heads h SET seq = m.seq, hash = m.hash FROM unnest($11::text[], $12::bigint[], $13::bytea[], $14::bigint[]) AS m (chain, seq, hash, was) \
         WHERE h.chain = m.chain AND h.seq = m.was RETURNING (SELECT count(*) FROM e)",
    )
    .bind(stored.iter().map(|entry| entry.chain.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| signed(entry.seq)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| to_db(entry.fact.at)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.kind.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.actor.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.subject.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.incident.map(IncidentId::uuid)).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.fact.body.as_str()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.prev_hash.as_slice()).collect::<Vec<_>>())
    .bind(stored.iter().map(|entry| entry.hash.as_slice()).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.chain).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| signed(head.to.seq)).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| head.to.hash.as_slice()).collect::<Vec<_>>())
    .bind(heads.iter().map(|head| signed(head.from.seq)).collect::<Vec<_>>())
    .fetch_all(conn)
    .await
    .label("audit.extend")?;
    let rows = |want: usize, got: u64| {
        if got == want as u64 { Ok(()) } else { Err(Error::Rows { what: "audit.extend", want: want as u64, got }) }
    };
    rows(heads.len(), added.len() as u64)?;
    rows(stored.len(), added.first().map_or(0, |count| natural(*count)))
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
