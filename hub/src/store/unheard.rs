//! What nobody tells by itself. Commands whose end nobody has told: those that were under way when their leader's session began, and
//! those whose end the hub assumed. A cluster may have told it and a database that was restored since have lost that, where neither
//! an epoch nor a number shows that anything is missing. And faults that stand and of which the leader has told nothing: another
//! replica found them, and whoever has not seen a fault sees nothing end.

use std::time::Duration;

use chrono::{DateTime, Utc};
use gpuheal_hub_core::admit::Witnesses;
use gpuheal_proto::{
    fault::{Asked, Fault, FaultClass, Onset, Witness},
    ids::{FaultKey, NodeUid},
};
use sqlx::{FromRow, PgConnection, types::Json};
use uuid::Uuid;

use super::{
    Error, Labelled as _,
    fault::{gpu_of, node_of},
    leading::{self, Leading, of_mine},
    moment::from_db,
    read,
};

/// A leader has told how all stands that it knows, which it does within seconds of each session, once it leads for so long.
pub const HAS_TOLD_AFTER: Duration = Duration::from_secs(60);
/// A fault that its leader sees is told again every 30 s: one of which nothing was heard for ten times as long it may not know, since an
/// alert told the other replica of it.
pub const NOT_TOLD_FOR: Duration = Duration::from_secs(300);

/// Commands of these sessions' clusters that are to be asked for now, oldest first, each noted as asked for: once in each
/// session, and once more when its end was assumed since. Only what a spoke may still have on record, which is a day after
/// the command has run out.
///
/// # Errors
/// When the database fails.
pub async fn unheard_ask(conn: &mut PgConnection, leading: &[Leading], most: i64) -> Result<Vec<(String, Uuid)>, sqlx::Error> {
    let statement = sqlx::query_as(of_mine!(
        ", unheard AS (
             SELECT c.cluster_id, c.command_id FROM commands c JOIN mine m ON m.cluster_id = c.cluster_id
             WHERE c.state IN ('SIGNED', 'DISPATCHED', 'RECEIVED', 'STARTED') AND c.created_at < m.attached_at
                 AND (c.outcome_asked_at IS NULL OR c.outcome_asked_at < m.attached_at)
             UNION ALL
             SELECT c.cluster_id, c.command_id FROM commands c JOIN mine m ON m.cluster_id = c.cluster_id
             WHERE (c.state IN ('EXPIRED', 'UNKNOWN') OR (c.state = 'CANCELLED' AND c.status_seq = 0))
                 AND c.expires_at > clock_timestamp() - interval '1 day'
                 AND (c.outcome_asked_at IS NULL OR c.outcome_asked_at < GREATEST(m.attached_at, c.state_at))),
         now AS (
             SELECT c.cluster_id, c.command_id FROM commands c JOIN unheard USING (cluster_id, command_id)
             ORDER BY c.cluster_id, c.cmd_seq LIMIT $6 FOR UPDATE OF c SKIP LOCKED)
         UPDATE commands c SET outcome_asked_at = clock_timestamp() FROM now
         WHERE c.cluster_id = now.cluster_id AND c.command_id = now.command_id
         RETURNING c.cluster_id, c.command_id"
    ));
    leading::bound(statement, leading).bind(most).fetch_all(conn).await
}

/// Faults of these sessions' clusters that stand and are to be asked for now, longest known first, each noted as asked for. Those alone
/// of which the leader has told nothing since it leads, or nothing for long: what it told may have come before the fault itself,
/// which waited in a journal and then counted as seen.
///
/// # Errors
/// When the database fails, or a row cannot be read.
pub async fn untold_ask(conn: &mut PgConnection, leading: &[Leading], most: i64) -> Result<Vec<(String, Asked)>, Error> {
    let statement = sqlx::query_as::<_, UntoldRow>(of_mine!(
        ", now AS (
             SELECT f.cluster_id, f.fault_key, f.episode FROM faults f JOIN mine m ON m.cluster_id = f.cluster_id
             WHERE f.settled_at IS NULL AND f.evidence <> 'clear'
                 AND m.attached_at < clock_timestamp() - $7 * interval '1 second'
                 AND f.evidence_at < GREATEST(m.attached_at, clock_timestamp() - $8 * interval '1 second')
                 AND (f.asked_at IS NULL OR f.asked_at < GREATEST(m.attached_at, clock_timestamp() - $8 * interval '1 second'))
             ORDER BY f.cluster_id, f.first_at, f.fault_key LIMIT $6 FOR UPDATE OF f SKIP LOCKED)
         UPDATE faults f SET asked_at = clock_timestamp() FROM now
         WHERE f.cluster_id = now.cluster_id AND f.fault_key = now.fault_key AND f.episode = now.episode
         RETURNING f.cluster_id, f.fault_key, f.node_uid, f.node_name, f.boot_id, f.gpu_slot, f.gpu_uuid, f.gpu_model, f.class, f.code,
             f.value, f.count, f.witnesses, f.observed_at"
    ));
    let statement = leading::bound(statement, leading).bind(most);
    let statement = statement.bind(HAS_TOLD_AFTER.as_secs_f64()).bind(NOT_TOLD_FOR.as_secs_f64());
    let rows = statement.fetch_all(conn).await.label("faults.ask")?;
    rows.into_iter().map(UntoldRow::asked).collect()
}

#[derive(FromRow)]
struct UntoldRow {
    cluster_id: String,
    fault_key: Vec<u8>,
    node_uid: String,
    node_name: String,
    boot_id: String,
    gpu_slot: String,
    gpu_uuid: String,
    gpu_model: String,
    class: String,
    code: String,
    value: f64,
    count: i64,
    witnesses: Json<Witnesses>,
    observed_at: DateTime<Utc>,
}

impl UntoldRow {
    fn asked(self) -> Result<(String, Asked), Error> {
        let witnesses: std::collections::BTreeSet<Witness> = self.witnesses.0.values().map(|seen| seen.kind).collect();
        let uid = read("faults.node_uid", &self.node_uid, |text| NodeUid::parse(text).ok())?;
        let fault = Fault {
            key: read("faults.fault_key", &hex::encode(&self.fault_key), |text| FaultKey::parse(text).ok())?,
            node: node_of(uid, &self.node_name, self.boot_id)?,
            gpu: gpu_of(&self.gpu_slot, &self.gpu_uuid, self.gpu_model)?,
            class: read("faults.class", &self.class, FaultClass::parse)?,
            code: self.code,
            onset: Onset::Standing,
            witness: witnesses.first().copied().unwrap_or(Witness::Alert),
            observed_at: from_db(self.observed_at),
            value: self.value,
            threshold: 0.0,
            count: u32::try_from(self.count).unwrap_or(u32::MAX),
            source: String::new(),
            detail: String::new(),
            workload: String::new(),
        };
        Ok((self.cluster_id, Asked { fault, witnesses }))
    }
}
