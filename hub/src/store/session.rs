//! Who owns the stream of each spoke replica: the generation is raised at each attach, and whoever holds a lower one is out.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use gpuheal_proto::{
    ids::{ClusterId, ReplicaId},
    time::Timestamp,
};
use sqlx::{PgConnection, types::Json};

use super::{
    Error, Labelled as _,
    journal::journals_name,
    moment::{from_db, to_db},
    natural,
    quarantine::{self, Cause},
    revocation, signed,
    stream::sessions_lost,
    term::{term_known, term_told},
};
use crate::{
    identity::denied::Certificate,
    link::{
        clone,
        hello::{Hello, Seen},
        plausible,
    },
};

/// How long a session counts as there when it is not seen. Its hub notes it every 10 s, and one round may wait 30 s for a
/// database that hangs: two such rounds go by before a session that lives is taken for dead. One that is dead keeps nobody
/// from the cluster's commands for longer.
pub const SESSION_STALE: Duration = Duration::from_secs(60);

/// What a session starts from.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Its number.
    pub generation: u64,
    /// Epoch of the database.
    pub hub_term: u64,
    /// Journals that are known here, and how far each is committed.
    pub acked: Vec<(String, u64)>,
    /// The database's clock.
    pub now: Timestamp,
    /// The cluster is taken over under this epoch of the database: otherwise it is asked for all that it has.
    pub taken_over: bool,
    /// The epoch was raised, because this cluster has seen a later database than this one.
    pub term_raised: bool,
    /// The reign whose word on the cluster is held.
    pub reign_known: u64,
    /// How far the replica's wall clock is ahead of the database's; none when it did not tell it.
    pub clock_skew_ms: Option<i64>,
}

/// Why a replica was not attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its certificate counts no longer.
    Revoked,
    /// Its kube-system UID is another cluster's than the one known under this id.
    Foreign {
        /// This is news: the identity is quarantined from now on.
        alarm: bool,
    },
    /// This identity was seen in two places.
    Quarantined {
        /// This is news.
        alarm: bool,
        /// What was seen.
        detail: String,
    },
    /// It says that it has seen what no hub can have given out. Nothing of it was taken.
    Implausible {
        /// What.
        detail: String,
    },
}

/// Attaches a replica, or says why not, in one transaction of the caller's, who commits either way: a refusal may leave an
/// identity in quarantine.
///
/// # Errors
/// When the database fails.
pub async fn session_attach(
    conn: &mut PgConnection,
    hello: &Hello,
    certificate: &Certificate,
    hub_id: &str,
) -> Result<Result<Attached, Refused>, Error> {
    // The cluster's row is locked by it: attaches of one cluster, and what a person says of it, come one after another.
    let (uid, taken_over_term, reign_known): (Option<String>, Option<i64>, i64) = sqlx::query_as(
        "INSERT INTO clusters AS c (cluster_id, name, kube_system_uid, spoke_version) VALUES ($1, $1, $2, $3)
         ON CONFLICT (cluster_id) DO UPDATE SET kube_system_uid = COALESCE(c.kube_system_uid, EXCLUDED.kube_system_uid),
             spoke_version = CASE WHEN COALESCE(c.kube_system_uid, $2) = $2 THEN EXCLUDED.spoke_version ELSE c.spoke_version END
         RETURNING kube_system_uid, taken_over_term, state_lease_transitions",
    )
    .bind(hello.cluster.as_str())
    .bind(&hello.kube_system_uid)
    .bind(&hello.version)
    .fetch_one(&mut *conn)
    .await
    .label("cluster.attach")?;
    if revocation::revoked(conn, &hello.cluster, certificate).await? {
        return Ok(Err(Refused::Revoked));
    }
    let now = super::moment::now(conn).await?;
    if uid.as_deref() != Some(hello.kube_system_uid.as_str()) {
        let detail = format!(
            "kube-system UID {:?} shows the certificate of the cluster with UID {:?}",
            hello.kube_system_uid,
            uid.unwrap_or_default()
        );
        let alarm = quarantine::quarantine_raise(conn, &hello.cluster, Cause::KubeSystemUid, &detail, now).await?;
        return Ok(Err(Refused::Foreign { alarm }));
    }
    if let Some(detail) = quarantine::quarantine(conn, &hello.cluster).await? {
        return Ok(Err(Refused::Quarantined { alarm: false, detail }));
    }
    let known = term_known(conn, &hello.cluster, hello.seen).await?;
    if let Some(detail) = plausible::beyond(hello, known.term, known.cmd_seq) {
        return Ok(Err(Refused::Implausible { detail }));
    }
    let owned = own(conn, hello, certificate, hub_id).await?;
    if clone::alternates(&owned.boots, owned.at) {
        let detail = format!("two processes take turns as replica {}, now as boot {:?}", hello.replica, hello.boot_id);
        let alarm = quarantine::quarantine_raise(conn, &hello.cluster, Cause::BootIds, &detail, now).await?;
        return Ok(Err(Refused::Quarantined { alarm, detail }));
    }
    let (hub_term, term_raised) = term_told(conn, &hello.cluster, hello.seen, known, now).await?;
    let acked = journals_name(conn, hello, now).await?;
    Ok(Ok(Attached {
        generation: owned.generation,
        hub_term,
        acked,
        now: owned.at,
        // By the epoch that the session is told, and not by the one before the wait for the cluster's row.
        taken_over: taken_over_term.map(natural) == Some(hub_term),
        term_raised,
        reign_known: natural(reign_known),
        clock_skew_ms: owned.clock_skew_ms,
    }))
}

