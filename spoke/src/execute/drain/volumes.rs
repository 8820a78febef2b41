//! The VolumeAttachments of pods with storage: whether their volumes can follow them, before they are evicted; and which of them a
//! dead node keeps, once its pods are not waited for any more. Read only where a pod with a bound claim is to go. What cannot
//! be read counts as no.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use gpuheal_spoke_core::drain::{
    Plan, PodFacts,
    volume::{Attachment, Volume, trouble},
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, api::ListParams};
use tokio::{sync::Mutex, time::Instant};

use super::super::api::{Error, Kube};

/// One page.
const PAGE: u32 = 500;
/// Pages: 50,000 attachments, ten for each node of the largest cluster. More count as not read.
const PAGES_MAX: usize = 100;
/// How old a list may be by which a pod is judged that has been judged before and is asked for again and again: its budget says no, and a
/// retry comes after 1, 2, 4 s and so on, of each node that is drained. So all are listed once in ten seconds for them, however many
/// wait: ten pages a second in the largest cluster. A pod whose turn comes for the first time has a list of its own moment.
const FRESH: Duration = Duration::from_secs(10);

/// The VolumeAttachments of the cluster, read once for all drains that want them at the same time.
#[derive(Debug)]
pub(in super::super) struct Attachments {
    kube: Kube,
    pages_max: usize,
    page: u32,
    known: Mutex<Option<Known>>,
}

/// What was read, and when that began.
#[derive(Clone, Debug)]
struct Known {
    began: Instant,
    all: Arc<Vec<Attachment>>,
}

impl Attachments {
    pub(in super::super) fn new(kube: Kube) -> Self {
        Self { kube, pages_max: PAGES_MAX, page: PAGE, known: Mutex::default() }
    }

    /// Lets go of what nobody may go by any more: it is megabytes in a large cluster.
    pub(in super::super) fn forget_old(&self) {
        if let Ok(mut known) = self.known.try_lock()
            && known.as_ref().is_some_and(|known| known.began.elapsed() > FRESH)
        {
            *known = None;
        }
    }

    /// All of them, as they were read since. Who comes while they are being read waits, and reads anew only if that began too early.
    async fn since(&self, moment: Instant) -> Result<Arc<Vec<Attachment>>, Error> {
        let mut known = self.known.lock().await;
        if let Some(known) = known.as_ref().filter(|known| known.began >= moment) {
            return Ok(Arc::clone(&known.all));
        }
        let began = Instant::now();
        let all = Arc::new(self.read().await?);
        *known = Some(Known { began, all: Arc::clone(&all) });
        Ok(all)
    }

    /// Page by page: no selector finds them by volume or node.
    async fn read(&self) -> Result<Vec<Attachment>, Error> {
        const VERB: &str = "list volume attachments";
        let api: Api<VolumeAttachment> = Api::all(self.kube.client());
        let mut params = ListParams::default().limit(self.page);
        let mut found = Vec::new();
        for _ in 0..self.pages_max {
            let page = self.kube.call(VERB, api.list(&params)).await?;
            let json = page.items.iter().filter_map(|one| serde_json::to_value(one).ok());
            found.extend(json.filter_map(|one| Attachment::from_json(&one)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(found),
            }
        }
        Err(Error::TooMany { verb: VERB, pages: self.pages_max })
    }
}

/// The volume of each bound claim, by `namespace/name` of the claim.
pub(super) type Volumes = BTreeMap<String, Volume>;

/// Leaves where they are those whose volumes could not follow them.
pub(super) async fn hold_back(attachments: &Attachments, node: &str, plan: &mut Plan, volumes: &Volumes) {
    if plan.stateful.iter().all(|planned| of(&planned.pod, volumes).next().is_none()) {
        return;
    }
    let known = attachments.since(Instant::now()).await;
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

/// The same of one pod whose turn has come, or has come again. What cannot be read then is read again.
pub(super) async fn in_the_way(
    attachments: &Attachments,
    node: &str,
    (pod, again): (&PodFacts, bool),
    volumes: &Volumes,
) -> Result<Option<String>, Error> {
    if of(pod, volumes).next().is_none() {
        return Ok(None);
    }
    let now = Instant::now();
    let known = attachments.since(if again { now.checked_sub(FRESH).unwrap_or(now) } else { now }).await?;
    Ok(of(pod, volumes).find_map(|volume| trouble(&known, volume, node)))
}

/// What to say of the volumes of pods that we stopped waiting for; empty when no such volume is attached to their node. Nobody
/// detaches them while the machine may still write to them, and no other pod gets them before.
pub(super) async fn kept(attachments: &Attachments, node: &str, stuck: &[PodFacts], volumes: &Volumes) -> String {
    let wanted: BTreeSet<&str> = stuck.iter().flat_map(|pod| of(pod, volumes)).map(|volume| volume.name.as_str()).collect();
    if wanted.is_empty() {
        return String::new();
    }
    let known = match attachments.since(Instant::now()).await {
        Ok(known) => known,
        Err(error) => return format!("whether their volumes are still attached to it could not be read: {error}"),
    };
    let ours = |one: &&Attachment| one.node == node && one.attached && wanted.contains(one.volume.as_str());
    let held: Vec<_> = known.iter().filter(ours).map(|one| one.volume.as_str()).collect();
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

#[cfg(test)]
mod tests {
    use kube::config::Kubeconfig;
    use kubesim::{Config, KubeSim};
    use serde_json::json;

    use super::*;

    async fn attachments(sim: &KubeSim) -> Attachments {
        let kubeconfig = Kubeconfig::from_yaml(&sim.kubeconfig_yaml()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
        Attachments { page: 1, pages_max: 3, ..Attachments::new(Kube::new(kube::Client::try_from(config).unwrap())) }
    }

    fn attach(sim: &KubeSim, n: u32) {
        let spec = json!({"attacher": "csi.example.com", "nodeName": "n1", "source": {"persistentVolumeName": format!("pv-{n}")}});
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": format!("csi-{n}")}, "spec": spec});
        sim.store().create(object).unwrap();
    }

    async fn sim() -> KubeSim {
        let _ = rustls::crypto::ring::default_provider().install_default();
        KubeSim::start(Config::default()).await.unwrap()
    }

    #[tokio::test]
    async fn of_more_attachments_than_are_read_nobody_says_that_they_are_all() {
        let sim = sim().await;
        (1..=3).for_each(|n| attach(&sim, n));
        let known = attachments(&sim).await;
        assert_eq!(known.since(Instant::now()).await.unwrap().len(), 3);
        attach(&sim, 4);
        let error = known.since(Instant::now()).await.unwrap_err();
        assert!(matches!(error, Error::TooMany { pages: 3, .. }) && !error.transient(), "{error}");
    }

    #[tokio::test]
    async fn drains_that_ask_at_once_share_one_list_and_a_list_of_before_its_moment_serves_nobody() {
        let sim = sim().await;
        attach(&sim, 1);
        let known = attachments(&sim).await;
        let lists = || sim.recorder().requests().iter().filter(|seen| seen.path.contains("volumeattachments")).count();
        let moment = Instant::now();
        futures::future::join_all((0..64).map(|_| known.since(moment))).await.into_iter().for_each(|all| assert!(all.is_ok()));
        assert_eq!(lists(), 1);
        known.since(Instant::now()).await.unwrap();
        assert_eq!(lists(), 2);
        known.forget_old();
        known.since(moment).await.unwrap();
        assert_eq!(lists(), 2, "it is fresh");
    }
}
