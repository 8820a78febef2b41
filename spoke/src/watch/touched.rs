//! Names of nodes that changed since somebody looked: a set, so that a storm of events on one node is one look.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use kube::runtime::watcher::Event;
use tokio::sync::Notify;

/// Nodes to look at again.
#[derive(Debug, Default)]
pub struct Touched {
    names: Mutex<BTreeSet<String>>,
    bell: Notify,
}

impl Touched {
    /// An empty set.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a node and wakes whoever waits.
    pub fn add(&self, name: &str) {
        self.names.lock().expect("no holder of this lock panics").insert(name.to_owned());
        self.bell.notify_one();
    }

    /// Waits until there is something to look at.
    pub async fn wait(&self) {
        self.bell.notified().await;
    }

    /// Takes all names.
    #[must_use]
    pub fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.names.lock().expect("no holder of this lock panics"))
    }
}

/// Adds the node that an event is about to each set. A list of all that has no object in it wakes them too, with what
/// its items added.
pub(super) fn tell<K>(sets: &[Arc<Touched>], event: &Event<K>, name: impl Fn(&K) -> Option<String>) {
    match event {
        Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => {
            if let Some(name) = name(object) {
                sets.iter().for_each(|set| set.add(&name));
            }
        }
        Event::Init => {}
        Event::InitDone => sets.iter().for_each(|set| set.bell.notify_one()),
    }
}
