//! The VolumeAttachments of pods with storage: whether their volumes can follow them, before they are evicted; and which of them a
//! dead node keeps, once its pods are not waited for any more. Read only where a pod with a bound claim is to go. What cannot
//! be read counts as no.

use std::collections::{BTreeMap, BTreeSet};

use gpuheal_spoke_core::drain::{
    Plan, PodFacts,
    volume::{Attachment, Volume, trouble},
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, api::ListParams};

use super::super::api::{Error, Kube};

/// One page.
const PAGE: u32 = 500;
/// Pages: 50,000 attachments, ten for each node of the largest cluster.
const PAGES_MAX: usize = 100;

/// The volume of each bound claim, by `namespace/name` of the claim.
pub(super) type Volumes = BTreeMap<String, Volume>;

/// Leaves where they are those whose volumes could not follow them.
pub(super) async fn hold_back(kube: &Kube, node: &str, plan: &mut Plan, volumes: &Volumes) {
    let wanted: BTreeSet<&str> =
        plan.stateful.iter().flat_map(|planned| of(&planned.pod, volumes)).map(|volume| volume.name.as_str()).collect();
    if wanted.is_empty() {
        return;
    }
    let known = attachments(kube, &wanted).await;
    plan.hold_back(|pod| {
        let mut own = of(pod, volumes).peekable();
        match &known {
            Err(error) if own.peek().is_some() => {
                Some(format!("has storage, and its VolumeAttachments could not be read: {error}"))
            }
            Err(_) => None,
            Ok(known) => own.find_map(|volume| trouble(known, volume, node)),
        }
    });
}

/// The same of one pod whose turn has come. What cannot be read then is read again.
pub(super) async fn in_the_way(kube: &Kube, node: &str, pod: &PodFacts, volumes: &Volumes) -> Result<Option<String>, Error> {
    let wanted: BTreeSet<&str> = of(pod, volumes).map(|volume| volume.name.as_str()).collect();
    if wanted.is_empty() {
        return Ok(None);
    }
    let known = attachments(kube, &wanted).await?;
    Ok(of(pod, volumes).find_map(|volume| trouble(&known, volume, node)))
}

/// What to say of the volumes of pods that we stopped waiting for; empty when no such volume is attached to their node. Nobody
/// detaches them while the machine may still write to them, and no other pod gets them before.
pub(super) async fn kept(kube: &Kube, node: &str, stuck: &[PodFacts], volumes: &Volumes) -> String {
    let wanted: BTreeSet<&str> = stuck.iter().flat_map(|pod| of(pod, volumes)).map(|volume| volume.name.as_str()).collect();
    if wanted.is_empty() {
        return String::new();
    }
    let known = match attachments(kube, &wanted).await {
        Ok(known) => known,
        Err(error) => return format!("whether their volumes are still attached to it could not be read: {error}"),
    };
    let held: Vec<_> = known.iter().filter(|one| one.node == node && one.attached).map(|one| one.volume.as_str()).collect();
    if held.is_empty() {
        return String::new();
    }
    format!(
        "still attached to it: {}; once the machine is known to be off, the taint node.kubernetes.io/out-of-service has them detached",
        held.join(", ")
    )
}

fn of<'a>(pod: &'a PodFacts, volumes: &'a Volumes) -> impl Iterator<Item = &'a Volume> {
    pod.claims.iter().filter_map(|claim| volumes.get(&format!("{}/{claim}", pod.namespace)))
}

/// Those of these volumes, on whatever node: no selector finds them by volume or node, so that all are read, page by page.
async fn attachments(kube: &Kube, volumes: &BTreeSet<&str>) -> Result<Vec<Attachment>, Error> {
    let api: Api<VolumeAttachment> = Api::all(kube.client());
    let mut params = ListParams::default().limit(PAGE);
    let mut found = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = kube.call("list volume attachments", api.list(&params)).await?;
        let json = page.items.iter().filter_map(|one| serde_json::to_value(one).ok());
        let known = json.filter_map(|one| Attachment::from_json(&one));
        found.extend(known.filter(|one| volumes.contains(one.volume.as_str())));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(found)
}
