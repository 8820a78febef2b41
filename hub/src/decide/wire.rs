//! The words of both protocols for requests by hand. Decides nothing.

use gpuheal_proto::{fleet::v1 as fleet, ids::ClusterId, link::v1 as link, words::Action};
use sqlx::PgPool;

use super::{
    Error,
    process::{Answer, ManualRequest, Outcome, process, process_of},
};
use crate::ingest::Origin;

/// A request that arrived at a spoke's own endpoint. The spoke can ask for its own cluster alone, and over a session that is
/// its own.
///
/// # Errors
/// When the database fails, or the session was taken over.
pub async fn process_from_spoke(
    pool: &PgPool,
    from: impl Into<Origin>,
    request: link::Process,
) -> Result<link::ProcessResult, Error> {
    let Origin { cluster, session } = from.into();
    let action = match link::ProcessAction::try_from(request.action) {
        Ok(link::ProcessAction::Mark) => Some(Action::Mark),
        Ok(link::ProcessAction::Evict) => Some(Action::Evict),
        Ok(link::ProcessAction::Release) => Some(Action::Release),
        Ok(link::ProcessAction::Notify) => Some(Action::Notify),
        Ok(link::ProcessAction::Restart) => Some(Action::Restart),
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
                workloads: request.workloads,
                past_budgets: request.past_budgets,
            };
            process_of(pool, &manual, session.as_ref()).await?
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
                workloads: request.workloads,
                past_budgets: request.past_budgets,
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
    Answer {
        outcome: Outcome::Invalid,
        command: None,
        reason: "action: it must be mark, evict, release, notify or restart".to_owned(),
    }
}
