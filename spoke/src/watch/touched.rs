//! Names of nodes that changed since somebody looked: a set, so that a storm of events on one node is one look.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

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

    /// Wakes whoever waits, with what was added or nothing.
    pub(super) fn ring(&self) {
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
