//! The fleet's policy: checked as a whole, kept as a revision, given back as it was written.

use gpuheal_proto::{
    fleet::v1::{
        ApplyPolicyRequest, ApplyPolicyResponse, GetPolicyRequest, GetPolicyResponse, PolicyProblem,
        policy_service_server::PolicyService,
    },
    limits,
};
use tonic::{Request, Response, Status};

use super::{
    Fleet,
    call::{actor, connection, counted, failed, short},
};
use crate::{
    identity::{self, UserName},
    policy_file,
    store::policy,
};

/// Problems shown at once; the rest after these are mended.
const PROBLEMS_MAX: usize = 100;

#[tonic::async_trait]
impl PolicyService for Fleet {
    async fn apply_policy(&self, request: Request<ApplyPolicyRequest>) -> Result<Response<ApplyPolicyResponse>, Status> {
        let user = identity::user(&request)?;
        counted("apply_policy", self.apply(&user, request.into_inner()).await)
    }

    async fn get_policy(&self, request: Request<GetPolicyRequest>) -> Result<Response<GetPolicyResponse>, Status> {
        counted("get_policy", self.get(request.into_inner()).await)
    }
}

impl Fleet {
    async fn apply(&self, user: &UserName, request: ApplyPolicyRequest) -> Result<ApplyPolicyResponse, Status> {
        if request.yaml.len() > limits::POLICY_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "yaml: {} bytes, at most {} are allowed",
                request.yaml.len(),
                limits::POLICY_BYTES_MAX
            )));
        }
        short("request_id", &request.request_id)?;
        let checked = match policy_file::check(&request.yaml) {
            Ok(checked) => checked,
            Err(problems) => {
                let problems = problems.into_iter().take(PROBLEMS_MAX).map(wire_problem).collect();
                return Ok(ApplyPolicyResponse { problems, ..ApplyPolicyResponse::default() });
            }
        };
        if request.dry_run {
            return Ok(ApplyPolicyResponse { digest: checked.digest, ..ApplyPolicyResponse::default() });
        }
        let by = actor(user);
        let applied = policy::policy_apply(&self.pool, &request.yaml, &checked.digest, &by, &request.request_id)
            .await
            .map_err(|error| failed(&error))?;
        self.wake.ingested.notify_one();
        Ok(ApplyPolicyResponse {
            revision: applied.revision,
            digest: checked.digest,
            unchanged: applied.unchanged,
            problems: Vec::new(),
        })
    }

    async fn get(&self, request: GetPolicyRequest) -> Result<GetPolicyResponse, Status> {
        let wanted = Some(request.revision).filter(|revision| *revision > 0);
        let mut conn = connection(&self.pool).await?;
        let stored = policy::policy_load(&mut conn, wanted).await.map_err(|error| failed(&error))?;
        let stored = stored.ok_or_else(|| match wanted {
            Some(revision) => Status::not_found(format!("there is no policy revision {revision}")),
            None => Status::not_found("no policy was applied yet: gpuhealctl policy apply -f FILE"),
        })?;
        Ok(GetPolicyResponse {
            revision: stored.revision(),
            applied_unix_ms: stored.applied_at().unix_ms(),
            digest: stored.digest,
            yaml: stored.yaml,
            applied_by: stored.applied_by,
        })
    }
}

fn wire_problem(problem: policy_file::Problem) -> PolicyProblem {
    PolicyProblem { line: problem.line, column: problem.column, path: problem.path, message: problem.message }
}
