//! Incidents with all that is known and done about them, and why.

use std::collections::BTreeMap;

use gpuheal_hub_core::decide::level_word;
use gpuheal_proto::{
    fleet::v1::{
        DecisionSummary, ExplainRequest, ExplainResponse, FaultSummary, Incident, ListIncidentsRequest, ListIncidentsResponse,
        incident_service_server::IncidentService,
    },
    words::Level,
};
use sqlx::PgConnection;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use super::{
    Fleet,
    call::{cluster, connection, count, counted, failed, known, short, unix_ms},
    commands::wire_command,
    page,
};
use crate::{
    decide,
    store::{
        fleet::{self, Filter},
        natural,
    },
};

#[tonic::async_trait]
impl IncidentService for Fleet {
    async fn list_incidents(&self, request: Request<ListIncidentsRequest>) -> Result<Response<ListIncidentsResponse>, Status> {
        counted("list_incidents", self.incidents(request.into_inner()).await)
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        counted("explain", self.explained(request.into_inner()).await)
    }
}

impl Fleet {
    async fn incidents(&self, request: ListIncidentsRequest) -> Result<ListIncidentsResponse, Status> {
        let only = cluster(&request.cluster_id)?;
        let size = page::size(request.page_size);
        let before = page::newest_key("incidents", &request.page_token)?;
        short("node", &request.node)?;
        let node = Some(request.node.as_str()).filter(|node| !node.is_empty());
        let filter = Filter { cluster: only.as_ref(), node, open_only: request.open_only };
        let mut conn = connection(&self.pool).await?;
        known(&mut conn, only.as_ref()).await?;
        let mut rows = fleet::incidents(&mut conn, filter, before, i64::from(size) + 1).await.map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::newest_token("incidents", last.opened_at, last.incident_id));
        let incidents = whole(&mut conn, rows).await.map_err(|error| failed(&error))?;
        Ok(ListIncidentsResponse { incidents, next_page_token: next.unwrap_or_default() })
    }
}

/// The incidents of one page with their faults, decisions and commands: four statements, however long the page.
async fn whole(conn: &mut PgConnection, rows: Vec<fleet::Incident>) -> Result<Vec<Incident>, crate::store::Error> {
    let keys = fleet::Keys::of(&rows);
    let ids: Vec<Uuid> = rows.iter().map(|row| row.incident_id).collect();
    let mut incidents: BTreeMap<Uuid, Incident> = rows.into_iter().map(|row| (row.incident_id, wire_incident(row))).collect();
    for fault in fleet::faults(conn, &keys).await? {
        if let Some(incident) = incidents.get_mut(&fault.incident_id) {
            incident.faults.push(wire_fault(fault));
        }
    }
    for decision in fleet::decisions(conn, &keys).await? {
        if let Some(incident) = incidents.get_mut(&decision.incident_id) {
            incident.decisions.push(wire_decision(decision));
        }
    }
    for command in fleet::commands_of(conn, &keys).await? {
        if let Some(incident) = incidents.get_mut(&command.incident_id) {
            incident.commands.push(wire_command(command));
        }
    }
    Ok(ids.iter().filter_map(|id| incidents.remove(id)).collect())
}

impl Fleet {
    async fn explained(&self, request: ExplainRequest) -> Result<ExplainResponse, Status> {
        let named = [&request.node, &request.incident_id, &request.fault_key].iter().filter(|name| !name.is_empty()).count();
        if named != 1 {
            return Err(Status::invalid_argument("name one of node (with cluster_id), incident_id or fault_key"));
        }
        short("node", &request.node)?;
        if !request.node.is_empty() && request.cluster_id.is_empty() {
            return Err(Status::invalid_argument("cluster_id: a node's name is unique within its cluster alone"));
        }
        decide::explain(&self.pool, request).await
    }
}

fn wire_incident(row: fleet::Incident) -> Incident {
    let level = level(&row);
    Incident {
        incident_id: row.incident_id.to_string(),
        cluster_id: row.cluster_id,
        node: row.node_name,
        node_uid: row.node_uid,
        level,
        state: row.state,
        reason: row.reason,
        opened_unix_ms: unix_ms(Some(row.opened_at)),
        closed_unix_ms: unix_ms(row.closed_at),
        recheck_unix_ms: unix_ms(row.recheck_at),
        ..Incident::default()
    }
}

/// `manual` for what a person asked for.
fn level(row: &fleet::Incident) -> String {
    Level::parse(&row.level).map_or_else(|| row.level.clone(), |level| level_word(level, row.manual).to_owned())
}

pub(crate) fn wire_fault(row: fleet::Fault) -> FaultSummary {
    FaultSummary {
        fault_key: hex::encode(row.fault_key),
        class: row.class,
        code: row.code,
        gpu_slot: row.gpu_slot,
        gpu_uuid: row.gpu_uuid,
        episode: count(row.episode.into()),
        level: row.level,
        witnesses: row.witnesses,
        onset: row.onset,
        first_unix_ms: unix_ms(Some(row.first_at)),
        last_unix_ms: unix_ms(Some(row.last_at)),
        count: count(row.count),
        source: row.source,
        reason: row.verdict,
        ..FaultSummary::default()
    }
}

pub(crate) fn wire_decision(row: fleet::Decision) -> DecisionSummary {
    DecisionSummary {
        decision_no: count(row.decision_no.into()),
        decided_unix_ms: unix_ms(Some(row.decided_at)),
        outcome: row.outcome,
        reason: row.reason,
        policy_revision: natural(row.policy_revision),
    }
}
