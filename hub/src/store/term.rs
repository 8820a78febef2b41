//! The epoch of the database. It rises whenever commits may have been lost, so that what the lost ones issued cannot be mistaken for
//! what is issued now, and until every cluster has been heard under it the hub does no new harm there.

use gpuheal_proto::{
    ids::{ClusterId, CommandId},
    time::Timestamp,
};
use serde_json::json;
use sqlx::PgConnection;

use super::{Error, Labelled as _, natural, signed};
use crate::{
    audit::{self, Entry, Kind, chain_of},
    link::hello::Seen,
};

/// The database's epoch.
///
/// # Errors
/// When the database fails.
pub async fn hub_term(conn: &mut PgConnection) -> Result<u64, Error> {
    let term: i64 = sqlx::query_scalar("SELECT hub_term FROM hub_state").fetch_one(conn).await.label("hub_state.term")?;
    Ok(natural(term))
}

/// The epoch, and how many clusters are not taken over under it: those that were taken out of the fleet are none.
///
/// # Errors
/// When the database fails.
pub async fn to_take_over(conn: &mut PgConnection) -> Result<(u64, i64), Error> {
    let (term, clusters): (i64, i64) = sqlx::query_as(
        "SELECT h.hub_term, (SELECT count(*) FROM clusters c WHERE (c.taken_over_term IS NULL OR c.taken_over_term < h.hub_term)
                             AND NOT EXISTS (SELECT FROM quarantines q WHERE q.cluster_id = c.cluster_id AND q.cause = 'decommissioned')) FROM hub_state h",
    )
    .fetch_one(conn)
    .await
    .label("hub_state.to_take_over")?;
    Ok((natural(term), clusters))
}

/// Raises the epoch above what it is and above `seen`: what was issued before can no longer be mistaken for ours. Returns it, and
/// what the audit is to say of it, by whom and of what. Nothing where the epoch is no longer `read`, under which the loss showed:
/// somebody else has raised it meanwhile, and one loss that several see at once raises it once.
///
/// # Errors
/// When the database fails.
pub async fn term_raise(
    conn: &mut PgConnection,
    read: u64,
    seen: u64,
    reason: &str,
    (actor, subject): (&str, String),
) -> Result<Option<(u64, Entry)>, Error> {
    let raised: Option<i64> = sqlx::query_scalar(
        "UPDATE hub_state SET hub_term = GREATEST(hub_term, $1) + 1, raised_at = clock_timestamp(), reason = $2
         WHERE hub_term = $3 RETURNING hub_term",
    )
    .bind(signed(seen))
    .bind(reason)
    .bind(signed(read))
    .fetch_optional(conn)
    .await
    .label("hub_state.raise")?;
    Ok(raised.map(natural).map(|term| {
        let body = json!({"term": term, "reason": reason});
        (term, Entry { kind: Kind::TermRaised, actor: actor.to_owned(), subject, incident: None, body })
    }))
}

/// What the database knows of what a cluster says it has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The epoch.
    pub(super) term: u64,
    /// Number of the cluster's last command.
    pub(super) cmd_seq: u64,
    /// The number that the cluster has seen last was given to another command here.
    twice: bool,
}

pub(super) async fn term_known(conn: &mut PgConnection, cluster: &ClusterId, says: Seen) -> Result<Known, Error> {
    let (term, cmd_seq, twice): (i64, i64, bool) = sqlx::query_as(
        "SELECT hub_term, COALESCE((SELECT cmd_seq FROM command_counters WHERE cluster_id = $1), 0),
                EXISTS (SELECT FROM commands WHERE cluster_id = $1 AND cmd_seq = $2 AND command_id <> $3) FROM hub_state",
    )
    .bind(cluster.as_str())
    .bind(signed(says.cmd_seq))
    .bind(says.cmd_id.map(CommandId::uuid))
    .fetch_one(conn)
    .await
    .label("hub_state.known")?;
    Ok(Known { term: natural(term), cmd_seq: natural(cmd_seq), twice })
}

/// The epoch after a cluster has said what it has seen, and whether that raised it. One that has seen a later epoch, or a higher
/// command under this one, or another command of a number, proves that this database lost commits: the epoch rises above all that was seen. One that has not seen
/// the present epoch yet lost its commands before it began: its count alone is taken over. One that was only welcomed under a
/// later one has nothing of it but its word, which is enough: a term that was in force once must not come again.
pub(super) async fn term_told(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    says: Seen,
    mut known: Known,
    now: Timestamp,
) -> Result<(u64, bool), Error> {
    let seen = says.term.max(says.term_heard);
    loop {
        let Known { term, cmd_seq, twice } = known;
        let lost = cmd_seq < says.cmd_seq;
        if lost {
            cmd_seq_adopt(conn, cluster, says.cmd_seq).await?;
        }
        if term >= seen && !(term == says.term && (lost || twice)) {
            return Ok((term, false));
        }
        let reason = if twice {
            format!(
                "cluster {cluster} has seen command {} under a number, {}, that this database gave to another",
                named(says),
                says.cmd_seq
            )
        } else {
            format!("cluster {cluster} has seen term {seen} and command {}, this database has {term} and {cmd_seq}", says.cmd_seq)
        };
        let raised = term_raise(conn, term, seen, &reason, ("hub/link", format!("cluster/{cluster}"))).await?;
        if let Some((raised, entry)) = raised {
            audit::append(conn, chain_of(cluster), &[entry], now).await?;
            return Ok((raised, true));
        }
        // Somebody raised it meanwhile: what the cluster has seen may prove no loss any more.
        known = term_known(conn, cluster, says).await?;
    }
}

fn named(says: Seen) -> String {
    says.cmd_id.map_or_else(|| "without a name".to_owned(), |id| id.to_string())
}

/// Goes on above a number that a cluster has seen.
///
/// # Errors
/// When the database fails.
pub async fn cmd_seq_adopt(conn: &mut PgConnection, cluster: &ClusterId, seen: u64) -> Result<(), Error> {
    sqlx::query(
        "INSERT INTO command_counters (cluster_id, cmd_seq) VALUES ($1, $2)
         ON CONFLICT (cluster_id) DO UPDATE SET cmd_seq = GREATEST(command_counters.cmd_seq, EXCLUDED.cmd_seq)",
    )
    .bind(cluster.as_str())
    .bind(signed(seen))
    .execute(conn)
    .await
    .label("term.cmd_seq_adopt")?;
    Ok(())
}
