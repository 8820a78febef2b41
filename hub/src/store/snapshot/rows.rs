//! The rows of a snapshot as Postgres gives them, and as the decision's own types.

use chrono::{DateTime, Utc};
use gpuheal_hub_core::{
    admit::Witnesses,
    snapshot::{Evidence, KnownCommand, KnownFault, Ready, Settled},
};
use gpuheal_proto::{
    command::{CommandState, Refusal, Step, Undo},
    fault::{FaultClass, GpuRef, NodeRef},
    ids::{CommandId, FaultKey, NodeUid},
    words::{Action, Level},
};
use sqlx::{FromRow, Row as _, postgres::PgRow, types::Json};
use uuid::Uuid;

use super::Labels;
use crate::store::{
    Error,
    fault::{evidence_of, gpu_of, node_of},
    moment::from_db,
    natural, read,
    report::StepReport,
};

#[derive(Debug, FromRow)]
pub(super) struct ClusterRow {
    pub(super) config_yaml: String,
    pub(super) state_as_of: Option<DateTime<Utc>>,
    pub(super) told_upto: Option<DateTime<Utc>>,
    pub(super) taken_over: bool,
    pub(super) epoch: Option<i64>,
    pub(super) stop_reason: Option<String>,
    pub(super) gpu_nodes: i64,
    pub(super) fleet_gpu_nodes: i64,
    pub(super) out: i32,
    pub(super) fleet_out: i32,
    pub(super) unheld: i64,
    pub(super) fleet_unheld: i64,
    pub(super) adopting_nodes: Option<Vec<i64>>,
    pub(super) adopting_out: Option<Vec<i32>>,
    pub(super) tokens: Option<i64>,
    pub(super) filled_at: Option<DateTime<Utc>>,
    pub(super) fleet_tokens: Option<i64>,
    pub(super) fleet_filled_at: Option<DateTime<Utc>>,
    pub(super) revision: Option<i64>,
    pub(super) digest: Option<String>,
    pub(super) now: DateTime<Utc>,
}

/// One node's story: parts that are not there are columns without a value.
pub(super) struct StoryRow {
    pub(super) node: Option<NodeRow>,
    pub(super) incident: Option<IncidentRow>,
    pub(super) cooldown: Option<CooldownRow>,
    pub(super) attempts: Vec<DateTime<Utc>>,
    pub(super) newly_suspect: i64,
}

impl<'r> FromRow<'r, PgRow> for StoryRow {
    fn from_row(row: &'r PgRow) -> sqlx::Result<Self> {
        let node = row.try_get::<Option<&str>, _>("node_name")?.map(|_| NodeRow::from_row(row)).transpose()?;
        let incident = row.try_get::<Option<Uuid>, _>("incident_id")?.map(|_| IncidentRow::from_row(row)).transpose()?;
        let cooldown = row.try_get::<Option<Uuid>, _>("cooldown_incident")?.map(|_| CooldownRow::from_row(row)).transpose()?;
        Ok(Self { node, incident, cooldown, attempts: row.try_get("attempts")?, newly_suspect: row.try_get("newly_suspect")? })
    }
}

#[derive(FromRow)]
pub(super) struct NodeRow {
    pub(super) node_name: String,
    pub(super) boot_id: String,
    pub(super) created_at: DateTime<Utc>,
    pub(super) labels: Json<Labels>,
    pub(super) gpus: Json<Vec<GpuRef>>,
    pub(super) gpus_capacity: i32,
    pub(super) gpus_allocatable: i32,
    pub(super) ready: String,
    pub(super) unschedulable: bool,
    pub(super) unschedulable_by: String,
    pub(super) labelled: bool,
    pub(super) tainted: bool,
    pub(super) cordoned_by_us: bool,
    pub(super) mark_incident_id: String,
    pub(super) plan_revision: i64,
    pub(super) plan_rev_issued: i64,
    pub(super) opted_out: bool,
    pub(super) foreign_markers: Vec<String>,
    pub(super) state_as_of: DateTime<Utc>,
    pub(super) written_at: Option<DateTime<Utc>>,
    pub(super) gone_at: Option<DateTime<Utc>>,
}

/// Readiness of its stored word.
pub(super) fn ready(word: &str) -> Option<Ready> {
    match word {
        "ready" => Some(Ready::Ready),
        "not_ready" => Some(Ready::NotReady),
        "unknown" => Some(Ready::Unknown),
        _ => None,
    }
}