/// A stream that now is ours.
struct Owned {
    generation: u64,
    at: Timestamp,
    /// Who owned it lately.
    boots: Vec<(String, Timestamp)>,
    clock_skew_ms: Option<i64>,
}

async fn own(conn: &mut PgConnection, hello: &Hello, certificate: &Certificate, hub_id: &str) -> Result<Owned, Error> {
    type Row = (i64, DateTime<Utc>, Vec<String>, Vec<DateTime<Utc>>, Option<i64>);
    // The row itself may be held by a commit of its faults, for as long as one takes: that is all that the clock may seem behind.
    let wall = hello.wall.map(|wall| wall.at(Instant::now()).unix_ms());
    let (generation, at, boots, boots_at, clock_skew_ms): Row = sqlx::query_as(
        "INSERT INTO sessions AS s (cluster_id, replica_id, boot_id, hub_id, version, caps, lease_transitions, certificate_serial,
             certificate_not_before, boots, boots_at, clock_skew_ms)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, ARRAY[$3], ARRAY[clock_timestamp()],
             $10 - (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
         ON CONFLICT (cluster_id, replica_id) DO UPDATE SET session_generation = s.session_generation + 1,
             boot_id = EXCLUDED.boot_id, hub_id = EXCLUDED.hub_id, version = EXCLUDED.version, caps = EXCLUDED.caps,
             lease_transitions = EXCLUDED.lease_transitions, attached_at = clock_timestamp(), seen_at = clock_timestamp(),
             detached_at = NULL, certificate_serial = EXCLUDED.certificate_serial,
             certificate_not_before = EXCLUDED.certificate_not_before, clock_skew_ms = EXCLUDED.clock_skew_ms,
             boots = CASE WHEN s.boot_id = EXCLUDED.boot_id AND cardinality(s.boots) > 0 THEN s.boots
                 ELSE (s.boots || EXCLUDED.boots)[GREATEST(1, cardinality(s.boots) - 14):] END,
             boots_at = CASE WHEN s.boot_id = EXCLUDED.boot_id AND cardinality(s.boots) > 0 THEN s.boots_at
                 ELSE (s.boots_at || EXCLUDED.boots_at)[GREATEST(1, cardinality(s.boots_at) - 14):] END
         RETURNING session_generation, attached_at, boots, boots_at, clock_skew_ms",
    )
    .bind(hello.cluster.as_str())
    .bind(hello.replica.as_str())
    .bind(&hello.boot_id)
    .bind(hub_id)
    .bind(&hello.version)
    .bind(&hello.caps)
    .bind(hello.lease_transitions.map(signed))
    .bind(certificate.serial.as_str())
    .bind(to_db(certificate.not_before))
    .bind(wall)
    .fetch_one(conn)
    .await
    .label("session.attach")?;
    let boots = boots.into_iter().zip(boots_at.into_iter().map(from_db)).collect();
    Ok(Owned { generation: natural(generation), at: from_db(at), boots, clock_skew_ms })
}

