//! Sessions that prove leadership, as statements about their clusters' commands are given them.

use gpuheal_proto::ids::ClusterId;
use sqlx::{Postgres, postgres::PgArguments, query::QueryAs};

use super::session::SESSION_STALE;

/// A session that proves leadership, as its hub knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leading {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its replica.
    pub replica: String,
    /// Its number.
    pub generation: i64,
    /// Its proof.
    pub lease_transitions: i64,
}

/// A statement that begins with `mine`: of the sessions given as $1 to $4, as [`bound`] has them, those that nobody took over
/// and that no other replica's proof outranks, each with the moment since which it leads here. One that was not seen for $5
/// seconds outranks nobody: its hub died with its pod, and no one noted that it ended.
macro_rules! of_mine {
    ($statement:literal) => {
        concat!(
            "WITH mine AS (
                 SELECT s.cluster_id, GREATEST(s.attached_at, s.leads_since) AS attached_at
                 FROM UNNEST($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS l(cluster_id, replica_id, generation, proof)
                 JOIN sessions s ON s.cluster_id = l.cluster_id AND s.replica_id = l.replica_id AND s.session_generation = l.generation
                 WHERE s.detached_at IS NULL AND NOT EXISTS (
                     SELECT 1 FROM sessions o WHERE o.cluster_id = l.cluster_id AND o.detached_at IS NULL
                         AND o.lease_transitions > l.proof AND o.seen_at > clock_timestamp() - $5 * interval '1 second'))
             ",
            $statement
        )
    };
}
pub(super) use of_mine;

/// The statement with $1 to $5 bound.
pub(super) fn bound<'q, O>(
    statement: QueryAs<'q, Postgres, O, PgArguments>,
    leading: &'q [Leading],
) -> QueryAs<'q, Postgres, O, PgArguments> {
    let clusters: Vec<&str> = leading.iter().map(|session| session.cluster.as_str()).collect();
    let replicas: Vec<&str> = leading.iter().map(|session| session.replica.as_str()).collect();
    let generations: Vec<i64> = leading.iter().map(|session| session.generation).collect();
    let proofs: Vec<i64> = leading.iter().map(|session| session.lease_transitions).collect();
    statement.bind(clusters).bind(replicas).bind(generations).bind(proofs).bind(SESSION_STALE.as_secs_f64())
}
