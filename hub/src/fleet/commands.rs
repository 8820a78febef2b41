//! Commands and how they went, and requests by hand.

use gpuheal_proto::fleet::v1::{
    CommandSummary, ListCommandsRequest, ListCommandsResponse, ProcessRequest, ProcessResponse, ResumeFleetRequest,
    ResumeFleetResponse, StepSummary, StopFleetRequest, StopFleetResponse, command_service_server::CommandService,
};
use serde_json::Value;
use tonic::{Request, Response, Status};

use super::{
    Fleet,
    call::{actor, cluster, connection, counted, failed, known, reason, short, unix_ms},
    page,
};
use crate::{
    decide,
    identity::{self, UserName},
    store::{
        fleet::{self, Filter},
        natural, stop,
    },
};

#[tonic::async_trait]
impl CommandService for Fleet {
    async fn list_commands(&self, request: Request<ListCommandsRequest>) -> Result<Response<ListCommandsResponse>, Status> {
        counted("list_commands", self.commands(request.into_inner()).await)
    }

    async fn process(&self, request: Request<ProcessRequest>) -> Result<Response<ProcessResponse>, Status> {
        let user = identity::user(&request)?;
        counted("process", self.processed(&user, request.into_inner()).await)
    }

    async fn stop_fleet(&self, request: Request<StopFleetRequest>) -> Result<Response<StopFleetResponse>, Status> {
        let user = identity::user(&request)?;
        counted("stop_fleet", self.stopped(&user, request.into_inner()).await)
    }

    async fn resume_fleet(&self, request: Request<ResumeFleetRequest>) -> Result<Response<ResumeFleetResponse>, Status> {
        let user = identity::user(&request)?;
        counted("resume_fleet", self.resumed(&user, request.into_inner()).await)
    }
}

impl Fleet {
    async fn commands(&self, request: ListCommandsRequest) -> Result<ListCommandsResponse, Status> {
        let only = cluster(&request.cluster_id)?;
        let size = page::size(request.page_size);
        let before = page::newest_key("commands", &request.page_token)?;
        short("node", &request.node)?;
        let node = Some(request.node.as_str()).filter(|node| !node.is_empty());
        let filter = Filter { cluster: only.as_ref(), node, open_only: request.open_only };
        let mut conn = connection(&self.pool).await?;
        known(&mut conn, only.as_ref()).await?;
        let mut rows = fleet::commands(&mut conn, filter, before, i64::from(size) + 1).await.map_err(|error| failed(&error))?;
        let more = page::cut(&mut rows, size);
        let next = rows.last().filter(|_| more).map(|last| page::newest_token("commands", last.created_at, last.command_id));
        Ok(ListCommandsResponse {
            commands: rows.into_iter().map(wire_command).collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }
}

impl Fleet {
    async fn processed(&self, user: &UserName, request: ProcessRequest) -> Result<ProcessResponse, Status> {
        reason(&request.reason)?;
        let response = decide::process_by_user(&self.pool, user.as_str(), request).await?;
        self.wake.decided.notify_one();
        Ok(response)
    }

    async fn stopped(&self, user: &UserName, request: StopFleetRequest) -> Result<StopFleetResponse, Status> {
        let why = request.reason;
        reason(&why)?;
        let before = stop::fleet_stop(&self.pool, Some(&why), &why, &actor(user)).await;
        let before = before.map_err(|error| failed(&error))?;
        self.wake.ingested.notify_one();
        Ok(StopFleetResponse { already: before.is_some(), reason: before.unwrap_or(why) })
    }

    async fn resumed(&self, user: &UserName, request: ResumeFleetRequest) -> Result<ResumeFleetResponse, Status> {
        reason(&request.reason)?;
        let before = stop::fleet_stop(&self.pool, None, &request.reason, &actor(user)).await;
        let before = before.map_err(|error| failed(&error))?;
        self.wake.ingested.notify_one();
        Ok(ResumeFleetResponse { stopped_for: before.unwrap_or_default() })
    }
}

pub(crate) fn wire_command(row: fleet::Command) -> CommandSummary {
    let result =
        [row.refusal.unwrap_or_default(), row.result_reason].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>();
    CommandSummary {
        command_id: row.command_id.to_string(),
        cluster_id: row.cluster_id,
        node: row.node_name,
        incident_id: row.incident_id.to_string(),
        action: row.action,
        state: row.state,
        reason: if result.is_empty() { row.reason } else { format!("{} ({})", row.reason, result.join(": ")) },
        created_unix_ms: unix_ms(Some(row.created_at)),
        sent_unix_ms: unix_ms(row.sent_at),
        finished_unix_ms: unix_ms(row.finished_at),
        plan_rev: natural(row.plan_rev),
        policy_revision: natural(row.policy_revision),
        steps: steps(&row.steps_asked, &row.steps),
    }
}

/// What was reported of the steps; before anything was, what was asked.
fn steps(asked: &Value, done: &Value) -> Vec<StepSummary> {
    let text = |step: &Value, field: &str| step.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let moment = |step: &Value, field: &str| step.get(field).and_then(Value::as_i64).unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let done = list(done);
    if done.is_empty() {
        let pending = |step: &Value| StepSummary { name: text(step, "step"), state: "pending".into(), ..StepSummary::default() };
        return list(asked).iter().map(pending).collect();
    }
    let reported = |step: &Value| StepSummary {
        name: text(step, "name"),
        state: text(step, "state"),
        message: text(step, "message"),
        started_unix_ms: moment(step, "started_unix_ms"),
        finished_unix_ms: moment(step, "finished_unix_ms"),
    };
    done.iter().map(reported).collect()
}
