//! What a cluster's own records say that it was commanded: the envelopes in its HealActions, each as it was signed. A database that was
//! put back has lost some of it, the cluster has not: within a day of a run none of them goes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use gpuheal_proto::{envelope, kubernetes::NAMESPACE, link::v1};
use kube::{
    Api,
    api::{DynamicObject, ListParams},
};
use prost::Message as _;
use serde_json::Value;

use super::effects::Deadlines;
use crate::cluster::{Cluster, heal_action_resource};

/// One command, by its HealAction.
#[derive(Clone, Debug)]
pub struct Signed {
    /// Its id.
    pub id: String,
    /// Its node.
    pub node: String,
    /// That machine.
    pub node_uid: String,
    /// The node's plan revision that it wrote under.
    pub plan_rev: u64,
    /// It marks its node.
    pub marks: bool,
    /// Until when it was good.
    pub deadlines: Deadlines,
    /// How it stands.
    pub state: String,
    /// It is under way, or its mark stands: it keeps its finalizer.
    pub held: bool,
    /// UIDs of the pods that its drain dealt with.
    pub pods: Vec<String>,
}

/// All of a cluster, by id. A tombstone of what was called off before it came has no envelope, and is none.
pub async fn all(cluster: &Cluster) -> Result<BTreeMap<String, Signed>> {
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), NAMESPACE, &heal_action_resource());
    let held = api.list(&ListParams::default()).await.context("reading HealActions")?;
    Ok(held.into_iter().filter_map(|action| one(&action)).map(|signed| (signed.id.clone(), signed)).collect())
}

fn one(action: &DynamicObject) -> Option<Signed> {
    let (spec, status) = (&action.data["spec"], &action.data["status"]);
    let bytes = base64::engine::general_purpose::STANDARD.decode(spec["envelope"].as_str()?).ok()?;
    let body = v1::CommandBody::decode(envelope::parse(&bytes).ok()?.payload).ok()?;
    let node = body.target?.node?;
    let marks = |step: &v1::Step| matches!(step.step, Some(v1::step::Step::Mark(_)));
    let pods = |steps: &Value| -> Vec<String> {
        let steps = steps.as_array().into_iter().flatten();
        let pods = steps.filter_map(|step| step["pods"].as_array()).flatten();
        pods.filter_map(|pod| pod["uid"].as_str()).map(str::to_owned).collect()
    };
    Some(Signed {
        id: body.command_id,
        node: node.name,
        node_uid: node.uid,
        plan_rev: body.plan_rev,
        marks: body.steps.iter().any(marks),
        deadlines: Deadlines {
            start_by_ms: u64::try_from(body.start_by_unix_ms).ok()?,
            finish_by_ms: u64::try_from(body.finish_by_unix_ms).ok()?,
        },
        state: status["state"].as_str().unwrap_or_default().to_owned(),
        held: action.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()),
        pods: pods(&status["steps"]),
    })
}
