//! The hub's own stages over a real database, behind the seam of the simulation. Time goes by as all stored moments move
//! into the past.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use gpuheal_hub::{
    decide,
    deliver::due,
    identity::denied::{Certificate, Serial},
    ingest::{self, Ingest, Origin, Taken},
    link::hello::{Hello, Seen},
    policy_file, settle,
    sign::{self, Signer},
    store::{
        self,
        leading::Leading,
        moment::{self, from_db},
        outbox::{self, Sent, Waiting},
        policy::policy_apply,
        pool,
        server::{Recognised, Witness, server_recognise},
        session::{Alive, Attached, Lead, Refused, session_attach, session_detach, session_lead, sessions_seen},
        stop::fleet_stop,
        unheard::{unheard_ask, untold_ask},
    },
    wake::Wake,
};
use gpuheal_proto::{
    ids::{ClusterId, CommandId, ReplicaId},
    link::v1,
    time::Timestamp,
};
use gpuheal_sim::store::{Due, Error, Leader, Owner, Picture, Store};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::runtime::Runtime;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The adaptor.
pub(crate) struct Postgres {
    rt: Runtime,
    pool: PgPool,
    wake: Arc<Wake>,
    ingest: Ingest,
    _stop: DropGuard,
    /// How far the stored moments were moved.
    elapsed: Duration,
}

impl Postgres {
    pub(crate) fn new() -> Self {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (pool, wake, ingest, stop) = rt.block_on(async {
            let pool = pool::connect(&testpg::database().await, 4).await.unwrap();
            let (wake, stop) = (Wake::new(), CancellationToken::new());
            let (ingest, _committer) = Ingest::start(pool.clone(), wake.clone(), stop.clone());
            (pool, wake, ingest, stop)
        });
        Self { rt, pool, wake, ingest, _stop: stop.drop_guard(), elapsed: Duration::ZERO }
    }

    /// What its clock would say if time had gone by.
    pub(crate) fn moment(&mut self) -> Timestamp {
        self.now().after(self.elapsed)
    }

    fn lines(&self, query: &'static str) -> Vec<String> {
        self.rt.block_on(sqlx::query_scalar(query).fetch_all(&self.pool)).unwrap()
    }

    /// All that the database has noted was so much earlier; what spokes say by their own clocks stays as they said it.
    fn back(&self, span: Duration) {
        let columns: Vec<(String, String)> = self
            .rt
            .block_on(
                sqlx::query_as(
                    "SELECT table_name::text, string_agg(format('%1$I = %1$I - $1 * interval ''1 millisecond''', column_name), ', ') \
                     FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name) \
                     WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND data_type = 'timestamp with time zone' \
                     AND column_name NOT IN ('observed_at', 'spoke_at') AND table_name NOT LIKE 'audit%' AND table_name NOT IN ('policies', '_sqlx_migrations') GROUP BY 1",
                )
                .fetch_all(&self.pool),
            )
            .unwrap();
        for (table, sets) in columns {
            let statement = format!("UPDATE {table} SET {sets}");
            let query = sqlx::query(AssertSqlSafe(statement)).bind(span.as_secs_f64() * 1000.0);
            self.rt.block_on(query.execute(&self.pool)).unwrap();
        }
    }
}

fn origin(owner: &Owner) -> Origin {
    Origin { cluster: owner.cluster.clone(), session: Some((owner.replica.clone(), owner.generation)) }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Refused(error.to_string())
}

fn of_ingest(error: ingest::Error) -> Error {
    match error {
        ingest::Error::Store(error) => of_store(error),
        other => refused(other),
    }
}

fn of_store(error: store::Error) -> Error {
    match error {
        store::Error::TakenOver { replica, generation } => {
            Error::TakenOver { replica: ReplicaId::parse(&replica).unwrap(), generation }
        }
        other => refused(other),
    }
}

impl Store for Postgres {
    fn now(&mut self) -> Timestamp {
        self.rt.block_on(async { moment::now(&mut self.pool.acquire().await.unwrap()).await.unwrap() })
    }

