//! Where the time between a fault's first page and its taint went, stage by stage, from the moments that the hub's own rows
//! keep. Spoke, hub and harness share the machine, and so its clock.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use chrono::{DateTime, Utc};
use sqlx::PgPool;

use crate::wait;

/// How long the hub may take to note what it sent.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// The spans in their order: each begins where the one before ends.
pub const SPANS: [&str; 5] = [
    "page served, to read by the spoke",
    "read, to the hub's transaction",
    "transaction begun, to command signed",
    "signed, to committed and put on the stream",
    "on the stream, to the taint seen",
];

/// A fault as the harness saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its node.
    pub node: String,
    /// When its page was served, the first few times: to the leader, and to the standby, which may do nothing about it.
    pub served: Vec<Instant>,
    /// When a watch saw the taint.
    pub tainted: Instant,
}

type Row = (String, DateTime<Utc>, DateTime<Utc>, DateTime<Utc>, DateTime<Utc>);

/// What a spoke's clock may be read later than the page was served: both are one machine's, and told in whole milliseconds.
const READ_EARLY: chrono::Duration = chrono::Duration::milliseconds(1);

/// Milliseconds from the page that the leader read to the taint, and of each span in the order of [`SPANS`], all sorted.
///
/// # Errors
/// When the hub's rows cannot be read, or have no signed and sent command for one of the nodes.
pub async fn stages(pool: &PgPool, seen: &[Seen]) -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
    // The sending of a command is noted a moment after it.
    wait::until("the last sending to be noted", NOTED_WITHIN, || async {
        let sent: i64 =
            sqlx::query_scalar("SELECT count(DISTINCT node_name) FROM commands WHERE action <> 'notify' AND sent_at IS NOT NULL")
                .fetch_one(pool)
                .await?;
        Ok((usize::try_from(sent)? >= seen.len()).then_some(()))
    })
    .await?;
    let rows: Vec<Row> = sqlx::query_as(
        "SELECT DISTINCT ON (c.node_name) c.node_name, f.observed_at, f.first_at, c.signed_at, c.sent_at \
         FROM commands c JOIN faults f ON f.cluster_id = c.cluster_id AND f.node_uid = c.node_uid \
         WHERE c.action <> 'notify' AND c.sent_at IS NOT NULL ORDER BY c.node_name, c.cmd_seq, f.first_at",
    )
    .fetch_all(pool)
    .await?;
    let rows: BTreeMap<&str, &Row> = rows.iter().map(|row| (row.0.as_str(), row)).collect();
    let clock = (Instant::now(), DateTime::<Utc>::from(SystemTime::now()));
    let wall = |at: Instant| clock.1 - chrono::Duration::from_std(clock.0 - at).unwrap_or_default();
    let (mut whole, mut spans) = (vec![], vec![vec![]; SPANS.len()]);
    for fault in seen {
        let row = rows.get(fault.node.as_str()).with_context(|| format!("no sent command for node {}", fault.node))?;
        let served = fault.served.iter().map(|at| wall(*at)).filter(|at| *at <= row.1 + READ_EARLY).max();
        let served = served.with_context(|| format!("{} was read before its page was served", fault.node))?;
        let moments = [served, row.1, row.2, row.3, row.4, wall(fault.tainted)];
        whole.push(ms(moments[5] - moments[0]));
        for (span, pair) in spans.iter_mut().zip(moments.windows(2)) {
            span.push(ms(pair[1] - pair[0]));
        }
    }
    spans.iter_mut().chain([&mut whole]).for_each(|span| span.sort_by(f64::total_cmp));
    Ok((whole, spans))
}

fn ms(span: chrono::Duration) -> f64 {
    span.as_seconds_f64() * 1000.0
}
