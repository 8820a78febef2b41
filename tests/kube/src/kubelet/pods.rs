//! What the stand-in does to pods: sees each of the cluster, starts and ends those on its own nodes.
//! Deletes by UID only; what is gone by then, or has a namesake, is left as it is.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher;
use tokio::time::Instant;

use super::pod::{self, Duty};
use super::{Shared, Stopping, lock, now};

/// Before a watch that broke is opened again: short, since a test waits for it.
const REWATCH: Duration = Duration::from_millis(100);

/// Sees every pod of the cluster, acts on those of our nodes; a broken watch is opened again.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        let pods: Api<Pod> = Api::all(shared.client());
        let mut events = watcher(pods, watcher::Config::default()).boxed();
        while let Ok(Some(event)) = events.try_next().await {
            if let watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) = event {
                shared.see(pod).await;
            }
        }
        tokio::time::sleep(REWATCH).await;
    }
}

impl Shared {
    async fn see(self: &Arc<Self>, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
        if !self.is_alive(node) {
            return;
        }
        match pod::duty(&pod) {
            Duty::Start => self.set_status(&pod, pod::running(&pod, 0, &now())).await,
            Duty::Stop(after) => self.stop(pod, after),
            Duty::Keep | Duty::Hang => {}
        }
    }

    /// Ends the pod after a while; a later deletion with a shorter grace brings that forward.
    fn stop(self: &Arc<Self>, pod: Pod, after: Duration) {
        let at = Instant::now() + after;
        let uid = pod.uid().unwrap_or_default();
        let mut stopping = lock(&self.stopping);
        if let Some(earlier) = stopping.get(&uid) {
            if earlier.at <= at || earlier.task.is_finished() {
                return;
            }
            earlier.task.abort();
        }
        let shared = Arc::clone(self);
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
            if shared.is_alive(&node) {
                shared.set_status(&pod, pod::stopped(&pod, &now())).await;
                shared.remove(&pod).await;
            }
        });
        stopping.insert(uid, Stopping { at, task });
    }

    /// Deletes what has ended, by UID and without grace. Gone already, or a namesake: as good.
    pub(super) async fn remove(&self, pod: &Pod) {
        let options = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        self.pods_beside(pod).delete(&pod.name_any(), &options).await.ok();
    }

    /// A pod that is gone by now, or a namesake, needs no status from us.
    pub(super) async fn set_status(&self, pod: &Pod, patch: serde_json::Value) {
        let pods = self.pods_beside(pod);
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.ok();
    }

    fn pods_beside(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client(), &pod.namespace().unwrap_or_default())
    }
}
