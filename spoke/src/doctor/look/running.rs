//! What runs of ours and beside us: our own pods, the device plugin's, records of commands, and snapshots of volumes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpuheal_proto::time::{Timestamp, parse_rfc3339};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
};

use super::{
    super::facts::{Action, Seen, Spoke},
    all, served,
};
use crate::{
    clock,
    healaction::{self, HealAction},
    rights::ACCOUNT,
};

/// Nodes on which a pod of the device plugin is ready.
pub(super) async fn plugins(client: &Client, selectors: &[String]) -> Seen<BTreeSet<String>> {
    let api: Api<Pod> = Api::all(client.clone());
    let mut nodes = BTreeSet::new();
    for selector in selectors {
        let ready = |pod: Pod| pod.spec?.node_name.filter(|_| pod.status.as_ref().is_some_and(is_ready));
        nodes.extend(all(&api, ListParams::default().labels(selector), ready).await?);
    }
    Ok(nodes)
}

fn is_ready(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// Our own replicas: whatever runs as the spoke's account.
pub(super) async fn spokes(client: &Client, namespace: &str) -> Seen<Vec<Spoke>> {
    all(&Api::<Pod>::namespaced(client.clone(), namespace), ListParams::default(), |pod| {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
        (account == Some(ACCOUNT)).then(|| spoke(pod))
    })
    .await
}

fn spoke(pod: Pod) -> Spoke {
    let status = pod.status.unwrap_or_default();
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    let ended = containers.iter().filter_map(|one| one.last_state.as_ref()?.terminated.as_ref()).next();
    let words = ended.map(|end| format!("{} (exit status {})", end.reason.as_deref().unwrap_or("ended"), end.exit_code));
    Spoke {
        name: pod.metadata.name.unwrap_or_default(),
        ready: is_ready(&status),
        restarts: containers.iter().map(|one| one.restart_count.unsigned_abs()).sum(),
        ended: words.unwrap_or_default(),
    }
}

/// Records of commands. Without their CRD there are none.
pub(super) async fn actions(client: &Client, namespace: &str) -> Seen<Vec<Action>> {
    let now = clock::wall();
    let api: Api<HealAction> = Api::namespaced(client.clone(), namespace);
    Ok(served(&api, ListParams::default(), |action| Some(record(&action, now))).await?.unwrap_or_default())
}

fn record(action: &HealAction, now: Timestamp) -> Action {
    let refused = action.spec.tombstone.is_some() || healaction::state(action).to_string() == "REFUSED";
    Action {
        name: action.name().to_owned(),
        node: action.spec.node.clone(),
        open: !healaction::is_final(action),
        held: action.held(),
        waits_for_release: !refused && matches!(action.spec.action.as_str(), "mark" | "evict"),
        deleting: action.metadata.deletion_timestamp.is_some(),
        overdue: parse_rfc3339(&action.spec.finish_by).map(|by| now.since(by)).unwrap_or_default(),
    }
}

/// How old the newest snapshot is that can be restored from, by `namespace/claim`; nothing where the cluster has no snapshots.
pub(super) async fn snapshots(client: &Client, stateful: bool) -> Seen<Option<BTreeMap<String, Duration>>> {
    if !stateful {
        return Ok(None);
    }
    let now = clock::wall();
    let resource = ApiResource {
        group: "snapshot.storage.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "snapshot.storage.k8s.io/v1".to_owned(),
        kind: "VolumeSnapshot".to_owned(),
        plural: "volumesnapshots".to_owned(),
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let Some(known) = served(&api, ListParams::default(), |snapshot| ready_snapshot(&snapshot, now)).await? else {
        return Ok(None);
    };
    let mut newest: BTreeMap<String, Duration> = BTreeMap::new();
    for (claim, age) in known {
        newest.entry(claim).and_modify(|known| *known = age.min(*known)).or_insert(age);
    }
    Ok(Some(newest))
}

fn ready_snapshot(snapshot: &DynamicObject, now: Timestamp) -> Option<(String, Duration)> {
    let claim = snapshot.data.pointer("/spec/source/persistentVolumeClaimName")?.as_str()?;
    let ready = snapshot.data.pointer("/status/readyToUse")?.as_bool()?;
    let made = parse_rfc3339(snapshot.data.pointer("/status/creationTime")?.as_str()?).ok()?;
    ready.then(|| (format!("{}/{claim}", snapshot.metadata.namespace.as_deref().unwrap_or_default()), now.since(made)))
}
