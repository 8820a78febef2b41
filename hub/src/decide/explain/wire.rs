//! An explanation in the words of the fleet API. Decides nothing.

use gpuheal_hub_core::{decide::Verdict, snapshot::KnownFault};
use gpuheal_proto::{
    fault::Onset,
    fleet::v1 as wire,
    ids::{ClusterId, FaultKey, IncidentId},
};
use sqlx::PgPool;

use super::{Closed, Explained, Now, Subject, explain_subject};
use crate::{
    decide::Error,
    fleet::{
        commands::wire_command,
        incidents::{wire_decision, wire_fault},
    },
    store::{fleet, natural},
};

/// Explains a node, an incident or a fault through the fleet API.
///
/// # Errors
/// When the subject is not known or cannot be read, or the database fails.
pub async fn explain(pool: &PgPool, request: wire::ExplainRequest) -> Result<wire::ExplainResponse, tonic::Status> {
    Ok(match explain_subject(pool, &subject(&request)?).await? {
        Explained::Now(now) => of_now(*now),
        Explained::Closed(closed) => of_closed(*closed),
    })
}

fn subject(request: &wire::ExplainRequest) -> Result<Subject, Error> {
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

fn of_now(now: Now) -> wire::ExplainResponse {
    let Now { snapshot, decision, incident, history } = now;
    let change = decision.incident.as_ref();
    let id = change.map(|change| change.id).or(snapshot.incident.as_ref().map(|incident| incident.id));
    let steps = decision
        .commands
        .iter()
        .flat_map(|command| command.steps.iter().map(|step| format!("{}: {}", command.action, step.name())));
    let mut reasons = decision.reasons.clone();
    reasons.extend(incident.filter(|last| last.closed_at.is_some()).map(|last| before(&last)));
    wire::ExplainResponse {
        cluster_id: snapshot.cluster.id.to_string(),
        node: snapshot.node.reference.name.to_string(),
        incident_id: id.map(|id| id.to_string()).unwrap_or_default(),
        outcome: change.map_or_else(|| "nothing".to_owned(), |change| change.state.to_string()),
        reasons,
        faults: snapshot.faults.iter().map(|fault| summary(fault, &decision.verdicts)).collect(),
        would_change: decision.would_change,
        steps: steps.collect(),
        policy_revision: decision.policy_revision,
        history: history.into_iter().map(wire_decision).collect(),
    }
}

fn before(last: &fleet::Incident) -> String {
    let at = last.closed_at.map(|at| at.format("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default();
    format!("its last incident {} is {} since {at}: {}", last.incident_id, last.state, last.reason)
}

/// Each reason once, in the order in which it was met.
fn of_closed(closed: Closed) -> wire::ExplainResponse {
    let Closed { incident, faults, history, commands } = closed;
    let mut reasons = vec![before(&incident).replacen("its last incident", "incident", 1)];
    for reason in history.iter().flat_map(|decision| &decision.reasons.0) {
        if !reasons.contains(reason) {
            reasons.push(reason.clone());
        }
    }
    let steps = commands.into_iter().map(wire_command).flat_map(|command| {
        let line = |step: wire::StepSummary| format!("{}: {} {}", command.action, step.name, step.state);
        command.steps.into_iter().map(line).collect::<Vec<_>>()
    });
    wire::ExplainResponse {
        steps: steps.collect(),
        cluster_id: incident.cluster_id,
        node: incident.node_name,
        incident_id: incident.incident_id.to_string(),
        outcome: incident.state,
        reasons,
        faults: faults.into_iter().map(wire_fault).collect(),
        would_change: Vec::new(),
        policy_revision: natural(incident.policy_revision),
        history: history.into_iter().map(wire_decision).collect(),
    }
}

fn summary(fault: &KnownFault, verdicts: &[Verdict]) -> wire::FaultSummary {
    let gpu = fault.gpu.as_ref();
    let edge = fault.witnesses.iter().any(|seen| seen.onset == Onset::Edge);
    let verdict = verdicts.iter().find(|verdict| verdict.key == fault.key);
    let told = |words: fn(&Verdict) -> String| verdict.map(words).unwrap_or_default();
    wire::FaultSummary {
        fault_key: fault.key.to_string(),
        class: fault.class.to_string(),
        code: fault.code.clone(),
        gpu_slot: gpu.and_then(|gpu| gpu.slot.as_ref()).map(ToString::to_string).unwrap_or_default(),
        gpu_uuid: gpu.and_then(|gpu| gpu.uuid.as_ref()).map(ToString::to_string).unwrap_or_default(),
        episode: fault.episode,
        level: told(|verdict| verdict.level.to_string()),
        witnesses: fault.witnesses.iter().map(|seen| seen.kind.to_string()).collect(),
        onset: if edge { Onset::Edge } else { Onset::Standing }.to_string(),
        first_unix_ms: fault.first_at.unix_ms(),
        last_unix_ms: fault.last_at.unix_ms(),
        count: fault.count,
        source: fault.witnesses.iter().max_by_key(|seen| seen.last_at).map(|seen| seen.source.clone()).unwrap_or_default(),
        rule: told(|verdict| verdict.rule.clone()),
        mode: told(|verdict| format!("{} ({})", verdict.mode, verdict.mode_from)),
        outcome: told(|verdict| verdict.outcome.as_str().to_owned()),
        reason: told(|verdict| verdict.reason.clone()),
    }
}
