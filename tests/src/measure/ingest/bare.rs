//! The same rows by the plainest way there is: one INSERT for each batch, with one row of audit beside it, by writers who do
//! nothing else. Into copies of the hub's own tables, as full as those were: same columns, checks, indexes and fill.

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgPool};
use std::{sync::Arc, time::Instant};
use tokio::task::JoinSet;

/// Rows of one INSERT: a full batch of the link.
const BATCH: usize = 256;
/// Writers at once. The hub has one that commits; several show what Postgres itself can take, and the best one counts.
const WRITERS: [usize; 3] = [1, 2, 4];

/// What the bare INSERT reached.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Bare {
    /// Rows inserted by each run.
    pub rows: usize,
    /// Writers and their rows a second.
    pub rates: Vec<(usize, f64)>,
    /// Mean bytes of a row, and the number of indexes.
    pub width: (f64, i64),
    /// What the server says of fsync and of synchronous_commit.
    pub synced: (String, String),
}

impl Bare {
    /// The best of them, in rows a second.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(f64::NAN, f64::max)
    }
}

#[derive(Clone, sqlx::FromRow)]
struct Row {
    cluster_id: String,
    fault_key: Vec<u8>,
    episode: i32,
    node_uid: String,
    node_name: String,
    boot_id: String,
    gpu_slot: String,
    gpu_uuid: String,
    gpu_model: String,
    class: String,
    code: String,
    onset: String,
    value: f64,
    threshold: f64,
    count: i64,
    source: String,
    detail: String,
    workload: String,
    witnesses: Value,
    observed_at: DateTime<Utc>,
}

/// Rows of one batch, and the audit's text for it.
struct Batch {
    rows: Vec<Row>,
    audit: String,
}

/// Inserts what the hub took since `since` once more, by each number of writers.
pub(super) async fn run(pool: &PgPool, since: DateTime<Utc>, say: &impl Fn(&str)) -> Result<Bare> {
    let mut bare = Bare::default();
    let batches = Arc::new(batches(pool, since).await?);
    bare.rows = batches.iter().map(|batch| batch.rows.len()).sum();
    ensure!(bare.rows > 0, "the hub took no faults that could be inserted again");
    bare.width = sqlx::query_as(
        "SELECT (SELECT avg(pg_column_size(f.*))::float8 FROM faults f), (SELECT count(*) FROM pg_indexes WHERE tablename = 'faults')",
    )
    .fetch_one(pool)
    .await?;
    bare.synced = sqlx::query_as("SELECT current_setting('fsync'), current_setting('synchronous_commit')").fetch_one(pool).await?;
    for writers in WRITERS {
        prepare(pool, writers, since).await?;
        let rate = bare.rows as f64 / insert(pool, &batches, writers).await?;
        say(&format!("bare INSERT by {writers}: {rate:.0} rows/s"));
        bare.rates.push((writers, rate));
    }
    Ok(bare)
}

async fn batches(pool: &PgPool, since: DateTime<Utc>) -> Result<Vec<Batch>> {
    let rows: Vec<Row> = sqlx::query_as("SELECT * FROM faults WHERE first_at >= $1 ORDER BY first_at, cluster_id, fault_key")
        .bind(since)
        .fetch_all(pool)
        .await?;
    // The hub's own entries, cut anew: as much text for each fault as the hub wrote.
    let audit: Option<String> =
        sqlx::query_scalar("SELECT string_agg(body, '' ORDER BY chain, seq) FROM audit_entries WHERE kind = 'faults_ingested' AND at >= date_trunc('milliseconds', $1::timestamptz)")
            .bind(since)
            .fetch_one(pool)
            .await?;
    let audit = audit.context("the hub wrote an entry for what it took")?;
    let each = audit.len() / rows.len().max(1);
    let cut = |at: usize, rows: usize| audit.get(at * each..(at + rows) * each).unwrap_or_default().to_owned();
    Ok(rows.chunks(BATCH).enumerate().map(|(n, rows)| Batch { rows: rows.to_vec(), audit: cut(n * BATCH, rows.len()) }).collect())
}

