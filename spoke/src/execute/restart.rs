//! The restart step: an annotation on the owner's pod template, whose value is the command's id, so that a step which is
//! taken up again is the same rollout and not a second one. Bound to the UID that was read. What does not restart by its
//! template is not touched, and named: a template changed in silence would restart at a moment that nobody chose.

use gpuheal_proto::{
    ids::CommandId,
    kubernetes::FIELD_MANAGER,
    workload::{Workload, WorkloadKind},
};
use gpuheal_spoke_core::drain::lacks_right_to;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    api::Error,
    guard::Halt,
    mark::{ATTEMPTS_MAX, pause},
    notify,
    run::Run,
};
use crate::events::Kind;

/// On the pod template; its value is the command's id.
pub const RESTARTED_BY: &str = "gpu-selfhealing.io/restarted-by";

/// The kinds that have a pod template and a controller that rolls it out.
fn resource(kind: WorkloadKind) -> ApiResource {
    match kind {
        WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
        WorkloadKind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
        WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
    }
}

/// What is to be done about a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Restart it.
    Restart,
    /// It was restarted by this command already, or by a later one.
    Done,
    /// Not to be restarted, for this reason.
    Left(String),
}

/// Restarts the rollouts of `owners`.
pub(super) async fn restart(run: &mut Run<'_>, owners: &[String]) -> Result<String, Halt> {
    let (mut done, mut gone, mut left) = (0, 0, Vec::new());
    for text in owners {
        let workload = match Workload::parse(text) {
            Ok(workload) => workload,
            Err(error) => {
                left.push(error.to_string());
                continue;
            }
        };
        match one(run, &workload).await? {
            Some(Verdict::Restart | Verdict::Done) => done += 1,
            Some(Verdict::Left(why)) => left.push(format!("{workload} {why}")),
            None => gone += 1,
        }
    }
    let mut message = format!("{done} of {} workloads restarted", owners.len());
    if gone > 0 {
        message = format!("{message}, {gone} are gone");
    }
    if left.is_empty() {
        notify::tell(run, "restart", Kind::Normal, message.clone());
        return Ok(message);
    }
    let message = format!("{message}; left: {}", left.join("; "));
    notify::tell(run, "restart", Kind::Warning, message.clone());
    Err(Halt::failed(message))
}

/// Nothing when it is gone: what owned the pods does not any more.
async fn one(run: &Run<'_>, owner: &Workload) -> Result<Option<Verdict>, Halt> {
    let left = |why: String| Ok(Some(Verdict::Left(why)));
    if !run.ctx.config().namespace_allowed(owner.namespace()) {
        return left(format!("stays: the cluster's ceiling does not allow namespace {}", owner.namespace()));
    }
    let resource = resource(owner.kind());
    let api: Api<DynamicObject> = Api::namespaced_with(run.ctx.kube.client(), owner.namespace(), &resource);
    for attempt in 0..ATTEMPTS_MAX {
        let object = match run.ctx.kube.call("get workload", api.get_opt(owner.name())).await {
            Ok(Some(object)) => object,
            Ok(None) => return Ok(None),
            Err(error) if no_right(&error, "get", &resource) => return left(format!("stays: {error}")),
            Err(error) => return Err(halt(error)),
        };
        let uid = object.metadata.uid.unwrap_or_default();
        if owner.uid().is_some_and(|meant| meant != uid) {
            return Ok(None);
        }
        match verdict(&object.data, &run.command.id.to_string()) {
            Verdict::Restart => {}
            other @ (Verdict::Done | Verdict::Left(_)) => return Ok(Some(other)),
        }
        run.guard.pass().await?;
        dies_at!("execute.before-restart");
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch(&uid, &run.command.id.to_string()));
        match run.ctx.kube.effect("restart", api.patch(owner.name(), &params, &patch)).await {
            Ok(_) => {
                dies_at!("execute.restarted");
                return Ok(Some(Verdict::Restart));
            }
            Err(error) if error.not_found() => return Ok(None),
            Err(error) if no_right(&error, "patch", &resource) => return left(format!("stays: {error}")),
            Err(error) if error.conflict() || error.unsent() => pause(attempt).await,
            Err(error) => return Err(halt(error)),
        }
    }
    left(format!("was changed by others {ATTEMPTS_MAX} times in a row"))
}

/// Our account may not, in that namespace or at all: another workload may be in one where it may.
fn no_right(error: &Error, verb: &str, resource: &ApiResource) -> bool {
    error.code() == Some(403) && lacks_right_to(&error.to_string(), verb, &resource.plural)
}

/// Whoever takes it up finds out what of it was done.
fn halt(error: Error) -> Halt {
    if error.transient() { Halt::Lost(error.to_string()) } else { Halt::failed(error.to_string()) }
}

fn patch(uid: &str, command: &str) -> Value {
    json!({"metadata": {"uid": uid}, "spec": {"template": {"metadata": {"annotations": {RESTARTED_BY: command}}}}})
}

/// Ids of commands are in the order of their making.
fn verdict(object: &Value, command: &str) -> Verdict {
    let last = object.pointer("/spec/template/metadata/annotations").and_then(|all| all.get(RESTARTED_BY)?.as_str());
    let last = last.and_then(|last| CommandId::parse(last).ok());
    if last.is_some_and(|last| last.to_string().as_str() >= command) {
        return Verdict::Done;
    }
    if object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        return Verdict::Left("is paused: nothing restarts until somebody resumes it".to_owned());
    }
    if object.pointer("/spec/updateStrategy/type").is_some_and(|strategy| strategy == "OnDelete") {
        return Verdict::Left("has update strategy OnDelete: its pods restart when somebody deletes them".to_owned());
    }
    Verdict::Restart
}

#[cfg(test)]
mod tests {
    use gpuheal_proto::{ids::uuid_v7, time::Timestamp};

    use super::*;

    #[test]
    fn what_was_restarted_by_this_command_or_a_later_one_is_not_again() {
        let by = |command: &str| json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_BY: command}}}}});
        let id = |ms: i64| CommandId::from_uuid(uuid_v7(Timestamp::from_unix_ms(ms), &[0; 32])).to_string();
        let (earlier, ours, later) = (id(1_000), id(2_000), id(3_000));
        assert_eq!(verdict(&json!({"spec": {"template": {}}}), &ours), Verdict::Restart);
        assert_eq!(verdict(&by(&earlier), &ours), Verdict::Restart);
        assert_eq!(verdict(&by(&ours), &ours), Verdict::Done);
        assert_eq!(verdict(&by(&later), &ours), Verdict::Done);
        assert_eq!(verdict(&by("yesterday"), &ours), Verdict::Restart, "what is no command's id says nothing");
    }
}