/// Ends all sessions of a cluster, on whichever hub they are: their generations are over. Returns how many there were.
///
/// # Errors
/// When the database fails.
pub async fn sessions_fence(conn: &mut PgConnection, cluster: &ClusterId) -> Result<u64, Error> {
    let ended = sqlx::query(
        "UPDATE sessions SET session_generation = session_generation + 1, detached_at = clock_timestamp(), lease_transitions = NULL
         WHERE cluster_id = $1 AND detached_at IS NULL",
    )
    .bind(cluster.as_str())
    .execute(conn)
    .await
    .label("sessions.fence")?;
    Ok(ended.rows_affected())
}

/// Holds a message's session until commit, so that nobody takes it over meanwhile: of one that is over already nothing is
/// taken. What comes from no session, as in a test of a stage, is taken. Who locks the cluster's row too does that first, as an
/// attach does.
///
/// # Errors
/// When it was taken over, revoked or fenced off.
pub async fn session_hold(conn: &mut PgConnection, cluster: &ClusterId, session: Option<&(ReplicaId, u64)>) -> Result<(), Error> {
    let Some((replica, generation)) = session else { return Ok(()) };
    if sessions_lost(conn, &[(cluster, replica.as_str(), *generation)]).await?.is_empty() {
        Ok(())
    } else {
        Err(Error::TakenOver { replica: replica.to_string(), generation: *generation })
    }
}

/// What became of a session's word that it leads, or no longer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lead {
    /// It is noted.
    Noted {
        /// The epoch was raised, because the cluster has seen what this database has lost.
        term_raised: bool,
    },
    /// The session was taken over.
    TakenOver,
    /// It says that it has seen what no hub can have given out. Nothing of it was taken.
    Implausible {
        /// What.
        detail: String,
    },
}

/// Notes that a session proves leadership, having seen so much, or that it no longer does: in one transaction of the caller's,
/// so that nothing is commanded on the strength of a proof before it is known what this database may have lost.
///
/// # Errors
/// When the database fails.
pub async fn session_lead(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    (replica, generation): (&ReplicaId, u64),
    lease_transitions: Option<u64>,
    says: Seen,
) -> Result<Lead, Error> {
    let done = sqlx::query(
        "UPDATE sessions SET lease_transitions = $4, seen_at = clock_timestamp(),
             leads_since = CASE WHEN $4 IS NULL THEN leads_since ELSE clock_timestamp() END
         WHERE cluster_id = $1 AND replica_id = $2 AND session_generation = $3 AND detached_at IS NULL",
    )
    .bind(cluster.as_str())
    .bind(replica.as_str())
    .bind(signed(generation))
    .bind(lease_transitions.map(signed))
    .execute(&mut *conn)
    .await
    .label("session.lead")?;
    if done.rows_affected() != 1 {
        return Ok(Lead::TakenOver);
    }
    if lease_transitions.is_none() {
        return Ok(Lead::Noted { term_raised: false });
    }
    let known = term_known(conn, cluster, says).await?;
    if let Some(detail) = plausible::unseen(says, known.term, known.cmd_seq) {
        return Ok(Lead::Implausible { detail });
    }
    let now = super::moment::now(conn).await?;
    let (_, term_raised) = term_told(conn, cluster, says, known, now).await?;
    Ok(Lead::Noted { term_raised })
}

