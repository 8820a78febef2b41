//! The audit chain, entry by entry, and the proof that it is whole.

use gpuheal_hub_core::audit::Entry;
use gpuheal_proto::{
    fleet::v1::{
        AuditEntry, ListEntriesRequest, ListEntriesResponse, VerifyChainRequest, VerifyChainResponse,
        audit_service_server::AuditService,
    },
    ids::IncidentId,
};
use sqlx::PgPool;
use tonic::{Request, Response, Status};

use super::{
    Fleet,
    call::{connection, counted, failed, known, required_cluster},
    page,
};
use crate::{
    audit::{self, FLEET_CHAIN},
    store::{audit::audit_page, incident::incident_place},
};

#[tonic::async_trait]
impl AuditService for Fleet {
    async fn list_entries(&self, request: Request<ListEntriesRequest>) -> Result<Response<ListEntriesResponse>, Status> {
        counted("list_entries", self.entries(request.into_inner()).await)
    }

    async fn verify_chain(&self, request: Request<VerifyChainRequest>) -> Result<Response<VerifyChainResponse>, Status> {
        counted("verify_chain", self.verified(request.into_inner()).await)
    }
}

impl Fleet {
    async fn entries(&self, request: ListEntriesRequest) -> Result<ListEntriesResponse, Status> {
        let incident = Some(request.incident_id.as_str()).filter(|id| !id.is_empty()).map(IncidentId::parse).transpose();
        let incident = incident.map_err(|error| Status::invalid_argument(format!("incident_id: {error}")))?;
        let chain = match incident {
            Some(incident) if request.cluster_id.is_empty() => self.chain_of_incident(incident).await?,
            Some(_) | None => chain(&self.pool, &request.cluster_id).await?,
        };
        let size = page::size(request.page_size);
        let after = match page::key::<2>("audit", &request.page_token)? {
            None => 0,
            Some([of, seq]) if of == chain => {
                seq.parse().map_err(|_| Status::invalid_argument("page_token is damaged; begin again without it"))?
            }
            Some(_) => return Err(Status::invalid_argument("page_token is of another cluster's chain; begin again without it")),
        };
        let mut conn = connection(&self.pool).await?;
        let mut rows = audit_page(&mut conn, &chain, after, incident, i64::from(size) + 1).await.map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::token("audit", &[&chain, &last.seq.to_string()]));
        Ok(ListEntriesResponse { entries: rows.into_iter().map(wire_entry).collect(), next_page_token: next.unwrap_or_default() })
    }

    /// An incident is its cluster's, whose chain tells of it.
    async fn chain_of_incident(&self, incident: IncidentId) -> Result<String, Status> {
        let mut conn = connection(&self.pool).await?;
        let place = incident_place(&mut conn, incident).await.map_err(|error| failed(&error))?;
        let (cluster, _) = place.ok_or_else(|| Status::not_found(format!("incident {incident} is not known")))?;
        Ok(audit::chain_of(&cluster).to_owned())
    }

    async fn verified(&self, request: VerifyChainRequest) -> Result<VerifyChainResponse, Status> {
        let chain = chain(&self.pool, &request.cluster_id).await?;
        let verdict = audit::verify(&self.pool, &chain).await.map_err(|error| failed(&error))?;
        let (broken_at_seq, reason) = verdict.broken.map_or((0, String::new()), |broken| (broken.seq, broken.reason));
        Ok(VerifyChainResponse { intact: reason.is_empty() && broken_at_seq == 0, entries: verdict.entries, broken_at_seq, reason })
    }
}

/// A cluster's chain, or the fleet's own when none is named.
async fn chain(pool: &PgPool, cluster_id: &str) -> Result<String, Status> {
    if cluster_id.is_empty() || cluster_id == FLEET_CHAIN {
        return Ok(FLEET_CHAIN.to_owned());
    }
    let cluster = required_cluster(cluster_id)?;
    known(&mut *connection(pool).await?, Some(&cluster)).await?;
    Ok(audit::chain_of(&cluster).to_owned())
}

fn wire_entry(entry: Entry) -> AuditEntry {
    AuditEntry {
        cluster_id: entry.chain,
        seq: entry.seq,
        at_unix_ms: entry.fact.at.unix_ms(),
        kind: entry.fact.kind,
        actor: entry.fact.actor,
        subject: entry.fact.subject,
        body_json: entry.fact.body,
        hash: hex::encode(entry.hash),
        prev_hash: hex::encode(entry.prev_hash),
    }
}