#[derive(FromRow)]
pub(super) struct FaultRow {
    fault_key: Vec<u8>,
    episode: i32,
    node_name: String,
    boot_id: String,
    gpu_slot: String,
    gpu_uuid: String,
    gpu_model: String,
    class: String,
    code: String,
    count: i64,
    workload: String,
    witnesses: Json<Witnesses>,
    first_at: DateTime<Utc>,
    pub(super) last_at: DateTime<Utc>,
    evidence: String,
    evidence_since: DateTime<Utc>,
    settled_level: Option<String>,
}

impl FaultRow {
    pub(super) fn node_ref(&self, uid: &NodeUid) -> Result<NodeRef, Error> {
        node_of(uid.clone(), &self.node_name, self.boot_id.clone())
    }
}

impl TryFrom<FaultRow> for KnownFault {
    type Error = Error;
    fn try_from(row: FaultRow) -> Result<Self, Error> {
        let settled = row.settled_level.as_deref().map(|level| read("faults.settled_level", level, Level::parse)).transpose()?;
        Ok(Self {
            key: read("faults.fault_key", &hex::encode(&row.fault_key), |text| FaultKey::parse(text).ok())?,
            gpu: gpu_of(&row.gpu_slot, &row.gpu_uuid, row.gpu_model)?,
            class: read("faults.class", &row.class, FaultClass::parse)?,
            code: row.code,
            episode: u32::try_from(row.episode).unwrap_or(0),
            first_at: from_db(row.first_at),
            last_at: from_db(row.last_at),
            count: u32::try_from(row.count).unwrap_or(u32::MAX),
            witnesses: row.witnesses.0.into_values().collect(),
            evidence: Evidence { state: read("faults.evidence", &row.evidence, evidence_of)?, since: from_db(row.evidence_since) },
            workload: row.workload,
            settled: settled.map(|level| Settled { level }),
        })
    }
}

#[derive(FromRow)]
pub(super) struct IncidentRow {
    pub(super) incident_id: Uuid,
    pub(super) level: String,
    pub(super) manual: bool,
    pub(super) state: String,
    pub(super) state_at: DateTime<Utc>,
    pub(super) reason: String,
    pub(super) decision_no: i32,
    pub(super) policy_revision: i64,
    pub(super) opened_at: DateTime<Utc>,
    pub(super) held: bool,
    pub(super) fault_keys: Vec<String>,
    pub(super) asked_keys: Vec<String>,
}

#[derive(FromRow)]
pub(super) struct CommandRow {
    command_id: Uuid,
    action: String,
    gpu: Option<Json<GpuRef>>,
    steps_asked: Json<Vec<Step>>,
    state: String,
    state_at: DateTime<Utc>,
    steps: Json<Vec<StepReport>>,
    refusal: Option<String>,
    result_reason: String,
    plan_rev: i64,
    decision_no: i32,
    level: String,
    created_at: DateTime<Utc>,
    start_by: DateTime<Utc>,
    finish_by: DateTime<Utc>,
    pub(super) undo: Option<Json<Undo>>,
}

impl TryFrom<CommandRow> for KnownCommand {
    type Error = Error;
    fn try_from(row: CommandRow) -> Result<Self, Error> {
        let done = row.steps.0.into_iter().filter(|step| step.state == "done").map(|step| step.name);
        Ok(Self {
            id: CommandId::from_uuid(row.command_id),
            action: read("commands.action", &row.action, Action::parse)?,
            steps: row.steps_asked.0.iter().map(|step| step.name().to_owned()).collect(),
            cordons: row.steps_asked.0.iter().any(|step| matches!(step, Step::Mark { cordon: true, .. })),
            gpu: row.gpu.map(|gpu| gpu.0),
            state: read("commands.state", &row.state, CommandState::parse)?,
            steps_done: done.collect(),
            refusal: row.refusal.as_deref().map(|word| read("commands.refusal", word, Refusal::parse)).transpose()?,
            outcome: row.result_reason,
            plan_rev: natural(row.plan_rev),
            decision_no: u32::try_from(row.decision_no).unwrap_or(0),
            level: read("decisions.level", &row.level, Level::parse)?,
            created_at: from_db(row.created_at),
            start_by: from_db(row.start_by),
            finish_by: from_db(row.finish_by),
            state_at: from_db(row.state_at),
        })
    }
}

#[derive(FromRow)]
pub(super) struct CooldownRow {
    #[sqlx(rename = "cooldown_incident")]
    pub(super) incident_id: Uuid,
    #[sqlx(rename = "cooldown_state")]
    pub(super) state: String,
    #[sqlx(rename = "cooldown_until")]
    pub(super) until_at: Option<DateTime<Utc>>,
}
