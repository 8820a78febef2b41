//! The HealActions of this cluster as our watch shows them, and as we wrote them: whichever is newer.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt as _;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};

use crate::healaction::HealAction;

/// By name. Cheap to read; one lock per access.
#[derive(Debug, Default)]
pub(super) struct Actions {
    map: Mutex<BTreeMap<String, Arc<HealAction>>>,
    ready: AtomicBool,
}

impl Actions {
    /// All have been listed once.
    pub(super) fn ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<HealAction>> {
        self.map.lock().expect("no holder of this lock panics").get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<HealAction>> {
        self.map.lock().expect("no holder of this lock panics").values().cloned().collect()
    }

    /// Keeps it unless what is kept is newer: our own write may be ahead of the watch.
    pub(super) fn put(&self, action: HealAction) -> Arc<HealAction> {
        let action = Arc::new(action);
        let mut map = self.map.lock().expect("no holder of this lock panics");
        match map.get(action.id()) {
            Some(kept) if kept.metadata.uid == action.metadata.uid && version(kept) > version(&action) => Arc::clone(kept),
            Some(_) | None => {
                map.insert(action.id().to_owned(), Arc::clone(&action));
                action
            }
        }
    }

    pub(super) fn remove(&self, id: &str) {
        self.map.lock().expect("no holder of this lock panics").remove(id);
    }
}

/// Kubernetes promises since 1.35 that versions of one resource compare as numbers, and kept to it before.
fn version(action: &HealAction) -> u64 {
    action.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Follows the API server; ends only by being aborted.
pub(super) async fn follow(client: Client, namespace: String, actions: Arc<Actions>) {
    let api: Api<HealAction> = Api::namespaced(client, &namespace);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut listed: Option<std::collections::BTreeSet<String>> = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed = Some(std::collections::BTreeSet::new()),
            Ok(watcher::Event::InitApply(action)) => {
                listed.get_or_insert_default().insert(action.id().to_owned());
                actions.put(action);
            }
            Ok(watcher::Event::InitDone) => {
                if let Some(listed) = listed.take() {
                    let gone: Vec<_> = actions.all().iter().map(|a| a.id().to_owned()).filter(|id| !listed.contains(id)).collect();
                    gone.iter().for_each(|id| actions.remove(id));
                }
                actions.ready.store(true, Ordering::Release);
            }
            Ok(watcher::Event::Apply(action)) => drop(actions.put(action)),
            Ok(watcher::Event::Delete(action)) => actions.remove(action.id()),
            Err(error) => tracing::warn!(error = %gpuheal_proto::chain::chain(&error), "watch of HealActions failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::healaction::HealActionSpec;

    fn at(version: &str) -> HealAction {
        let mut action = HealAction::named("id", "ns", HealActionSpec::default());
        action.metadata.resource_version = Some(version.into());
        action
    }

    #[test]
    fn a_late_event_of_the_watch_does_not_undo_what_we_wrote() {
        let actions = Actions::default();
        actions.put(at("10"));
        actions.put(at("9"));
        assert_eq!(actions.get("id").unwrap().metadata.resource_version.as_deref(), Some("10"));
        actions.put(at("11"));
        assert_eq!(actions.get("id").unwrap().metadata.resource_version.as_deref(), Some("11"));
    }
}
