//! The restart step: an annotation on the owner's pod template, whose value is the command's id, so that a repeated step
//! is the same rollout and not a second one.

use gpuheal_proto::kubernetes::FIELD_MANAGER;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{api::Error, guard::Halt, run::Run};

/// On the pod template; its value is the command's id.
const ANNOTATION: &str = "gpu-selfhealing.io/restarted-by";

/// Restarts the rollouts of `owners`, each as `kind/namespace/name`.
pub(super) async fn restart(run: &mut Run<'_>, owners: &[String]) -> Result<String, Halt> {
    let mut done = 0;
    for owner in owners {
        let Some((kind, namespace, name)) = parts(owner) else {
            return Err(Halt::failed(format!("{owner:?} is not kind/namespace/name")));
        };
        if !run.ctx.config().namespace_allowed(namespace) {
            return Err(Halt::failed(format!("the cluster's ceiling does not allow namespace {namespace}")));
        }
        run.guard.pass().await?;
        match one(run, kind, namespace, name).await {
            Ok(true) => done += 1,
            Ok(false) => return Err(Halt::failed(format!("{kind} cannot be restarted by its template"))),
            Err(error) if error.not_found() => {}
            Err(error) if error.transient() => return Err(Halt::Lost(error.to_string())),
            Err(error) => return Err(Halt::failed(error.to_string())),
        }
    }
    Ok(format!("{done} of {} workloads restarted", owners.len()))
}

async fn one(run: &Run<'_>, kind: &str, namespace: &str, name: &str) -> Result<bool, Error> {
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {ANNOTATION: run.command.id.to_string()}}}}});
    let patch = Patch::Merge(patch);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let (kube, client) = (&run.ctx.kube, run.ctx.kube.client());
    match kind.to_ascii_lowercase().as_str() {
        "deployment" => {
            kube.call("restart", Api::<Deployment>::namespaced(client, namespace).patch(name, &params, &patch)).await.map(drop)?
        }
        "statefulset" => {
            kube.call("restart", Api::<StatefulSet>::namespaced(client, namespace).patch(name, &params, &patch)).await.map(drop)?
        }
        "daemonset" => {
            kube.call("restart", Api::<DaemonSet>::namespaced(client, namespace).patch(name, &params, &patch)).await.map(drop)?
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn parts(owner: &str) -> Option<(&str, &str, &str)> {
    let mut parts = owner.split('/');
    let found = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(found)
}
