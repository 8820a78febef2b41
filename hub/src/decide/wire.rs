//! The words of both protocols for requests by hand and for explanations. Decides nothing.

use gpuheal_hub_core::{
    decide::Verdict,
    snapshot::{KnownFault, Snapshot},
};
use gpuheal_proto::{
    fault::Onset,
    fleet::v1 as fleet,
    ids::{ClusterId, FaultKey, IncidentId},
    link::v1 as link,
    words::Action,
};
use sqlx::PgPool;

use super::{
    Error, Explained, Subject, explain_subject,
    process::{Answer, ManualRequest, Outcome, process},
};

/// A request that arrived at a spoke's own endpoint. The spoke can ask for its own cluster alone.
///
/// # Errors
/// When the database fails.
pub async fn process_from_spoke(pool: &PgPool, cluster: &ClusterId, request: link::Process) -> Result<link::ProcessResult, Error> {
    let action = match link::ProcessAction::try_from(request.action) {
        Ok(link::ProcessAction::Mark) => Some(Action::Mark),
        Ok(link::ProcessAction::Evict) => Some(Action::Evict),
        Ok(link::ProcessAction::Release) => Some(Action::Release),
        Ok(link::ProcessAction::Notify) => Some(Action::Notify),
        Ok(link::ProcessAction::Unspecified) | Err(_) => None,
    };
    let answer = match action {
        Some(action) => {
            let manual = ManualRequest {
                cluster: cluster.clone(),
                request_id: request.request_id.clone(),
                node: request.node,
                action,
                reason: request.reason,
                caller: format!("spoke/{cluster}/{}", request.caller),
                override_cooldown: false,
            };
            process(pool, &manual).await?
        }
        None => unknown_action(),
    };
    let outcome = match answer.outcome {
        Outcome::Accepted => link::ProcessOutcome::Accepted,
        Outcome::Repeated => link::ProcessOutcome::Repeated,
        Outcome::NoSuchNode => link::ProcessOutcome::NoSuchNode,
        Outcome::Blocked => link::ProcessOutcome::Blocked,
        Outcome::Invalid => link::ProcessOutcome::Invalid,
    };
    Ok(link::ProcessResult {
        request_id: request.request_id,
        outcome: outcome.into(),
        command_id: answer.command.map(|id| id.to_string()).unwrap_or_default(),
        reason: answer.reason,
    })
}

/// A request through the fleet API.
///
/// # Errors
/// When the database fails, or the cluster's id is none.
pub async fn process_by_user(pool: &PgPool, user: &str, request: fleet::ProcessRequest) -> Result<fleet::ProcessResponse, Error> {
    let cluster =
        ClusterId::parse(&request.cluster_id).map_err(|error| Error::Invalid { field: "cluster_id", why: error.to_string() })?;
    let answer = match Action::parse(&request.action) {
        Some(action) => {
            let manual = ManualRequest {
                cluster,
                request_id: request.request_id,
                node: request.node,
                action,
                reason: request.reason,
                caller: format!("user/{user}"),
                override_cooldown: request.override_cooldown,
            };
            process(pool, &manual).await?
        }
        None => unknown_action(),
    };
    let outcome = match answer.outcome {
        Outcome::Accepted => "accepted",
        Outcome::Repeated => "repeated",
        Outcome::NoSuchNode => "no_such_node",
        Outcome::Blocked => "blocked",
        Outcome::Invalid => "invalid",
    };
    Ok(fleet::ProcessResponse {
        outcome: outcome.to_owned(),
        command_id: answer.command.map(|id| id.to_string()).unwrap_or_default(),
        reason: answer.reason,
    })
}

fn unknown_action() -> Answer {
    Answer { outcome: Outcome::Invalid, command: None, reason: "action: it must be mark, evict, release or notify".to_owned() }
}

/// Explains a node, an incident or a fault through the fleet API.
///
/// # Errors
/// When the subject is not known or cannot be read, or the database fails.
pub async fn explain(pool: &PgPool, request: fleet::ExplainRequest) -> Result<fleet::ExplainResponse, tonic::Status> {
    let explained = explain_subject(pool, &subject(&request)?).await?;
    Ok(response(&explained))
}

