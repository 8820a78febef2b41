//! The HealActions of this cluster as our watch shows them, and as we wrote them: whichever is newer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::Resource as _;
use tokio_util::sync::CancellationToken;

use super::Deps;
use crate::{
    healaction::HealAction,
    watch::{Follow, FollowShared, HEAL_ACTIONS, Keep, RESYNC, Seen},
};

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

/// Follows the API server until cancelled.
pub(super) async fn follow(deps: &Deps, actions: Arc<Actions>) {
    let follow = Follow {
        kind: HEAL_ACTIONS,
        client: deps.client.clone(),
        path: HealAction::url_path(&(), Some(&deps.namespace)),
        labels: None,
        fields: None,
        keep: Box::new(KeepActions { actions, missing: BTreeSet::new() }),
        resync: RESYNC,
        shared: FollowShared {
            metrics: Arc::clone(&deps.metrics),
            heard: Arc::clone(&deps.heard),
            // It ends by being dropped.
            cancel: CancellationToken::new(),
        },
    };
    follow.run().await;
}

impl Seen for HealAction {
    fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }
}

struct KeepActions {
    actions: Arc<Actions>,
    /// Those that were known when the list that goes on began, and that it has not brought: what is made meanwhile is not in it.
    missing: BTreeSet<String>,
}

impl Keep<HealAction> for KeepActions {
    fn begin(&mut self) {
        self.missing = self.actions.all().iter().map(|action| action.id().to_owned()).collect();
    }

    fn put(&mut self, action: HealAction) {
        self.missing.remove(action.id());
        self.actions.put(action);
    }

    fn remove(&mut self, action: HealAction) {
        self.actions.remove(action.id());
    }

    fn end(&mut self) {
        std::mem::take(&mut self.missing).iter().for_each(|id| self.actions.remove(id));
        self.actions.ready.store(true, Ordering::Release);
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
    fn a_list_takes_away_what_it_did_not_bring_and_one_that_breaks_off_takes_nothing() {
        let actions = Arc::new(Actions::default());
        let mut keep = KeepActions { actions: Arc::clone(&actions), missing: BTreeSet::new() };
        keep.begin();
        assert!(!actions.ready());
        keep.put(at("10"));
        keep.end();
        assert!(actions.ready() && actions.get("id").is_some());
        keep.begin();
        assert!(actions.get("id").is_some(), "it broke off");
        keep.begin();
        let mut made = at("11");
        made.metadata.name = Some("made-meanwhile".into());
        actions.put(made);
        keep.end();
        assert!(actions.get("id").is_none() && actions.get("made-meanwhile").is_some() && actions.ready());
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