    fn elapse(&mut self, span: Duration) {
        self.back(span);
        self.elapsed += span;
    }

    fn policy(&mut self, yaml: &str) -> Result<u64, Error> {
        let policy = policy_file::check(yaml).map_err(|problems| refused(&problems[0]))?;
        let applied = self.rt.block_on(policy_apply(&self.pool, yaml, &policy.digest, "sim", ""));
        applied.map(|applied| applied.revision).map_err(refused)
    }

    fn stop(&mut self, reason: Option<&str>) -> Result<(), Error> {
        let why = reason.unwrap_or("over");
        self.rt.block_on(fleet_stop(&self.pool, reason, why, "sim")).map(drop).map_err(refused)
    }

    fn attach(&mut self, hello: &Hello, hub: &str) -> Result<Attached, Error> {
        self.rt.block_on(async {
            let mut tx = self.pool.begin().await.unwrap();
            let certificate = Certificate { serial: Serial::from_bytes(&[7]), not_before: Timestamp::EPOCH };
            let attached = session_attach(&mut tx, hello, &certificate, hub).await.map_err(refused)?;
            // A refusal may leave the identity in quarantine.
            tx.commit().await.unwrap();
            attached.map_err(|why| match why {
                Refused::Foreign { .. } => Error::Foreign,
                Refused::Quarantined { .. } => Error::Refused("quarantined".to_owned()),
                Refused::Revoked => Error::Refused("revoked".to_owned()),
                Refused::Implausible { detail } => Error::Refused(format!("implausible: {detail}")),
            })
        })
    }

    fn lead(&mut self, owner: &Owner, lease: Option<u64>, says: Seen) -> Result<bool, Error> {
        let lead = self.rt.block_on(async {
            let mut tx = self.pool.begin().await.unwrap();
            let lead = session_lead(&mut tx, &owner.cluster, (&owner.replica, owner.generation), lease, says).await.unwrap();
            if matches!(lead, Lead::Noted { .. }) {
                tx.commit().await.unwrap();
            }
            lead
        });
        match lead {
            Lead::Noted { term_raised } => Ok(term_raised),
            Lead::TakenOver => Err(Error::TakenOver { replica: owner.replica.clone(), generation: owner.generation }),
            Lead::Implausible { detail } => Err(Error::Refused(format!("implausible: {detail}"))),
        }
    }

