//! Two workloads that a person has restarted while whoever carries it out dies: each is rolled out anew, once, and what the
//! cluster has written down of it is what the hub has.

use anyhow::{Context as _, Result, ensure};
use gpuheal_proto::kubernetes::NAMESPACE;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use serde_json::Value;

use super::{APP, CLUSTER};
use crate::{
    cluster::{Cluster, heal_action_resource},
    facts,
    fleet::Fleet,
    record,
    script::WITHIN,
    wait,
    workload::{self, Shape},
};

/// The second to be restarted: whoever died after the first has this one left.
const SECOND: &str = "serve";
const SECOND_SHAPE: Shape = Shape { replicas: 1, gpus: 0, grace_s: 2, exit_after_ms: 200 };

/// What the person names.
pub(super) fn workloads() -> [String; 2] {
    [APP, SECOND].map(|name| format!("deployment/{}/{name}", workload::JOBS))
}

pub(super) async fn with_a_second_workload(cluster: &Cluster) -> Result<()> {
    cluster.create(workload::deployment(SECOND, SECOND_SHAPE)).await?;
    cluster.app_ready(SECOND, usize::try_from(SECOND_SHAPE.replicas)?).await.map(|_| ())
}

/// One command, done; one new template of each workload, by one write; and the node is as it was.
pub(super) async fn restarted_once(fleet: &Fleet, node: &str) -> Result<()> {
    let done = wait::until(&format!("the restart at {node} to succeed"), WITHIN, || async {
        let commands = facts::commands(&fleet.pool, CLUSTER, node).await?;
        Ok(commands.into_iter().find(|command| command.action == "restart" && command.state == "SUCCEEDED"))
    })
    .await;
    let commands = facts::commands(&fleet.pool, CLUSTER, node).await?;
    let done = done.with_context(|| format!("{commands:#?}"))?;
    ensure!(commands.len() == 1, "{node} got {} commands instead of one: {commands:#?}", commands.len());
    let incidents = facts::incidents(&fleet.pool, CLUSTER, node).await?;
    ensure!(incidents.len() == 1, "{node} has {} incidents instead of one: {incidents:#?}", incidents.len());
    let cluster = fleet.cluster(CLUSTER)?;
    the_records_agree(cluster, &done).await?;
    for name in [APP, SECOND] {
        one_rollout(cluster, name, &done.command_id.to_string()).await?;
    }
    let writes = record::node_writes(&cluster.requests().await, node).len();
    ensure!(writes == 0, "{node} was written {writes} times by a restart");
    Ok(())
}

/// The one HealAction of the cluster is the command's, and ended as the hub says.
async fn the_records_agree(cluster: &Cluster, command: &facts::Command) -> Result<()> {
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), NAMESPACE, &heal_action_resource());
    let actions = api.list(&ListParams::default()).await?.items;
    let [action] = actions.as_slice() else { anyhow::bail!("there are {} HealActions instead of one", actions.len()) };
    let text = |path: &str| action.data.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let id = command.command_id.to_string();
    ensure!(text("/spec/commandId") == id, "the HealAction is of {} and the hub's command is {id}", text("/spec/commandId"));
    let (state, outcome) = (text("/status/state"), text("/status/outcome"));
    ensure!(
        (state, outcome) == (command.state.as_str(), command.result_reason.as_str()),
        "the HealAction says {state}, {outcome:?}, and the hub {}, {:?}",
        command.state,
        command.result_reason
    );
    let steps = action.data.pointer("/status/steps").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let done = |step: &Value| step["state"] == "done" && step["message"] == "2 of 2 workloads restarted";
    ensure!(steps.iter().filter(|step| done(step)).count() == 1, "its steps are {steps:?}");
    Ok(())
}

/// The template was changed once, to this command's, and the rollout that it began is the only one.
async fn one_rollout(cluster: &Cluster, name: &str, command: &str) -> Result<()> {
    let deployment = Api::<Deployment>::namespaced(cluster.client.clone(), workload::JOBS).get(name).await?;
    let template = deployment.spec.and_then(|spec| spec.template.metadata).and_then(|metadata| metadata.annotations);
    let by = template.as_ref().and_then(|annotations| annotations.get("gpu-selfhealing.io/restarted-by"));
    ensure!(by.is_some_and(|by| by == command), "{name} was restarted by {by:?} instead of {command}");
    let generation = deployment.metadata.generation;
    ensure!(generation == Some(2), "{name} is of generation {generation:?} instead of 2");
    wait::until(&format!("{name} to be rolled out anew"), WITHIN, || async {
        let sets = Api::<ReplicaSet>::namespaced(cluster.client.clone(), workload::JOBS);
        let sets = sets.list(&ListParams::default().labels(&format!("app={name}"))).await?.items.len();
        ensure!(sets <= 2, "{name} has {sets} templates instead of two");
        Ok((sets == 2).then_some(()))
    })
    .await?;
    let requests = cluster.requests().await;
    let by_spoke = requests.iter().filter(|r| r.user_agent.starts_with("gpuheal-spoke") && r.is_write());
    let writes = by_spoke.filter(|r| r.resource == "deployments" && r.name == name && matches!(r.code, 200 | 0)).count();
    ensure!(writes == 1, "{name} was written {writes} times instead of once");
    Ok(())
}
