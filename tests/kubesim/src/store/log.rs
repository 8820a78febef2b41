//! The window of past changes that watches and paged lists are served from.
//! One entry per resource version, without gaps, so that a version is found by subtraction.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{ObjKey, Stored};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One committed write.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) rv: u64,
    pub(crate) kind: ChangeKind,
    pub(crate) storage: Arc<str>,
    pub(crate) key: ObjKey,
    /// After the write; for a deletion the last state, with the deletion's resource version.
    pub(crate) now: Arc<Stored>,
    pub(crate) before: Option<Arc<Stored>>,
}

/// The version asked for is no longer in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compacted;

#[derive(Debug)]
pub(crate) struct Log {
    changes: VecDeque<Change>,
    window: usize,
    /// Changes after this version are known.
    floor: u64,
}

impl Log {
    pub(crate) fn new(window: usize, floor: u64) -> Self {
        Self { changes: VecDeque::new(), window, floor }
    }

    pub(crate) fn push(&mut self, change: Change) {
        if self.changes.len() == self.window
            && let Some(oldest) = self.changes.pop_front()
        {
            self.floor = oldest.rv;
        }
        self.changes.push_back(change);
    }

    /// Everything after a version, oldest first.
    pub(crate) fn after(&self, rv: u64) -> Result<impl DoubleEndedIterator<Item = &Change>, Compacted> {
        if rv < self.floor {
            return Err(Compacted);
        }
        let skip = usize::try_from(rv - self.floor).unwrap_or(usize::MAX).min(self.changes.len());
        Ok(self.changes.range(skip..))
    }

    /// Forgets everything, as a compaction of etcd does.
    pub(crate) fn compact(&mut self, rv: u64) {
        self.changes.clear();
        self.floor = rv;
    }

    pub(crate) fn bytes(&self) -> usize {
        self.changes.iter().map(|change| change.now.bytes()).sum()
    }
}
