//! What of ours is in the cluster.

use std::{collections::BTreeMap, time::Duration};

use gpuheal_proto::{
    kubernetes::{CONFIG_KEY, CONFIG_MAP, FENCE, LEASE},
    time::Timestamp,
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Client, CustomResourceExt as _, api::ListParams};
use serde::Serialize;
use serde_json::Value;

use super::{
    super::facts::{self, OwnersConfig, Seen},
    all, call, get,
};
use crate::{clock, healaction::HealAction, rights::Sheet};

pub(super) async fn is_there(client: &Client, namespace: &str) -> Seen<bool> {
    Ok(get(&Api::<Namespace>::all(client.clone()), namespace).await?.is_some())
}

/// Versions of an API group that are served; none where nothing of it is.
pub(super) async fn versions(client: &Client, group: &str) -> Seen<Vec<String>> {
    let groups = call(client.list_api_groups()).await?.groups;
    let found = groups.into_iter().find(|found| found.name == group);
    Ok(found.into_iter().flat_map(|found| found.versions).map(|served| served.version).collect())
}

pub(super) async fn crd(client: &Client) -> Seen<Option<Value>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    get(&api, HealAction::crd_name()).await?.map(|crd| json(&crd)).transpose()
}

/// Those that are there, with their kind, which a typed answer does not carry.
pub(super) async fn policies(client: &Client, namespace: &str) -> Seen<Vec<Value>> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut there = Vec::new();
    for ours in Sheet::Admission.objects(namespace) {
        let (kind, name) = (ours["kind"].as_str().unwrap_or_default(), ours["metadata"]["name"].as_str().unwrap_or_default());
        let found = match kind {
            "ValidatingAdmissionPolicy" => get(&policies, name).await?.map(|found| json(&found)).transpose()?,
            _ => get(&bindings, name).await?.map(|found| json(&found)).transpose()?,
        };
        there.extend(found.map(|mut found| {
            found["kind"] = kind.into();
            found
        }));
    }
    Ok(there)
}

pub(super) async fn lease(client: &Client, namespace: &str) -> Seen<Option<facts::Lease>> {
    let lease = get(&Api::<Lease>::namespaced(client.clone(), namespace), LEASE).await?;
    Ok(lease.map(|lease| {
        let spec = lease.spec.unwrap_or_default();
        let renewed = spec.renew_time.map(|time| Timestamp::from_unix_ms(time.0.as_millisecond()));
        facts::Lease {
            holder: spec.holder_identity.unwrap_or_default(),
            age: renewed.map(|renewed| clock::wall().since(renewed)),
            lasts: Duration::from_secs(spec.lease_duration_seconds.and_then(|secs| u64::try_from(secs).ok()).unwrap_or(0)),
        }
    }))
}

pub(super) async fn fence(client: &Client, namespace: &str) -> Seen<Option<BTreeMap<String, String>>> {
    let map = get(&Api::<ConfigMap>::namespaced(client.clone(), namespace), FENCE).await?;
    Ok(map.map(|map| map.data.unwrap_or_default()))
}

/// By a list of that one, as the spoke follows it: its account may not `get` it.
pub(super) async fn config(client: &Client, namespace: &str) -> Seen<OwnersConfig> {
    let params = ListParams::default().fields(&format!("metadata.name={CONFIG_MAP}"));
    let text = |map: ConfigMap| {
        let text = map.data.unwrap_or_default().remove(CONFIG_KEY);
        Some(text.map_or(OwnersConfig::NoKey, OwnersConfig::Text))
    };
    let found = all(&Api::<ConfigMap>::namespaced(client.clone(), namespace), params, text).await?.pop();
    Ok(found.unwrap_or(OwnersConfig::Missing))
}

fn json(object: &impl Serialize) -> Seen<Value> {
    serde_json::to_value(object).map_err(|error| error.to_string())
}