fn subject(request: &fleet::ExplainRequest) -> Result<Subject, Error> {
    if !request.incident_id.is_empty() {
        let id = IncidentId::parse(&request.incident_id)
            .map_err(|error| Error::Invalid { field: "incident_id", why: error.to_string() })?;
        return Ok(Subject::Incident(id));
    }
    if !request.fault_key.is_empty() {
        let key =
            FaultKey::parse(&request.fault_key).map_err(|error| Error::Invalid { field: "fault_key", why: error.to_string() })?;
        return Ok(Subject::Fault(key));
    }
    if request.node.is_empty() {
        return Err(Error::Invalid { field: "node", why: "name a node, an incident or a fault".to_owned() });
    }
    let cluster =
        ClusterId::parse(&request.cluster_id).map_err(|error| Error::Invalid { field: "cluster_id", why: error.to_string() })?;
    Ok(Subject::Node(cluster, request.node.clone()))
}

fn response(explained: &Explained) -> fleet::ExplainResponse {
    let (snapshot, decision) = (&explained.snapshot, &explained.explanation.decision);
    let change = decision.incident.as_ref();
    let incident = change.map(|change| change.id).or(snapshot.incident.as_ref().map(|incident| incident.id));
    let steps = decision
        .commands
        .iter()
        .flat_map(|command| command.steps.iter().map(|step| format!("{}: {}", command.action, step.name())));
    fleet::ExplainResponse {
        cluster_id: snapshot.cluster.id.to_string(),
        node: snapshot.node.reference.name.to_string(),
        incident_id: incident.map(|id| id.to_string()).unwrap_or_default(),
        outcome: change.map_or_else(|| "nothing".to_owned(), |change| change.state.to_string()),
        reasons: decision.reasons.clone(),
        faults: snapshot.faults.iter().map(|fault| summary(fault, &decision.verdicts)).collect(),
        would_change: decision.would_change.clone(),
        steps: steps.collect(),
        policy_revision: decision.policy_revision,
        history: history(snapshot),
    }
}

/// The stored reason is shown beside the fresh ones, so that a change since then can be seen.
fn history(snapshot: &Snapshot) -> Vec<fleet::DecisionSummary> {
    let last = |incident: &gpuheal_hub_core::snapshot::Incident| fleet::DecisionSummary {
        decision_no: incident.decision_no,
        decided_unix_ms: incident.state_at.unix_ms(),
        outcome: incident.state.to_string(),
        reason: incident.reason.clone(),
        policy_revision: incident.policy_revision,
    };
    snapshot.incident.iter().map(last).collect()
}

fn summary(fault: &KnownFault, verdicts: &[Verdict]) -> fleet::FaultSummary {
    let gpu = fault.gpu.as_ref();
    let edge = fault.witnesses.iter().any(|seen| seen.onset == Onset::Edge);
    fleet::FaultSummary {
        fault_key: fault.key.to_string(),
        class: fault.class.to_string(),
        code: fault.code.clone(),
        gpu_slot: gpu.and_then(|gpu| gpu.slot.as_ref()).map(ToString::to_string).unwrap_or_default(),
        gpu_uuid: gpu.and_then(|gpu| gpu.uuid.as_ref()).map(ToString::to_string).unwrap_or_default(),
        episode: fault.episode,
        level: verdicts
            .iter()
            .find(|verdict| verdict.key == fault.key)
            .map(|verdict| verdict.level.to_string())
            .unwrap_or_default(),
        witnesses: fault.witnesses.iter().map(|seen| seen.kind.to_string()).collect(),
        onset: if edge { Onset::Edge } else { Onset::Standing }.to_string(),
        first_unix_ms: fault.first_at.unix_ms(),
        last_unix_ms: fault.last_at.unix_ms(),
        count: fault.count,
        source: fault.witnesses.iter().max_by_key(|seen| seen.last_at).map(|seen| seen.source.clone()).unwrap_or_default(),
    }
}