    fn recognise(&mut self, hub: &str, seen: &mut Option<Witness>) -> Result<Recognised, Error> {
        self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            server_recognise(&mut conn, hub, seen).await.map_err(refused)
        })
    }

    fn detach(&mut self, owner: &Owner) {
        self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            session_detach(&mut conn, &owner.cluster, &owner.replica, owner.generation).await.unwrap();
        });
    }

    fn owned(&mut self, owner: &Owner, noted: Option<Timestamp>) -> Option<Timestamp> {
        let key =
            Alive { cluster: owner.cluster.clone(), replica: owner.replica.clone(), generation: owner.generation, seen_at: noted };
        let mut owned = self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            sessions_seen(&mut conn, &[key]).await.unwrap()
        });
        owned.pop().and_then(|one| one.seen_at)
    }

    fn faults(&mut self, from: &Owner, batch: v1::FaultBatch) -> Result<v1::FaultAck, Error> {
        self.rt.block_on(self.ingest.submit(origin(from), batch)).map_err(of_ingest)
    }

    fn gap(&mut self, from: &Owner, gap: v1::Gap) -> Result<v1::FaultAck, Error> {
        self.rt.block_on(self.ingest.gap(origin(from), gap)).map_err(of_ingest)
    }

    fn state(&mut self, from: &Origin, mut state: v1::ClusterState) -> Result<Taken, Error> {
        // Moments of the test's time are as long ago here as they are there.
        for moment in [&mut state.as_of_unix_ms, &mut state.told_upto_unix_ms].into_iter().filter(|moment| **moment > 0) {
            *moment = Timestamp::from_unix_ms(*moment).before(self.elapsed).unix_ms();
        }
        self.rt.block_on(self.ingest.state(from.clone(), state)).map_err(of_ingest)
    }

    fn evidence(&mut self, from: &Origin, batch: v1::EvidenceBatch) -> Result<(), Error> {
        self.rt.block_on(self.ingest.evidence(from.clone(), batch)).map_err(of_ingest)
    }

    fn judge(&mut self) -> Result<usize, Error> {
        self.rt.block_on(decide::step(&self.pool, &self.wake)).map_err(refused)
    }

    fn sign(&mut self, signer: &Arc<Signer>) -> Result<usize, Error> {
        let stage = sign::Stage { pool: self.pool.clone(), signer: Arc::clone(signer), wake: self.wake.clone() };
        self.rt.block_on(stage.round(&mut BTreeSet::new())).map_err(refused)
    }

    fn unheard(&mut self, leaders: &[Leader]) -> Result<Vec<(ClusterId, CommandId)>, Error> {
        let mut asked = self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            unheard_ask(&mut conn, &leading(leaders), 256).await.map_err(refused)
        })?;
        asked.sort();
        Ok(asked.into_iter().map(|(cluster, id)| (ClusterId::parse(&cluster).unwrap(), CommandId::from_uuid(id))).collect())
    }

    fn untold(&mut self, leaders: &[Leader]) -> Result<Vec<v1::FaultAsked>, Error> {
        let asked = self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            untold_ask(&mut conn, &leading(leaders), 256).await.map_err(refused)
        })?;
        Ok(asked.iter().map(|(_, asked)| asked.into()).collect())
    }

    fn due(&mut self, leaders: &[Leader]) -> Result<Vec<Due>, Error> {
        let leading = leading(leaders);
        let rows = self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            outbox::waiting(&mut conn, &leading, 256).await.unwrap()
        });
        let due = |row: Waiting| {
            let (cancels, envelope) = match (due::due(&(&row).into(), from_db(row.now)), row.cancel_envelope) {
                (due::Due::Send(_), _) => (false, row.envelope),
                (due::Due::Cancel, Some(cancel)) => (true, cancel),
                _ => return None,
            };
            Some(Due {
                cluster: ClusterId::parse(&row.cluster_id).unwrap(),
                command: CommandId::from_uuid(row.command_id),
                cancels,
                envelope: Bytes::from(envelope),
                at: from_db(row.now),
            })
        };
        Ok(rows.into_iter().filter_map(due).collect())
    }

    fn sent(&mut self, sent: &[Due]) -> Result<(), Error> {
        let moment = |due: &Due| sqlx::types::chrono::DateTime::from_timestamp_millis(due.at.unix_ms()).unwrap();
        let row = |due| -> Sent<'_> {
            let due: &Due = due;
            Sent { cluster: due.cluster.as_str(), command: due.command.uuid(), at: moment(due) }
        };
        let (cancels, commands): (Vec<&Due>, Vec<&Due>) = sent.iter().partition(|due| due.cancels);
        self.rt.block_on(async {
            let mut conn = self.pool.acquire().await.unwrap();
            outbox::sent(&mut conn, &commands.into_iter().map(row).collect::<Vec<_>>()).await.unwrap();
            outbox::cancel_sent(&mut conn, &cancels.into_iter().map(row).collect::<Vec<_>>()).await.unwrap();
        });
        Ok(())
    }

    fn settle(
        &mut self,
        from: &Origin,
        status: v1::CommandStatus,
        signer: Option<&Signer>,
    ) -> Result<Option<v1::StatusAck>, Error> {
        self.rt
            .block_on(settle::settle(&self.pool, from.clone(), status, signer))
            .map_err(|settle::Error::Store(error)| of_store(error))
    }

    fn sweep(&mut self) -> Result<u64, Error> {
        self.rt.block_on(settle::sweep(&self.pool)).map_err(refused)
    }

    fn picture(&mut self) -> Picture {
        let term: i64 = self.rt.block_on(sqlx::query_scalar("SELECT hub_term FROM hub_state").fetch_one(&self.pool)).unwrap();
        Picture {
            faults: self.lines(
                "SELECT format('%s %s %s %s #%s %s %s', cluster_id, class, code, node_name, episode, evidence, COALESCE(settled_level, 'open')) FROM faults",
            ),
            incidents: self.lines(
                "SELECT format('%s %s %s %s holds %s %s', cluster_id, node_name, state, level, \
                 (SELECT count(*) FROM incident_faults f WHERE f.cluster_id = i.cluster_id AND f.incident_id = i.incident_id), \
                 CASE WHEN closed_at IS NULL THEN 'open' ELSE 'closed' END) FROM incidents i",
            ),
            commands: self.lines(
                "SELECT format('%s %s %s %s %s rev %s term %s signed %s seq %s refusal \"%s\" corrections %s cancel %s', cluster_id, cmd_seq, node_name, \
                 action, state, plan_rev, hub_term, CASE WHEN envelope IS NULL THEN 'false' ELSE 'true' END, status_seq, COALESCE(refusal, ''), corrections, \
                 CASE WHEN cancel_asked_at IS NULL THEN 'false' ELSE 'true' END) FROM commands",
            ),
            out: self.lines(
                "SELECT format('%s %s', cluster_id, node_uid) FROM holds UNION ALL \
                 SELECT format('%s cluster %s', cluster_id, out) FROM budgets WHERE kind = 'cluster' AND out > 0",
            ),
            cooldowns: self.lines("SELECT format('%s %s %s', cluster_id, node_uid, state) FROM cooldowns"),
            streams: self.lines("SELECT format('%s %s %s', cluster_id, stream_id, acked_upto) FROM streams"),
            sessions: self.lines(
                "SELECT format('%s %s %s leads %s detached %s', cluster_id, replica_id, session_generation, \
                 CASE WHEN lease_transitions IS NULL THEN 'None' ELSE format('Some(%s)', lease_transitions) END, \
                 CASE WHEN detached_at IS NULL THEN 'false' ELSE 'true' END) FROM sessions",
            ),
            nodes: self.lines(
                "SELECT format('%s %s marked %s shows %s issued %s gone %s', cluster_id, node_name, \
                 CASE WHEN labelled OR tainted OR cordoned_by_us THEN 'true' ELSE 'false' END, plan_revision, plan_rev_issued, \
                 CASE WHEN gone_at IS NULL THEN 'false' ELSE 'true' END) FROM nodes",
            ),
            audit: self.lines("SELECT format('%s %s %s', chain, to_char(seq, 'FM00000'), kind) FROM audit_entries"),
            hub_term: u64::try_from(term).unwrap(),
        }
        .sorted()
    }
}

impl Postgres {
    /// Its server is another run of itself: to the rows it is the same whether it is, or whether the last run had another name.
    pub(crate) fn restarts(&self) {
        let query = sqlx::query("UPDATE hub_state SET recognised_run = 'an earlier run' WHERE recognised_run IS NOT NULL");
        self.rt.block_on(query.execute(&self.pool)).unwrap();
    }

    /// The id of a command by its number.
    pub(crate) fn command(&self, cluster: &ClusterId, cmd_seq: u64) -> Option<String> {
        let query = sqlx::query_scalar("SELECT command_id::text FROM commands WHERE cluster_id = $1 AND cmd_seq = $2")
            .bind(cluster.as_str())
            .bind(i64::try_from(cmd_seq).unwrap());
        self.rt.block_on(query.fetch_optional(&self.pool)).unwrap()
    }
}

fn leading(leaders: &[Leader]) -> Vec<Leading> {
    let leading = |leader: &Leader| Leading {
        cluster: leader.owner.cluster.clone(),
        replica: leader.owner.replica.to_string(),
        generation: i64::try_from(leader.owner.generation).unwrap(),
        lease_transitions: i64::try_from(leader.lease_transitions).unwrap(),
    };
    leaders.iter().map(leading).collect()
}
