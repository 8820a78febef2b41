//! One watch, followed for ever: each object trimmed before it is stored, errors counted, listed from scratch now and
//! then. A failed read deletes nothing: only an event or a full list does. Lists and watches by itself, because kube's
//! watcher swallows bookmarks, and on a quiet cluster they are the only sign that a watch is alive.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc, time::Duration};

use futures::StreamExt as _;
use gpuheal_proto::chain::chain;
use kube::{
    Api, Resource,
    api::{ListParams, WatchParams},
    core::WatchEvent,
    runtime::{
        reflector::{Store, store::Writer},
        watcher::Event,
    },
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::heard::Heard;
use crate::{
    backoff::Backoff,
    chance::chance,
    clock,
    metrics::{self, Metrics},
};

/// Longest that one watch request stays open. The API server sends a bookmark two seconds before the end, so that each
/// watch is heard twice a minute however quiet the cluster is.
const WATCH_TIMEOUT_S: u32 = 30;
/// A watch that is silent beyond its end has died without a word.
const SILENT_AFTER: Duration = Duration::from_secs(WATCH_TIMEOUT_S as u64 + 10);
/// One page of a list, and the answer to a watch request: above what an API server takes for a request.
const ANSWER_WITHIN: Duration = Duration::from_secs(70);
/// Objects in one page: what clients of Kubernetes usually ask for.
const PAGE: u32 = 500;
/// Waits after failures in a row.
const BACKOFF: Backoff = Backoff { base: Duration::from_millis(500), max: Duration::from_secs(30) };

/// Hears of each event.
type Listener<K> = Box<dyn Fn(&Event<K>) + Send>;

/// What is watched, where it goes and who hears of it.
pub(super) struct Follow<K: Resource<DynamicType = ()> + Clone + 'static> {
    pub(super) kind: &'static str,
    pub(super) api: Api<K>,
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) writer: Writer<K>,
    /// Shrinks an object, and tells whether it is kept at all.
    pub(super) trim: fn(&mut K) -> bool,
    /// Called once an event is stored.
    pub(super) seen: Listener<K>,
    pub(super) resync: Duration,
    pub(super) shared: Shared,
}

/// What every watch shares.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) heard: Arc<Heard>,
    pub(super) cancel: CancellationToken,
}

/// Why a list or a watch ended before its time.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("API server did not answer within {}s", ANSWER_WITHIN.as_secs())]
    NoAnswer,
    #[error("nothing was heard for {}s, not even a bookmark", SILENT_AFTER.as_secs())]
    Silent,
    #[error("API server ended the watch: {0}")]
    Status(Box<kube::core::Status>),
}

impl Error {
    /// The version is too old to go on from: all must be listed again.
    fn gone(&self) -> bool {
        match self {
            Self::Kube(kube::Error::Api(status)) | Self::Status(status) => status.code == 410,
            Self::Kube(_) | Self::NoAnswer | Self::Silent => false,
        }
    }
}

impl<K> Follow<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Until cancelled.
    pub(super) async fn run(mut self) {
        self.shared.heard.begin(self.kind);
        let cancel = self.shared.cancel.clone();
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.forever() => {}
        }
    }

    async fn forever(&mut self) {
        let store = self.writer.as_reader();
        let mut failures = 0;
        let mut version: Option<String> = None;
        let mut list_at = Instant::now();
        loop {
            let round = match &mut version {
                Some(version) if Instant::now() < list_at => self.watch(version).await,
                _ => self.list(&store).await.map(|listed| {
                    version = Some(listed);
                    list_at = Instant::now() + self.resync.mul_f64(0.9 + 0.2 * chance(0.5));
                }),
            };
            let Err(error) = round else {
                failures = 0;
                continue;
            };
            tracing::warn!(kind = self.kind, error = %chain(&error), "watch failed, it is tried again");
            self.shared.metrics.inc(metrics::WATCH_ERRORS, &[("kind", self.kind)]);
            if error.gone() {
                version = None;
            }
            tokio::time::sleep(BACKOFF.wait(failures, chance(0.5))).await;
            failures += 1;
        }
    }

    /// All objects, and the version that they are of. What is stored and not among them is gone.
    async fn list(&mut self, store: &Store<K>) -> Result<String, Error> {
        let started = clock::boottime();
        let (api, mut params) = (self.api.clone(), ListParams::default().limit(PAGE));
        (params.label_selector, params.field_selector) = (self.labels.clone(), self.fields.clone());
        let mut there = BTreeSet::new();
        self.take(Event::Init);
        let version = loop {
            let page = timeout(ANSWER_WITHIN, api.list(&params)).await.map_err(|_| Error::NoAnswer)??;
            for object in page.items {
                there.extend(object.meta().uid.clone());
                self.take(Event::InitApply(object));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        let gone = |object: &Arc<K>| object.meta().uid.as_ref().is_none_or(|uid| !there.contains(uid));
        let gone: Vec<_> = store.state().into_iter().filter(gone).collect();
        self.take(Event::InitDone);
        // The list has removed them; whoever listens must hear of it too.
        for object in gone {
            (self.seen)(&Event::Delete(K::clone(&object)));
        }
        self.shared.heard.note(self.kind, started);
        Ok(version)
    }

    /// Changes from `version` on, until the API server ends the watch.
    async fn watch(&mut self, version: &mut String) -> Result<(), Error> {
        let (api, mut params) = (self.api.clone(), WatchParams::default().timeout(WATCH_TIMEOUT_S));
        (params.label_selector, params.field_selector) = (self.labels.clone(), self.fields.clone());
        let events = timeout(ANSWER_WITHIN, api.watch(&params, version)).await.map_err(|_| Error::NoAnswer)??;
        let mut events = events.boxed();
        loop {
            let Some(event) = timeout(SILENT_AFTER, events.next()).await.map_err(|_| Error::Silent)? else { return Ok(()) };
            let heard = clock::boottime();
            match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    advance(version, object.meta().resource_version.clone());
                    self.take(Event::Apply(object));
                }
                WatchEvent::Deleted(object) => {
                    advance(version, object.meta().resource_version.clone());
                    self.take(Event::Delete(object));
                }
                WatchEvent::Bookmark(bookmark) => *version = bookmark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(Error::Status(status)),
            }
            self.shared.heard.note(self.kind, heard);
        }
    }

    fn take(&mut self, event: Event<K>) {
        if let Some(event) = trimmed(event, self.trim) {
            self.writer.apply_watcher_event(&event);
            (self.seen)(&event);
        }
    }
}

fn advance(version: &mut String, to: Option<String>) {
    if let Some(to) = to {
        *version = to;
    }
}

fn trimmed<K>(mut event: Event<K>, trim: fn(&mut K) -> bool) -> Option<Event<K>> {
    let keep = match &mut event {
        Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) => trim(object),
        Event::Init | Event::InitDone => true,
    };
    keep.then_some(event)
}

#[cfg(test)]
mod tests;
