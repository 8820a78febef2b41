//! The objects of one cluster: every change under one lock, numbered by one global resource version.
//! Knows nothing of HTTP. Business rules (defaults, conflicts, graceful deletion) live in `rest`.

mod direct;
mod events;
mod log;
mod stored;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::registry::{Registry, ResourceKind, View};
use crate::status::ApiError;

pub(crate) use log::{Change, ChangeKind, Compacted};
pub(crate) use stored::{ObjKey, Stored};

/// Where numbering starts; a real cluster's versions are never small either.
const FIRST_VERSION: u64 = 1_000;

pub(crate) type Table = BTreeMap<ObjKey, Arc<Stored>>;

/// The store of one cluster. Its public methods are direct helpers which go past HTTP, faults and the recorder.
#[derive(Debug)]
pub struct Store {
    inner: Mutex<Inner>,
    version: watch::Sender<u64>,
    pub(crate) clock: Clock,
}

#[derive(Debug)]
struct Inner {
    rv: u64,
    registry: Registry,
    tables: BTreeMap<Arc<str>, Table>,
    log: log::Log,
}

impl Store {
    pub(crate) fn new(clock: Clock, window: usize) -> Self {
        let inner = Inner {
            rv: FIRST_VERSION,
            registry: Registry::builtin(),
            tables: BTreeMap::new(),
            log: log::Log::new(window, FIRST_VERSION),
        };
        Self { inner: Mutex::new(inner), version: watch::channel(FIRST_VERSION).0, clock }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// One atomic read-modify-write. What was put before an error stays, as on a real server.
    pub(crate) fn write<T>(&self, dry_run: bool, work: impl FnOnce(&mut Txn<'_>) -> Result<T, ApiError>) -> Result<T, ApiError> {
        let mut inner = self.lock();
        let before = inner.rv;
        let result = work(&mut Txn { inner: &mut inner, dry_run, clock: &self.clock });
        let after = inner.rv;
        drop(inner);
        if after != before {
            self.version.send_modify(|version| *version = (*version).max(after));
        }
        result
    }

    /// Wakes at every commit.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The version of the last commit.
    pub fn version(&self) -> u64 {
        self.lock().rv
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<ResourceKind>> {
        self.lock().registry.find(group, version, plural)
    }

    pub(crate) fn kinds(&self) -> Vec<Arc<ResourceKind>> {
        self.lock().registry.all().cloned().collect()
    }

    pub(crate) fn load(&self, storage: &str, key: &ObjKey) -> Option<Arc<Stored>> {
        self.lock().tables.get(storage)?.get(key).cloned()
    }

    /// Everything of one resource now, and the version it was read at.
    pub(crate) fn snapshot(&self, storage: &str) -> (Vec<(ObjKey, Arc<Stored>)>, u64) {
        let inner = self.lock();
        let rows = inner.tables.get(storage).into_iter().flatten();
        (rows.map(|(key, stored)| (key.clone(), stored.clone())).collect(), inner.rv)
    }

    /// Everything of one resource as it was at a version that the window still covers.
    pub(crate) fn snapshot_at(&self, storage: &str, rv: u64) -> Result<Vec<(ObjKey, Arc<Stored>)>, Compacted> {
        let inner = self.lock();
        let mut table = inner.tables.get(storage).cloned().unwrap_or_default();
        for change in inner.log.after(rv)?.rev().filter(|change| &*change.storage == storage) {
            match &change.before {
                Some(before) => table.insert(change.key.clone(), before.clone()),
                None => table.remove(&change.key),
            };
        }
        Ok(table.into_iter().collect())
    }

    /// Changes after a version, and the version they reach up to.
    pub(crate) fn changes_after(&self, rv: u64, storage: Option<&str>) -> Result<(Vec<Change>, u64), Compacted> {
        let inner = self.lock();
        let wanted = inner.log.after(rv)?.filter(|change| storage.is_none_or(|storage| &*change.storage == storage));
        Ok((wanted.cloned().collect(), inner.rv))
    }

    /// The keys of one resource that pass a test on what needs no parsing.
    pub(crate) fn keys(&self, storage: &str, wanted: impl Fn(&ObjKey, &Stored) -> bool) -> Vec<ObjKey> {
        let inner = self.lock();
        let rows = inner.tables.get(storage).into_iter().flatten();
        rows.filter(|(key, stored)| wanted(key, stored)).map(|(key, _)| key.clone()).collect()
    }

    /// The objects of one resource that pass such a test, parsed.
    pub(crate) fn values(&self, storage: &str, wanted: impl Fn(&ObjKey, &Stored) -> bool) -> Vec<Value> {
        let found: Vec<Arc<Stored>> = {
            let inner = self.lock();
            let rows = inner.tables.get(storage).into_iter().flatten();
            rows.filter(|(key, stored)| wanted(key, stored)).map(|(_, stored)| stored.clone()).collect()
        };
        found.iter().map(|stored| stored.bare()).collect()
    }

    /// Everything of every resource that passes such a test.
    pub(crate) fn everywhere(&self, wanted: impl Fn(&ObjKey, &Stored) -> bool) -> Vec<(Arc<str>, ObjKey)> {
        let inner = self.lock();
        let tables = inner.tables.iter().flat_map(|(storage, table)| table.iter().map(move |(key, stored)| (storage, key, stored)));
        tables.filter(|(_, key, stored)| wanted(key, stored)).map(|(storage, key, _)| (storage.clone(), key.clone())).collect()
    }

    /// Where objects of a type are kept.
    pub(crate) fn storage_of(&self, api_version: &str, kind: &str) -> Option<Arc<str>> {
        self.lock().registry.find_kind(api_version, kind).map(|kind| kind.storage.clone())
    }

    /// Forgets the window of past changes: older watches and continue tokens get 410.
    pub fn compact(&self) {
        let mut inner = self.lock();
        let rv = inner.rv;
        inner.log.compact(rv);
    }

    /// Bytes of object text held now, and in the window of past changes.
    pub fn bytes(&self) -> (usize, usize) {
        let inner = self.lock();
        let objects = inner.tables.values().flat_map(BTreeMap::values).map(|stored| stored.bytes()).sum();
        (objects, inner.log.bytes())
    }
}

/// A change in progress: holds the store's lock.
pub(crate) struct Txn<'s> {
    inner: &'s mut Inner,
    pub(crate) dry_run: bool,
    pub(crate) clock: &'s Clock,
}

impl Txn<'_> {
    pub(crate) fn get(&self, storage: &str, key: &ObjKey) -> Option<Arc<Stored>> {
        self.inner.tables.get(storage)?.get(key).cloned()
    }

    pub(crate) fn table(&self, storage: &str) -> impl Iterator<Item = (&ObjKey, &Arc<Stored>)> {
        self.inner.tables.get(storage).into_iter().flatten()
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Commits an object; in a dry run only shows what it would be, under the version it has.
    pub(crate) fn put(&mut self, kind: &ResourceKind, object: Value) -> Arc<Stored> {
        let key = ObjKey::of(&object);
        let before = self.get(&kind.storage, &key);
        let object = match kind.view {
            View::Same => object,
            View::EventsV1 => events::to_core(object),
        };
        if self.dry_run {
            return Arc::new(Stored::new(object, before.map_or(0, |stored| stored.rv)));
        }
        if kind.is("customresourcedefinitions.apiextensions.k8s.io") {
            self.inner.registry.add_custom(&object);
        }
        self.inner.rv += 1;
        let stored = Arc::new(Stored::new(object, self.inner.rv));
        self.inner.tables.entry(kind.storage.clone()).or_default().insert(key.clone(), stored.clone());
        let change = if before.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.record(kind, key, change, stored.clone(), before);
        stored
    }

    /// Removes an object; gives its last state under the deletion's version.
    pub(crate) fn remove(&mut self, kind: &ResourceKind, key: &ObjKey) -> Option<Arc<Stored>> {
        let before = self.get(&kind.storage, key)?;
        if self.dry_run {
            return Some(before);
        }
        if kind.is("customresourcedefinitions.apiextensions.k8s.io") {
            self.inner.registry.remove_custom(&before.bare());
        }
        self.inner.tables.get_mut(&kind.storage)?.remove(key);
        self.inner.rv += 1;
        let last = Arc::new(Stored::new(before.bare(), self.inner.rv));
        self.record(kind, key.clone(), ChangeKind::Deleted, last.clone(), Some(before));
        Some(last)
    }

    fn record(&mut self, kind: &ResourceKind, key: ObjKey, change: ChangeKind, now: Arc<Stored>, before: Option<Arc<Stored>>) {
        let rv = self.inner.rv;
        let storage = kind.storage.clone();
        self.inner.log.push(Change { rv, kind: change, storage, key, now, before });
    }
}
