//! What was injected, kept beside the system that is tried: each broken GPU, whether its webhook was acknowledged, what
//! people did about its node since, and how often each kind of trouble came.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::schedule::Break;

/// What became of an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alert {
    /// There is none.
    None,
    /// Alertmanager goes on telling.
    Told,
    /// A spoke answered 200: from here on it must not be lost.
    Acked,
}

/// What people did about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Nothing.
    Not,
    /// Repaired; the release was asked for and not yet taken.
    Asked,
    /// Repaired; the hub took the release, which was asked for then by the wall clock.
    Released {
        /// In milliseconds since 1970.
        asked_ms: u64,
    },
    /// Uncordoned, though it is still broken.
    Uncordoned,
    /// Repaired, and nobody was told.
    Repaired,
}

/// One broken GPU.
#[derive(Clone, Debug)]
pub struct Injected {
    /// Its cluster, by number.
    pub cluster: usize,
    /// Its node.
    pub node: String,
    /// The GPU's place on its node.
    pub slot: usize,
    /// The GPU.
    pub gpu_uuid: String,
    /// The Xid.
    pub xid: u32,
    /// How it came to be known.
    pub how: Break,
    /// What became of its alert.
    pub alert: Alert,
    /// What people did since.
    pub touched: Touched,
}

impl Injected {
    /// P0 by two kinds of witness, and nobody has seen to it: the node must be out.
    #[must_use]
    pub fn stands(&self) -> bool {
        matches!(self.how, Break::Page | Break::PageAndAlert) && self.touched == Touched::Not
    }

    /// The node is whole again: another GPU of it may break.
    #[must_use]
    pub fn over(&self) -> bool {
        matches!(self.touched, Touched::Released { .. } | Touched::Repaired)
    }

    /// Its exporter shows it still.
    #[must_use]
    pub fn shows(&self) -> bool {
        self.how != Break::AlertAlone && matches!(self.touched, Touched::Not | Touched::Uncordoned)
    }
}

/// The whole record; clones share it.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    injected: Vec<Injected>,
    troubles: BTreeMap<String, u32>,
}

impl Ledger {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a broken GPU; gives its number.
    pub fn add(&self, injected: Injected) -> usize {
        let mut kept = self.kept();
        kept.injected.push(injected);
        kept.injected.len() - 1
    }

    /// Everything that was injected.
    #[must_use]
    pub fn injected(&self) -> Vec<Injected> {
        self.kept().injected.clone()
    }

    /// One of them.
    #[must_use]
    pub fn one(&self, number: usize) -> Option<Injected> {
        self.kept().injected.get(number).cloned()
    }

    /// Notes what became of one.
    pub fn change(&self, number: usize, change: impl FnOnce(&mut Injected)) {
        if let Some(injected) = self.kept().injected.get_mut(number) {
            change(injected);
        }
    }

    /// Counts a trouble.
    pub fn count(&self, trouble: &str) {
        *self.kept().troubles.entry(trouble.to_owned()).or_default() += 1;
    }

    /// How often each trouble came.
    #[must_use]
    pub fn troubles(&self) -> BTreeMap<String, u32> {
        self.kept().troubles.clone()
    }
}
