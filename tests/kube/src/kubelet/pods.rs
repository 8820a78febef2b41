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
use super::{Pending, Shared, Step, lock, now};

/// Before a watch that broke is opened again: short, since a test waits for it.
const REWATCH: Duration = Duration::from_millis(100);

/// Sees every pod of the cluster, acts on those of our nodes; a broken watch is opened again.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        let pods: Api<Pod> = Api::all(shared.client());
        let mut events = watcher(pods, watcher::Config::default()).boxed();
        while let Ok(Some(event)) = events.try_next().await {
            if let watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) = event {
                shared.see(pod);
            }
        }
        tokio::time::sleep(REWATCH).await;
    }
}

impl Shared {
    fn see(self: &Arc<Self>, pod: Pod) {
        if !self.is_alive(node_of(&pod)) {
            return;
        }
        match pod::duty(&pod) {
            Duty::Start(after) => self.later(Step::Start, pod, after),
            Duty::Stop(after) => self.later(Step::Stop, pod, after),
            Duty::Keep | Duty::Hang => {}
        }
    }

    /// Takes the step after a while, once per pod; a later deletion with a shorter grace brings it forward.
    fn later(self: &Arc<Self>, step: Step, pod: Pod, after: Duration) {
        let at = Instant::now() + after;
        let key = (pod.uid().unwrap_or_default(), step);
        let mut pending = lock(&self.pending);
        if let Some(earlier) = pending.get(&key) {
            if earlier.at <= at || earlier.task.is_finished() {
                return;
            }
            earlier.task.abort();
        }
        let shared = Arc::clone(self);
        let task = tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            if shared.is_alive(node_of(&pod)) {
                shared.take(step, &pod).await;
            }
        });
        pending.insert(key, Pending { at, task });
    }

    async fn take(&self, step: Step, pod: &Pod) {
        match step {
            Step::Start => self.set_status(pod, pod::running(pod, 0, &now())).await,
            Step::Stop => {
                self.set_status(pod, pod::stopped(pod, &now())).await;
                self.remove(pod).await;
            }
        }
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

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}