/// Notes that a session ended, unless another took over.
///
/// # Errors
/// When the database fails.
pub async fn session_detach(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    replica: &ReplicaId,
    generation: u64,
) -> Result<(), Error> {
    sqlx::query(
        "UPDATE sessions SET detached_at = clock_timestamp(), lease_transitions = NULL
         WHERE cluster_id = $1 AND replica_id = $2 AND session_generation = $3 AND detached_at IS NULL",
    )
    .bind(cluster.as_str())
    .bind(replica.as_str())
    .bind(signed(generation))
    .execute(conn)
    .await
    .label("session.detach")?;
    Ok(())
}

/// A session of this hub, and what it last wrote of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alive {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its replica.
    pub replica: ReplicaId,
    /// Its number.
    pub generation: u64,
    /// When it was last noted to live, by the database's clock; none if it was not yet.
    pub seen_at: Option<Timestamp>,
}

/// Notes in one statement that these sessions live, and returns those that are still their streams' owners, with when. One whose
/// row says less than was noted before is not among them: the database has lost what was committed since, as after a restore or a
/// failover, and what was acked in this session may be lost with it.
///
/// # Errors
/// When the database fails.
pub async fn sessions_seen(conn: &mut PgConnection, sessions: &[Alive]) -> Result<Vec<Alive>, Error> {
    let clusters: Vec<&str> = sessions.iter().map(|one| one.cluster.as_str()).collect();
    let replicas: Vec<&str> = sessions.iter().map(|one| one.replica.as_str()).collect();
    let generations: Vec<i64> = sessions.iter().map(|one| signed(one.generation)).collect();
    let seen: Vec<Option<DateTime<Utc>>> = sessions.iter().map(|one| one.seen_at.map(to_db)).collect();
    let owned: Vec<(i64, DateTime<Utc>)> = sqlx::query_as(
        "UPDATE sessions s SET seen_at = GREATEST(date_trunc('milliseconds', clock_timestamp()), k.seen_at)
         FROM UNNEST($1::text[], $2::text[], $3::bigint[], $4::timestamptz[]) WITH ORDINALITY
             AS k(cluster_id, replica_id, generation, seen_at, at)
         WHERE s.cluster_id = k.cluster_id AND s.replica_id = k.replica_id AND s.session_generation = k.generation
             AND s.seen_at >= COALESCE(k.seen_at, s.seen_at)
         RETURNING k.at, s.seen_at",
    )
    .bind(clusters)
    .bind(replicas)
    .bind(generations)
    .bind(seen)
    .fetch_all(conn)
    .await
    .label("sessions.seen")?;
    let noted = |(at, seen_at): (i64, DateTime<Utc>)| {
        let of = usize::try_from(at - 1).ok().and_then(|at| sessions.get(at))?;
        Some(Alive { seen_at: Some(from_db(seen_at)), ..of.clone() })
    };
    Ok(owned.into_iter().filter_map(noted).collect())
}

/// Notes which settings a cluster has taken, or why it did not. False: the session that says so was taken over.
///
/// # Errors
/// When the database fails.
pub async fn settings_ack(
    conn: &mut PgConnection,
    cluster: &ClusterId,
    (replica, generation): (&ReplicaId, u64),
    version: u64,
    errors: &[String],
) -> Result<bool, Error> {
    // The session is looked at and not held: who locks the cluster's row does that before a session's.
    let done = sqlx::query(
        "UPDATE clusters c SET settings_errors = $3, settings_version = CASE WHEN $4 THEN $2 ELSE settings_version END
         WHERE cluster_id = $1 AND EXISTS (SELECT 1 FROM sessions s
             WHERE s.cluster_id = $1 AND s.replica_id = $5 AND s.session_generation = $6)",
    )
    .bind(cluster.as_str())
    .bind(signed(version))
    .bind(Json(errors))
    .bind(errors.is_empty())
    .bind(replica.as_str())
    .bind(signed(generation))
    .execute(conn)
    .await
    .label("cluster.settings_ack")?;
    Ok(done.rows_affected() == 1)
}