/// Copies of both tables for one run, the faults' as full as the hub's own was when it began.
async fn prepare(pool: &PgPool, writers: usize, since: DateTime<Utc>) -> Result<()> {
    let options: Option<String> =
        sqlx::query_scalar("SELECT array_to_string(reloptions, ', ') FROM pg_class WHERE oid = 'faults'::regclass")
            .fetch_one(pool)
            .await?;
    let options = options.map(|options| format!("WITH ({options})")).unwrap_or_default();
    let run = |statement: String| async move { sqlx::raw_sql(AssertSqlSafe(statement)).execute(pool).await };
    run(format!("CREATE TABLE bare_faults_{writers} (LIKE faults INCLUDING ALL) {options}")).await?;
    run(format!("CREATE TABLE bare_audit_{writers} (LIKE audit_entries INCLUDING ALL)")).await?;
    sqlx::query(AssertSqlSafe(format!("INSERT INTO bare_faults_{writers} SELECT * FROM faults WHERE first_at < $1")))
        .bind(since)
        .execute(pool)
        .await?;
    run("CHECKPOINT".to_owned()).await?;
    Ok(())
}

/// Seconds that it took.
async fn insert(pool: &PgPool, batches: &Arc<Vec<Batch>>, writers: usize) -> Result<f64> {
    let statement: Arc<str> = statement(writers).into();
    let mut connections = vec![];
    for _ in 0..writers {
        connections.push(pool.acquire().await?);
    }
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (first, mut connection) in connections.into_iter().enumerate() {
        let (batches, statement) = (batches.clone(), statement.clone());
        tasks.spawn(async move {
            for (n, batch) in batches.iter().enumerate().skip(first).step_by(writers) {
                one(&mut connection, &statement, n, batch).await?;
            }
            Ok::<_, sqlx::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// One statement, and so one round trip and one commit, for a batch and its audit.
fn statement(writers: usize) -> String {
    format!(
        "WITH audit AS (INSERT INTO bare_audit_{writers} (chain, seq, at, kind, actor, subject, body, prev_hash, hash) \
         VALUES ('bare', $22, $21, 'faults_ingested', 'spoke/bare', 'cluster/bare', $23, $24, $24)) \
         INSERT INTO bare_faults_{writers} (cluster_id, fault_key, episode, node_uid, node_name, boot_id, gpu_slot, gpu_uuid, gpu_model, class, \
         code, onset, value, threshold, count, source, detail, workload, witnesses, observed_at, first_at, last_at, evidence_at, evidence_since) \
         SELECT e.*, $21, $21, $21, $21 FROM unnest($1::text[], $2::bytea[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], \
         $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::float8[], $14::float8[], $15::bigint[], $16::text[], $17::text[], \
         $18::text[], $19::jsonb[], $20::timestamptz[]) AS e"
    )
}

async fn one(connection: &mut sqlx::PgConnection, statement: &str, number: usize, batch: &Batch) -> sqlx::Result<()> {
    fn column<'a, T>(rows: &'a [Row], pick: impl Fn(&'a Row) -> T) -> Vec<T> {
        rows.iter().map(pick).collect()
    }
    let rows = &batch.rows;
    sqlx::query(AssertSqlSafe(statement))
        .bind(column(rows, |row| row.cluster_id.as_str()))
        .bind(column(rows, |row| row.fault_key.as_slice()))
        .bind(column(rows, |row| row.episode))
        .bind(column(rows, |row| row.node_uid.as_str()))
        .bind(column(rows, |row| row.node_name.as_str()))
        .bind(column(rows, |row| row.boot_id.as_str()))
        .bind(column(rows, |row| row.gpu_slot.as_str()))
        .bind(column(rows, |row| row.gpu_uuid.as_str()))
        .bind(column(rows, |row| row.gpu_model.as_str()))
        .bind(column(rows, |row| row.class.as_str()))
        .bind(column(rows, |row| row.code.as_str()))
        .bind(column(rows, |row| row.onset.as_str()))
        .bind(column(rows, |row| row.value))
        .bind(column(rows, |row| row.threshold))
        .bind(column(rows, |row| row.count))
        .bind(column(rows, |row| row.source.as_str()))
        .bind(column(rows, |row| row.detail.as_str()))
        .bind(column(rows, |row| row.workload.as_str()))
        .bind(column(rows, |row| row.witnesses.clone()))
        .bind(column(rows, |row| row.observed_at))
        .bind(Utc::now())
        .bind(i64::try_from(number + 1).unwrap_or(i64::MAX))
        .bind(&batch.audit)
        .bind([7_u8; 32].as_slice())
        .execute(connection)
        .await?;
    Ok(())
}
